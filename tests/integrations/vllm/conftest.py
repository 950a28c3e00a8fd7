"""The model of the tests in this folder."""

import pytest


@pytest.fixture(scope="session")
def small_model(tmp_path_factory):
    """The folder of a model with 420 tokens and 512 logits."""
    from support.vllm_models import save_small_model

    return save_small_model(tmp_path_factory.mktemp("model"))
