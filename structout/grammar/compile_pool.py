"""Compilation in processes that can be killed, for constraints that may take long."""

import array
import json
import math
import os
import select
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from structout.errors import CompileCrashError, GrammarError, GrammarTimeoutError
from structout.grammar import compile_worker
from structout.grammar.compile_worker import HEADER, frame
from structout.grammar.vocabulary import Vocabulary
from structout.params import StructuredOutputOptions
from structout.process_guard import ForkGuard

_HANDOVER = 1.0  # seconds that serializing may take; a few grammars take minutes and gigabytes
_REAPING = 0.5  # seconds to wait for a killed process; a later start reaps it otherwise
_LARGEST_READ = 1 << 20


class CompileProcessPool:
    """
    Args:
        vocabulary: of the model.
        num_processes: how many at most. Each is started when it is first needed, and then used again.
        memory_bytes: that a process may have beyond what it has when it is ready.

    ``run`` may be called from any thread. Unlike a thread, a process that compiles for too long, or takes too much
    memory, can be stopped; and what it makes of a constraint can be used, or made again in the knowledge that it ends.
    """

    def __init__(self, vocabulary: Vocabulary, *, num_processes: int = 1, memory_bytes: int = 4 << 30):
        lengths = array.array("I", map(len, vocabulary.token_bytes)).tobytes()
        settings = {"stop_token_ids": vocabulary.stop_token_ids, "memory_bytes": memory_bytes}
        parts = (json.dumps(settings).encode(), lengths, b"".join(vocabulary.token_bytes))
        self._opening = b"".join(map(frame, parts))
        self._fork_guard = ForkGuard("CompileProcessPool")
        self._free = threading.BoundedSemaphore(num_processes)
        self._lock = threading.Lock()  # guards what follows
        self._idle: list[_Worker] = []
        self._workers: set[_Worker] = set()
        self._is_closed = False

    def start(self, timeout: float) -> None:
        """Have a process ready, so that the first ``run`` does not wait for its start. Raises as ``run`` does."""
        with self._worker(timeout):
            pass

    def run(self, kind: StructuredOutputOptions, spec: str, any_whitespace: bool, timeout: float) -> bytes | None:
        """Compile as ``XgrammarBackend.compile_native`` does.

        Args:
            kind: what ``spec`` is.
            spec: see :class:`structout.params.Constraint`.
            any_whitespace: as XgrammarBackend's.
            timeout: seconds for all of it, the start of a process included.

        Returns:
            what ``XgrammarBackend.load_grammar`` takes, at most 16 MiB. None: it compiles, but into more than that.

        Raises:
            GrammarTimeoutError: the process was killed, or none was free.
            CompileCrashError: the process ended, for want of memory or otherwise; or the probe is closed.
            GrammarError: the constraint is bad.
            StructOutError: this process was forked from the probe's.
        """
        request = {"kind": kind.value, "spec": spec, "any_whitespace": any_whitespace}
        with self._worker(timeout) as (worker, deadline):
            worker.send(frame(json.dumps(request).encode()), deadline)
            reply = worker.receive(deadline)
            if reply[:1] == compile_worker.OUT_OF_MEMORY:
                raise CompileCrashError("compilation failed: it needs more memory than it may have")
            if reply[:1] == compile_worker.COMPILED:
                reply = _handed_over(worker, deadline)
        if reply[:1] == compile_worker.REFUSED:
            raise GrammarError(reply[1:].decode())
        return reply[1:] if reply[:1] == compile_worker.SERIALIZED else None

    def close(self) -> None:
        """Kill the processes. Whoever waits for one gets a CompileCrashError."""
        if self._fork_guard.is_forked():
            return
        with self._lock:
            self._is_closed = True
            idle, self._idle = self._idle, []
            for worker in self._workers:
                worker.kill()
        for worker in idle:
            worker.end()

    @contextmanager
    def _worker(self, timeout: float) -> Iterator[tuple["_Worker", float]]:
        """A process that is ready, and the deadline. If what is done with it raises, it is killed."""
        self._fork_guard.check()
        deadline = time.monotonic() + timeout
        if not self._free.acquire(timeout=max(0.0, timeout)):
            raise GrammarTimeoutError(f"no compile process was free for {timeout:g} s")
        try:
            worker = self._take()
            try:
                if not worker.is_ready:
                    worker.get_ready(self._opening, deadline)
                yield worker, deadline
            except TimeoutError:
                worker.end()
                raise GrammarTimeoutError(f"the constraint took more than {timeout:g} s to compile") from None
            except BaseException:
                worker.end()
                raise
            finally:
                self._give_back(worker)
        finally:
            self._free.release()

    def _take(self) -> "_Worker":
        with self._lock:
            if self._is_closed:
                raise CompileCrashError("compilation failed: the compile processes are closed")
            while self._idle:
                worker = self._idle.pop()
                if worker.is_alive():
                    return worker
                worker.end()
                self._workers.discard(worker)
            worker = _Worker()
            self._workers.add(worker)
            return worker

    def _give_back(self, worker: "_Worker") -> None:
        with self._lock:
            if worker.is_alive() and not self._is_closed:
                self._idle.append(worker)
                return
            self._workers.discard(worker)
        worker.end()


class _Worker:
    """One process, used by one thread at a time. Waiting for it raises ``TimeoutError`` at the deadline."""

    def __init__(self) -> None:
        command = [sys.executable, "-W", "ignore", "-m", compile_worker.__name__]
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(map(os.path.abspath, sys.path)),  # the very modules of this process
            "PYTHONSAFEPATH": "1",
            "CUDA_VISIBLE_DEVICES": "",
            "OMP_NUM_THREADS": "1",
        }
        pipe = subprocess.PIPE
        try:
            self._process = subprocess.Popen(
                command, stdin=pipe, stdout=pipe, bufsize=0, cwd="/", env=environment, start_new_session=True
            )
        except OSError as error:
            raise CompileCrashError(f"compilation failed: no compile process could be started: {error}") from error
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._input, self._output = self._process.stdin, self._process.stdout
        os.set_blocking(self._input.fileno(), False)
        os.set_blocking(self._output.fileno(), False)
        self.is_ready = False
        self._has_ended = False

    def is_alive(self) -> bool:
        return not self._has_ended and self._process.poll() is None

    def get_ready(self, opening: bytes, deadline: float) -> None:
        self.send(opening, deadline)
        if self.receive(deadline) != compile_worker.READY:
            raise CompileCrashError("compilation failed: the compile process does not answer as it should")
        self.is_ready = True

    def send(self, data: bytes, deadline: float) -> None:
        rest = memoryview(data)
        try:
            while rest:
                _wait(self._input.fileno(), select.POLLOUT, deadline)
                rest = rest[os.write(self._input.fileno(), rest) :]
        except BrokenPipeError:
            raise self._death() from None

    def receive(self, deadline: float) -> bytes:
        (size,) = HEADER.unpack(self._read(HEADER.size, deadline))
        return self._read(size, deadline)

    def kill(self) -> None:
        """Whoever waits for the process gets a CompileCrashError."""
        self._process.kill()

    def end(self) -> None:
        """Kill it and let go of everything. Only where no thread uses it."""
        if self._has_ended:
            return
        self._has_ended = True
        self._process.kill()
        self._input.close()
        self._output.close()
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(_REAPING)

    def _read(self, size: int, deadline: float) -> bytes:
        data = bytearray()
        while len(data) < size:
            _wait(self._output.fileno(), select.POLLIN, deadline)
            part = os.read(self._output.fileno(), min(size - len(data), _LARGEST_READ))
            if not part:
                raise self._death()
            data += part
        return bytes(data)

    def _death(self) -> CompileCrashError:
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(_REAPING)
        return CompileCrashError(f"compilation failed: the compile process ended with {self._process.returncode}")


def _wait(file: int, event: int, deadline: float) -> None:
    poll = select.poll()
    poll.register(file, event)
    remaining = deadline - time.monotonic()
    if remaining <= 0 or not poll.poll(math.ceil(1000 * remaining)):
        raise TimeoutError


def _handed_over(worker: _Worker, deadline: float) -> bytes:
    """The second reply. It is done without where it does not come: the constraint is known to compile."""
    try:
        return worker.receive(min(deadline, time.monotonic() + _HANDOVER))
    except (TimeoutError, CompileCrashError):
        worker.end()
        return compile_worker.TOO_LARGE
