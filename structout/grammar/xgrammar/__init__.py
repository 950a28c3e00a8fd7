"""The xgrammar engine."""

import importlib.util

if importlib.util.find_spec("xgrammar") is None:
    raise ImportError("structout's manager needs xgrammar, which is not installed: pip install 'structout[manager]'")
