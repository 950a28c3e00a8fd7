"""make gpu-check without a GPU: its steps end in time, and what they wrote is kept."""

import importlib.util
import json
import os
import subprocess
import sys

import pytest

from support import fresh_process
from support.locations import ROOT


@pytest.fixture(scope="module")
def gpu_check():
    specification = importlib.util.spec_from_file_location("gpu_check", ROOT / "bench" / "gpu_check.py")
    module = importlib.util.module_from_spec(specification)
    sys.modules["gpu_check"] = module  # dataclasses look their module up
    specification.loader.exec_module(module)
    yield module
    del sys.modules["gpu_check"]


def step(gpu_check, name, *programs, limit_s=60.0, **variables):
    return gpu_check.Step(name, limit_s, tuple((sys.executable, "-c", program) for program in programs), variables)


def test_steps_go_on_after_failures_and_keep_their_logs(gpu_check, tmp_path, capsys):
    steps = [
        step(gpu_check, "bad", "raise SystemExit(3)", "print('the second command ran')"),
        step(gpu_check, "slow", "import time; print('begun', flush=True); time.sleep(60)", limit_s=2.0),
        step(gpu_check, "good", "import os; print(os.environ['CARRIED'] + os.environ['OWN'])", OWN="own"),
    ]
    assert gpu_check.run_steps(steps, tmp_path / "out", {"CARRIED": "carried, "}) == 1
    outcomes = {name: step["outcome"] for name, step in json.loads((tmp_path / "out/summary.json").read_text()).items()}
    assert outcomes == {"bad": "FAILED with status 3", "slow": "ENDED at its limit of 2 s", "good": "passed"}
    assert (tmp_path / "out/bad.log").read_text().endswith("the second command ran\n")
    assert (tmp_path / "out/slow.log").read_text().endswith("begun\n")
    assert (tmp_path / "out/good.log").read_text().endswith("carried, own\n")
    printed = capsys.readouterr().out
    assert "the end of" in printed
    assert "begun" in printed


def test_step_at_its_limit_takes_its_child_processes_with_it(gpu_check, tmp_path):
    program = (
        "import subprocess, sys; child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)']);"
        "print(child.pid, flush=True); child.wait()"
    )
    slow = step(gpu_check, "slow", program, limit_s=2.0)
    assert gpu_check.run_step(slow, tmp_path / "log", {}).startswith("ENDED")
    pid = (tmp_path / "log").read_text().split()[-1]
    stat = subprocess.run(["ps", "-o", "stat=", "-p", pid], capture_output=True, text=True).stdout.strip()
    assert stat[:1] in ("", "Z")  # letters after the state tell of priorities


def test_every_cuda_step_forbids_triton_and_every_step_has_less_than_ten_minutes(gpu_check, tmp_path, monkeypatch):
    monkeypatch.setattr(gpu_check, "compute_capabilities", lambda: "9.0")
    steps = gpu_check.steps(tmp_path)
    assert [step.name for step in steps][:3] == ["build", "smoke", "occupancy"]
    assert all(step.limit_s < 600 for step in steps)
    for step in steps[2:]:
        expected = "triton" if step.name == "tests-triton" else "cuda"
        assert step.variables["STRUCTOUT_BACKEND"] == expected, step.name


def test_gpu_check_on_a_machine_without_a_gpu_says_what_it_needs():
    run = fresh_process.run("bench/gpu_check.py", cwd=ROOT, env=dict(os.environ))
    assert run.returncode == 2
    assert "make gpu-check needs:\n" in run.stdout
    assert "CUDA" in run.stdout


def collected_tests(*options):
    command = ("-P", "-m", "pytest", "--collect-only", "-q", "--assert=plain", *options)
    return fresh_process.run(*command, "tests/ops", "tests/distributed", cwd=ROOT, env=dict(os.environ)).stdout


def test_marker_gpu_selects_the_tests_of_cuda_and_triton_kernels():
    collected = collected_tests("-m", "gpu")
    assert "test_masked_sample_on_every_path_matches_reference[300-bfloat16]" in collected
    assert "test_masked_sample_on_random_cases_matches_reference[cuda]" in collected
    assert "test_masked_sample_on_random_cases_matches_reference[cpu]" not in collected
    assert "test_push_all_gather_of_many_sizes_gathers_every_byte[triton-1]" in collected


def test_every_sanitizer_runs_a_call_of_every_op(gpu_check):
    for tool in gpu_check.SANITIZERS:
        command = gpu_check.sanitized_calls(tool)
        assert command[:2] == ("compute-sanitizer", f"--tool={tool}")
        assert command[-2].endswith("gpu_smoke.py")
        assert ("kernel_substring=structout" in command) == (tool != "initcheck")
