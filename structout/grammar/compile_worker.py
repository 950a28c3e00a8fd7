"""The process of a ``CompileProcessPool``. It compiles constraints until its input
ends.

Both directions carry frames: a length of 8 bytes, then that many bytes. The input is
the settings (JSON), the length of each token (uint32) and the bytes of the tokens,
followed by one request (JSON) after the other. The output is READY, and one of the
other replies for each request. COMPILED is followed by a second reply. The first byte
of a reply says which one it is.
"""

import array
import contextlib
import importlib
import json
import os
import queue
import resource
import struct
import threading
from functools import reduce
from pathlib import Path
from typing import Any, BinaryIO

from structout.config import StructuredOutputsConfig
from structout.errors import GrammarError
from structout.grammar.interface import StructuredOutputBackend
from structout.grammar.vocabulary import Vocabulary
from structout.limits import Limits
from structout.params import Constraint, StructuredOutputOptions

HEADER = struct.Struct("<Q")
READY = b"+"
REFUSED = b"!"  # followed by GrammarError.as_dict
COMPILED = b"c"  # serializing has begun
SERIALIZED = b"="  # followed by the compiled grammar
TOO_LARGE = b">"  # to be serialized
OUT_OF_MEMORY = b"m"  # the process ends

MAX_SERIALIZED = 16 << 20  # bytes; compiling again is faster than reading more


def frame(data: bytes) -> bytes:
    return HEADER.pack(len(data)) + data


def main() -> None:
    replies = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # prints must not end up among the replies
    requests: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    threading.Thread(target=_read_requests, args=(requests,), daemon=True).start()
    settings = json.loads(requests.get())
    vocabulary = _read_vocabulary(settings["stop_token_ids"], requests.get(), requests.get())
    _limit_memory(settings["memory_bytes"])
    backend = _make_backend(settings["factory"], vocabulary, settings["config"])
    _reply(replies, READY)
    while True:
        request = json.loads(requests.get())
        try:
            _serve(request, backend, replies)
        except MemoryError:
            _reply(replies, OUT_OF_MEMORY)
            os._exit(1)


def load_factory(name: str) -> Any:
    """Return the object that "module:qualified.name" refers to.

    Raises:
        ImportError, AttributeError: there is none.
    """
    module, _, qualified_name = name.partition(":")
    return reduce(getattr, qualified_name.split("."), importlib.import_module(module))


def _make_backend(factory: str, vocabulary: Vocabulary, config: dict[str, Any]) -> StructuredOutputBackend:
    limits = Limits(**config.pop("limits"))
    backend: StructuredOutputBackend = load_factory(factory)(
        vocabulary, StructuredOutputsConfig(limits=limits, **config), None
    )
    return backend


def _serve(request: dict[str, Any], backend: StructuredOutputBackend, replies: BinaryIO) -> None:
    constraint = Constraint(
        StructuredOutputOptions(request["kind"]),
        request["spec"],
        whitespace_pattern=request["whitespace_pattern"],
        lenient=request["lenient"],
        schemas=tuple(map(tuple, request["schemas"])),
        key_order=request["key_order"],
    )
    try:
        native = backend.compile_native(constraint)
    except GrammarError as error:
        _reply(replies, REFUSED, json.dumps(error.as_dict()).encode())
        return
    _reply(replies, COMPILED)
    serialized = backend.serialize(native, MAX_SERIALIZED)
    if serialized is None:
        _reply(replies, TOO_LARGE)
    else:
        _reply(replies, SERIALIZED, serialized)


def _reply(replies: BinaryIO, code: bytes, data: bytes = b"") -> None:
    replies.write(frame(code + data))
    replies.flush()


def _read_requests(requests: queue.SimpleQueue[bytes]) -> None:
    """Runs on its own thread, so that the process ends with its parent even while it
    compiles."""
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
    """Limit further memory, and be the first process to be killed when the machine runs
    out of it."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    limit = pages * resource.getpagesize() + memory_bytes
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000")


if __name__ == "__main__":
    main()
