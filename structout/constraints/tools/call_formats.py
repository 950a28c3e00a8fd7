"""The texts in which models call tools: as structural tags, and read back."""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from structout.constraints.tools.definitions import Tool, ToolCall
from structout.constraints.tools.reading import read_arguments
from structout.constraints.tools.styles import STYLES
from structout.errors import GrammarError

_DECODER = json.JSONDecoder()
_AUTO, _REQUIRED = "auto", "required"
_NUMBER = r"(?:0|[1-9]\d{0,2})"  # of a call: models count on through a conversation


@dataclass(frozen=True)
class ToolFormat:
    """The notation of tool calls in one family of models.

    For example, ``hermes`` puts a JSON object with the tool's name and arguments
    between ``<tool_call>`` and ``</tool_call>``.

    Attributes:
        begin: what stands in front of the arguments, for the name of a tool.
        end: what comes after them.
        trigger: what a call, or the section of all calls, begins with. Free text has it
            nowhere else.
        style: "json", or one of ``STYLES``.
        section: what stands around all calls, if anything does.
        separator: what stands between two calls.
        numbered: what follows a number that comes after ``begin``.
        excluded: what a reader would take for a part of a call. Free text has none of
            it.
    """

    begin: Callable[[str], str]
    end: str
    trigger: str
    style: str = "json"
    section: tuple[str, str] | None = None
    separator: str = ""
    numbered: str | None = None
    excluded: tuple[str, ...] = ()

    def structural_tag(self, tools: Sequence[Tool], choice: str, *, is_parallel: bool = True) -> dict[str, Any]:
        """The structural tag of answers with calls.

        Args:
            tools: those that may be called.
            choice: "auto", where text may stand between calls; "required", one call or
                more and nothing else; or the name of the tool that is called.
            is_parallel: whether there may be more than one call.

        Raises:
            GrammarError: no tool has the name ``choice``.
        """
        if choice not in (_AUTO, _REQUIRED):
            tools = [tool for tool in tools if tool.name == choice]
            if not tools:
                raise GrammarError(f'tool_choice must be "auto", "required" or the name of a tool, got {choice!r}')
        is_single = not is_parallel or choice not in (_AUTO, _REQUIRED)
        tags = [self._tag(tool) for tool in tools]
        if self.section is not None:
            begin, end = self.section
            tags = [{"type": "tag", "begin": begin, "content": self._calls(tags, is_single), "end": end}]
        if choice == _AUTO:
            triggered = {"type": "triggered_tags", "triggers": [self.trigger], "tags": tags}
            part = triggered | {"excludes": list(self.excluded), "stop_after_first": is_single}
        else:
            part = tags[0] if self.section is not None else self._calls(tags, is_single)
        return {"type": "structural_tag", "format": part}

    def calls_in(self, text: str, tools: Sequence[Tool]) -> list[ToolCall]:
        """Read the calls of an answer.

        Raises:
            ValueError: a call is not complete, or its arguments cannot be read.
        """
        number = "" if self.numbered is None else _NUMBER + re.escape(self.numbered)
        by_begin = {self.begin(tool.name): tool for tool in tools}
        begins = re.compile(f"({'|'.join(map(re.escape, sorted(by_begin, key=len, reverse=True)))}){number}")
        calls, at = [], 0
        while (found := begins.search(text, at)) is not None:
            tool = by_begin[found[1]]
            arguments, at = self._arguments(text, found.end(), tool)
            if not text.startswith(self.end, at):
                raise ValueError(f"the call of {tool.name} at character {found.start()} is not closed by {self.end!r}")
            at += len(self.end)
            calls.append(ToolCall(tool.name, arguments, tool, json.dumps(arguments, ensure_ascii=False)))
        return calls

    def _arguments(self, text: str, start: int, tool: Tool) -> tuple[dict[str, Any], int]:
        if self.style == "json":
            return _DECODER.raw_decode(text, start)
        arguments, end = read_arguments(STYLES[self.style], text, start, tool.parameters)
        # A line break in front of the end belongs to it.
        return arguments, end - (self.end.startswith("\n") and not text.startswith(self.end, end))

    def _tag(self, tool: Tool) -> dict[str, Any]:
        content: Mapping[str, Any] = {"type": "json_schema", "json_schema": tool.parameters, "style": self.style}
        if self.numbered is not None:
            number = {"type": "regex", "pattern": _NUMBER}
            content = {"type": "sequence", "elements": [number, _constant(self.numbered), content]}
        return {"type": "tag", "begin": self.begin(tool.name), "content": content, "end": self.end}

    def _calls(self, tags: list[dict[str, Any]], is_single: bool) -> dict[str, Any]:
        calls = {"type": "tags_with_separator", "tags": tags, "separator": self.separator, "at_least_one": True}
        return calls | {"stop_after_first": is_single}


def _constant(value: str) -> dict[str, str]:
    return {"type": "const_string", "value": value}


def _quoted(name: str) -> str:
    return json.dumps(name, ensure_ascii=False)


def _dsml(section: str) -> ToolFormat:
    return ToolFormat(
        lambda name: f'<｜DSML｜invoke name="{name}">\n',
        "</｜DSML｜invoke>\n",
        f"<｜DSML｜{section}>",
        "deepseek_xml",
        (f"<｜DSML｜{section}>\n", f"</｜DSML｜{section}>"),
        excluded=("<｜DSML｜invoke",),
    )


TOOL_FORMATS = {
    "hermes": ToolFormat(
        lambda name: f'<tool_call>\n{{"name": {_quoted(name)}, "arguments": ', "}\n</tool_call>", "<tool_call>"
    ),
    "llama": ToolFormat(lambda name: f'{{"name": {_quoted(name)}, "parameters": ', "}", '{"name":'),
    "qwen_3_coder": ToolFormat(
        lambda name: f"<tool_call>\n<function={name}>\n",
        "\n</function>\n</tool_call>",
        "<tool_call>",
        "qwen_xml",
        separator="\n",
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
    "deepseek_v3_1": ToolFormat(
        lambda name: f"<｜tool▁call▁begin｜>{name}<｜tool▁sep｜>",
        "<｜tool▁call▁end｜>",
        "<｜tool▁calls▁begin｜>",
        section=("<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"),
        excluded=("<｜tool▁call▁begin｜>",),
    ),
    "deepseek_v3_2": _dsml("function_calls"),
    "deepseek_v4": _dsml("tool_calls"),
    "kimi": ToolFormat(
        lambda name: f"<|tool_call_begin|>functions.{name}:",
        "<|tool_call_end|>",
        "<|tool_calls_section_begin|>",
        section=("<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"),
        numbered="<|tool_call_argument_begin|>",
        excluded=("<|tool_call_begin|>",),
    ),
}
