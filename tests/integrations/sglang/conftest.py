"""What the tests of this folder share. Without SGLang they are skipped when they are
collected, so only fixtures import it."""

import pytest


@pytest.fixture(scope="session", autouse=True)
def registered():
    """The plugin is registered with SGLang."""
    from structout.integrations import sglang as adapter

    adapter.register()


@pytest.fixture(scope="session")
def backend():
    """A grammar backend for a tokenizer of single bytes and a few merges."""
    from structout.integrations.sglang.grammar_backend import StructoutGrammarBackend
    from support.sglang_requests import EOS, WIDTH
    from support.tokenizers_on_the_spot import byte_level

    return StructoutGrammarBackend(byte_level(), WIDTH, [EOS])
