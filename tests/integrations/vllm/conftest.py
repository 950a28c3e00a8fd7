"""The model of the tests in this folder, and an engine of it."""

import pytest


@pytest.fixture(scope="session")
def small_model(tmp_path_factory):
    """The folder of a model with 420 tokens and 512 logits."""
    from support.vllm_models import save_small_model

    return save_small_model(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def plain(small_model):
    """An engine without drafts and without asynchronous scheduling."""
    from support.vllm_engines import engine

    with engine(small_model) as plain:
        yield plain
