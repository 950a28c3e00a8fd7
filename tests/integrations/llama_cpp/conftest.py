"""The models of the tests in this folder."""

import pytest


@pytest.fixture(scope="session")
def llama():
    """SmolLM2-135M-Instruct."""
    from llama_cpp import Llama

    from structout.cli.smollm2 import find_gguf

    # On a busy machine threads spin while they wait for one another.
    return Llama(str(find_gguf(None)), n_ctx=512, n_threads=1, n_threads_batch=1, verbose=False)


@pytest.fixture
def evaluated(llama, monkeypatch):
    """The tokens of each call of ``llama.eval``, from an empty cache on."""
    calls = []
    llama.reset()

    def evaluate(tokens, original=llama.eval):
        calls.append([*tokens])
        original(tokens)

    monkeypatch.setattr(llama, "eval", evaluate)
    return calls
