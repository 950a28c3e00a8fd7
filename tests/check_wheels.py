"""`make wheels`: the files of a release are complete, portable and small, and the wheel
runs in a new environment.

    python tests/check_wheels.py FOLDER    the sdist and the wheels of a folder
    python tests/check_wheels.py --demo    the structout that is installed here
"""

import resource
import subprocess
import sys
import tempfile
import venv
from pathlib import Path

MAX_MEGABYTES = 20.0
MAX_CPU_SECONDS = 60  # from an installed wheel to the first text; the demo model is made, too
DEMO = ("generate", "--choice", "yes", "--choice", "no", "--seed", "7")


def main(folder: Path) -> None:
    (sdist,) = folder.glob("*.tar.gz")
    wheels = sorted(folder.glob("*.whl"))
    assert wheels, f"{folder} has no wheel"
    run(sys.executable, "-m", "twine", "check", "--strict", sdist, *wheels)
    for wheel in wheels:
        megabytes = wheel.stat().st_size / 1e6
        print(f"{wheel.name}: {megabytes:.1f} MB")
        assert megabytes < MAX_MEGABYTES, f"the limit is {MAX_MEGABYTES} MB"
        print(run(sys.executable, "-m", "auditwheel", "show", wheel).strip())
        if f"cp{sys.version_info.major}{sys.version_info.minor}-" in wheel.name:
            check_in_new_environment(wheel)


def check_in_new_environment(wheel: Path) -> None:
    """Install a wheel beside the packages of this environment, and write a text."""
    with tempfile.TemporaryDirectory() as folder:
        venv.create(folder, with_pip=False, symlinks=True)
        python = Path(folder, "bin", "python")
        packages = Path(next(Path(folder, "lib").iterdir()), "site-packages")
        run(sys.executable, "-m", "pip", "install", "-qq", "--no-deps", "--no-index", "--target", packages, wheel)
        # Its editable structout is named by a .pth file, which is not read from here.
        here = [path for path in sys.path if path.endswith("site-packages")]
        (packages / "borrowed.pth").write_text("\n".join(here))
        check_demo(python, Path(folder))


def check_demo(python: Path, folder: Path) -> None:
    """Write a text with the structout that a Python has installed."""
    environment = {"PATH": "/usr/bin:/bin", "HOME": str(folder), "PYTHONSAFEPATH": "1"}
    code = "import structout; print(structout.__file__)"
    print(f"installed: {run(python, '-c', code, cwd=folder, env=environment).strip()}")
    seconds_before = cpu_seconds_of_children()
    text = run(python, "-m", "structout", *DEMO, cwd=folder, env=environment)
    assert text.strip() in ("yes", "no"), text
    seconds = cpu_seconds_of_children() - seconds_before
    print(f"first text: {text.strip()}, after {seconds:.1f} CPU seconds")
    assert seconds < MAX_CPU_SECONDS, f"the limit is {MAX_CPU_SECONDS}"


def cpu_seconds_of_children() -> float:
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def run(*command: object, **options: object) -> str:
    result = subprocess.run([*map(str, command)], capture_output=True, text=True, **options)
    if result.returncode != 0:
        raise SystemExit(f"{command} failed:\n{result.stdout}{result.stderr}")
    return result.stdout


if __name__ == "__main__":
    if sys.argv[1:] == ["--demo"]:
        with tempfile.TemporaryDirectory() as home:
            check_demo(Path(sys.executable), Path(home))
    else:
        main(Path(sys.argv[1]))
