"""One manager for each tokenizer and width of logits, for callers that bring none."""

import os
import threading
import weakref
from typing import Any

from structout.scheduler.manager import StructuredOutputManager

_lock = threading.Lock()
# By tokenizer, then by process and width: a manager serves the process that made it.
_managers: weakref.WeakKeyDictionary[Any, dict[tuple[int, int], StructuredOutputManager]] = weakref.WeakKeyDictionary()


def shared_manager(tokenizer: Any, vocab_size: int) -> StructuredOutputManager:
    """The manager of a tokenizer and a width of logits, made at the first call.

    It compiles a constraint once for all who share it. It lives as long as the
    tokenizer; a child process makes its own.

    Args:
        tokenizer: a Hugging Face tokenizer.
        vocab_size: V, the width of the model's lm_head.

    Raises:
        TypeError: not a tokenizer.
        ValueError: the tokenizer does not fit the width, or its tokens cannot be read.
    """
    key = os.getpid(), vocab_size
    with _lock:
        managers = _managers.get(tokenizer, {})
        if key not in managers:
            # A manager that held its tokenizer would keep its own key alive.
            managers[key] = StructuredOutputManager(weakref.proxy(tokenizer), vocab_size)
            _managers[tokenizer] = managers
        return managers[key]
