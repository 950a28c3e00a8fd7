"""Regular expressions made from texts."""

import re
from collections.abc import Sequence
from typing import Any


def pattern_of_other_texts(texts: Sequence[str]) -> str:
    """A regular expression, without lookaround, of every text that is not one of
    ``texts``."""
    trie: dict[str, Any] = {}
    for text in texts:
        node = trie
        for character in text:
            node = node.setdefault(character, {})
        node[""] = {}  # a text ends here

    # Children are written before their parents, without recursion: names may be long.
    written: dict[int, str] = {}
    pending = [(trie, False)]
    while pending:
        node, is_expanded = pending.pop()
        children = [character for character in node if character]
        if not is_expanded:
            pending += [(node, True), *((node[character], False) for character in children)]
            continue
        other = f"[^{''.join(map(_escaped_in_class, children))}]" if children else r"[\s\S]"
        branches = [rf"{other}[\s\S]*"]
        branches += [re.escape(character) + written[id(node[character])] for character in children]
        written[id(node)] = f"(?:{'|'.join(branches)})" + ("" if "" in node else "?")
    return written[id(trie)]


def _escaped_in_class(character: str) -> str:
    return f"\\{character}" if character in r"\]^-[&~" else character
