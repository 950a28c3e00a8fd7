"""Makes SGLang importable on a machine without CUDA."""

import importlib.util
import sys
import types
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from unittest import mock

from transformers.utils import is_torchvision_available


class _Anything(types.ModuleType):
    __path__: Sequence[str] = ()

    def __getattr__(self, name: str) -> object:
        if name.startswith("__"):
            raise AttributeError(name)
        return mock.MagicMock(name=name)


class _TorchvisionFinder:
    """Finds empty modules for torchvision and everything in it."""

    def find_spec(self, name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        is_wanted = name.partition(".")[0] == "torchvision"
        return ModuleSpec(name, self, is_package=True) if is_wanted else None  # type: ignore[arg-type]

    def create_module(self, spec: ModuleSpec) -> types.ModuleType:
        return _Anything(spec.name)

    def exec_module(self, module: types.ModuleType) -> None:
        pass


def make_sglang_importable() -> bool:
    """Whether SGLang is installed. If so, its modules can be imported from then on.

    They import torchvision, for images only. Its wheels work with CUDA builds of torch,
    so an empty module takes its place.
    """
    if importlib.util.find_spec("sglang") is None:
        return False
    is_torchvision_available()  # transformers remembers the answer, before there is a module of that name
    if importlib.util.find_spec("torchvision") is None:
        sys.meta_path.append(_TorchvisionFinder())  # type: ignore[arg-type]
    return True
