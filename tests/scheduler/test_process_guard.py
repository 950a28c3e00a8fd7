"""ForkGuard: the process that made an object, and a fork of it."""

import os

import pytest

from structout.errors import StructOutError
from structout.scheduler.process_guard import ForkGuard


def test_check_in_the_same_process_passes():
    guard = ForkGuard("Thing")
    assert not guard.is_forked()
    guard.check()


def test_check_in_a_forked_process_raises_with_its_cause():
    guard = ForkGuard("Thing")
    child = os.fork()
    if child == 0:
        try:
            with pytest.raises(StructOutError) as caught:
                guard.check()
            message = (
                f"this Thing belongs to process {os.getppid()}, from which this process was forked; its threads and "
                "locks cannot be used here. Create a new one in this process"
            )
            is_right = guard.is_forked() and str(caught.value) == message
        except BaseException:
            is_right = False
        os._exit(0 if is_right else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
