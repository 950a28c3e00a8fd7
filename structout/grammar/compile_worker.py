"""The process behind ``CompileProcessPool``: compiles constraints as XgrammarBackend does, until its input ends.

Both directions carry frames: a length of 8 bytes, then that many bytes. In come the settings (JSON), the length of each
token (uint32) and the tokens' bytes; then one request (JSON) after the other. Out comes READY, and to each request one
of the other replies, COMPILED followed by a second one. The first byte of a reply says which it is.
"""

import array
import contextlib
import json
import os
import queue
import resource
import struct
import threading
from pathlib import Path
from typing import Any, BinaryIO

from structout.errors import GrammarError
from structout.grammar.vocabulary import Vocabulary
from structout.grammar.xgrammar.backend import XgrammarBackend
from structout.params import StructuredOutputOptions

HEADER = struct.Struct("<Q")
READY = b"+"
REFUSED = b"!"  # and why
COMPILED = b"c"  # and is now being serialized
SERIALIZED = b"="  # and the compiled grammar
TOO_LARGE = b">"  # to hand over
OUT_OF_MEMORY = b"m"  # the process ends

MAX_SERIALIZED = 16 << 20  # bytes; above, the parent compiles faster than it reads
_MAX_COMPILED = 4 << 20  # bytes in memory that are worth a try: as text they were seen to be 1 to 14 times as many
_CACHE_BYTES = 16 << 20  # xgrammar's cache: what is asked here is seldom asked twice


def frame(data: bytes) -> bytes:
    return HEADER.pack(len(data)) + data


def main() -> None:
    replies = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # whatever prints must not speak for us
    requests: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    threading.Thread(target=_read_requests, args=(requests,), daemon=True).start()
    settings = json.loads(requests.get())
    vocabulary = _read_vocabulary(settings["stop_token_ids"], requests.get(), requests.get())
    _limit_memory(settings["memory_bytes"])
    compilers = {
        any_whitespace: XgrammarBackend(vocabulary, any_whitespace=any_whitespace, cache_bytes=_CACHE_BYTES)
        for any_whitespace in (False, True)
    }
    _reply(replies, READY)
    while True:
        request = json.loads(requests.get())
        try:
            _serve(request, compilers[request["any_whitespace"]], replies)
        except MemoryError:
            _reply(replies, OUT_OF_MEMORY)
            os._exit(1)


def _serve(request: dict[str, Any], backend: XgrammarBackend, replies: BinaryIO) -> None:
    try:
        compiled = backend.compile_native(StructuredOutputOptions(request["kind"]), request["spec"])
    except GrammarError as error:
        _reply(replies, REFUSED, str(error).encode())
        return
    serialized = b""
    if compiled.memory_size_bytes <= _MAX_COMPILED:
        _reply(replies, COMPILED)
        serialized = compiled.serialize_json().encode()
    if 0 < len(serialized) <= MAX_SERIALIZED:
        _reply(replies, SERIALIZED, serialized)
    else:
        _reply(replies, TOO_LARGE)


def _reply(replies: BinaryIO, code: bytes, data: bytes = b"") -> None:
    replies.write(frame(code + data))
    replies.flush()


def _read_requests(requests: queue.SimpleQueue[bytes]) -> None:
    """On a thread of its own, so that the process ends with its parent in the middle of a compilation."""
    with os.fdopen(0, "rb") as source:
        while header := source.read(HEADER.size):
            requests.put(source.read(*HEADER.unpack(header)))
    os._exit(0)


def _read_vocabulary(stop_token_ids: list[int], lengths: bytes, text: bytes) -> Vocabulary:
    tokens = []
    start = 0
    for length in array.array("I", lengths):
        tokens.append(text[start : start + length])
        start += length
    return Vocabulary(tuple(tokens), tuple(stop_token_ids))


def _limit_memory(memory_bytes: int) -> None:
    """Allow that much beyond what the process has already, and be the first to go where the machine has none left."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    limit = pages * resource.getpagesize() + memory_bytes
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000")


if __name__ == "__main__":
    main()
