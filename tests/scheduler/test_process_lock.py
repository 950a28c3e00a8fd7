"""ProcessLock: its holder, the process that made it, and a fork of that."""

import os
import threading

import pytest

from structout.errors import StructOutError
from structout.scheduler.process_lock import ProcessLock


def test_lock_knows_whether_this_thread_holds_it():
    lock = ProcessLock("Thing")
    elsewhere = []
    assert not lock.is_held()
    with lock:
        assert lock.is_held()
        thread = threading.Thread(target=lambda: elsewhere.append(lock.is_held()))
        thread.start()
        thread.join()
    assert elsewhere == [False]
    assert not lock.is_held()


def test_deferred_calls_are_made_after_the_outermost_region():
    lock, calls = ProcessLock("Thing"), []

    def call():
        with lock:
            calls.append(lock.is_held())

    with lock:
        with lock:
            for _ in range(10_000):
                lock.defer(call)
        assert calls == []
    assert calls == [True] * 10_000


def test_lock_in_a_forked_process_raises_with_its_cause_also_while_another_thread_held_it():
    lock = ProcessLock("Thing")
    is_held, is_over = threading.Event(), threading.Event()

    def hold():
        with lock:
            is_held.set()
            is_over.wait(60)

    thread = threading.Thread(target=hold)
    thread.start()
    assert is_held.wait(60)
    child = os.fork()
    if child == 0:
        try:
            with pytest.raises(StructOutError) as caught, lock:
                pass
            message = (
                f"this Thing belongs to process {os.getppid()}, from which this process was forked; its threads and "
                "locks cannot be used here. Create a new one in this process"
            )
            is_right = lock.is_forked() and str(caught.value) == message
        except BaseException:
            is_right = False
        os._exit(0 if is_right else 1)
    is_over.set()
    thread.join(60)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
