"""Reads answers with tool calls, as they are generated or whole."""

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from structout.constraints.partial_json import JsonStream
from structout.constraints.tools.call_formats import LINE_BREAKS, ToolFormat
from structout.constraints.tools.definitions import Tool, ToolCall
from structout.constraints.tools.derivation import ID
from structout.constraints.tools.reading import (
    GrowingArgument,
    read_entry,
    read_growing_argument,
    read_open_entry,
)
from structout.constraints.tools.styles import ArgumentStyle

Kind = Literal["content", "reasoning", "call", "arguments", "complete"]

_LINE_BREAKS = re.compile(LINE_BREAKS)
_MARK = re.compile("<[^<>]+>")
_LONGEST_ID = 64  # characters


@dataclass(frozen=True)
class StreamEvent:
    """A part of an answer.

    Attributes:
        kind: "content" and "reasoning" are text of these; "call" begins a call;
            "arguments" is a part of its arguments; "complete" ends it.
        text: the text, the name of the tool, or a part of the JSON text of the
            arguments. The parts of a call, one after the other, are all of it.
        index: the number of the call, from 0 on.
        call: the call, for "complete".
    """

    kind: Kind
    text: str = ""
    index: int = -1
    call: ToolCall | None = None


class ToolCallStream:
    """Reads an answer with calls piece by piece, however it is cut.

    Arguments in a notation other than JSON become JSON. Strings come as they are
    written, and so do objects and arrays that are JSON; other values come whole.

    Args:
        form: how calls are written.
        tools: those that may be called.
        begins_in_reasoning: whether the prompt has opened a reasoning.
        is_calls_or_text: whether a text that does not begin with a call has none.

    For example::

        stream = params.tool_call_stream()
        for piece in pieces:
            for event in stream.feed(piece):
                print(event.kind, event.text)
        events = stream.finish()
    """

    def __init__(
        self,
        form: ToolFormat,
        tools: Sequence[Tool],
        *,
        begins_in_reasoning: bool = False,
        is_calls_or_text: bool = False,
    ):
        self._form = form
        self._tools = sorted(tools, key=lambda tool: len(tool.name), reverse=True)
        begin = "|".join(f"({form.begin_pattern(tool.name)})" for tool in self._tools)
        section, self._section_end = form.section or ("", "")
        self._first = re.compile(f"{re.escape(section)}(?:{begin})")
        self._later = re.compile(f"{re.escape(form.separator)}(?:{begin})")
        # One tool's name may be a prefix of another's.
        self._begins = [form.begin(tool.name) for tool in tools if ID not in form.begin(tool.name)]
        longest = max(len(form.begin(tool.name)) for tool in tools) + _LONGEST_ID
        self._longest = longest + max(len(section), len(form.separator))
        self._text = ""
        self._at = 0  # what stands before is read
        self._start = 0  # of the arguments
        self._state = self._in_reasoning if begins_in_reasoning else self._at_start
        self._is_calls_or_text = is_calls_or_text
        self._events: list[StreamEvent] = []
        self._num_calls = 0
        self._tool = self._tools[0]
        self._arguments: dict[str, Any] = {}
        self._num_grown = -1  # characters of the argument in progress that were passed on
        self._json = JsonStream()  # of its arguments

    def feed(self, text: str) -> list[StreamEvent]:
        """Read on.

        Raises:
            ValueError: a call does not end as it should.
        """
        read = self._start if self._is_in_call else self._at
        self._text, self._at, self._start = self._text[read:] + text, self._at - read, self._start - read
        while self._state():
            pass
        events, self._events = self._events, []
        return events

    def finish(self, *, partial: bool = False) -> list[StreamEvent]:
        """Read the end of the text.

        Args:
            partial: a call that is not complete is one with the arguments so far.

        Raises:
            ValueError: a call is not complete.
        """
        events = self.feed("")
        rest = self._text[self._at :]
        if self._is_in_call:
            # A mark that ends the text may be a stop token, which has no text.
            is_whole = self._state == self._at_end and not rest and _MARK.fullmatch(self._form.end) is not None
            if not is_whole and not partial:
                raise ValueError(f"the call of {self._tool.name} is not closed by {self._form.end!r}")
            if not is_whole:
                self._read_open()
            self._complete(is_complete=is_whole)
        elif rest and self._state != self._in_section:
            self._emit("reasoning" if self._state == self._in_reasoning else "content", rest)
        events += self._events
        self._text, self._at, self._start, self._events = "", 0, 0, []
        return events

    @property
    def _is_in_call(self) -> bool:
        return self._state in (self._in_json, self._in_tags, self._at_end)

    # -- states: each reads on, and tells whether more can be read --------------------

    def _at_start(self) -> bool:
        begin = self._form.reasoning[0] if self._form.reasoning else ""
        rest = self._text.lstrip()
        if len(rest) < len(begin) and begin.startswith(rest):
            return False
        self._state = self._at_content
        if begin and rest.startswith(begin):
            self._at = len(self._text) - len(rest) + len(begin)
            self._state = self._in_reasoning
        return True

    def _in_reasoning(self) -> bool:
        end = self._form.reasoning[1] if self._form.reasoning else ""
        if not self._read_until("reasoning", end):
            return False
        self._at += len(end)
        self._state = self._after_reasoning
        return True

    def _after_reasoning(self) -> bool:
        if not self._form.content_begin:
            breaks = _LINE_BREAKS.match(self._text, self._at)
            assert breaks is not None  # it may be empty
            if breaks.end() == len(self._text) and _LINE_BREAKS.fullmatch(f"{breaks[0]}\n"):
                return False  # another may come
            self._at = breaks.end()
        self._state = self._at_content
        return True

    def _at_content(self) -> bool:
        begin, trigger = self._form.content_begin, self._form.trigger
        rest = self._text[self._at :]
        for mark in (begin, trigger if self._is_calls_or_text else ""):
            if len(rest) < len(mark) and mark.startswith(rest):
                return False
        is_text = self._is_calls_or_text and not rest.startswith(trigger)
        self._at += len(begin) if rest.startswith(begin) else 0
        self._state = self._in_text if is_text else self._in_content
        return True

    def _in_text(self) -> bool:
        self._emit("content", self._text[self._at :])
        self._at = len(self._text)
        return False

    def _in_content(self) -> bool:
        if not self._read_until("content", self._form.trigger):
            return False
        begun = self._begin_call(self._first)
        if begun is False:
            self._emit("content", self._form.trigger)  # of no call
            self._at += len(self._form.trigger)
        return begun is not None

    def _in_section(self) -> bool:
        """Between two calls, or behind the last one."""
        if self._form.section is not None and self._text.startswith(self._section_end, self._at):
            self._at += len(self._section_end)
            self._state = self._in_content
            return True
        following = self._form.separator if self._form.section else self._form.separator + self._form.trigger
        rest = self._text[self._at :]
        is_possible = following.startswith(rest) or rest.startswith(following)
        if self._form.section is not None:
            is_possible = is_possible or self._section_end.startswith(rest)
        begun = self._begin_call(self._later) if is_possible else False
        if begun is False:
            self._state = self._in_content
        return begun is not None

    def _in_json(self) -> bool:
        self._json.feed(self._text[self._at :])
        until = len(self._text) if self._json.end is None else self._start + self._json.end
        self._emit("arguments", self._text[self._at : until])
        self._at = until
        if self._json.end is None:
            return False
        self._arguments = json.loads(self._text[self._start : until])
        self._state = self._at_end
        return True

    def _in_tags(self) -> bool:
        style = self._form.argument_style
        assert style is not None
        try:
            entry = read_entry(style, self._text, self._at, self._tool.parameters)
        except ValueError:  # it is not complete
            growing = read_growing_argument(style, self._text, self._at, self._tool.parameters)
            if growing is not None:
                self._emit("arguments", self._grown(growing))
            return False
        if entry is not None:
            key, (value, end) = entry
            self._emit(
                "arguments", self._grown(self._whole_argument(style, key, value, end)) + '"' * isinstance(value, str)
            )
            self._arguments[key] = value
            self._at, self._num_grown = end, -1
            return True
        if not self._text.startswith((self._form.end, f"\n{self._form.end}"), self._at):
            return False
        self._emit("arguments", "}" if self._arguments else "{}")
        self._state = self._at_end
        return True

    def _at_end(self) -> bool:
        end = self._form.end
        if not self._text.startswith(end, self._at) and self._form.argument_style is not None:
            self._at += self._text.startswith("\n", self._at)
        if self._text.startswith(end, self._at):
            self._at += len(end)
            self._complete(is_complete=True)
            self._state = self._in_section
            return True
        if end.startswith(self._text[self._at :]):
            return False
        raise ValueError(f"the call of {self._tool.name} is not closed by {end!r}")

    # -- parts ------------------------------------------------------------------------

    def _emit(self, kind: Kind, text: str) -> None:
        if text:
            index = -1 if kind in ("content", "reasoning") else self._num_calls - 1
            self._events.append(StreamEvent(kind, text, index))

    def _read_until(self, kind: Kind, mark: str) -> bool:
        """Read text up to a mark, or up to what may be the begin of one."""
        found = self._text.find(mark, self._at) if mark else -1
        until = found
        if found < 0:
            longest = min(len(mark) - 1, len(self._text) - self._at)
            held = next((n for n in range(longest, 0, -1) if self._text.endswith(mark[:n])), 0)
            until = len(self._text) - held
        self._emit(kind, self._text[self._at : until])
        self._at = until
        return found >= 0

    def _begin_call(self, pattern: re.Pattern[str]) -> bool | None:
        """Begin the call that stands here. None if more text must tell, False if there
        is none."""
        found = pattern.match(self._text, self._at)
        rest = self._text[self._at :]
        if found is None or found.lastindex is None:
            return None if len(rest) <= self._longest else False
        begun = found[found.lastindex]
        written = self._text[found.start(found.lastindex) :]
        if any(len(begin) > len(begun) and begin.startswith(written) for begin in self._begins):
            return None
        self._tool = self._tools[found.lastindex - 1]
        self._at = self._start = found.end()
        self._num_calls += 1
        self._arguments, self._num_grown = {}, -1
        self._json = JsonStream()
        self._state = self._in_json if self._form.argument_style is None else self._in_tags
        self._emit("call", self._tool.name)
        return True

    def _grown(self, argument: GrowingArgument) -> str:
        """The JSON text that an argument adds to what has been passed on of it."""
        begin = ""
        if self._num_grown < 0:
            begin = f"{', ' if self._arguments else '{'}{json.dumps(argument.key, ensure_ascii=False)}: "
            begin, self._num_grown = begin + '"' * argument.is_string, 0
        added = argument.text[self._num_grown :]
        self._num_grown = len(argument.text)
        return begin + (json.dumps(added, ensure_ascii=False)[1:-1] if argument.is_string else added)

    def _whole_argument(self, style: ArgumentStyle, key: str, value: Any, end: int) -> GrowingArgument:
        """An argument that ends at a character."""
        if isinstance(value, str):
            return GrowingArgument(key, value, True)
        written = json.dumps(value, ensure_ascii=False)
        if isinstance(value, dict | list) and not style.is_recursive and not style.separator:
            entry = style.entry.match(self._text, self._at)
            assert entry is not None
            written = self._text[entry.end() : end - len(style.closing(key))].strip()
        return GrowingArgument(key, written, False)

    def _read_open(self) -> None:
        """Read the arguments of a call that is not complete."""
        style = self._form.argument_style
        if self._state == self._in_json:
            self._arguments = self._json.value or {}
        elif self._state == self._in_tags and style is not None:
            self._arguments |= read_open_entry(style, self._text, self._at, self._tool.parameters)

    def _complete(self, *, is_complete: bool) -> None:
        written = json.dumps(self._arguments, ensure_ascii=False)
        call = ToolCall(self._tool.name, self._arguments, self._tool, written, is_complete)
        self._events.append(StreamEvent("complete", "", self._num_calls - 1, call))


def read_calls(stream: ToolCallStream, text: str, *, partial: bool = False) -> list[ToolCall]:
    """Read the calls of an answer.

    Args:
        stream: a new reader.
        text: the answer.
        partial: whether the last call may be incomplete. It has the arguments so far.

    Raises:
        ValueError: a call is not complete, or its arguments cannot be read.
    """
    events = stream.feed(text) + stream.finish(partial=partial)
    return [event.call for event in events if event.call is not None]
