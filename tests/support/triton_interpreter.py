"""Speeds up Triton's interpreter, which runs the Triton tests without a GPU."""

from __future__ import annotations

import functools
import inspect
from typing import Any

from triton.language.core import is_builtin
from triton.runtime import interpreter


def replace_builtins_once_a_launch() -> None:
    """Skip packages whose builtins the interpreter has replaced already.

    It looks for builtins of triton.language at every call of a device function, which
    took two fifths of the time. A launch replaces them all and restores them at its
    end.
    """
    replace_builtins = interpreter._patch_builtin

    @functools.cache
    def name_of_a_builtin(package: Any) -> str:
        return next(name for name, member in inspect.getmembers(package) if is_builtin(member))

    def replace_builtins_unless_replaced(package: Any, *others: Any) -> None:
        if is_builtin(getattr(package, name_of_a_builtin(package))):
            replace_builtins(package, *others)

    interpreter._patch_builtin = replace_builtins_unless_replaced
