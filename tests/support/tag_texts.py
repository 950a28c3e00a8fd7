"""What structural tags mean, by trying: where the texts of a format may end."""

from __future__ import annotations

import re
from typing import Any

Ends = frozenset[int]


def is_text_of(tag: dict[str, Any], text: str) -> bool:
    """Whether a text is one of a structural tag without schemas."""
    return len(text) in ends_of(tag["format"], text, 0)


def ends_of(part: dict[str, Any], text: str, start: int, closing: tuple[str, ...] = (), closes: bool = False) -> Ends:
    """Where a format that begins at ``start`` may end.

    Args:
        closing: texts that end the tag around it.
        closes: whether one of them is part of the format.
    """

    def closed(ends: Ends) -> Ends:
        if not closes:
            return ends
        return frozenset(end + len(mark) for end in ends for mark in closing if text.startswith(mark, end))

    match part["type"]:
        case "const_string":
            value = part["value"]
            return closed(frozenset({start + len(value)} if text.startswith(value, start) else ()))
        case "regex":
            pattern = re.compile(part["pattern"])
            return closed(frozenset(end for end in positions(text, start) if pattern.fullmatch(text[start:end])))
        case "any_text":
            return free_text_ends(text, start, {}, part.get("excludes", ()), closing, closes)
        case "sequence":
            *parts, last = part["elements"]
            starts = frozenset({start})
            for each in parts:
                starts = after(starts, lambda i, each=each: ends_of(each, text, i, closing))
            return after(starts, lambda i: ends_of(last, text, i, closing, closes))
        case "or":
            return frozenset().union(*(ends_of(each, text, start, closing, closes) for each in part["elements"]))
        case "optional":
            return closed(frozenset({start})) | ends_of(part["content"], text, start, closing, closes)
        case "star" | "plus" | "repeat":
            low = {"star": 0, "plus": 1}.get(part["type"], part.get("min", 0))
            high = part.get("max", -1)
            return closed(repeated(lambda i: ends_of(part["content"], text, i, closing), start, low, high))
        case "tag":
            return closed(tag_ends(part, text, start))
        case "tags_with_separator":
            low = int(part.get("at_least_one", False))
            tags = any_tag_ends(part["tags"], text)
            found = tags(start)
            if not part.get("stop_after_first"):
                separated = after(found, lambda i: frozenset(_ends_of(part["separator"], text, i)))
                found |= after(separated, lambda i: repeated_with(tags, part["separator"], text, i))
            return closed(found if low else found | {start})
        case "triggered_tags":
            tags = any_tag_ends(part["tags"], text)
            is_last = part.get("stop_after_first", False)

            def triggered(begin: int) -> Ends:
                ends = after(frozenset({begin}), tags)
                return closed(ends) if is_last else ends

            is_used = {
                trigger: any(tag["begin"].startswith(trigger) for tag in part["tags"]) for trigger in part["triggers"]
            }
            stops = {trigger: triggered for trigger in part["triggers"] if is_used[trigger]}
            excluded = [*part.get("excludes", ()), *(trigger for trigger in is_used if not is_used[trigger])]
            if not part.get("at_least_one"):
                return free_text_ends(text, start, stops, excluded, closing, closes, not is_last)
            if is_last:
                return closed(tags(start))
            return after(tags(start), lambda i: free_text_ends(text, i, stops, excluded, closing, closes, True))
        case "dispatch":
            loops = part.get("loop", True)

            def ruled(begin: int, content: dict[str, Any], length: int) -> Ends:
                ends = ends_of(content, text, begin + length, closing)
                return ends if loops else closed(ends)

            stops = {
                pattern: lambda begin, pattern=pattern, content=content: ruled(begin, content, len(pattern))
                for pattern, content in part["rules"]
            }
            return free_text_ends(text, start, stops, part.get("excludes", ()), closing, closes, loops)
    raise AssertionError(part["type"])


def free_text_ends(text, start, stops, excluded, closing, closes, loops=False) -> Ends:
    """``stops``: texts, and a function from where one begins to where what it begins
    may end."""
    found: set[int] = set()
    begun, pending = set(), [start]
    while pending:
        first = pending.pop()
        if first in begun:
            continue
        begun.add(first)
        bound = None  # where the first excluded text has ended
        for end in positions(text, first):

            def ending(words, first=first, end=end):
                return [word for word in words if end - first >= len(word) and text.endswith(word, first, end)]

            stop = max(
                ending((*stops, *(closing if closes else ()))), key=lambda word: (len(word), word in stops), default=""
            )
            if stop:
                begin = end - len(stop)
                if bound is not None and begin >= bound:
                    break
                if stop not in stops:
                    found.add(end)
                elif loops:
                    pending += stops[stop](begin)
                else:
                    found |= stops[stop](begin)
                break
            if bound is None and ending((*excluded, *closing)):
                bound = end
            if bound is None and not closes:
                found.add(end)
    return frozenset(found)


def tag_ends(part: dict[str, Any], text: str, start: int) -> Ends:
    if not text.startswith(part["begin"], start):
        return frozenset()
    ends = part["end"] if isinstance(part["end"], list) else [part["end"]]
    marks = tuple(end for end in ends if end)
    inside = start + len(part["begin"])
    if len(marks) == len(ends):
        return ends_of(part["content"], text, inside, marks, True)
    content = ends_of(part["content"], text, inside, marks)
    return frozenset(i + len(end) for i in content for end in ends if text.startswith(end, i))


def any_tag_ends(tags, text):
    return lambda i: frozenset().union(*(tag_ends(tag, text, i) for tag in tags))


def repeated_with(once, separator: str, text: str, start: int) -> Ends:
    found: set[int] = set()
    pending = {start}
    while pending:
        new = once(pending.pop()) - found
        found |= new
        pending |= {end for i in new for end in _ends_of(separator, text, i)}
    return frozenset(found)


def _ends_of(separator: str, text: str, i: int) -> list[int]:
    return [i + len(separator)] if text.startswith(separator, i) else []


def repeated(once, start: int, low: int, high: int) -> Ends:
    now, found, count = frozenset({start}), set(), 0
    seen = set()
    while now and (high == -1 or count <= high) and (count, now) not in seen and count < 12:
        seen.add((count, now))
        if count >= low:
            found |= now
        now, count = after(now, once), count + 1
    return frozenset(found)


def after(starts: Ends, ends_of_text) -> Ends:
    return frozenset().union(*(ends_of_text(i) for i in starts))


def positions(text: str, start: int) -> range:
    return range(start, len(text) + 1)
