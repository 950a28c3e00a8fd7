"""Requests that reach the engine unchecked, as from vLLM's frontend in Rust: those that
are bad are answered with the reason, and end nothing else."""

from collections.abc import Callable, Sequence
from typing import Any

import msgspec
from vllm.exceptions import VLLMValidationError
from vllm.v1.engine import EngineCoreRequest

# The path of the sampling parameters in a message of msgspec.
_SAMPLING_PARAMS = f"$[{EngineCoreRequest.__struct_fields__.index('sampling_params')}]."


class UnreadableRequest(EngineCoreRequest):  # type: ignore[misc]  # mypy does not read vLLM
    """A request one of whose values has a wrong type.

    Attributes:
        reason: which one.
    """

    reason: str = ""


def decoding(decoder: type[Any]) -> type[Any]:
    """Make the replacement of ``MsgpackDecoder``, which gives a request that it cannot
    read as one that is refused."""

    class RequestDecoder(decoder):  # type: ignore[misc]  # mypy knows no class of a variable
        def __init__(self, t: Any = None, **options: Any):
            super().__init__(t, **options)
            self._reads_requests = t is EngineCoreRequest

        def decode(self, bufs: Any) -> Any:
            try:
                return super().decode(bufs)
            except msgspec.ValidationError as error:
                if not self._reads_requests:
                    raise
                return _unreadable(bufs if isinstance(bufs, bytes | bytearray | memoryview) else bufs[0], error)

    return RequestDecoder


def _unreadable(data: Any, error: msgspec.ValidationError) -> UnreadableRequest:
    """What is left of a request: who waits for its answer."""
    values: Sequence[Any] = msgspec.msgpack.decode(data, ext_hook=lambda code, extension: None)
    given = dict(zip(EngineCoreRequest.__struct_fields__, values, strict=False))
    required = dict.fromkeys(EngineCoreRequest.__struct_fields__[: -len(EngineCoreRequest.__struct_defaults__)])
    known = {name: given[name] for name in ("request_id", "client_index", "external_req_id") if name in given}
    return UnreadableRequest(**(required | known), reason=str(error))


def preprocessing(preprocess: Callable[..., Any]) -> Callable[..., Any]:
    """Make the replacement of ``EngineCore.preprocess_add_request``."""

    def preprocess_add_request(self: Any, request: Any) -> Any:
        if isinstance(request, UnreadableRequest):
            reason = request.reason.replace(_SAMPLING_PARAMS, "")
            raise VLLMValidationError(f"the request cannot be read: {reason}")
        return preprocess(self, request)

    return preprocess_add_request
