"""The prompts of :func:`generate` as tokens: texts, token ids and chat messages."""

import json
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from structout.constraints.description import describe as describe_schema
from structout.constraints.params import StructuredOutputOptions, StructuredOutputsParams
from structout.constraints.tools.definitions import read_tools


def list_of_prompts(prompts: Any) -> list[Any]:
    """The prompts one by one, of what may be a single one.

    Raises:
        ValueError: they are a dict, such as a single message or a tokenizer's output.
    """
    if isinstance(prompts, Mapping):
        raise ValueError(f"prompts must be a text, token ids, chat messages or a list of these, got {prompts!r:.80}")
    prompts = prompts.tolist() if hasattr(prompts, "tolist") else prompts  # a tensor or an array
    is_single = isinstance(prompts, str) or all(isinstance(part, int | Mapping) for part in prompts)
    return [prompts] if is_single else list(prompts)


def tokens_of(tokenizer: Any, prompt: Any, params: StructuredOutputsParams | None, *, describe: bool) -> list[int]:
    """The tokens of one prompt.

    Args:
        tokenizer: a Hugging Face tokenizer.
        prompt: a text, token ids, or chat messages for the tokenizer's chat template.
        params: the constraint of the answer. Its tools go to the template.
        describe: whether the system message tells what the constraint asks for.

    Raises:
        ValueError: the prompt has no tokens, or cannot be described in.
    """
    is_chat = not isinstance(prompt, str) and bool(prompt) and isinstance(prompt[0], Mapping)
    if describe and not is_chat:
        raise ValueError("describe=True needs prompts that are chat messages: [{'role': 'user', 'content': ...}]")
    if is_chat:
        text = chat_text(tokenizer, prompt, params, describe=describe)
        token_ids = list(tokenizer(text, add_special_tokens=False)["input_ids"])
    else:
        token_ids = list(tokenizer(prompt)["input_ids"] if isinstance(prompt, str) else prompt)
    if not token_ids:
        raise ValueError("a prompt has no tokens: give each at least one")
    return token_ids


def chat_text(tokenizer: Any, messages: Any, params: StructuredOutputsParams | None, *, describe: bool) -> str:
    """The text of chat messages, by the tokenizer's chat template.

    Args:
        tokenizer: a Hugging Face tokenizer.
        messages: dicts with ``role`` and ``content``.
        params: as in :func:`tokens_of`.
        describe: the same. If the template already describes the tools, the system
            message does not.

    Raises:
        ValueError: the tokenizer has no template, or the constraint has no description.
    """

    def render(messages: Any, tools: Any = None) -> str:
        options = {"tools": tools, "add_generation_prompt": True, "tokenize": False}
        text: str = tokenizer.apply_chat_template(messages, **options)
        return text

    if params is not None and params.tools is not None:
        tools = [tool.as_dict for tool in read_tools(params.tools)]
        text = render(messages, tools)
        renamed = [{**tool, "function": {**tool["function"], "name": f"{tool['function']['name']}_"}} for tool in tools]
        if text != render(messages, renamed):
            return text
        if not describe:
            warnings.warn(
                "the tokenizer's chat template ignores tools, so the model does not know them: describe=True puts them "
                "into the system message",
                stacklevel=5,  # the caller of generate
            )
            return text
    return render(messages if params is None or not describe else _described(messages, params))


def _described(messages: Sequence[Mapping[str, Any]], params: StructuredOutputsParams) -> list[Mapping[str, Any]]:
    """The messages with the constraint in the system message."""
    description = description_of(params)
    if messages[0].get("role") != "system":
        return [{"role": "system", "content": description}, *messages]
    content = messages[0]["content"]
    added = f"\n\n{description}"
    content = content + added if isinstance(content, str) else [*content, {"type": "text", "text": added}]
    return [{**messages[0], "content": content}, *messages[1:]]


def description_of(params: StructuredOutputsParams) -> str:
    """The description of a constraint in the system message, for the model.

    Raises:
        ValueError: the constraint is a regular expression, a grammar or a structural
            tag: small models do not read these.
    """
    if params.tools is not None:
        tools = "\n".join(json.dumps(tool.as_dict["function"], ensure_ascii=False) for tool in read_tools(params.tools))
        call = params.call_format.write("...", "{...}")
        return f"You can call these tools:\n{tools}\nCall a tool by writing:\n{call}"
    constraint = replace(params, reasoning="disabled").constraint()
    if constraint.kind is StructuredOutputOptions.JSON_OBJECT:
        return "Answer with a JSON object."
    if constraint.kind is StructuredOutputOptions.JSON:
        return f"Answer with JSON in this form:\n{describe_schema(json.loads(constraint.spec))}"
    if constraint.kind is StructuredOutputOptions.CHOICE:
        return f"Answer with one of these: {constraint.spec[1:-1]}"
    raise ValueError("describe=True puts tools, schemas and choices into the prompt: describe this constraint yourself")
