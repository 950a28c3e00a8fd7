"""Compiles Triton kernels for GPUs that need not be there, and reads what is rounded in their PTX."""

from __future__ import annotations

import inspect
import json
import os
import re
import subprocess
import sys
from dataclasses import asdict, dataclass

from structout.triton_kernels import masked_sample

_SCRIPT = """
import importlib, json, sys, triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

architecture, kernels = json.loads(sys.argv[1])
for wanted in kernels:
    kernel = getattr(importlib.import_module("structout.triton_kernels." + wanted["module"]), wanted["name"])
    constants, pointers = wanted["constants"], {name: "*" + type for name, type in wanted["pointers"].items()}
    signature = dict.fromkeys(kernel.arg_names, "i32") | pointers | dict.fromkeys(constants, "constexpr")
    aligned = {(kernel.arg_names.index(name),): [["tt.divisibility", 16]] for name in wanted["aligned"]}
    source = ASTSource(kernel, signature, constants, aligned)
    options = {"num_warps": wanted["num_warps"], "enable_fp_fusion": False}
    compiled = triton.compile(source, target=GPUTarget("cuda", architecture, 32), options=options)
    assert len(compiled.asm["cubin"]) > 1000
    print(compiled.asm["ptx"])
"""


@dataclass
class Kernel:
    """A kernel of structout.triton_kernels as it is launched. Arguments that are no pointers are int32."""

    module: str
    name: str
    pointers: dict[str, str]
    constants: dict[str, object]
    aligned: tuple[str, ...] = ()
    num_warps: int = 4


def compile_for(architecture: int, *kernels: Kernel) -> str:
    """The PTX. In a process of its own: this one may have decorated the kernels for the interpreter."""
    environment = {key: value for key, value in os.environ.items() if key != "TRITON_INTERPRET"}
    wanted = json.dumps([architecture, [asdict(kernel) for kernel in kernels]])
    run = subprocess.run(
        [sys.executable, "-c", _SCRIPT, wanted], env=environment, capture_output=True, text=True, timeout=300
    )
    assert run.returncode == 0, run.stderr
    return run.stdout


def assert_operations_are_rounded_once(ptx: str) -> None:
    operations = re.findall(r"^\s*(?:@!?%p\d+\s+)?([a-z][\w.:]*)", ptx, re.MULTILINE)
    inexact = [op for op in operations if re.match(r"(fma|mad)\..*f\d", op) or re.search(r"\.(ftz|approx|full)\b", op)]
    assert not inexact
    # Of an add, sub or mul without .rn, PTX says that it may be fused with another; those that say .rn may not be.
    arithmetic = {op for op in operations if re.match(r"(add|sub|mul|div|sqrt|rcp)\.(\w+\.)*b?f\d+", op)}
    assert {"add.rn.f32", "mul.rn.f32", "div.rn.f32"} <= arithmetic
    assert all(".rn.f32" in op for op in arithmetic), arithmetic


def masked_sample_kernel(logits: str, *, has_all: bool, is_shard: bool = False) -> Kernel:
    """For logits of a type of Triton's, with all arguments that may be absent or with the mask alone."""
    parameters = inspect.signature(masked_sample.masked_sample_kernel.fn).parameters
    constants = {name: has_all for name in parameters if name.startswith("HAS_")} | {"HAS_MASK": True}
    constants |= {"IS_SHARD": is_shard, "TILE": masked_sample.TILE}
    constants |= {"IDLE_KEY_BITS": {"fp32": 0, "fp16": 12, "bf16": 16}[logits]}
    pointers = {"logits": logits, "temperature": "fp32", "top_p": "fp32", "min_p": "fp32", "logprobs": "fp32"}
    pointers |= {"bitmask": "i32", "rows": "i64", "top_k": "i32", "seed": "i64", "position": "i64", "ids": "i64"}
    pointers |= {"lists": "i32", "outcomes": "i32"}
    aligned = ("logits", "lists", "ids", "logprobs", "outcomes", "vocab_begin", "vocab_end", "logits_row_stride")
    return Kernel("masked_sample", "masked_sample_kernel", pointers, constants, aligned, masked_sample.NUM_WARPS)
