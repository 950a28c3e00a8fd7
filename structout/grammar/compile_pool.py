"""Compilation in separate processes, for constraints that may take long."""

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
from dataclasses import asdict, replace

from structout.config import StructuredOutputsConfig
from structout.errors import CompileCrashError, GrammarError, GrammarTimeoutError
from structout.grammar import compile_worker
from structout.grammar.compile_worker import HEADER, frame
from structout.grammar.vocabulary import Vocabulary
from structout.params import Constraint
from structout.process_guard import ForkGuard

_MAX_SERIALIZING = 1.0  # seconds; a few grammars take minutes and gigabytes
_REAPING = 0.5  # seconds to wait for a killed process; otherwise a later start reaps it
_MAX_READ = 1 << 20  # bytes
_CACHE_BYTES = 128 << 20  # the same constraint is seldom compiled twice here


class CompileProcessPool:
    """Processes that compile constraints for one backend.

    Unlike a thread, a process that compiles for too long or takes too much memory can
    be killed. ``run`` may be called from any thread.

    Args:
        vocabulary: the token ids of the model.
        config: the config of the manager.
        factory: the backend's factory, as "module:name" (see ``register_backend``).
        num_processes: the largest number of processes. Each is started when it is first
            needed, and then reused.
        memory_bytes: memory that a process may use beyond what it has when it is ready.
    """

    def __init__(
        self,
        vocabulary: Vocabulary,
        config: StructuredOutputsConfig,
        factory: str,
        *,
        num_processes: int = 1,
        memory_bytes: int = 4 << 30,
    ):
        lengths = array.array("I", map(len, vocabulary.token_bytes)).tobytes()
        settings = {
            "factory": factory,
            "config": asdict(replace(config, cache_bytes=min(config.cache_bytes, _CACHE_BYTES))),
            "stop_token_ids": vocabulary.stop_token_ids,
            "memory_bytes": memory_bytes,
        }
        parts = (json.dumps(settings).encode(), lengths, b"".join(vocabulary.token_bytes))
        self._opening = b"".join(map(frame, parts))
        self._fork_guard = ForkGuard("CompileProcessPool")
        self._free = threading.BoundedSemaphore(num_processes)
        self._lock = threading.Lock()  # guards what follows
        self._idle: list[_Worker] = []
        self._workers: set[_Worker] = set()
        self._is_closed = False

    def start(self, timeout: float) -> None:
        """Start a process, so that the first ``run`` need not wait for it. Raises as
        ``run`` does."""
        with self._worker(timeout):
            pass

    def run(self, constraint: Constraint, timeout: float) -> bytes | None:
        """Compile a constraint.

        Args:
            constraint: what to compile.
            timeout: seconds for everything, including the start of a process.

        Returns:
            What ``load_grammar`` of the backend takes, at most 16 MiB. None if the
            constraint compiles, but into more than that.

        Raises:
            GrammarTimeoutError: the process was killed, or none was free.
            CompileCrashError: the process ended, for lack of memory or otherwise; or
                the pool is closed.
            GrammarError: the constraint is malformed or unsupported.
            StructOutError: this process was forked from the one that made the pool.
        """
        request = {
            "kind": constraint.kind.value,
            "spec": constraint.spec,
            "whitespace_pattern": constraint.whitespace_pattern,
            "lenient": constraint.lenient,
            "schemas": constraint.schemas,
            "key_order": constraint.key_order,
        }
        with self._worker(timeout) as (worker, deadline):
            worker.send(frame(json.dumps(request).encode()), deadline)
            reply = worker.receive(deadline)
            if reply[:1] == compile_worker.OUT_OF_MEMORY:
                raise CompileCrashError("compilation failed: it needs more memory than its process may use")
            if reply[:1] == compile_worker.COMPILED:
                reply = _serialized_reply(worker, deadline)
        if reply[:1] == compile_worker.REFUSED:
            raise GrammarError.from_dict(json.loads(reply[1:]))
        return reply[1:] if reply[:1] == compile_worker.SERIALIZED else None

    def close(self) -> None:
        """Kill the processes. Calls of ``run`` that wait for one raise
        CompileCrashError."""
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
        """Yield a process that is ready, and the deadline. If the body raises, the
        process is killed."""
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
    """One process, used by one thread at a time. Waiting for it raises ``TimeoutError``
    at the deadline."""

    def __init__(self) -> None:
        command = [sys.executable, "-W", "ignore", "-m", compile_worker.__name__]
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(map(os.path.abspath, sys.path)),  # the same modules as in this process
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
            raise CompileCrashError("compilation failed: the compile process did not become ready")
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
        """Kill the process. A thread that waits for it gets a CompileCrashError."""
        self._process.kill()

    def end(self) -> None:
        """Kill the process and close its pipes. No thread may be using it."""
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
            part = os.read(self._output.fileno(), min(size - len(data), _MAX_READ))
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


def _serialized_reply(worker: _Worker, deadline: float) -> bytes:
    """The second reply. If it does not come in time, the process is killed: the
    constraint is known to compile."""
    try:
        return worker.receive(min(deadline, time.monotonic() + _MAX_SERIALIZING))
    except (TimeoutError, CompileCrashError):
        worker.end()
        return compile_worker.TOO_LARGE
