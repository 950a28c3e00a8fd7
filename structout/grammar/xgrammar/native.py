"""xgrammar's calls that keep Python's global lock.

All bindings of xgrammar give the lock away. While another thread runs Python code, each
time may cost a switch interval (5 ms) until the lock comes back, a thousand times what
most of these calls take.
"""

from collections.abc import Callable
from typing import Any

import tvm_ffi
from xgrammar.tvm_ffi_binding import BatchGrammarMatcher, GrammarMatcher


def _keeping_lock(cls: Any, name: str) -> Callable[..., Any]:
    """A method of a binding as a function that keeps the lock.

    Other users of xgrammar in this process keep theirs: the function object is a copy.
    Where the bindings have changed, the method itself.
    """
    try:
        method = next(method.func for method in cls.__tvm_ffi_type_info__.methods if method.name == name)
        function: Any = tvm_ffi.Array([method])[0]  # another object for the same native function
        function.release_gil = False
    except (AttributeError, StopIteration, TypeError):
        return lambda handle, *arguments: getattr(handle, name)(*arguments)
    return function


accept_token = _keeping_lock(GrammarMatcher, "accept_token")
accept_string = _keeping_lock(GrammarMatcher, "accept_string")
rollback = _keeping_lock(GrammarMatcher, "rollback")
is_completed = _keeping_lock(GrammarMatcher, "is_completed")
fill_batch = _keeping_lock(BatchGrammarMatcher, "batch_fill_next_token_bitmask")
