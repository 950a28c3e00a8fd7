"""The scripts of examples/ as modules."""

import importlib.util
from types import ModuleType

from support.locations import ROOT

EXAMPLES = ROOT / "examples"


def load_example(name: str) -> ModuleType:
    """Import a script of examples/ without running its ``main``."""
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
