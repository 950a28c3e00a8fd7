"""SGLang: a grammar backend and a sampler, both named ``structout``.

SGLang finds :func:`register` by the entry point group ``sglang.srt.plugins`` and calls
it in each of its processes. ``--grammar-backend structout`` and ``--sampling-backend
structout`` then select them. ``STRUCTOUT_SGLANG=0`` registers nothing.
"""

import sys
import warnings
from importlib.metadata import version

from structout import envs

__all__ = ["KNOWN_VERSIONS", "NAME", "register"]

KNOWN_VERSIONS = ("0.5.23",)  # of SGLang; others may differ in what the adapter overrides
NAME = "structout"

_SAMPLER_MODULE = "sglang.srt.layers.sampler"


def register() -> None:
    """Make the grammar backend and the sampler known to SGLang.

    With a version of SGLang that the adapter was not written for, it warns once and
    registers nothing, so that SGLang works as without structout.
    """
    if not envs.sglang():
        return
    installed = version("sglang")
    if installed.partition("+")[0] not in KNOWN_VERSIONS:  # builds for other devices add +cpu or the like
        warnings.warn(
            f"structout supports SGLang {' and '.join(KNOWN_VERSIONS)}, got {installed}: its grammar backend and "
            "its sampler are not available; STRUCTOUT_SGLANG=0 silences this warning",
            RuntimeWarning,
            stacklevel=2,
        )
        return
    _register_grammar_backend()
    _register_sampler()


def _register_grammar_backend() -> None:
    from sglang.srt.arg_groups.choices import GRAMMAR_BACKEND_CHOICES, add_grammar_backend_choices
    from sglang.srt.constrained.base_grammar_backend import register_grammar_backend

    from structout.integrations.sglang.factory import create_grammar_backend

    if NAME not in GRAMMAR_BACKEND_CHOICES:
        add_grammar_backend_choices([NAME])
    register_grammar_backend(NAME, create_grammar_backend)


def _register_sampler() -> None:
    """Register the sampler where it can be made.

    SGLang makes samplers in its scheduler processes, which have imported its sampler
    before they load plugins. Other processes only read the name from the command line.
    Importing the sampler there would load CUDA kernels into the frontend.
    """
    from sglang.srt.arg_groups.choices import SAMPLING_BACKEND_CHOICES

    SAMPLING_BACKEND_CHOICES.add(NAME)
    if _SAMPLER_MODULE in sys.modules:
        from sglang.srt.layers.sampler import register_sampler_backend

        from structout.integrations.sglang.token_sampler import StructoutSampler

        register_sampler_backend(NAME, StructoutSampler)
