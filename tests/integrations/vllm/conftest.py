"""The models of the tests in this folder, and an engine."""

import pytest


@pytest.fixture(scope="session")
def small_model(tmp_path_factory):
    """The folder of a model with 420 tokens and 512 logits."""
    from support.vllm_models import save_small_model

    return save_small_model(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="session")
def real_model(tmp_path_factory):
    """The folder of SmolLM2-135M-Instruct, for tests of what texts mean."""
    from support.vllm_models import save_real_model

    return save_real_model(tmp_path_factory.mktemp("real_model"))


@pytest.fixture(scope="module")
def plain(small_model):
    """An engine without drafts and without asynchronous scheduling."""
    from support.vllm_engines import engine

    with engine(small_model) as plain:
        yield plain
