"""What counts as a token id, whoever hands it over."""

import operator


def token_id(token: object, vocab_size: int) -> int | None:
    """``token`` as an int in ``[0, vocab_size)``; None if it is none: no integer, a bool, a tensor without data, out of
    range."""
    if token is True or token is False:
        return None
    try:
        value = operator.index(token)  # type: ignore[arg-type]  # that it may be anything is the point
    except (TypeError, RuntimeError):
        return None
    return value if 0 <= value < vocab_size else None
