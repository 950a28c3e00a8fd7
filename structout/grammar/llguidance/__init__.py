"""The llguidance engine."""

import importlib.util

if importlib.util.find_spec("llguidance") is None:
    raise ImportError("structout's manager needs llguidance, which is not installed: pip install 'structout[manager]'")
