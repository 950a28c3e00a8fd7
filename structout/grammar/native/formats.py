r"""The formats of JSON Schema as regular expressions, in the dialect of docs/native.md.

They follow the standards that JSON Schema names. Some are wider: the labels of
``idn-email`` are checked by their shape only, and a host name inside of another format
may have more than 253 characters. ``regex``, ``idn-hostname`` and ``hostname`` are
narrower: a host name has no labels ``xn--``, and a leap second has the offset ``Z`` or
``+00:00``, but for schemas that ask for them under a negation.
"""

import itertools
from dataclasses import dataclass
from functools import cache
from typing import Any

from structout.grammar.native.extension import core
from structout.grammar.native.regex_format import REGEX


@dataclass(frozen=True)
class Format:
    """The values of a format.

    Attributes:
        expressions: regular expressions of the whole value, which match all of them.
        max_length: how many characters a value may have.
        is_narrower: whether the standard allows more values. A schema that a value may
            satisfy by not having such a format is refused.
    """

    expressions: tuple[str, ...]
    max_length: int | None = None
    is_narrower: bool = False


_DAYS_31 = "(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])"
_DAYS_30 = "(?:0[469]|11)-(?:0[1-9]|[12][0-9]|30)"
_FEBRUARY = "02-(?:0[1-9]|1[0-9]|2[0-8])"
_LEAP_YEAR = "(?:[0-9]{2}(?:0[48]|[2468][048]|[13579][26])|(?:[02468][048]|[13579][26])00)"
_DATE = f"(?:[0-9]{{4}}-(?:{_DAYS_31}|{_DAYS_30}|{_FEBRUARY})|{_LEAP_YEAR}-02-29)"

_HOUR_AND_MINUTE = "(?:[01][0-9]|2[0-3]):[0-5][0-9]"
_FRACTION = r"(?:\.[0-9]+)?"
_TIME = (
    f"(?:{_HOUR_AND_MINUTE}:[0-5][0-9]{_FRACTION}(?:[Zz]|[+-]{_HOUR_AND_MINUTE})|23:59:60{_FRACTION}(?:[Zz]|[+-]00:00))"
)


def _leap_seconds() -> str:
    """The last second of a day in UTC, in every offset."""
    times = []
    for hour, minute in itertools.product(range(24), range(60)):
        offsets = []
        for sign in (1, -1):
            offset = sign * (hour * 60 + minute + 1) % 1440  # from 23:59 in UTC
            offsets.append(f"{'+' if sign > 0 else '-'}{offset // 60:02}:{offset % 60:02}")
        zulu = "|[Zz]" if (hour, minute) == (23, 59) else ""
        times.append(rf"{hour:02}:{minute:02}:60{_FRACTION}(?:\{offsets[0]}|{offsets[1]}{zulu})")
    return "|".join(times)


_EVERY_TIME = f"(?:{_HOUR_AND_MINUTE}:[0-5][0-9]{_FRACTION}(?:[Zz]|[+-]{_HOUR_AND_MINUTE})|{_leap_seconds()})"

_MINUTES = "[0-9]+M(?:[0-9]+S)?"
_TIME_OF_DURATION = f"T(?:[0-9]+H(?:{_MINUTES})?|{_MINUTES}|[0-9]+S)"
_MONTHS = "[0-9]+M(?:[0-9]+D)?"
_DURATION = f"P(?:(?:[0-9]+Y(?:{_MONTHS})?|{_MONTHS}|[0-9]+D)(?:{_TIME_OF_DURATION})?|{_TIME_OF_DURATION}|[0-9]+W)"

_BYTE = "(?:25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])"
_IPV4 = rf"(?:{_BYTE}\.){{3}}{_BYTE}"
_GROUP = "[0-9A-Fa-f]{1,4}"
_LAST_GROUPS = f"(?:{_GROUP}:{_GROUP}|{_IPV4})"
_GROUPS_IN_TWO_PARTS = (
    f"(?:(?:{_GROUP}:){{0,{before}}}{_GROUP})?::(?:{_GROUP}:){{{4 - before}}}{_LAST_GROUPS}" for before in range(5)
)
_IPV6 = "|".join(
    [
        f"(?:{_GROUP}:){{6}}{_LAST_GROUPS}",
        f"::(?:{_GROUP}:){{5}}{_LAST_GROUPS}",
        *_GROUPS_IN_TWO_PARTS,
        f"(?:(?:{_GROUP}:){{0,5}}{_GROUP})?::{_GROUP}",
        f"(?:(?:{_GROUP}:){{0,6}}{_GROUP})?::",
    ]
)
_IPV6 = f"(?:{_IPV6})"

_LABEL = "[A-Za-z0-9](?:[A-Za-z0-9-]{0,61}[A-Za-z0-9])?"
_DOMAIN = rf"{_LABEL}(?:\.{_LABEL})*"

# RFC 5891 reserves labels with hyphens in the third and fourth place, but for those
# that begin with xn--. There Punycode follows: its last number ends in a letter and
# has three digits or more, as fewer name no character that IDNA allows.
_LDH = "[A-Za-z0-9-]"
_END = "[A-Za-z0-9]"
_UNRESERVED = f"{_END}(?:{_LDH}{{0,2}}{_END}|{_LDH}(?:{_END}{_LDH}|-{_END}){_LDH}{{0,58}}{_END})?"
_HOST_LABEL = f"(?:{_UNRESERVED}|[Xx][Nn]--{_LDH}{{2,58}}[A-Za-z])"
_MAX_HOSTNAME = 253
_HOSTNAME = rf"{_UNRESERVED}(?:\.{_UNRESERVED})*"
_HOSTNAME_BY_SHAPE = rf"{_HOST_LABEL}(?:\.{_HOST_LABEL})*"

# Letters of some alphabets that IDNA allows in any context: they are themselves in NFKC
# and in lower case.
_KANA_AND_HAN = r"\u3005\u3007\u3041-\u3094\u30a1-\u30fa\u4e00-\u9fa5"
_FROM_LEFT = (
    rf"\u00df-\u00f6\u00f8-\u00ff\u03ac-\u03ce\u0430-\u045f\u0905-\u0939\u0e01-\u0e2e\uac00-\ud7a3{_KANA_AND_HAN}"
)
_FROM_RIGHT = r"(?:[\u05d0-\u05ea]{1,10}|[\u0621-\u063a\u0641-\u064a]{1,10})"
_U_END = f"[a-z0-9{_FROM_LEFT}]"
_U_LDH = f"[a-z0-9{_FROM_LEFT}-]"
# Few enough characters for the label in Punycode to have 63 at most.
_U_LABEL = f"{_U_END}(?:{_U_LDH}{{0,2}}{_U_END}|{_U_LDH}(?:{_U_END}{_U_LDH}|-{_U_END}){_U_LDH}{{0,5}}{_U_END})?"
_ANY_LABEL = f"(?:{_UNRESERVED}|{_U_LABEL})"
# Beside a label that is written from the right, none may begin with a digit (the Bidi
# rule of RFC 5893). These have letters only.
_BIDI_LABEL = f"(?:{_FROM_RIGHT}|[a-z]{{1,63}})"
_DOT = r"[.\u3002\uff0e\uff61]"
_IDN_HOSTNAME = (
    f"(?:{_UNRESERVED}(?:{_DOT}{_UNRESERVED})*|{_ANY_LABEL}(?:{_DOT}{_ANY_LABEL}){{0,2}}"
    f"|{_BIDI_LABEL}(?:{_DOT}{_BIDI_LABEL}){{0,2}})"
)

_ATOM = "[A-Za-z0-9!#$%&'*+/=?^_`{|}~-]+"
_QUOTED = r'"(?:[ !#-\[\]-~]|\\[ -~])*"'
_EMAIL = rf"(?:{_ATOM}(?:\.{_ATOM})*|{_QUOTED})@(?:{_DOMAIN}|\[(?:{_IPV4}|IPv6:{_IPV6})\])"

_BEYOND = r"\u0080-\u{10ffff}"
_IDN_ATOM = f"(?:{_ATOM}|[{_BEYOND}])+"
_IDN_QUOTED = rf'"(?:[ !#-\[\]-~{_BEYOND}]|\\[ -~])*"'
_IDN_LABEL = f"[A-Za-z0-9{_BEYOND}](?:[A-Za-z0-9{_BEYOND}-]{{0,61}}[A-Za-z0-9{_BEYOND}])?"
_IDN_EMAIL = (
    rf"(?:{_IDN_ATOM}(?:\.{_IDN_ATOM})*|{_IDN_QUOTED})"
    rf"@(?:{_IDN_LABEL}(?:\.{_IDN_LABEL})*|\[(?:{_IPV4}|IPv6:{_IPV6})\])"
)

_HEX = "[0-9A-Fa-f]"
_UUID = f"{_HEX}{{8}}-{_HEX}{{4}}-{_HEX}{{4}}-{_HEX}{{4}}-{_HEX}{{12}}"

_ENCODED = f"%{_HEX}{{2}}"
_BEYOND_ASCII = r"\u00a0-\ud7ff\uf900-\ufdcf\ufdf0-\uffef" + "".join(
    rf"\u{{{plane:x}{'1000' if plane == 14 else '0000'}}}-\u{{{plane:x}fffd}}" for plane in range(1, 15)
)
_PRIVATE = r"\ue000-\uf8ff\u{f0000}-\u{ffffd}\u{100000}-\u{10fffd}"


def _uri(more: str, more_in_query: str, *, is_reference: bool) -> str:
    """The grammar of RFC 3986, or of RFC 3987 with more characters."""
    sub_delimiters = "!$&'()*+,;="
    unreserved = rf"A-Za-z0-9._~{more}\-"
    character = f"(?:[{unreserved}{sub_delimiters}:@]|{_ENCODED})"
    without_colon = f"(?:[{unreserved}{sub_delimiters}@]|{_ENCODED})"
    user = f"(?:[{unreserved}{sub_delimiters}:]|{_ENCODED})*@"
    name = f"(?:[{unreserved}{sub_delimiters}]|{_ENCODED})*"
    literal = rf"\[(?:{_IPV6}|[vV]{_HEX}+\.[A-Za-z0-9._~{sub_delimiters}:\-]+)\]"
    authority = f"(?:{user})?(?:{literal}|{name})(?::[0-9]*)?"
    segments = f"(?:/{character}*)*"
    absolute = f"/(?:{character}+{segments})?"
    part = f"(?://{authority}{segments}|{absolute}|{character}+{segments}|)"
    relative = f"(?://{authority}{segments}|{absolute}|{without_colon}+{segments}|)"
    query = rf"(?:\?(?:[{more_in_query}/?]|{character})*)?" if more_in_query else rf"(?:\?(?:[/?]|{character})*)?"
    end = f"{query}(?:#(?:[/?]|{character})*)?"
    uri = rf"[A-Za-z][A-Za-z0-9+.\-]*:{part}{end}"
    return f"(?:{uri}|{relative}{end})" if is_reference else uri


_JSON_POINTER = "(?:/(?:[^~/]|~[01])*)*"

_NAME_CHARACTER = f"(?:[A-Za-z0-9_]|{_ENCODED})"
_VARIABLE = rf"{_NAME_CHARACTER}(?:\.?{_NAME_CHARACTER})*(?::[1-9][0-9]{{0,3}}|\*)?"
_LITERAL = rf"(?:[!#$&-;=?-\[\]_a-z~{_BEYOND_ASCII}{_PRIVATE}]|{_ENCODED})"

FORMATS = {
    "date": Format((_DATE,)),
    "time": Format((_TIME,), is_narrower=True),
    "date-time": Format((f"{_DATE}[Tt]{_TIME}",), is_narrower=True),
    "duration": Format((_DURATION,)),
    "email": Format((_EMAIL,)),
    "hostname": Format((_HOSTNAME,), max_length=_MAX_HOSTNAME, is_narrower=True),
    "idn-email": Format((_IDN_EMAIL,)),
    "idn-hostname": Format((_IDN_HOSTNAME,), max_length=_MAX_HOSTNAME, is_narrower=True),
    "ipv4": Format((_IPV4,)),
    "ipv6": Format((_IPV6,)),
    "regex": Format((REGEX,), is_narrower=True),
    "uuid": Format((_UUID,)),
    "uri": Format((_uri("", "", is_reference=False),)),
    "uri-reference": Format((_uri("", "", is_reference=True),)),
    "iri": Format((_uri(_BEYOND_ASCII, _PRIVATE, is_reference=False),)),
    "iri-reference": Format((_uri(_BEYOND_ASCII, _PRIVATE, is_reference=True),)),
    "uri-template": Format((rf"(?:{_LITERAL}|\{{[+#./;?&=,!@|]?{_VARIABLE}(?:,{_VARIABLE})*\}})*",)),
    "json-pointer": Format((_JSON_POINTER,)),
    "relative-json-pointer": Format((rf"(?:0|[1-9][0-9]*)(?:#|{_JSON_POINTER})",)),
}


# Drafts 3 to 6 read a host name by RFC 1034 and 1123, which know no reserved labels.
_OLDER_HOSTNAME = Format((_DOMAIN,), max_length=_MAX_HOSTNAME)
_THREE_NUMBERS, _THREE_PERCENTAGES = (
    f"(?: *{number} *,){{2}} *{number} *" for number in ("[0-9]{1,3}", r"[0-9]{1,3}(?:\.[0-9]{1,3})?%")
)
_COLOR_NAMES = "aqua|black|blue|fuchsia|gray|green|lime|maroon|navy|olive|orange|purple|red|silver|teal|white|yellow"
_COLOR = rf"#{_HEX}{{3}}|#{_HEX}{{6}}|{_COLOR_NAMES}|rgb\((?:{_THREE_NUMBERS}|{_THREE_PERCENTAGES})\)"
_OLDER_FORMATS = {
    "hostname before draft 7": _OLDER_HOSTNAME,
    # Draft 3 has names of its own, and a time without an offset.
    "host-name before draft 4": _OLDER_HOSTNAME,
    "ip-address before draft 4": FORMATS["ipv4"],
    "time before draft 4": Format((f"{_HOUR_AND_MINUTE}:[0-5][0-9]",)),
    "color before draft 4": Format((_COLOR,), is_narrower=True),
}

# For schemas that ask for these under a negation: hosts with labels xn--, whatever they
# mean, and all leap seconds. The automaton of the latter is large.
_EXACT_UNDER_NEGATION = {
    "hostname": Format((_HOSTNAME_BY_SHAPE,), max_length=_MAX_HOSTNAME),
    "time": Format((_EVERY_TIME,)),
    "date-time": Format((f"{_DATE}[Tt]{_EVERY_TIME}",)),
}


@cache
def native_formats(*, may_be_negated: bool = False, are_narrower_left_out: bool = False) -> Any:
    """The formats for the options of the core.

    Args:
        may_be_negated: take those that are not narrower, where there are any.
        are_narrower_left_out: whether the other narrower ones are annotations.
    """
    formats = FORMATS | _OLDER_FORMATS | (_EXACT_UNDER_NEGATION if may_be_negated else {})
    return core().Formats(
        {
            name: core().Format(list(each.expressions), each.max_length or 0, each.is_narrower)
            for name, each in formats.items()
            if not (each.is_narrower and are_narrower_left_out)
        }
    )
