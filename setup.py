"""Builds structout's op libraries: the CPU ops always, the CUDA ops where nvcc is. Never asks for a GPU.

STRUCTOUT_BUILD_CUDA=auto (default: if nvcc is found) | 1 (fail without nvcc) | 0 (never).
"""

import os
import shutil
import subprocess
from pathlib import Path

from setuptools import Extension, find_packages, setup
from torch.utils.cpp_extension import BuildExtension, CppExtension, include_paths

STABLE_ABI_2_10 = "-DTORCH_TARGET_VERSION=0x020a000000000000ULL"
CUDA_ARCHITECTURES = ("80", "90", "100")
CSRC = str(Path("csrc").resolve())  # ninja compiles in another folder


def sources(*patterns: str) -> list[str]:
    return sorted(str(path) for pattern in patterns for path in Path("csrc").glob(pattern))


def find_nvcc() -> str | None:
    wish = os.environ.get("STRUCTOUT_BUILD_CUDA", "auto")
    if wish not in ("auto", "0", "1"):
        raise SystemExit(f"STRUCTOUT_BUILD_CUDA must be auto, 1 or 0, got {wish!r}")
    if wish == "0":
        return None
    toolkit = os.environ.get("CUDA_HOME", "/usr/local/cuda")
    nvcc = shutil.which("nvcc") or shutil.which("nvcc", path=f"{toolkit}/bin")
    if nvcc is None and wish == "1":
        raise SystemExit(
            "STRUCTOUT_BUILD_CUDA=1, but nvcc is not on PATH nor in $CUDA_HOME/bin: install the CUDA toolkit"
        )
    if nvcc is None:
        print("structout: no nvcc, building without the CUDA ops; Triton will serve CUDA tensors")
    return nvcc


def gencode_flags(nvcc: str) -> list[str]:
    """Machine code for every architecture this nvcc knows, and PTX of the newest for those to come."""
    known = subprocess.run([nvcc, "--list-gpu-arch"], capture_output=True, text=True, check=True).stdout.split()
    architectures = [arch for arch in CUDA_ARCHITECTURES if f"compute_{arch}" in known]
    newest = architectures[-1]
    return [f"-gencode=arch=compute_{arch},code=sm_{arch}" for arch in architectures] + [
        f"-gencode=arch=compute_{newest},code=compute_{newest}"
    ]


class BuildOps(BuildExtension):
    """Torch's own build for C++; nvcc alone for CUDA, because BuildExtension wants a CUDA build of torch for that."""

    def build_extension(self, ext: Extension) -> None:
        if not isinstance(ext, CudaExtension):
            return super().build_extension(ext)
        library = self.get_ext_fullpath(ext.name)
        Path(library).parent.mkdir(parents=True, exist_ok=True)
        command = [ext.nvcc, "-shared", "-O3", "-std=c++17", "-Xcompiler=-fPIC,-fvisibility=hidden", "--threads=0"]
        command += ["-fmad=false"]  # a fused multiply-add would change the bits of a draw
        command += ["-cudart=static"]  # so that one build serves torch for CUDA 12 and 13
        command += [STABLE_ABI_2_10, "-DUSE_CUDA", f"-I{CSRC}", *(f"-isystem={path}" for path in include_paths())]
        command += [*gencode_flags(ext.nvcc), *ext.cuda_sources, "-o", library]
        print(" ".join(command), flush=True)
        if subprocess.run(command).returncode != 0:
            raise SystemExit(
                "structout: nvcc failed, see above. To install without the CUDA ops: STRUCTOUT_BUILD_CUDA=0"
            )


class CudaExtension(Extension):
    """Its sources are kept from setuptools and torch, which would refuse .cu files here."""

    def __init__(self, name: str, cuda_sources: list[str], nvcc: str):
        super().__init__(name, sources=[], py_limited_api=True)
        self.cuda_sources = cuda_sources
        self.nvcc = nvcc


def extensions() -> list[Extension]:
    cpu = CppExtension(
        "structout._C",
        sources("*.cpp", "bindings/*.cpp", "bindings/cpu/*.cpp", "cpu/*.cpp"),
        include_dirs=[CSRC],
        # Without contraction: a fused multiply-add would change the bits of a draw.
        extra_compile_args=[
            *("-O3", "-std=c++17", "-fvisibility=hidden", STABLE_ABI_2_10),
            *("-ffp-contract=off", "-fno-trapping-math", "-fno-math-errno"),
        ],
        depends=sources("bindings/*.h", "bindings/cpu/*.h", "common/*.h", "cpu/*.h", "cpu/*.inc"),
        py_limited_api=True,
    )
    nvcc = find_nvcc()
    if nvcc is None:
        return [cpu]
    cuda_sources = sources("bindings/*.cpp", "bindings/cuda/*.cpp", "cuda/*.cu")
    return [cpu, CudaExtension("structout._C_cuda", cuda_sources, nvcc)]


setup(
    packages=[*find_packages(include=["structout", "structout.*"]), "structout.triton_kernels"],
    package_dir={"structout": "structout", "structout.triton_kernels": "triton_kernels"},
    ext_modules=extensions(),
    cmdclass={"build_ext": BuildOps.with_options(no_python_abi_suffix=True)},
)
