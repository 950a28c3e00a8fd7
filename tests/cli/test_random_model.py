"""The cache of the random model: concurrent builds, damage, side effects of a build."""

import os

import pytest
import torch

from structout.cli import random_model
from structout.cli.random_model import NAME, load_random_model
from support import fresh_process


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("STRUCTOUT_CACHE_DIR", str(tmp_path))
    return tmp_path


def num_builds(cache):
    """Load the model. Return how many builds that took."""
    builds = []
    model, tokenizer, directory = load_random_model(on_build=lambda: builds.append(1))
    assert directory == cache / NAME
    assert model.get_output_embeddings().weight.shape[0] == random_model.LM_HEAD_WIDTH
    assert tokenizer.eos_token == random_model.END
    return len(builds)


def test_load_random_model_builds_once_and_again_when_damaged(cache):
    (cache / f"{NAME}.partial").mkdir()  # left by a build that was killed
    (cache / f"{NAME}.partial" / "half a file").touch()
    assert num_builds(cache) == 1
    assert num_builds(cache) == 0
    first = {
        key: value.clone() for key, value in load_random_model()[0].state_dict().items()
    }  # the files are memory-mapped
    for name in ("model.safetensors", "config.json", "tokenizer.json"):
        (cache / NAME / name).write_text("damaged")
        assert num_builds(cache) == 1
        assert num_builds(cache) == 0
    (cache / NAME / "model.safetensors").unlink()
    assert num_builds(cache) == 1
    assert sorted(path.name for path in cache.iterdir()) == [NAME, f"{NAME}.lock"]
    again = load_random_model()[0].state_dict()
    assert all(torch.equal(first[key], again[key]) for key in first)
    expected = 0o777 & ~_umask()
    assert (cache / NAME).stat().st_mode & 0o777 == expected


def _umask():
    mask = os.umask(0)
    os.umask(mask)
    return mask


def test_load_random_model_keeps_the_random_state_of_the_caller(cache):
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    assert num_builds(cache) == 1
    assert torch.equal(torch.rand(3), expected)


def test_load_random_model_in_two_processes_builds_once(cache):
    script = "from structout.cli.random_model import load_random_model as load; load(on_build=lambda: print('built'))"
    runs = fresh_process.run_at_once(("-c", script), ("-c", script), env=dict(os.environ))
    assert [run.returncode for run in runs] == [0, 0], [run.stderr for run in runs]
    assert sorted(run.stdout for run in runs) == ["", "built\n"]


def test_load_random_model_with_an_unwritable_cache_names_it(cache, monkeypatch):
    (cache / "file").touch()
    monkeypatch.setenv("STRUCTOUT_CACHE_DIR", str(cache / "file"))
    with pytest.raises(OSError, match="file"):
        load_random_model()
