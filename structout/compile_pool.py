"""Threads for compilations: however long one takes, nothing waits for it, not even the end of the process."""

import atexit
import threading
import time
from collections import deque
from collections.abc import Callable

_LAST_WAIT = 1.0  # seconds that the end of the process gives to compilations under way
_threads: set[threading.Thread] = set()
_process_ends = threading.Event()


class CompilePool:
    """Runs tasks in order, at most ``num_threads`` at a time, each thread living only as long as there is work.

    The threads are daemons, because a native compilation cannot be interrupted, and the interpreter would join any
    other thread (``ThreadPoolExecutor``'s too) before it exits.
    """

    def __init__(self, num_threads: int):
        self._num_threads = num_threads
        self._num_running = 0
        self._tasks: deque[Callable[[], None]] = deque()
        self._lock = threading.Lock()

    def submit(self, task: Callable[[], None]) -> None:
        """``task`` must not raise."""
        with self._lock:
            if self._num_running < self._num_threads:
                threading.Thread(target=self._run, args=(task,), name="structout-compile", daemon=True).start()
                self._num_running += 1
            else:
                self._tasks.append(task)

    def discard_waiting(self) -> None:
        """Forget the tasks that no thread has begun."""
        with self._lock:
            self._tasks.clear()

    def _run(self, task: Callable[[], None]) -> None:
        _threads.add(threading.current_thread())
        while True:
            task()
            with self._lock:
                if not self._tasks or _process_ends.is_set():
                    self._num_running -= 1
                    break
                task = self._tasks.popleft()
        _threads.discard(threading.current_thread())


@atexit.register
def _let_short_ones_end() -> None:
    """Before 3.14, Python ends a daemon thread that comes back from native code while the interpreter goes down, and
    C++ answers that with an abort. Few compilations take longer than this wait, and fewer end just after it."""
    _process_ends.set()
    deadline = time.monotonic() + _LAST_WAIT
    for thread in list(_threads):
        thread.join(max(0.0, deadline - time.monotonic()))
