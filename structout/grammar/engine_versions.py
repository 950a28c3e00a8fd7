"""Versions of the grammar engines that the support tables were measured on.

The tables say what an engine enforces, which differs between versions. A version
between two measured ones counts as the older of them. A version that was never measured
is used with one warning.
"""

import re
import warnings
from functools import cache
from importlib.metadata import version

# The oldest and newest are also what `make test-engines` installs.
MEASURED_VERSIONS = {
    "llguidance": ("1.7.6", "1.9.1"),
    "xgrammar": ("0.2.7", "0.2.8"),
}

# The first measured version that does what the name says. Older versions do not.
LLGUIDANCE_ESCAPES_IN_NAMES = "1.9.1"  # json_allowed_escapes also applies to the names of properties
LLGUIDANCE_WHITESPACE_PATTERN = "1.9.1"  # a whitespace_pattern is matched once, not repeatedly
XGRAMMAR_NEGATED_CLASSES = "0.2.8"  # excludes characters above U+007F from [^...]


@cache
def is_at_least(engine: str, measured: str) -> bool:
    """Whether the installed version of ``engine`` is ``measured`` or a later one."""
    return _numbers(_installed_version(engine)) >= _numbers(measured)


@cache
def warn_if_unmeasured(engine: str) -> None:
    """Warn, once per process, if the installed version of ``engine`` was never
    measured."""
    installed = _installed_version(engine)
    if installed not in MEASURED_VERSIONS[engine]:
        warnings.warn(
            f"{engine} {installed} was not measured: which constraints it enforces was measured on "
            f"{engine} {' and '.join(MEASURED_VERSIONS[engine])}, and is assumed of this version too",
            RuntimeWarning,
            stacklevel=2,
        )


def _installed_version(engine: str) -> str:
    return version(engine)


def _numbers(text: str) -> tuple[int, ...]:
    """The leading numbers of a version: (0, 2, 5) for 0.2.5.post1."""
    match = re.match(r"\d+(?:\.\d+)*", text)
    return tuple(map(int, match.group().split("."))) if match else ()
