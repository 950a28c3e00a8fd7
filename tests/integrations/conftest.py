"""The random model, built once for the tests of this folder."""

import pytest

from structout import StructuredOutputManager, StructuredOutputsConfig
from structout.cli.random_model import load_random_model


@pytest.fixture(scope="session")
def parts(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("STRUCTOUT_CACHE_DIR", str(tmp_path_factory.mktemp("cache")))
        model, tokenizer, _ = load_random_model()
    tokenizer.pad_token = tokenizer.eos_token
    return model, tokenizer


@pytest.fixture
def manager(parts):
    model, tokenizer = parts
    config = StructuredOutputsConfig(any_whitespace=False)
    with StructuredOutputManager(tokenizer, model.lm_head.weight.shape[0], config) as manager:
        yield manager
