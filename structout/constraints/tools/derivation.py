"""The notation of a model's tool calls, found in its own description.

A chat template is rendered with calls whose names, arguments and ids are known. The
text around these is the notation. llama.cpp compares renderings of templates in this
way, too.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import product
from typing import Any, NamedTuple

from structout.constraints.tools.reading import write_arguments
from structout.constraints.tools.response_templates import NAME, described_notation
from structout.constraints.tools.styles import STYLES
from structout.errors import GrammarError

NUMBER = r"(?:0|[1-9]\d{0,2})"  # of a call: models count on through a conversation
ID = "\ue001"  # stands for the number or id of a call
_RANDOM_ID = "[A-Za-z0-9]{9}"  # what Mistral's templates demand; others take any text

_NAMES = ("structout_first", "structout_second")
_CONTENT, _REASONING = "structoutcontent", "structoutreasoning"
_REASONING_KEYS = ("reasoning_content", "reasoning", "thinking")
_MARK = re.compile(r"\s*(<[^<>\n]+>|\[[A-Za-z_/]+\]|\{\"\w+\":)")
_DECODER = json.JSONDecoder()
_MAX_MARK = 200  # characters
_ANY = "\x01"  # stands for a line break that may be missing
_REFUSES = "it refuses a message with calls"
_NO_NAME = "the name of the tool is not in the text"
_NO_ARGUMENTS = "arguments are neither JSON nor between tags"
# What ends a reasoning in front of a call, where the template shows none.
_CLOSED = re.compile(r"(\s*(<\w+>)?\s*</[^<>]+>)+")


@dataclass(frozen=True)
class DerivedFormat:
    """The fields of a ``ToolFormat``. Here ``begin`` is a text, with ``NAME`` for the
    name of a tool."""

    begin: Any
    end: str
    trigger: str
    style: str | Mapping[str, Any] = "json"
    section: tuple[str, str] | None = None
    separator: str = ""
    call_id: str = NUMBER
    excluded: tuple[str, ...] = ()
    is_single: bool = False
    reasoning: tuple[str, str] | None = None
    content_begin: str = ""


class NoCallsError(GrammarError):
    """The template does not write calls."""


class _NotFoundError(Exception):
    """A part of the notation is not found. The message names it."""


class _Call(NamedTuple):
    """A call in a rendered text, and where its arguments stand."""

    name: str
    start: int
    end: int


def derive_format(tokenizer: Any) -> DerivedFormat:
    """Find the notation of calls in what a tokenizer says of its model.

    A ``response_template`` comes first. Where it agrees with the chat template, up to
    whitespace, the whitespace is that of the chat template.

    Args:
        tokenizer: one with ``apply_chat_template``, as transformers has.

    Raises:
        NoCallsError: the chat template writes no calls, or there is none.
        GrammarError: a part of the notation is not found. The message names it.
    """
    described = described_notation(getattr(tokenizer, "response_template", None))
    try:
        rendered = _from_chat_template(tokenizer)
    except GrammarError:
        if described is None:
            raise
    else:
        if described is None or _squeezed(rendered.begin) == _squeezed(described["begin"]):
            return rendered
    begin: str = described["begin"]
    mark = _MARK.match(begin)
    trigger = mark[0] if mark else begin.partition(NAME)[0]
    if not trigger.strip():
        raise GrammarError("in the response_template nothing stands in front of a call; name a tool_format")
    return DerivedFormat(trigger=trigger, **described)


def reasoning_marks(tokenizer: Any) -> dict[str, Any]:
    """The fields ``reasoning`` and ``content_begin`` of a format, as the chat template
    of a tokenizer writes them. Empty if it writes no reasoning."""
    if getattr(tokenizer, "chat_template", None) is None:
        return {}
    template = _Template(tokenizer, has_text_arguments=False, has_named_ids=False, num_calls=1)
    try:
        reasoning, content_begin = template.reasoning(template.render(None))
    except Exception:  # templates raise what they like
        return {}
    return {} if reasoning is None else {"reasoning": reasoning, "content_begin": content_begin}


def _from_chat_template(tokenizer: Any) -> DerivedFormat:
    if getattr(tokenizer, "chat_template", None) is None:
        raise NoCallsError("the tokenizer has no chat template")
    problems: list[str] = []
    for form in product((False, True), (False, True), (2, 1)):
        try:
            return _Template(tokenizer, *form).read()
        except _NotFoundError as problem:
            problems.append(str(problem))
            if str(problem) == _NO_ARGUMENTS:
                break  # another form of the same arguments would be read amiss
    if set(problems) == {_NO_NAME}:
        raise NoCallsError("the chat template writes no tool calls")
    reasons = [reason for reason in problems if reason != _NO_NAME]
    reason = next((reason for reason in reasons if not reason.startswith(_REFUSES)), reasons[0])
    raise GrammarError(f"the notation of tool calls is not found in the chat template: {reason}; name a tool_format")


class _Template:
    """A chat template, rendered with calls of one form.

    Args:
        tokenizer: the tokenizer that has it.
        has_text_arguments: whether arguments are given as JSON text, not as objects.
        has_named_ids: whether ids have the name of the tool, as Kimi's have.
        num_calls: how many calls are rendered.
    """

    def __init__(self, tokenizer: Any, has_text_arguments: bool, has_named_ids: bool, num_calls: int):
        self._tokenizer = tokenizer
        self._has_named_ids = has_named_ids
        self._num_calls = num_calls
        self._arguments = [_arguments(number) for number in range(num_calls)]
        calls = []
        for i, (name, given) in enumerate(zip(_NAMES, self._arguments, strict=False)):
            written = json.dumps(given) if has_text_arguments else given
            function = {"name": name, "arguments": written}
            calls.append({"id": self._id(i), "type": "function", "function": function})
        self._calls = {"tool_calls": calls}

    def _id(self, number: int) -> str:
        return f"functions.{_NAMES[number]}:{number}" if self._has_named_ids else f"call0000{number}"

    def render(self, assistant: Mapping[str, Any] | None) -> str:
        messages: list[Mapping[str, Any]] = [{"role": "user", "content": "structoutquestion"}]
        if assistant is not None:
            messages.append({"role": "assistant", **assistant})
        options = {"tools": [_tool(name) for name in _NAMES], "tokenize": False}
        text: str = self._tokenizer.apply_chat_template(messages, add_generation_prompt=assistant is None, **options)
        return text

    def _rendered(self, *assistants: Mapping[str, Any]) -> str | None:
        """The text of the first message that the template takes."""
        for assistant in assistants:
            try:
                return self.render(assistant)
            except Exception as error:  # templates raise what they like
                self._problem = str(error)
        return None

    def read(self) -> DerivedFormat:
        """Find the notation.

        Raises:
            _NotFoundError: a part of it is missing.
        """
        text = self._rendered(*({"content": content, **self._calls} for content in ("", None, _CONTENT)))
        if text is None:
            raise _NotFoundError(f"{_REFUSES}: {self._problem}")
        end_of_turn = (self._rendered({"content": _CONTENT}) or "").partition(_CONTENT)[2]
        begun = self.render(None)
        start = len(_shared_start(begun, text))
        calls, style = self._find_calls(text, start)
        head = self._marked(text[start : calls[0].start], calls)
        tail = self._marked(text[calls[-1].end :], calls)
        reasoning, content_begin = self.reasoning(begun)
        head = self._without_preface(head, calls, reasoning)
        tail = _without_end_of_turn(tail, end_of_turn, getattr(self._tokenizer, "eos_token", None))
        separator, section, has_number = "", None, False
        if self._num_calls == 2:
            middle = self._marked(text[calls[0].end : calls[1].start], calls)
            head, middle, has_number = _with_number(head, middle)
            end, separator, begin = _split(middle, head, tail)
            around = head.removesuffix(begin), tail.removeprefix(end).rstrip("\n")
            section = around if around[0].strip() else None
        else:
            begin, end = head, tail.rstrip("\n")
        if len(end + (section or ("", ""))[1]) > _MAX_MARK:
            raise _NotFoundError("the end of the calls is not told from what follows it")
        before = begin.partition(NAME)[0].partition(ID)[0]
        if NAME not in begin:
            raise _NotFoundError("the name does not stand in front of the arguments")
        opened = section[0] if section else before
        mark = _MARK.match(opened)
        trigger = mark[0] if mark and mark[0] not in end_of_turn else opened
        if not trigger.strip() or trigger in end_of_turn or (reasoning and reasoning[1].endswith(trigger)):
            raise _NotFoundError("nothing that tells a call from other text stands in front of the name")
        inner = before if section else before[len(trigger) :]
        excluded = (inner[inner.find("<") :],) if "<" in inner else ()
        call_id = NUMBER if has_number or ID not in begin else _RANDOM_ID
        return DerivedFormat(
            begin,
            end,
            trigger,
            style,
            section,
            separator,
            call_id,
            excluded,
            self._num_calls == 1,
            reasoning,
            content_begin,
        )

    # -- calls ----------------------------------------------------------------------

    def _find_calls(self, text: str, start: int) -> tuple[list[_Call], str | dict[str, Any]]:
        names = [text.find(name, start) for name in _NAMES[: self._num_calls]]
        if min(names) < 0:
            raise _NotFoundError(_NO_NAME if max(names) < 0 else "it writes one call of two")
        for find in (self._json_calls, self._styled_calls, self._tagged_calls):
            calls, style = find(text, names)
            if len(calls) == self._num_calls:
                return calls, style
        is_python = "{'alpha'" in text  # a template that takes arguments as JSON text
        raise _NotFoundError("it writes arguments as Python does" if is_python else _NO_ARGUMENTS)

    def _json_calls(self, text: str, names: list[int]) -> tuple[list[_Call], str]:
        calls = []
        for name, at, arguments in zip(_NAMES, names, self._arguments, strict=False):
            for found in re.finditer(r"\{", text[at:]):
                try:
                    value, end = _DECODER.raw_decode(text, at + found.start())
                except ValueError:
                    continue
                if value == arguments:
                    calls.append(_Call(name, at + found.start(), end))
                    break
        return calls, "json"

    def _styled_calls(self, text: str, names: list[int]) -> tuple[list[_Call], str]:
        for style_name, style in STYLES.items():
            calls = []
            for name, at, arguments in zip(_NAMES, names, self._arguments, strict=False):
                written = re.escape(write_arguments(style, arguments, _ANY)).replace(_ANY, "\n?")
                # Jinja may write Python's literals.
                pattern = written.replace("true", "[Tt]rue").replace('"', "[\"']")
                found = re.compile(pattern).search(text, at)
                if found is not None:
                    calls.append(_Call(name, found.start(), found.end()))
            if len(calls) == self._num_calls:
                return calls, style_name
        return [], ""

    def _tagged_calls(self, text: str, names: list[int]) -> tuple[list[_Call], dict[str, Any]]:
        """Arguments between tags that no style of ours has."""
        calls, tags = [], set()
        for name, at, arguments in zip(_NAMES, names, self._arguments, strict=False):
            first, second, *_, last = keys = list(arguments)
            places = [at]
            for wanted in (first, arguments[first], second, arguments[second], last, arguments[last]):
                places.append(text.find(wanted, places[-1]))
            if min(places) < 0:
                return [], {}
            (_, key, value, next_key, next_value, _, last_value) = places
            before, middle = text[at + len(name) : key], text[key + len(first) : value]
            between = text[value + len(arguments[first]) : next_key]
            end, gap, begin = _split(between, before, text[last_value + len(arguments[last]) :])
            if gap.strip() or text[next_key + len(second) : next_value] != middle or len(keys) < 3:
                return [], {}
            is_wrapped = middle.endswith("\n") and end.startswith("\n")
            tags.add((begin, middle.rstrip("\n"), end.strip("\n"), is_wrapped))
            closing = end.rstrip("\n")
            calls.append(_Call(name, key - len(begin), last_value + len(arguments[last]) + len(closing)))
        (begin, middle, end, is_wrapped) = next(iter(tags))
        is_tag = all(part.strip() for part in (begin, middle, end)) and not {"'", '"'} & {end[:1], middle[-1:]}
        if len(tags) > 1 or not is_tag:
            return [], {}
        return calls, {"begin": begin, "middle": middle, "end": end, "is_wrapped": is_wrapped}

    # -- what stands around them ------------------------------------------------------

    def _marked(self, text: str, calls: list[_Call]) -> str:
        """A text with ``NAME`` and ``ID`` in the places of names and ids. An id that
        follows the arguments in their JSON object is left out: no reader needs it."""
        for i, call in enumerate(calls):
            text = text.replace(call.name, NAME).replace(self._id(i), ID)
        return re.sub(rf', "\w+": "{ID}"(?=\s*\}})', "", text)

    def _without_preface(self, head: str, calls: list[_Call], reasoning: tuple[str, str] | None) -> str:
        """What precedes the first call, without what ends a reasoning or a content."""
        text = self._rendered({"content": _CONTENT, **self._calls})
        at = -1 if text is None else text.find(calls[0].name)
        place = -1 if text is None else text.rfind(_CONTENT, 0, max(at, 0))
        if text is not None and place >= 0:
            arguments = self._find_calls(text, place)[0][0].start
            after = self._marked(text[place + len(_CONTENT) : arguments], calls)
            head = _common_suffix(head, after) if NAME in _common_suffix(head, after) else head
        if reasoning is not None and (found := head.find(reasoning[1], 0, head.find(NAME))) >= 0:
            head = head[found + len(reasoning[1]) :]
        elif (closed := _CLOSED.match(head)) is not None:
            head = head[closed.end() :]
        return head.lstrip("\n")

    def reasoning(self, begun: str) -> tuple[tuple[str, str] | None, str]:
        """What stands around a reasoning, None if the template writes none; and what
        stands in front of a content behind it, and of no call."""
        reasoning = dict.fromkeys(_REASONING_KEYS, _REASONING)
        text = self._rendered({"content": _CONTENT, **reasoning}) or ""
        before, found, after = text.partition(_REASONING)
        after, _, has_content = after.partition(_CONTENT)
        if not found or not after.strip() or not (has_content or text.endswith(_CONTENT)):
            return None, ""
        with_calls = self._rendered({"content": "", **self._calls, **reasoning}) or ""
        shared = _shared_start(after, with_calls.partition(_REASONING)[2])
        end, content_begin = (shared.strip(), after[len(shared) :].strip()) if shared.strip() else (after.strip(), "")
        begin = before[len(_shared_start(begun, before)) :].strip()
        if not begin and end.startswith("</") and end.replace("/", "") in before:
            begin = end.replace("/", "")
        return (begin, end), content_begin


def _squeezed(text: str) -> str:
    return "".join(text.split())


def _arguments(number: int) -> dict[str, Any]:
    """Arguments of each JSON type, in the order of the alphabet, which some templates
    keep. Two texts come first, and one last."""
    texts = {"alpha": f"aone{number}", "beta": f"btwo{number}"}
    others = {"delta": 37, "epsilon": True, "eta": ["e"], "kappa": {"inner": 5}}
    return texts | others | {"omega": f"olast{number}"}


def _tool(name: str) -> dict[str, Any]:
    types = {"alpha": "string", "beta": "string", "delta": "integer", "epsilon": "boolean", "omega": "string"}
    properties: dict[str, Any] = {key: {"type": kind, "description": "A value."} for key, kind in types.items()}
    properties["eta"] = {"type": "array", "items": {"type": "string"}, "description": "A list."}
    properties["kappa"] = {"type": "object", "additionalProperties": {"type": "integer"}, "description": "An object."}
    parameters = {"type": "object", "properties": properties, "required": ["alpha"]}
    return {"type": "function", "function": {"name": name, "description": "A tool.", "parameters": parameters}}


def _common_prefix(first: str, second: str) -> str:
    shorter = min(len(first), len(second))
    return first[: next((i for i in range(shorter) if first[i] != second[i]), shorter)]


def _common_suffix(first: str, second: str) -> str:
    return _common_prefix(first[::-1], second[::-1])[::-1]


def _with_number(head: str, middle: str) -> tuple[str, str, bool]:
    """Put ``ID`` in the place of a number that counts calls."""
    shared = len(_common_suffix(head, middle))
    if shared >= min(len(head), len(middle)):
        return head, middle, False
    first, second = head[-shared - 1], middle[-shared - 1]
    if not (first.isdigit() and second.isdigit() and int(second) == int(first) + 1):
        return head, middle, False
    head, middle = (text[: -shared - 1] + ID + text[len(text) - shared :] for text in (head, middle))
    return head, middle, True


def _split(middle: str, head: str, tail: str) -> tuple[str, str, str]:
    """Split what stands between two parts.

    Args:
        middle: the text between them.
        head: what precedes the first of them. It ends as the next one begins.
        tail: what follows the last of them. It begins with the end of a part.

    Returns:
        the end of a part, the separator, and the begin of the next one.
    """
    end, begin = _common_prefix(middle, tail), _common_suffix(middle, head)
    if len(end) + len(begin) > len(middle):  # the marks resemble each other
        first, last = len(middle) - len(begin), len(end)
        cut = middle.rfind("\n", max(first - 1, 0), last) + 1 or middle.rfind("<", first, last)
        cut = last if cut < first else cut
        end, begin = middle[:cut], middle[cut:]
    # Line breaks between parts are not theirs.
    end = end.rstrip() if "\n" in end[len(end.rstrip()) :] else end
    begin = begin.lstrip() if "\n" in begin[: len(begin) - len(begin.lstrip())] else begin
    return end, middle[len(end) : len(middle) - len(begin)], begin


def _shared_start(first: str, second: str) -> str:
    """What two texts begin with, without a part of a mark."""
    shared = _common_prefix(first, second)
    return shared[: shared.rfind("<")] if shared.rfind("<") > shared.rfind(">") else shared


def _without_end_of_turn(tail: str, end_of_turn: str, end_token: str | None) -> str:
    """What follows the last arguments, without what ends any answer."""
    if end_of_turn and tail.endswith(end_of_turn):
        return tail.removesuffix(end_of_turn)
    if end_token:
        tail = tail.partition(end_token)[0]
    shared = _common_suffix(tail, end_of_turn)
    shared = shared[max(shared.find("<"), 0) :]
    return tail.removesuffix(shared) if re.fullmatch(r"(\s*<[^<>]+>)+\s*", shared) else tail
