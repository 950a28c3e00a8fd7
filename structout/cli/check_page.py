"""The page of ``structout check --html``: one file that needs no server."""

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from structout.constraints.params import Constraint, StructuredOutputOptions
from structout.grammar.checking.text_check import TextCheck
from structout.grammar.checking.trace import Step

_TEMPLATE = Path(__file__).with_name("check_page.html")
_TITLES = {
    "complete": "The constraint allows this text",
    "incomplete": "The constraint allows this text, but not its end",
}
_JSON_KINDS = (StructuredOutputOptions.JSON, StructuredOutputOptions.STRUCTURAL_TAG)


def page_of(
    found: TextCheck,
    steps: Sequence[Step],
    constraint: Constraint,
    *,
    vocab_size: int,
    tokenizer_name: str,
    has_model: bool,
) -> str:
    """The page as HTML.

    Args:
        found: the result for the whole text.
        steps: its tokens, up to the first that is not allowed.
        constraint: the constraint, which the page shows.
        vocab_size: V, of which the masks are a part.
        tokenizer_name: shown beside the tokens.
        has_model: whether the lists of tokens are those of a model.
    """
    where = f"Not allowed from byte {found.offset:,} on, line {found.line:,}, column {found.column:,}"
    shown = "".join(step.text for step in steps)
    data = {
        "title": _TITLES.get(found.status, where),
        "is_complete": found.is_complete,
        "causes": [asdict(cause) for cause in found.causes],
        "constraint": _shown_constraint(constraint),
        "steps": [asdict(step) for step in steps],
        "rest": found.text[len(shown) :] if found.text.startswith(shown) else "",
        "vocab_size": vocab_size,
        "tokenizer": tokenizer_name,
        "has_model": has_model,
    }
    # Inside a script, only "</script" and "<!--" are not what they seem.
    text = json.dumps(data, ensure_ascii=False).replace("<", "\\u003c")
    return _TEMPLATE.read_text(encoding="utf-8").replace("__DATA__", text)


def _shown_constraint(constraint: Constraint) -> str:
    if constraint.kind in _JSON_KINDS:
        return json.dumps(json.loads(constraint.spec), ensure_ascii=False, indent=2)
    return constraint.spec
