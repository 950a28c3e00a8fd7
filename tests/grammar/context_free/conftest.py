"""The engines whose dialects grammars are written in."""

import pytest

from support.grammar_cases import Llguidance, Xgrammar


@pytest.fixture(scope="session")
def llguidance():
    return Llguidance()


@pytest.fixture(scope="session")
def xgrammar():
    return Xgrammar()
