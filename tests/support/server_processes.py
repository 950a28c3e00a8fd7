"""Servers in a process of their own."""

import os
import re
import signal
import socket
import subprocess
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

_START_SECONDS = 900
_ERROR = re.compile("error|traceback|fatal|segmentation", re.IGNORECASE)


def free_ports(count: int) -> list[int]:
    sockets = [socket.socket() for _ in range(count)]
    for each in sockets:
        each.bind(("127.0.0.1", 0))
    ports = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return ports


@contextmanager
def running(command: Sequence[str], variables: Mapping[str, str], log: Path, urls: Iterable[str]) -> Iterator[int]:
    """Run a process whose servers at ``urls`` answer ``/health``. Gives its number.

    Args:
        command: the process.
        variables: its environment variables beside those of this process.
        log: the file that gets its output.
        urls: the addresses of its servers.

    Raises:
        AssertionError: the servers did not start, or the process ended by itself.
    """
    with log.open("w") as output:
        process = subprocess.Popen(command, stdout=output, stderr=output, env=os.environ | variables)
        try:
            for url in urls:
                _wait_for(process, url, log)
            yield process.pid
            assert process.poll() is None, _errors_in(log)
        finally:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(60)
            finally:
                process.kill()


def _wait_for(process: subprocess.Popen[Any], url: str, log: Path) -> None:
    import httpx  # comes with vLLM

    deadline = time.monotonic() + _START_SECONDS
    while time.monotonic() < deadline:
        assert process.poll() is None, _errors_in(log)
        try:
            if httpx.get(f"{url}/health", timeout=5).status_code == 200:
                return
        except httpx.HTTPError:
            pass
        time.sleep(0.5)
    raise AssertionError(_errors_in(log))


def _errors_in(log: Path) -> str:
    """The first lines from an error on, which is the cause of those after it, and the
    last lines."""
    lines = log.read_text().splitlines()
    first = next((i for i, line in enumerate(lines) if _ERROR.search(line)), len(lines))
    return "\n".join([*lines[first : first + 40], "[...]", *lines[first + 40 :][-20:]])
