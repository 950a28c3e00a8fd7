"""`structout doctor`: versions, which kernels serve each device, and what is broken or missing, with the fix."""

import importlib.metadata
import platform
import sys

import torch

from structout import _kernels, envs
from structout._version import __version__


def main() -> int:
    """Print the diagnosis. 1 if something is broken, which is more than missing."""
    broken = _broken()
    print(_report(broken))
    return 1 if broken else 0


def _report(broken: list[str]) -> str:
    loaded = _kernels.load()
    cpu = "none" if loaded.broken else f"C++, {_cpu_capability()}, {torch.get_num_threads()} threads"
    cuda = {"cuda": "CUDA C++", "triton": "Triton", None: "none"}[loaded.cuda]
    lines = [f"structout {__version__}  python {platform.python_version()}  {platform.platform()}"]
    lines += [f"  {name:<13}{_version(name)}" for name in ("torch", "triton", "xgrammar", "transformers", "jsonschema")]
    lines += ["", "kernels", f"  {'cpu':<13}{cpu}", f"  {'cuda':<13}{cuda}, {_devices()}"]
    lines += ["", "ranks that share a model", f"  {'cpu':<13}{_between_cpus()}", f"  {'cuda':<13}{_between_gpus()}"]
    missing = [*loaded.missing, *_missing_for_generate()]
    for title, items in (("broken", broken), ("missing", missing)):
        if items:
            lines += ["", title, *(f"  {item}" for item in items)]
    if not broken and not missing:
        lines += ["", "nothing is missing"]
    return "\n".join(lines)


def _broken() -> list[str]:
    loaded = _kernels.load()
    broken = [] if loaded.broken is None else [loaded.broken]
    if loaded.broken is None and loaded.cuda is None and torch.cuda.is_available():
        broken.append("there is a CUDA device, but no kernels for it: see what is missing")
    if _version("xgrammar") == "not installed":
        broken.append("the manager needs xgrammar: pip install xgrammar==0.2.8")
    return broken


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


def _between_cpus() -> str:
    by_group = "the process group's own backend"
    return f"shared memory on one host, {by_group} between hosts" if envs.shared_memory() else by_group


def _between_gpus() -> str:
    count = torch.cuda.device_count()
    if count < 2:
        return "fewer than two devices here"
    reachable = all(torch.cuda.can_device_access_peer(i, j) for i in range(count) for j in range(count) if i != j)
    return "push kernels over symmetric memory" if reachable else "NCCL: devices do not reach each other's memory"


def _missing_for_generate() -> list[str]:
    absent = [name for name in ("transformers", "jsonschema") if _version(name) == "not installed"]
    needs = f"structout generate needs {' and '.join(absent)}; from structout's checkout: "
    return [f"{needs}pip install --no-build-isolation '.[generate]'"] if absent else []


if __name__ == "__main__":
    sys.exit(main())
