"""``structout check``: from its arguments to its exit status."""

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from structout.cli.check_page import page_of
from structout.cli.fields import NO_BREAK, Field, counted, laid_out, one_line
from structout.cli.loading import load_model, load_tokenizer, with_call_format
from structout.cli.progress import printable, say
from structout.cli.user_errors import UserError, first_line, write_file
from structout.cli.validate import read_form, read_params, warnings_of
from structout.errors import GrammarError
from structout.grammar.checking.checker import Checker
from structout.grammar.checking.spelled_text import Piece
from structout.grammar.checking.text_check import TextCheck
from structout.grammar.checking.trace import trace

_MAX_BEFORE = 60  # characters of the text in front of the place
_MAX_AFTER = 20
_MAX_WAYS = 8
_MAX_EXAMPLE = 40
_MAX_COUNTS = 40


def run(arguments: argparse.Namespace) -> int:
    """Run the command. Return its exit status.

    Raises:
        UserError: the user made a mistake.
    """
    name, params = read_params(arguments)
    text = _read_text(arguments.text)
    config = read_form(arguments)
    model, tokenizer, tokenizer_name = _load(arguments)
    params = with_call_format(params, tokenizer)
    try:
        checker = Checker(params, tokenizer, config)
    except GrammarError as error:
        message = str(error).replace("lenient=True", "--lenient")
        raise UserError(f"{name}: constraint refused ({error.kind.value}): {message}") from error
    except ValueError as error:
        raise UserError(f"cannot use {tokenizer_name}: {error}") from error
    for warning in warnings_of(params):
        say(f"structout: warning: {warning}")
    found = checker.check(text)
    if arguments.html is not None:
        pieces = checker.pieces_of(text)
        probabilities = None if model is None else _probabilities(model, tokenizer, pieces, checker.vocabulary.size)
        page = page_of(
            found,
            trace(checker, pieces, probabilities),
            checker.constraint,
            vocab_size=checker.vocabulary.size,
            tokenizer_name=tokenizer_name,
            has_model=model is not None,
        )
        write_file(arguments.html, page)
    if arguments.json:
        print(json.dumps(found.as_dict(), ensure_ascii=False, indent=2))
    else:
        print(_report(found, tokenizer_name, arguments.html), flush=True)
    return 0 if found.is_complete else 1


def _read_text(given: str) -> str:
    """A text, without the newline that ends a file."""
    if given != "-" and not given.startswith("@"):
        return given
    try:
        data = sys.stdin.buffer.read() if given == "-" else Path(given[1:]).read_bytes()
        return data.decode().removesuffix("\n")
    except (OSError, UnicodeDecodeError) as error:
        name = "standard input" if given == "-" else given[1:]
        raise UserError(f"cannot read {name}: {getattr(error, 'strerror', None) or error}") from error


def _load(arguments: argparse.Namespace) -> tuple[Any, Any, str]:
    """The model, or None if the arguments name none; its tokenizer; and a name for the
    tokens."""
    if arguments.model is None:
        return None, *load_tokenizer(arguments.tokenizer)
    model, tokenizer, name = load_model(arguments.model, torch.device("cpu"))
    return model, tokenizer, f"the {len(tokenizer):,} tokens of {name}"


def _probabilities(model: Any, tokenizer: Any, pieces: list[Piece], vocab_size: int) -> npt.NDArray[np.float32]:
    """The probabilities in front of each token and at the end: one forward pass."""
    start = tokenizer.bos_token_id if tokenizer.bos_token_id is not None else tokenizer.eos_token_id
    tokens = [piece.token_id for piece in pieces]
    if None in tokens:
        raise UserError("the tokenizer does not spell this text, so that the model cannot read it")
    try:
        with torch.inference_mode():
            logits: torch.Tensor = model(torch.tensor([[start, *tokens]])).logits[0]
            return logits[:, :vocab_size].float().softmax(1).numpy()
    except (RuntimeError, ValueError, IndexError) as error:  # too many positions, out of memory
        raise UserError(f"the model failed: {first_line(error)}") from error


# -- the report --------------------------------------------------------------------


def _report(found: TextCheck, tokenizer_name: str, page: str | None) -> str:
    if found.is_complete:
        title = "complete: the constraint allows this text"
    elif found.status == "incomplete":
        title = "not complete: the constraint allows this text, but not its end"
    else:
        title = f"not allowed from byte {found.offset:,} on (line {found.line:,}, column {found.column:,})"
    return f"{title}\n\n{_marked(found)}" + laid_out([*_fields(found, tokenizer_name, page)])


def _marked(found: TextCheck) -> str:
    """The text around the place, with a mark below it."""
    if found.is_complete:
        return ""
    allowed = found.allowed_text
    before = ("... " if len(allowed) > _MAX_BEFORE else "") + printable(allowed[-_MAX_BEFORE:])
    after = found.text[len(allowed) :]
    more = " ..." if len(after) > _MAX_AFTER else ""
    return f"  {before}{printable(after[:_MAX_AFTER])}{more}\n  {' ' * len(before)}^\n\n"


def _fields(found: TextCheck, tokenizer_name: str, page: str | None) -> Iterator[Field]:
    for i, cause in enumerate(found.causes):
        place = f"{cause.place}: " if cause.place else ""
        message = cause.message.replace('key_order="any"', "--key-order any")
        message = message.replace('additional_properties="closed"', "--additional-properties closed")
        message = message.replace("any_whitespace=False", "--compact")
        yield "" if i else "because", f"{place}{message}"
    if found.path:
        yield "value", found.path
    if found.open_rules:
        yield "inside", " > ".join(found.open_rules)
    if not found.is_complete:
        yield from _ways(found)
        yield "shortest end", one_line(found.completion)
    yield "tokens", _tokens(found, tokenizer_name)
    if found.num_needed is not None:
        yield "needs", _needs(found.num_needed)
    if page is not None:
        yield "page", page


def _ways(found: TextCheck) -> Iterator[Field]:
    label = "may follow"
    for way in found.may_follow[:_MAX_WAYS]:
        rule = f" ({way.rule})" if way.rule else ""
        example = "" if way.example is None else f", as in{NO_BREAK}{_cut(one_line(way.example))}"
        yield label, f"{way.characters}{rule}{example}"
        label = ""
    if len(found.may_follow) > _MAX_WAYS:
        yield "", f"and {len(found.may_follow) - _MAX_WAYS} more"
    if found.may_end:
        yield label, "the end of the text"


def _cut(text: str) -> str:
    return text if len(text) <= _MAX_EXAMPLE else f"{text[:_MAX_EXAMPLE]} ..."


def _needs(counts: Sequence[int]) -> str:
    """The least number of tokens at the start of a text and after each of its last
    tokens."""
    after = " ".join(map(str, counts[1:][-_MAX_COUNTS:]))
    is_cut = len(counts) - 1 > _MAX_COUNTS
    which = f"the last {_MAX_COUNTS}" if is_cut else "each"
    start = f"at least {counted(counts[0], 'token')}, the stop token included"
    return f"{start}; after {which} of these still {after}" if after else start


def _tokens(found: TextCheck, tokenizer_name: str) -> str:
    if found.token_ids is None:
        return f"{tokenizer_name} do not spell this text"
    if found.token_index is None:
        return f"{len(found.token_ids):,}, of {tokenizer_name}"
    return (
        f"number {found.token_index + 1} of {len(found.token_ids):,} (id {found.token_ids[found.token_index]}) is not "
        f"allowed, where {found.num_allowed_tokens:,} of {tokenizer_name} are"
    )
