"""Compiled constraints in files, so that a server starts warm."""

import contextlib
import hashlib
import logging
import os
import tempfile
import threading
from pathlib import Path

_HEADER = b"structout compiled constraint 1\n"
_SUFFIX = ".compiled"
_CHECKSUM_BYTES = hashlib.sha256().digest_size
_KEPT_FRACTION = 0.75  # of the bound, after files have been removed

_log = logging.getLogger("structout.grammar")


class CompiledFiles:
    """Serialized constraints in a directory, by key. Threads and processes may share
    it.

    Each file has a checksum; one that is damaged counts as missing. When the files
    exceed the bound, those that were not used for the longest time are removed. If the
    directory cannot be read or written, nothing is found and nothing saved, with one
    warning.

    Args:
        directory: made if it does not exist. Whoever can write to it decides what
            requests may generate.
        max_bytes: the bound on the size of all files together.
    """

    def __init__(self, directory: str | os.PathLike[str], max_bytes: int):
        self._directory = Path(directory)
        self._max_bytes = max_bytes
        self._num_bytes: int | None = None  # of all files; None before the first was saved
        self._has_warned = False
        self._lock = threading.Lock()  # held while files are counted or removed

    def load(self, key: bytes) -> bytes | None:
        """Return the data saved with the key, or None. It marks the file as just used,
        so that older ones are removed first."""
        path = self._path(key)
        try:
            content = path.read_bytes()
            os.utime(path)
        except FileNotFoundError:
            return None
        except OSError as error:
            self._warn(error)
            return None
        data = content[len(_HEADER) + _CHECKSUM_BYTES :]
        return data if content == _framed(data) else None

    def save(self, key: bytes, data: bytes) -> None:
        """Save the data, unless it exceeds the bound alone."""
        content = _framed(data)
        if len(content) > self._max_bytes:
            return
        try:
            self._directory.mkdir(parents=True, exist_ok=True)
            self._write(self._path(key), content)
            with self._lock:
                self._num_bytes = self._measure() if self._num_bytes is None else self._num_bytes + len(content)
                if self._num_bytes > self._max_bytes:
                    self._remove_oldest()
        except OSError as error:
            self._warn(error)

    def _path(self, key: bytes) -> Path:
        return self._directory / (key.hex() + _SUFFIX)

    def _write(self, path: Path, content: bytes) -> None:
        """Write the file under another name first: others never see half of it."""
        handle, name = tempfile.mkstemp(dir=self._directory, suffix=f"{_SUFFIX}.new")
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(content)
            Path(name).replace(path)
        except BaseException:
            with contextlib.suppress(OSError):
                Path(name).unlink()
            raise

    def _measure(self) -> int:
        return sum(size for _, size, _ in self._files())

    def _remove_oldest(self) -> None:
        files = sorted(self._files())
        self._num_bytes = sum(size for _, size, _ in files)
        for _, size, path in files:
            if self._num_bytes <= _KEPT_FRACTION * self._max_bytes:
                break
            path.unlink(missing_ok=True)  # another process may have removed it
            self._num_bytes -= size

    def _files(self) -> list[tuple[float, int, Path]]:
        """The time of the last use, the size and the path of each file."""
        found = []
        with os.scandir(self._directory) as entries:
            for entry in entries:
                with contextlib.suppress(FileNotFoundError):
                    if entry.name.endswith(_SUFFIX):
                        status = entry.stat()
                        found.append((status.st_mtime, status.st_size, Path(entry.path)))
        return found

    def _warn(self, error: OSError) -> None:
        if not self._has_warned:
            self._has_warned = True
            _log.warning("compiled constraints are not kept in %s: %s", self._directory, error)


def _framed(data: bytes) -> bytes:
    return _HEADER + hashlib.sha256(data).digest() + data
