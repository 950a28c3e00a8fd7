"""Compiles Triton kernels for GPUs that need not be there, and checks rounding in their
PTX."""

from __future__ import annotations

import atexit
import functools
import inspect
import json
import os
import re
import subprocess
import sys
from dataclasses import asdict, dataclass

from structout.triton_kernels import masked_sample

_SCRIPT = """
import importlib, json, sys, traceback, triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

def compile_kernel(architecture, request):
    kernel = getattr(importlib.import_module("structout.triton_kernels." + request["module"]), request["name"])
    constants, pointers = request["constants"], {name: "*" + type for name, type in request["pointers"].items()}
    signature = dict.fromkeys(kernel.arg_names, "i32") | pointers | dict.fromkeys(constants, "constexpr")
    aligned = {(kernel.arg_names.index(name),): [["tt.divisibility", 16]] for name in request["aligned"]}
    source = ASTSource(kernel, signature, constants, aligned)
    options = {"num_warps": request["num_warps"], "enable_fp_fusion": False}
    compiled = triton.compile(source, target=GPUTarget("cuda", architecture, 32), options=options)
    assert len(compiled.asm["cubin"]) > 1000
    return compiled.asm["ptx"]

for line in sys.stdin:
    architecture, requests = json.loads(line)
    try:
        answer = {"ptx": "\\n".join(compile_kernel(architecture, request) for request in requests)}
    except Exception:
        answer = {"error": traceback.format_exc()}
    print(json.dumps(answer), flush=True)
"""


@dataclass
class Kernel:
    """A kernel of structout.triton_kernels and its launch options.

    Arguments that are not pointers are int32.
    """

    module: str
    name: str
    pointers: dict[str, str]
    constants: dict[str, object]
    aligned: tuple[str, ...] = ()
    num_warps: int = 4


def compile_for(architecture: int, *kernels: Kernel) -> str:
    """Return the PTX of kernels for one architecture, such as 90."""
    process = _compiler()
    print(json.dumps([architecture, [asdict(kernel) for kernel in kernels]]), file=process.stdin, flush=True)
    answer = json.loads(process.stdout.readline())
    assert "ptx" in answer, answer["error"]
    return answer["ptx"]


@functools.cache
def _compiler() -> subprocess.Popen[str]:
    """Start a process that compiles: this one may have decorated the kernels for the
    interpreter."""
    environment = {key: value for key, value in os.environ.items() if key != "TRITON_INTERPRET"}
    command = [sys.executable, "-c", _SCRIPT]
    process = subprocess.Popen(command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    atexit.register(process.kill)
    return process


def assert_operations_are_rounded_once(ptx: str) -> None:
    operations = re.findall(r"^\s*(?:@!?%p\d+\s+)?([a-z][\w.:]*)", ptx, re.MULTILINE)
    inexact = [op for op in operations if re.match(r"(fma|mad)\..*f\d", op) or re.search(r"\.(ftz|approx|full)\b", op)]
    assert not inexact
    # PTX allows an add, sub or mul without .rn to be fused with another; with .rn it
    # does not.
    arithmetic = {op for op in operations if re.match(r"(add|sub|mul|div|sqrt|rcp)\.(\w+\.)*b?f\d+", op)}
    assert {"add.rn.f32", "mul.rn.f32", "div.rn.f32"} <= arithmetic
    assert all(".rn.f32" in op for op in arithmetic), arithmetic


def masked_sample_kernel(logits: str, *, has_all: bool, is_shard: bool = False) -> Kernel:
    """Return the kernel for logits of a Triton type.

    Args:
        has_all: Whether all optional arguments are given, or only the mask.
    """
    parameters = inspect.signature(masked_sample.masked_sample_kernel.fn).parameters
    constants = {name: has_all for name in parameters if name.startswith("HAS_")} | {"HAS_MASK": True}
    constants |= {"IS_SHARD": is_shard, "TILE": masked_sample.TILE}
    constants |= {"IDLE_KEY_BITS": {"fp32": 0, "fp16": 12, "bf16": 16}[logits]}
    pointers = {"logits": logits, "temperatures": "fp32", "top_p": "fp32", "min_p": "fp32", "logprobs": "fp32"}
    pointers |= {"bitmask": "i32", "rows": "i64", "top_k": "i32", "seed": "i64", "position": "i64", "ids": "i64"}
    pointers |= {"lists": "i32", "shard_results": "i32"}
    aligned = ("logits", "lists", "ids", "logprobs", "shard_results", "vocab_begin", "vocab_end", "logits_row_stride")
    return Kernel("masked_sample", "masked_sample_kernel", pointers, constants, aligned, masked_sample.NUM_WARPS)
