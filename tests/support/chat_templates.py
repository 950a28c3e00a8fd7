"""Tokenizers with chat templates, and the facts that are derived from these."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from structout.constraints.tools.derivation import ID, derive_format
from structout.constraints.tools.response_templates import NAME
from structout.errors import GrammarError

_SPECIAL_TOKENS = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "a"}


def tokenizer_with(chat_template: str | None, **attributes: Any) -> Any:
    """A tokenizer of transformers that has a chat template and hardly any tokens."""
    from tokenizers import Tokenizer, models
    from transformers import PreTrainedTokenizerFast

    tokens = Tokenizer(models.WordLevel({"a": 0}))
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=tokens, **_SPECIAL_TOKENS, **attributes)
    tokenizer.chat_template = chat_template
    return tokenizer


def facts_of(tokenizer: Any) -> dict[str, Any]:
    """What is derived from a tokenizer, as JSON; or, as ``missing``, what is not."""
    try:
        found = derive_format(tokenizer)
    except GrammarError as error:
        return {"missing": str(error)}
    defaults = {each.name: each.default for each in fields(found)}
    facts = {name: value for name, value in vars(found).items() if value != defaults[name]}
    facts["begin"] = found.begin.replace(NAME, "{name}").replace(ID, "{id}")
    return {name: list(value) if isinstance(value, tuple) else value for name, value in facts.items()}
