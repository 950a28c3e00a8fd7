"""Calls a function once torch has been imported, by whom ever."""

import importlib.abc
import sys
from collections.abc import Callable, Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType


def after_import(function: Callable[[], None]) -> None:
    """Call a function at the end of the first import of torch, or at once if that is
    over.

    The function may import modules that import torch, but none of them may be what has
    imported it first. So packages whose modules the function imports do that
    themselves, in front of all of their modules.
    """
    if sys.modules.get("torch") is not None:
        function()
    else:
        sys.meta_path.insert(0, _TorchFinder(function))


class _TorchFinder(importlib.abc.MetaPathFinder):
    """Finds torch where the other finders do, with a loader that calls a function."""

    def __init__(self, function: Callable[[], None]):
        self._function = function

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name != "torch":
            return None
        others = (finder for finder in sys.meta_path if finder is not self and hasattr(finder, "find_spec"))
        spec = next(filter(None, (finder.find_spec(name, path, target) for finder in others)), None)
        if spec is not None and spec.loader is not None:
            self._extend(spec.loader)
        return spec

    def _extend(self, loader: importlib.abc.Loader) -> None:
        load = loader.exec_module

        def load_and_call(module: ModuleType) -> None:
            load(module)
            if self in sys.meta_path:
                sys.meta_path.remove(self)
                self._function()

        loader.exec_module = load_and_call  # type: ignore[method-assign]
