"""Texts that stand somewhere in a given text: ``%regex {...}`` of llguidance's Lark."""

import re
from typing import Any

from structout.errors import GrammarError
from structout.grammar.native.rules import RuleSet

_WORD = re.compile(r"\w+|\s+|[^\w\s]+")
_KEYS = ("substring_chunks", "substring_words", "substring_chars")


def add_substrings(rules: RuleSet, options: Any) -> int:
    """Add any number of successive parts of a text.

    Args:
        options: ``substring_chunks`` with a list of parts, or ``substring_words`` or
            ``substring_chars`` with a text that is cut into words and what stands
            between them, or into characters.

    Raises:
        GrammarError: other options.
    """
    key = next(iter(options)) if isinstance(options, dict) and len(options) == 1 else None
    if key not in _KEYS:
        raise GrammarError(f"%regex needs an object with one of {', '.join(_KEYS)}")
    value = options[key]
    is_list = key == "substring_chunks"
    if not (
        isinstance(value, list) and all(isinstance(each, str) for each in value) if is_list else isinstance(value, str)
    ):
        raise GrammarError(f"{key} needs {'a list of strings' if is_list else 'a string'}")
    chunks = value if key != "substring_words" else _WORD.findall(value)
    # Each rule begins with a part and goes on with the next rule, if at all. They lead
    # to the same places after it: the automaton has about one state for each byte.
    number = rules.new_number()
    empty = rules.add_text("")
    rest, begins = empty, [empty]
    for index, chunk in reversed([*enumerate(chunks)]):
        name = f"%regex {number}, from part {index}"
        rules.define(name, [[rules.add_text(chunk), rest], [empty]])
        rest = rules.reference(name)
        begins.append(rest)
    return rules.native.add_alternatives(begins)
