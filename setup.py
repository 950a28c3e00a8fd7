"""Builds structout's op libraries, the CPU ops always and the CUDA ops if nvcc is
found, and the module with the engine of constraints.

The build uses the torch that is installed. It needs neither a CUDA build of torch nor a
GPU. Environment variables:

* ``STRUCTOUT_BUILD_CUDA``: ``auto`` (default: if nvcc is found), ``1`` (fail without
  nvcc) or ``0`` (never).
* ``STRUCTOUT_CUDA_ARCHS``: compute capabilities to compile for, such as ``"90"`` or
  ``"8.0 9.0"``. Default: ``TORCH_CUDA_ARCH_LIST``, or else 80, 90 and 100 as far as
  nvcc knows them. The newest one is also kept as PTX, which later GPUs compile when
  they load it.
* ``STRUCTOUT_BUILD_UNITY``: ``1`` (default) compiles several files of the engine at a
  time, which takes a third of the time; ``0`` compiles each alone, so that a change
  compiles one file only. ``make dev`` sets it.
"""

import importlib.metadata
import os
import re
import shlex
import shutil
import subprocess
import sysconfig
from pathlib import Path

from setuptools import Extension, find_packages, setup

# Nothing below this point works with older versions, so they are checked before torch
# is imported and before setup() reads pyproject.toml.
BUILD_REQUIREMENTS = {"torch": (2, 10), "setuptools": (77,), "ninja": (1,), "pybind11": (3,)}


def check_build_requirements() -> None:
    problems = []
    for name, minimum in BUILD_REQUIREMENTS.items():
        needed = f"{name}>={'.'.join(map(str, minimum))}"
        try:
            installed = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            problems.append((needed, f"{name} is not installed"))
            continue
        if tuple(int(part) for part in re.findall(r"\d+", installed)[:2]) < minimum:
            problems.append((needed, f"{name} is {installed}"))
    if problems:
        packages = " ".join(f"'{needed}'" for needed, _ in problems)
        causes = "; ".join(cause for _, cause in problems)
        raise SystemExit(f"structout cannot be built: {causes}. First run: pip install {packages}")


check_build_requirements()  # before the imports below, which fail without a reason

import pybind11  # noqa: E402
from setuptools.command.build_ext import build_ext  # noqa: E402
from torch.utils.cpp_extension import BuildExtension, CppExtension, include_paths  # noqa: E402

STABLE_ABI_2_10 = "-DTORCH_TARGET_VERSION=0x020a000000000000ULL"
DEFAULT_CUDA_ARCHS = ("80", "90", "100")
# A CUDA build of torch loads these before structout is imported.
TORCH_LIBRARIES = ("libtorch_cpu.so", "libtorch_cuda.so")
CSRC = Path("csrc").resolve()  # ninja compiles in another folder
# The folders of csrc with the engine that compiles and follows constraints, and how
# many parts of about the same size each of them is compiled in. Two cores should have
# work. Each part reads the headers again and, in the bindings, compiles pybind11's
# templates again: one part of the bindings takes 35 CPU seconds, two take 42.
ENGINE_PARTS = {
    "automata": 2,
    "token_masks": 1,
    "language": 1,
    "grammar": 2,
    "json": 2,
    "bindings/engine": 1,
}
# The kernel that masks numpy rows, which the engine's module has beside the ops.
MASK_SOURCES = ["csrc/cpu/apply_bitmask.cpp", "csrc/cpu/capability.cpp"]

# torch looks for ninja on PATH, where an environment that is not activated does not
# have it.
os.environ["PATH"] = f"{sysconfig.get_path('scripts')}{os.pathsep}{os.environ.get('PATH', '')}"


def find_sources(*patterns: str) -> list[str]:
    return sorted(str(path) for pattern in patterns for path in Path("csrc").glob(pattern))


def find_nvcc() -> str | None:
    requested = os.environ.get("STRUCTOUT_BUILD_CUDA", "auto")
    if requested not in ("auto", "0", "1"):
        raise SystemExit(f"STRUCTOUT_BUILD_CUDA must be auto, 1 or 0, got {requested!r}")
    if requested == "0":
        return None
    toolkit = os.environ.get("CUDA_HOME", "/usr/local/cuda")
    nvcc = shutil.which("nvcc") or shutil.which("nvcc", path=f"{toolkit}/bin")
    if nvcc is None and requested == "1":
        raise SystemExit(
            "STRUCTOUT_BUILD_CUDA=1, but nvcc is not on PATH nor in $CUDA_HOME/bin: install the CUDA toolkit"
        )
    if nvcc is None:
        print("structout: nvcc not found, building without the CUDA ops; Triton kernels serve CUDA tensors instead")
    return nvcc


def cuda_architectures(nvcc: str) -> list[str]:
    """The architectures to compile for, such as ["80", "90"], oldest first."""
    command = [nvcc, "--list-gpu-arch"]
    listed = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
    known = [name.removeprefix("compute_") for name in listed]
    for variable in ("STRUCTOUT_CUDA_ARCHS", "TORCH_CUDA_ARCH_LIST"):
        requested = os.environ.get(variable, "").replace(";", " ").replace(",", " ").split()
        if requested:
            break
    else:
        return [arch for arch in DEFAULT_CUDA_ARCHS if arch in known]
    # "9.0a+PTX" is 90 here: the kernels use no instruction of one architecture only.
    architectures = {re.sub(r"[af]?(\+PTX)?$", "", name).replace(".", ""): name for name in requested}
    unknown = [name for arch, name in architectures.items() if arch not in known]
    if unknown:
        raise SystemExit(
            f"{variable}={os.environ[variable]!r}: {nvcc} does not know {' '.join(unknown)}; "
            f"choose from {' '.join(known)}"
        )
    return sorted(architectures, key=int)


def gencode_flags(architectures: list[str]) -> list[str]:
    """Machine code for every architecture, and PTX of the newest for later ones."""
    newest = architectures[-1]
    return [f"-gencode=arch=compute_{arch},code=sm_{arch}" for arch in architectures] + [
        f"-gencode=arch=compute_{newest},code=compute_{newest}"
    ]


class CudaExtension(Extension):
    """A library that nvcc compiles. setuptools and torch refuse .cu files here, so
    ``sources`` stays empty."""

    def __init__(self, name: str, cuda_sources: list[str], nvcc: str):
        super().__init__(name, sources=[], py_limited_api=True)
        self.cuda_sources = cuda_sources
        self.nvcc = nvcc
        self.architectures = cuda_architectures(nvcc)


class BuildOps(BuildExtension):
    """Builds the CPU library as torch does and the CUDA library with nvcc and ninja.

    BuildExtension cannot build the CUDA library: it requires a CUDA build of torch.
    """

    def run(self) -> None:
        # One folder for editable installs, which would compile everything in a new one
        # each time, and for wheels. ninja knows what was compiled with other options.
        self.build_temp = str(Path("build", "editable"))
        super().run()

    def get_ext_filename(self, ext_name: str) -> str:
        """The file name of an extension.

        The module of the automata is made for one version of Python, which its name
        tells. The op libraries contain no Python code.
        """
        if ext_name.rpartition(".")[2] == "_fsm":
            return build_ext.get_ext_filename(self, ext_name)
        return super().get_ext_filename(ext_name)

    def build_extension(self, ext: Extension) -> None:
        if ext.name == "structout._fsm" and os.environ.get("STRUCTOUT_BUILD_UNITY", "1") != "0":
            ext.sources = write_parts(ext.sources, Path(self.build_temp, "parts"))
        if not isinstance(ext, CudaExtension):
            return super().build_extension(ext)
        library = Path(self.get_ext_fullpath(ext.name)).resolve()
        library.parent.mkdir(parents=True, exist_ok=True)
        build = Path(self.build_temp).resolve() / "cuda"
        build.mkdir(parents=True, exist_ok=True)
        (build / "build.ninja").write_text(ninja_rules(ext, library, link_stubs(build / "stubs")))
        print(f"structout: {ext.nvcc} compiles for sm_{', sm_'.join(ext.architectures)}", flush=True)
        jobs = [f"-j{os.environ['MAX_JOBS']}"] if os.environ.get("MAX_JOBS") else []
        if subprocess.run(["ninja", "-C", str(build), "--quiet", *jobs]).returncode != 0:
            raise SystemExit(
                "structout: nvcc failed, see above. To install without the CUDA ops: STRUCTOUT_BUILD_CUDA=0"
            )
        return None


def write_parts(sources: list[str], folder: Path) -> list[str]:
    """Write files that each include some of the sources of a room of the engine.

    Files that have not changed keep their time, so that ninja compiles what has.
    """
    folder.mkdir(parents=True, exist_ok=True)
    parts = [source for source in sources if source in MASK_SOURCES]
    for room, num_parts in ENGINE_PARTS.items():
        of_room = [source for source in sources if Path("csrc", room) in Path(source).parents]
        total, size, texts = sum(Path(source).stat().st_size for source in of_room), 0, [""] * num_parts
        for source in of_room:
            texts[size * num_parts // total] += f'#include "{Path(source).relative_to("csrc")}"\n'
            size += Path(source).stat().st_size
        for number, text in enumerate(texts):
            part = folder / f"{room.replace('/', '_')}_{number}.cpp"
            if not part.exists() or part.read_text() != text:
                part.write_text(text)
            parts.append(str(part))
    return parts


def link_stubs(folder: Path) -> Path:
    """Makes empty libraries with the names of torch's libraries, and returns their
    folder.

    The CUDA library has to name torch's libraries as needed: torch does not make its
    symbols global. A CPU build of torch has no libtorch_cuda.so to link against. The
    names are enough, because the loader finds the libraries of these names that torch
    has loaded.
    """
    folder.mkdir(exist_ok=True)
    compiler = os.environ.get("CC", "cc").split()
    for name in TORCH_LIBRARIES:
        command = [*compiler, "-shared", f"-Wl,-soname,{name}", "-x", "c", os.devnull, "-o", str(folder / name)]
        subprocess.run(command, check=True)
    return folder


def ninja_rules(ext: CudaExtension, library: Path, stubs: Path) -> str:
    """Rules that run one nvcc process for each source file, and only for files that
    have changed."""

    def escape(path: object) -> str:
        return re.sub(r"([$: ])", r"$\1", str(path))

    flags = ["-O3", "-std=c++17", "-Xcompiler=-fPIC,-fvisibility=hidden,-g0", STABLE_ABI_2_10, "-DUSE_CUDA"]
    flags += ["-fmad=false"]  # a fused multiply-add would change the bits of a draw
    flags += ["--threads=0"]  # compile for several architectures at a time, as many as there are cores
    flags += [f"-I{CSRC}", *(f"-isystem={path}" for path in include_paths()), *gencode_flags(ext.architectures)]
    # --no-as-needed: the linker drops libraries that define no symbol. As arguments of
    # -Xlinker the stubs stay after this option; nvcc moves other arguments.
    stub_flags = ["--push-state", "--no-as-needed", *(str(stubs / name) for name in TORCH_LIBRARIES), "--pop-state"]
    link_flags = ["-cudart=static", f"-Xlinker={','.join([*stub_flags, '-s'])}"]
    objects = {source: f"{Path(source).relative_to('csrc')}.o".replace("/", ".") for source in ext.cuda_sources}
    lines = [
        "rule compile",
        f"  command = {shlex.join([ext.nvcc, *flags])} -MD -MF $out.d -c $in -o $out",
        "  depfile = $out.d",
        "  deps = gcc",
        "rule link",
        f"  command = {shlex.join([ext.nvcc, '-shared', *link_flags])} $in -o $out",
        *(f"build {output}: compile {escape(Path(source).resolve())}" for source, output in objects.items()),
        f"build {escape(library)}: link {' '.join(objects.values())}",
    ]
    return "\n".join(lines) + "\n"


def extensions() -> list[Extension]:
    cpu = CppExtension(
        "structout._C",
        find_sources("*.cpp", "bindings/*.cpp", "bindings/cpu/*.cpp", "cpu/*.cpp"),
        include_dirs=[str(CSRC)],
        extra_compile_args=[
            *("-O3", "-g0", "-std=c++17", "-fvisibility=hidden", STABLE_ABI_2_10),
            # A fused multiply-add would change the bits of a draw.
            *("-ffp-contract=off", "-fno-trapping-math", "-fno-math-errno"),
        ],
        extra_link_args=["-Wl,-s"],
        depends=find_sources("bindings/*.h", "bindings/cpu/*.h", "common/*.h", "cpu/*.h", "cpu/*.inc"),
        py_limited_api=True,
    )
    fsm = Extension(
        "structout._fsm",
        find_sources(*(f"{room}/**/*.cpp" for room in ENGINE_PARTS)) + MASK_SOURCES,
        include_dirs=[str(CSRC), pybind11.get_include()],
        extra_compile_args=["-O2", "-g0", "-std=c++17", "-fvisibility=hidden", "-Wall", "-Wextra"],
        extra_link_args=["-Wl,-s"],
        depends=find_sources(
            "base/*.h", *(f"{room}/**/*.{end}" for room in [*ENGINE_PARTS, "cpu"] for end in ("h", "inc"))
        ),
        language="c++",
    )
    nvcc = find_nvcc()
    if nvcc is None:
        return [cpu, fsm]
    kernels = find_sources("cuda/*.cu")
    if not kernels:
        raise SystemExit("structout: csrc/cuda is missing. To build without the CUDA ops: STRUCTOUT_BUILD_CUDA=0")
    cuda_sources = find_sources("bindings/*.cpp", "bindings/cuda/*.cpp") + kernels
    return [cpu, fsm, CudaExtension("structout._C_cuda", cuda_sources, nvcc)]


setup(
    packages=[*find_packages(include=["structout", "structout.*"]), "structout.triton_kernels"],
    py_modules=["structout_cli"],
    package_dir={"structout": "structout", "structout.triton_kernels": "triton_kernels"},
    ext_modules=extensions(),
    cmdclass={"build_ext": BuildOps.with_options(no_python_abi_suffix=True)},
)
