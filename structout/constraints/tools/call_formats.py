"""The texts in which models call tools: as structural tags, and read back."""

import json
import re
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any
from weakref import WeakKeyDictionary

from structout.constraints.tools.custom_inputs import input_format
from structout.constraints.tools.definitions import Tool, read_choice
from structout.constraints.tools.derivation import ID, DerivedFormat, NoCallsError, derive_format, reasoning_marks
from structout.constraints.tools.reading import write_arguments
from structout.constraints.tools.response_templates import NAME
from structout.constraints.tools.styles import ArgumentStyle, style_of

LINE_BREAKS = "\\n{0,2}"  # between a reasoning and an answer


@dataclass(frozen=True)
class ToolFormat(DerivedFormat):
    """The notation of tool calls in one family of models.

    For example, ``hermes`` puts a JSON object with the tool's name and arguments
    between ``<tool_call>`` and ``</tool_call>``.

    Attributes:
        begin: what stands in front of the arguments, for the name of a tool. It may
            have ``ID`` once, where a number or an id of the call stands.
        end: what comes after them.
        trigger: what a call, or the section of all calls, begins with. Free text has it
            nowhere else.
        style: "json", or another one, as ``style_of`` takes it.
        section: what stands around all calls, if anything does.
        separator: what stands between two calls.
        call_id: regular expression of what stands in the place of ``ID``.
        excluded: what a reader would take for a part of a call. Free text has none of
            it.
        is_single: whether an answer has one call at most.
        reasoning: what stands around a reasoning, if that is known. An empty begin
            stands in the prompt.
        content_begin: what stands in front of a content, behind a reasoning or at the
            begin of the answer.
    """

    begin: Callable[[str], str]

    @classmethod
    def from_tokenizer(cls, tokenizer: Any) -> "ToolFormat":
        """The notation of a model, as its chat template writes calls.

        Without a template, or if it writes none, this is ``hermes``, with a warning.

        Args:
            tokenizer: a Hugging Face tokenizer, or another with ``apply_chat_template``
                and ``chat_template``.

        Raises:
            GrammarError: the template writes calls, but a part of their notation is not
                found. The message names it.
        """
        described = [getattr(tokenizer, name, None) for name in ("chat_template", "response_template")]
        if tokenizer not in _derived or _derived[tokenizer][0] != described:
            try:
                found = derive_format(tokenizer)
            except NoCallsError as reason:
                warnings.warn(f"{reason}: calls are written in the format hermes", stacklevel=2)
                return cls.of_reasoning(tokenizer)
            _derived[tokenizer] = described, cls(**vars(found) | {"begin": partial(_filled, found.begin)})
        return _derived[tokenizer][1]

    @classmethod
    def of_reasoning(cls, tokenizer: Any) -> "ToolFormat":
        """``hermes``, with the marks of the reasoning that the chat template of a model
        writes, if it writes one."""
        marks = reasoning_marks(tokenizer)
        return replace(TOOL_FORMATS["hermes"], **marks) if marks else TOOL_FORMATS["hermes"]

    def write(self, name: str, arguments: Mapping[str, Any] | str) -> str:
        """The text of a call, without a section around it. Arguments that are a text
        stand in it as they are."""
        style = self.argument_style
        if isinstance(arguments, str):
            text = arguments
        elif style is None:
            text = json.dumps(arguments, ensure_ascii=False)
        else:
            text = write_arguments(style, dict(arguments))
            is_on_lines = self.begin(name).endswith("\n") and not self.end.startswith("\n")
            text += "\n" * (is_on_lines and bool(text))
        call_id = "0" if re.fullmatch(self.call_id, "0") else "call00000"
        return f"{self.begin(name).replace(ID, call_id)}{text}{self.end}"

    def structural_tag(
        self,
        tools: Sequence[Tool],
        choice: Any,
        *,
        is_parallel: bool = True,
        instead: Mapping[str, Any] | None = None,
        excluded: Sequence[str] = (),
    ) -> dict[str, Any]:
        """The structural tag of answers with calls.

        Args:
            tools: those that may be called.
            choice: "auto", where text may stand between calls; "required", one call or
                more and nothing else; "none", text alone; the name of the tool that is
                called; or one of OpenAI's objects, see ``read_choice``.
            is_parallel: whether there may be more than one call.
            instead: a format of the texts that may be written in place of calls. No
                other text may then stand beside calls.
            excluded: what free text has none of, beside ``self.excluded``.

        Raises:
            GrammarError: a tool in ``choice`` does not exist.
        """
        mode, tools = read_choice(choice, tools)
        excluded = [*self.excluded, *excluded]
        text = {"type": "any_text", "excludes": [self.trigger, *excluded]}
        if mode == "none":
            return {"type": "structural_tag", "format": self.content(instead or text)}
        is_single = self.is_single or not is_parallel or mode == "named"
        tags = [self._tag(tool) for tool in tools]
        if self.section is not None:
            begin, end = self.section
            tags = [{"type": "tag", "begin": begin, "content": self._calls(tags, is_single), "end": end}]
        if self.content_begin and self.is_single:  # a message is a content or a call
            instead = instead or text
        if mode == "auto" and instead is None:
            triggered = {"type": "triggered_tags", "triggers": [self.trigger], "tags": tags}
            part = self.content(triggered | {"excludes": excluded, "stop_after_first": is_single})
        else:
            part = tags[0] if self.section is not None else self._calls(tags, is_single)
            if mode == "auto" and instead is not None:
                part = {"type": "or", "elements": [part, self.content(instead)]}
        return {"type": "structural_tag", "format": part}

    def after_reasoning(self, answer: Mapping[str, Any], *, is_required: bool) -> dict[str, Any]:
        """A part of a structural tag, and a reasoning in front of it.

        Args:
            answer: the part.
            is_required: whether there must be one. There must where the prompt has
                opened it.
        """
        assert self.reasoning is not None
        begin, end = self.reasoning
        reasoning: dict[str, Any] = {"type": "tag", "begin": begin, "content": {"type": "any_text"}, "end": end}
        if not self.content_begin:
            reasoning = {"type": "sequence", "elements": [reasoning, {"type": "regex", "pattern": LINE_BREAKS}]}
        if begin and not is_required:
            reasoning = {"type": "optional", "content": reasoning}
        return {"type": "sequence", "elements": [reasoning, answer]}

    def split(self, text: str) -> tuple[str, str]:
        """Split an answer into its reasoning, which may have no end yet, and the rest,
        without their marks."""
        reasoning, answer = "", text
        if self.reasoning is not None and text.lstrip().startswith(self.reasoning[0]):
            begin, end = self.reasoning
            reasoning, _, answer = text.lstrip().removeprefix(begin).partition(end)
            answer = answer if self.content_begin else re.sub(LINE_BREAKS, "", answer, count=1)
        return reasoning, answer.removeprefix(self.content_begin)

    def answer_in(self, text: str) -> str | None:
        """The answer in a text so far, behind a reasoning and its marks. None as long
        as there may be more of these."""
        assert self.reasoning is not None
        answer = self.split(text)[1].lstrip()
        may_be_mark = any(mark.startswith(answer) for mark in (self.reasoning[0], self.content_begin))
        return None if not answer or may_be_mark else answer

    def reasoning_after(self, prompt: str) -> tuple[str, str] | None:
        """What stands around a reasoning in the answer to a prompt. The begin is empty
        if the prompt ends with it. None if the prompt ends with a whole reasoning, or
        the marks are not known."""
        prompt = prompt.rstrip()
        if self.reasoning is None:
            opened = _OPENED.search(prompt)
            return None if opened is None else ("", f"</{opened[1]}>")
        begin, end = self.reasoning
        if prompt.endswith(end) and not self.content_begin:
            return None
        return ("" if prompt.endswith(begin) else begin), end

    @property
    def argument_style(self) -> ArgumentStyle | None:
        """The notation of arguments. None for JSON."""
        return None if self.style == "json" else style_of(self.style)

    def begin_pattern(self, name: str) -> str:
        """The regular expression of ``begin``."""
        return f"(?:{self.call_id})".join(map(re.escape, self.begin(name).split(ID)))

    def _tag(self, tool: Tool) -> dict[str, Any]:
        content: dict[str, Any] = {"type": "json_schema", "json_schema": tool.parameters, "style": self.style}
        if tool.lark_grammar is not None:
            style = self.argument_style
            excluded = () if style is None or style.separator else (self.end.strip(),)
            content = input_format(tool.lark_grammar, self.argument_style, excluded)
            if excluded:  # as other arguments, it may have a line break behind it
                content["elements"].append({"type": "optional", "content": _constant("\n")})
        begin, has_id, after = self.begin(tool.name).partition(ID)
        if has_id:
            call_id = {"type": "regex", "pattern": self.call_id}
            content = {"type": "sequence", "elements": [call_id, _constant(after), content]}
        return {"type": "tag", "begin": begin, "content": content, "end": self.end}

    def content(self, part: Mapping[str, Any]) -> Mapping[str, Any]:
        """A part of a structural tag, and what stands in front of a content."""
        if not self.content_begin:
            return part
        begin = {"type": "optional", "content": _constant(self.content_begin)}
        return {"type": "sequence", "elements": [begin, part]}

    def _calls(self, tags: list[dict[str, Any]], is_single: bool) -> dict[str, Any]:
        calls = {"type": "tags_with_separator", "tags": tags, "separator": self.separator, "at_least_one": True}
        return calls | {"stop_after_first": is_single}


_OPENED = re.compile(r"<((?!/)[^<>]*think[^<>]*)>$")  # a reasoning, at the end of a prompt

# By tokenizer: the templates, and the format that they show.
_derived: WeakKeyDictionary[Any, tuple[list[Any], ToolFormat]] = WeakKeyDictionary()


def _constant(value: str) -> dict[str, str]:
    return {"type": "const_string", "value": value}


def _quoted(name: str) -> str:
    return json.dumps(name, ensure_ascii=False)


def _filled(begin: str, name: str) -> str:
    """``begin`` of a derived format, for a tool."""
    before, _, _ = begin.partition(NAME)
    return begin.replace(NAME, _quoted(name)[1:-1] if "{" in before else name)


def _dsml(section: str, style: str = "deepseek_xml", space: str = "") -> ToolFormat:
    return ToolFormat(
        lambda name: f'<｜DSML｜{space}invoke name="{name}">\n',
        f"</｜DSML｜{space}invoke>\n",
        f"<｜DSML｜{space}{section}>",
        style,
        (f"<｜DSML｜{space}{section}>\n", f"</｜DSML｜{space}{section}>"),
        excluded=(f"<｜DSML｜{space}invoke",),
    )


def _json_in_tags(space: str) -> ToolFormat:
    return ToolFormat(
        lambda name: f'<tool_call>{space}{{"name": {_quoted(name)}, "arguments": ',
        f"}}{space}</tool_call>",
        "<tool_call>",
    )


TOOL_FORMATS = {
    "hermes": _json_in_tags("\n"),
    "exaone": _json_in_tags(""),
    "llama": ToolFormat(lambda name: f'{{"name": {_quoted(name)}, "parameters": ', "}", '{"name":', separator="; "),
    "qwen_3_coder": ToolFormat(
        lambda name: f"<tool_call>\n<function={name}>\n",
        "\n</function>\n</tool_call>",
        "<tool_call>",
        "qwen_xml",
        separator="\n",
        excluded=("<function=",),
    ),
    "mimo": ToolFormat(
        lambda name: f"<tool_call><function={name}>",
        "</function></tool_call>",
        "<tool_call>",
        "mimo_xml",
        excluded=("<function=",),
    ),
    "glm_4_7": ToolFormat(
        lambda name: f"<tool_call>{name}", "</tool_call>", "<tool_call>", "glm_xml", excluded=("<arg_key>",)
    ),
    "minimax": ToolFormat(
        lambda name: f'<invoke name="{name}">\n',
        "</invoke>\n",
        "<minimax:tool_call>",
        "minimax_xml",
        ("<minimax:tool_call>\n", "</minimax:tool_call>"),
        excluded=("<invoke name=",),
    ),
    "minimax_m3": ToolFormat(
        lambda name: f']<]minimax[>[<invoke name="{name}">',
        "]<]minimax[>[</invoke>\n",
        "]<]minimax[>[<tool_call>",
        "minimax_m3_xml",
        ("]<]minimax[>[<tool_call>\n", "]<]minimax[>[</tool_call>"),
        excluded=("]<]minimax[>[<invoke",),
    ),
    "deepseek_v3_1": ToolFormat(
        lambda name: f"<｜tool▁call▁begin｜>{name}<｜tool▁sep｜>",
        "<｜tool▁call▁end｜>",
        "<｜tool▁calls▁begin｜>",
        section=("<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"),
        excluded=("<｜tool▁call▁begin｜>",),
    ),
    "deepseek_r1": ToolFormat(
        lambda name: f"<｜tool▁call▁begin｜>function<｜tool▁sep｜>{name}\n```json\n",
        "\n```<｜tool▁call▁end｜>",
        "<｜tool▁calls▁begin｜>",
        section=("<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"),
        separator="\n",
        excluded=("<｜tool▁call▁begin｜>",),
    ),
    "deepseek_v3_2": _dsml("function_calls"),
    "deepseek_v4": _dsml("tool_calls"),
    "deepseek_v4_1": _dsml("calls", "deepseek_v4_1_xml", " "),
    "kimi": ToolFormat(
        lambda name: f"<|tool_call_begin|>functions.{name}:{ID}<|tool_call_argument_begin|>",
        "<|tool_call_end|>",
        "<|tool_calls_section_begin|>",
        section=("<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"),
        excluded=("<|tool_call_begin|>",),
    ),
    "kimi_k3": ToolFormat(
        lambda name: f'<|open|>call tool="{name}" index="{ID}"<|sep|>',
        "<|close|>call<|sep|>",
        "<|close|>response<|sep|><|open|>tools<|sep|>",
        "kimi_k3_xml",
        ("<|close|>response<|sep|><|open|>tools<|sep|>", "<|close|>tools<|sep|><|close|>message<|sep|>"),
        excluded=("<|open|>",),
        reasoning=("<|open|>think<|sep|>", "<|close|>think<|sep|><|open|>response<|sep|>"),
    ),
    "cohere": ToolFormat(
        lambda name: f'<cofl:tool_call id="{ID}" name="{name}">',
        "</cofl:tool_call>",
        "<cofl:tool_calls>",
        "cohere_xml",
        ("<cofl:tool_calls>", "</cofl:tool_calls>"),
        excluded=("<cofl:tool_call ",),
    ),
    "lfm2": ToolFormat(
        lambda name: f"{name}(",
        ")",
        "<|tool_call_start|>",
        "python",
        ("<|tool_call_start|>[", "]<|tool_call_end|>"),
        separator=", ",
    ),
    "pythonic": ToolFormat(lambda name: f"{name}(", ")", "[", "python", ("[", "]"), separator=", "),
    "gemma_4": ToolFormat(lambda name: f"<|tool_call>call:{name}{{", "}<tool_call|>", "<|tool_call>", "gemma"),
    "mistral": ToolFormat(lambda name: f"[TOOL_CALLS]{name}[ARGS]", "", "[TOOL_CALLS]"),
    "mistral_list": ToolFormat(
        lambda name: f'{{"name": {_quoted(name)}, "arguments": ',
        "}",
        "[TOOL_CALLS]",
        section=("[TOOL_CALLS][", "]"),
        separator=", ",
    ),
    "harmony": ToolFormat(
        lambda name: f"<|channel|>commentary to=functions.{name}<|constrain|>json<|message|>",
        "<|call|>",
        "<|channel|>commentary to=functions.",
        is_single=True,
        reasoning=("<|channel|>analysis<|message|>", "<|end|><|start|>assistant"),
        content_begin="<|channel|>final<|message|>",
    ),
}
