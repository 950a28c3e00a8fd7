"""Notations of the arguments of a call that use tags in place of JSON, such as
``<parameter=city>Paris</parameter>``."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache

STRING = "string"
_SCALARS = ("number", "boolean", "null")
_CONTAINERS = ("object", "array")
JSON_KINDS = (*_SCALARS, *_CONTAINERS)

# Texts that a reader may take for a value other than a string.
LOOKS_LIKE_JSON = (
    r"\s*(?:[\[{\"0-9+.\-][\s\S]*|[Nn][Uu][Ll][Ll]\s*|[Nn][Oo][Nn][Ee]\s*|[Tt][Rr][Uu][Ee]\s*|[Ff][Aa][Ll][Ss][Ee]\s*"
    r"|[Nn][Aa][Nn]\s*|[Ii][Nn][Ff][A-Za-z]*\s*)?"
)


# Kinds that styles name in their own way.
_NAMED_KINDS = {"true": STRING, "false": "json", "raw": STRING, "dict": "object", "list": "array"}


@dataclass(frozen=True)
class ArgumentStyle:
    """The notation of arguments.

    Attributes:
        opening: what stands in front of a value, by its key and its kind. The key is
            None for the items of an array.
        closing: what comes after it, by its key.
        entry: what ``opening`` writes, after a line break that may stand between
            values. Its groups are the ``key``, and the ``kind`` if it tells that.
        markers: texts that would be read as the notation. No value contains them.
        is_wrapped: whether a value may stand on lines of its own, so that a line break
            at either end of it is not read as a part of it.
        tells_strings: whether readers tell strings from other values by ``opening``.
        kinds: JSON types that ``opening`` tells from each other.
        is_recursive: whether objects and arrays are written in the same notation.
        key_pattern: the keys that can be written.
        separator: what stands between two values. If there is one, the values are
            literals: JSON but for what follows, and no line breaks stand between them.
        quotes: what stands around strings, for literals.
        is_escaped: whether strings between quotes are written with JSON's escapes.
        constants: how true, false and null are written, if not as in JSON.
    """

    opening: Callable[[str | None, str], str]
    closing: Callable[[str | None], str]
    entry: re.Pattern[str]
    markers: tuple[str, ...]
    is_wrapped: bool = False
    tells_strings: bool = False
    kinds: tuple[tuple[str, ...], ...] = (JSON_KINDS,)
    is_recursive: bool = False
    key_pattern: str = r'[^<>"\s]+'
    separator: str = ""
    quotes: tuple[str, str] | None = None
    is_escaped: bool = False
    constants: Mapping[str, str] = field(default_factory=dict)

    def kind_of(self, entry: re.Match[str]) -> str:
        """The kind that a match of ``entry`` tells. Empty if it tells none."""
        kind: str = entry.groupdict().get("kind") or ""
        return _NAMED_KINDS.get(kind, kind)


def _dsml(space: str) -> ArgumentStyle:
    name = f"｜DSML｜{space}parameter"
    return ArgumentStyle(
        lambda key, kind: f'<{name} name="{key}" string="{"true" if kind == STRING else "false"}">',
        lambda _: f"</{name}>",
        re.compile(f'\n?<{name} name="(?P<key>[^"]*)" string="(?P<kind>true|false)">'),
        # tells_strings stays False: vLLM's readers convert what is marked as a string
        # too, where the schema allows other types.
        (f"<{name}", f"</{name}", f"<｜DSML｜{space}invoke", f"</｜DSML｜{space}invoke"),
    )


def _cofl_opening(key: str | None, kind: str) -> str:
    name = "" if key is None else f' name="{key}"'
    types = {STRING: "raw", "object": "dict", "array": "list"}
    return f'<cofl:value{name} type="{types.get(kind, "json")}">'


def _qwen(*, is_wrapped: bool) -> ArgumentStyle:
    return ArgumentStyle(
        lambda key, _: f"<parameter={key}>",
        lambda _: "</parameter>",
        re.compile("\n?<parameter=(?P<key>[^>]*)>"),
        ("<parameter=", "</parameter>", "<function=", "</function>"),
        is_wrapped=is_wrapped,
    )


@lru_cache
def _tagged(begin: str, middle: str, end: str, is_wrapped: bool) -> ArgumentStyle:
    entry = f'\n?{re.escape(begin)}(?P<key>[^<>"\n]*){re.escape(middle)}'
    markers = (begin.strip(), end.strip())
    return ArgumentStyle(
        lambda key, _: f"{begin}{key}{middle}", lambda _: end, re.compile(entry), markers, is_wrapped=is_wrapped
    )


def style_of(given: str | Mapping[str, object]) -> ArgumentStyle | None:
    """The notation that a structural tag names or describes. None if there is none of
    this name.

    Args:
        given: a name of ``STYLES``; or the texts ``begin``, in front of the key,
            ``middle``, between it and the value, and ``end``; with ``is_wrapped`` a
            value may stand on lines of its own.

    Raises:
        ValueError: a description is malformed.
    """
    if isinstance(given, str):
        return STYLES.get(given)
    texts = [given.get(name) for name in ("begin", "middle", "end")]
    is_wrapped = given.get("is_wrapped", False)
    unknown = given.keys() - {"begin", "middle", "end", "is_wrapped"}
    if unknown or not isinstance(is_wrapped, bool) or not all(isinstance(text, str) and text.strip() for text in texts):
        raise ValueError(f"a style needs the texts begin, middle and end, and may have is_wrapped, got {dict(given)}")
    return _tagged(*map(str, texts), is_wrapped)


_M3 = "]<]minimax[>["

STYLES = {
    "qwen_xml": _qwen(is_wrapped=True),
    "mimo_xml": _qwen(is_wrapped=False),
    "minimax_xml": ArgumentStyle(
        lambda key, _: f'<parameter name="{key}">',
        lambda _: "</parameter>",
        re.compile('\n?<parameter name="(?P<key>[^"]*)">'),
        ("<parameter name=", "</parameter>", "<invoke name=", "</invoke>"),
    ),
    "minimax_m3_xml": ArgumentStyle(
        lambda key, _: f"{_M3}<{'item' if key is None else key}>",
        lambda key: f"{_M3}</{'item' if key is None else key}>",
        re.compile(f"\n?{re.escape(_M3)}<(?P<key>[^<>/][^<>]*)>"),
        (_M3,),
        kinds=(_SCALARS, ("object",), ("array",)),
        is_recursive=True,
        key_pattern=r"[^<>/\s][^<>\s]*",
    ),
    "deepseek_xml": _dsml(""),
    "deepseek_v4_1_xml": _dsml(" "),
    "glm_xml": ArgumentStyle(
        lambda key, _: f"<arg_key>{key}</arg_key><arg_value>",
        lambda _: "</arg_value>",
        re.compile("\n?<arg_key>(?P<key>[^<]*)</arg_key>\n?<arg_value>"),
        ("<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>"),
    ),
    "cohere_xml": ArgumentStyle(
        _cofl_opening,
        lambda _: "</cofl:value>",
        re.compile('\n?<cofl:value(?: name="(?P<key>[^"]*)")? type="(?P<kind>raw|json|dict|list)">'),
        ("<cofl:value", "</cofl:"),
        tells_strings=True,
        kinds=(_SCALARS, ("object",), ("array",)),
        is_recursive=True,
    ),
    "python": ArgumentStyle(
        lambda key, _: f"{key}=",
        lambda _: "",
        re.compile(r"(?P<key>[^\W\d]\w*)="),
        ("<|tool_call_start|>", "<|tool_call_end|>"),
        tells_strings=True,
        kinds=(("number", *_CONTAINERS), ("boolean",), ("null",)),
        key_pattern=r"[A-Za-z_][A-Za-z0-9_]*",
        separator=", ",
        quotes=('"', '"'),
        is_escaped=True,
        constants={"true": "True", "false": "False", "null": "None"},
    ),
    "gemma": ArgumentStyle(
        lambda key, _: "" if key is None else f"{key}:",
        lambda _: "",
        re.compile(r"(?P<key>\w+):"),
        ('<|"|>', "<|tool_call>", "<tool_call|>"),
        tells_strings=True,
        kinds=(_SCALARS, ("object",), ("array",)),
        is_recursive=True,
        key_pattern=r"[A-Za-z0-9_]+",
        separator=",",
        quotes=('<|"|>', '<|"|>'),
    ),
    "kimi_k3_xml": ArgumentStyle(
        lambda key, kind: f'<|open|>argument key="{key}" type="{kind}"<|sep|>',
        lambda _: "<|close|>argument<|sep|>",
        re.compile(r'\n?<\|open\|>argument key="(?P<key>[^"]*)" type="(?P<kind>\w+)"<\|sep\|>'),
        ("<|open|>", "<|close|>", "<|sep|>"),
        tells_strings=True,
        kinds=tuple((kind,) for kind in JSON_KINDS),
    ),
}
