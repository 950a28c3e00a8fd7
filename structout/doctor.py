"""`structout doctor`: versions, which kernels serve each device, and what is missing, with the fix."""

import importlib.metadata
import platform
import sys

import torch

from structout import backends
from structout._version import __version__


def report() -> str:
    """The whole diagnosis as text."""
    loaded = backends.load()
    lines = [f"structout {__version__}  python {platform.python_version()}  {platform.platform()}"]
    lines += [f"  {name:<13}{_version(name)}" for name in ("torch", "triton", "xgrammar", "transformers", "jsonschema")]
    lines += ["", "kernels", f"  {'cpu':<13}C++, {_cpu_capability()}, {torch.get_num_threads()} threads"]
    cuda = {"cuda": "CUDA C++", "triton": "Triton", None: "none"}[loaded.cuda]
    lines.append(f"  {'cuda':<13}{cuda}, {_devices()}")
    missing = [*loaded.missing, *_missing_for_generate()]
    lines += ["", "missing", *(f"  {item}" for item in missing)] if missing else ["", "nothing is missing"]
    return "\n".join(lines)


def _version(name: str) -> str:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"


def _cpu_capability() -> str:
    return str(torch.ops.structout._cpu_capability())


def _devices() -> str:
    names = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    return ", ".join(names) if names else "no device"


def _missing_for_generate() -> list[str]:
    absent = [name for name in ("transformers", "jsonschema") if _version(name) == "not installed"]
    return [f"structout generate needs {' and '.join(absent)}: pip install 'structout[generate]'"] if absent else []


if __name__ == "__main__":
    sys.stdout.write(report() + "\n")
