"""``structout explain``: from its arguments to its exit status."""

import argparse
from collections.abc import Iterator

from structout.cli.fields import NO_BREAK, Field, counted, laid_out, one_line
from structout.cli.loading import load_tokenizer, with_call_format
from structout.cli.progress import duration
from structout.cli.user_errors import UserError, write_file
from structout.cli.validate import read_form, read_params
from structout.constraints.config import StructuredOutputsConfig
from structout.constraints.params import StructuredOutputOptions, StructuredOutputsParams
from structout.constraints.schema_walks import draft_of
from structout.grammar.checking.checker import Checker
from structout.grammar.checking.visited import visited_states
from structout.grammar.explanation import Explanation, Size, explain, misspelled_keywords
from structout.grammar.native.pictures import StateGraph, picture_of, to_dot
from structout.grammar.native.svg import to_svg

_MAX_PLACES = 6
_MAX_SHOWN_STATES = 64
_KIND_NAMES = {
    StructuredOutputOptions.JSON: "JSON schema",
    StructuredOutputOptions.REGEX: "regular expression",
    StructuredOutputOptions.CHOICE: "choice",
    StructuredOutputOptions.GRAMMAR: "grammar",
    StructuredOutputOptions.STRUCTURAL_TAG: "structural tag",
}

# Kinds of which only those are followed with a stack that have no automaton.
_NESTED_KINDS = (StructuredOutputOptions.GRAMMAR, StructuredOutputOptions.STRUCTURAL_TAG)


def run(arguments: argparse.Namespace) -> int:
    """Run the command. Return its exit status.

    Raises:
        UserError: the user made a mistake.
    """
    name, params = read_params(arguments)
    tokenizer, tokenizer_name = load_tokenizer(arguments.tokenizer)
    params = with_call_format(params, tokenizer)
    config = read_form(arguments)
    try:
        explanation = explain(params, tokenizer, config=config, seed=arguments.seed)
    except ValueError as error:
        raise UserError(f"cannot use {tokenizer_name}: {error}") from error
    subject = _subject(explanation)
    title = subject if name in ("constraint", "--json-schema") else f"{name}: {subject}"
    fields = [*_fields(explanation, tokenizer_name, arguments.key_order), *_call_fields(params)]
    if arguments.plot is not None:
        fields.append(("picture", _write_picture(explanation, params, config, arguments.plot)))
    print(f"{title}\n\n" + laid_out(fields), flush=True)
    return 0 if explanation.error is None else 1


def _subject(explanation: Explanation) -> str:
    constraint = explanation.constraint
    if constraint is None:
        return "refused before any engine sees it"
    subject = _KIND_NAMES[constraint.kind]
    if constraint.kind is StructuredOutputOptions.JSON:
        draft = draft_of(constraint.value)
        draft_name = {2019: "2019-09", 2020: "2020-12"}.get(draft, str(draft))
        subject += f", draft {draft_name}, {counted(len(constraint.nodes), 'subschema')}"
    return subject


def _fields(explanation: Explanation, tokenizer_name: str, key_order: str) -> Iterator[Field]:
    if explanation.error is not None:
        message = str(explanation.error).replace("lenient=True", "--lenient")
        yield "refused", f"{message} ({explanation.error.kind.value})"
        if explanation.advice:
            advice = explanation.advice.replace("lenient=True", "--lenient")
            yield "advice", advice.replace("schemas={uri: schema}", "--schema-for URI=FILE")
    else:
        yield "engine", explanation.backend_name
    yield from _keyword_fields(explanation)
    if explanation.error is None:
        yield "ready", f"{duration(explanation.ready_seconds)}, with {tokenizer_name}"
        yield from _size_fields(explanation, key_order)
        if explanation.num_needed is not None:
            yield "needs", f"at least {counted(explanation.num_needed, 'token')}, the stop token included"
        yield "example", one_line(explanation.example)


def _keyword_fields(explanation: Explanation) -> Iterator[Field]:
    use = explanation.keywords
    if use is not None:
        label = "enforced" if explanation.error is None else "keywords"
        yield label, _counts(use.constraints) or "nothing: every JSON text is valid"
    if explanation.weakened:
        yield "not enforced", _places(explanation.weakened)
    if explanation.annotations:
        yield "annotations", f"{_places(explanation.annotations)} (formats that constrain nothing)"
    if use is not None and use.annotations:
        yield "descriptive", _counts(use.annotations)
    if use is not None and use.unknown:
        near = misspelled_keywords(explanation.constraint) if explanation.constraint is not None else []
        meant = "".join(f"; {place} may be meant as {keyword}" for place, keyword in near[:_MAX_PLACES])
        yield "unknown", f"{_places(use.unknown)} (ignored: not in this draft){meant}"
    if use is not None and use.beside_ref:
        yield "ignored", f"{_places(use.beside_ref)} (nothing beside $ref counts in this draft)"


def _size_fields(explanation: Explanation, key_order: str) -> Iterator[Field]:
    texts = f"after {counted(len(explanation.texts), 'text')}"
    if explanation.visited is None:
        yield "memory", f"{_bytes(explanation.memory_bytes)} {texts}"
        return
    yield "visited", f"{_size(explanation.visited)} {texts}"
    if explanation.closed is not None:
        yield "automaton", f"{_size(explanation.closed)}: a device can follow it"
    elif explanation.memory_places or explanation.recursive_references:
        causes = []
        if explanation.memory_places:
            causes.append(f"{_places(explanation.memory_places)} may have to remember keys or items")
        if explanation.recursive_references:
            causes.append(f"{_places(explanation.recursive_references)} leads back to itself")
        yield "automaton", f"none: {'; '.join(causes)}"
    elif explanation.constraint is not None and explanation.constraint.kind in _NESTED_KINDS:
        yield "automaton", "none: parts lie inside each other"
    else:
        hint = "; --key-order declared needs fewer states" if key_order == "any" else ""
        yield "automaton", f"none with at most 50,000 states that is made in 50 ms{hint}"


def _call_fields(params: StructuredOutputsParams) -> Iterator[Field]:
    """How the model writes calls."""
    if params.tools is None:
        return
    form = params.call_format
    yield "call", one_line(form.write("NAME", {"KEY": "VALUE"}))
    between = f", with {one_line(form.separator)} between" if form.separator else ""
    around = f", in {one_line(' ... '.join(form.section))}" if form.section is not None else ""
    yield "calls", "one" if form.is_single else f"any number{between}{around}"
    if form.reasoning is not None:
        yield "reasoning", one_line("TEXT".join(form.reasoning))
    if form.content_begin:
        yield "content", one_line(f"{form.content_begin}TEXT")


def _write_picture(
    explanation: Explanation, params: StructuredOutputsParams, config: StructuredOutputsConfig, path: str
) -> str:
    if explanation.visited is None:
        why = "another engine serves the constraint" if explanation.error is None else "the constraint is refused"
        return f"{path} is not written: {why}"
    pictures = []
    if explanation.index is not None:
        pictures.append(("the automaton", picture_of(StateGraph.of_automaton(explanation.index.automaton))))
    texts = [text for text in explanation.texts if text is not None]
    states, _ = visited_states(Checker(params, config=config), texts)
    pictures.append(("the states that the texts have visited", picture_of(states)))
    small = [(what, picture) for what, picture in pictures if len(picture.states) <= _MAX_SHOWN_STATES]
    if not small:
        return f"{path} is not written: there are more than {_MAX_SHOWN_STATES} states to show"
    what, picture = small[0]
    is_dot = path.endswith(".dot")
    write_file(path, to_dot(picture) if is_dot else to_svg(picture))
    return f"{path}, {what}" + (f", for graphviz: dot -Tsvg {path}" if is_dot else "")


def _counts(counts: dict[str, int]) -> str:
    return ", ".join(f"{keyword}{NO_BREAK}{count:,}" for keyword, count in counts.items())


def _places(places: tuple[str, ...]) -> str:
    num_more = len(places) - _MAX_PLACES
    return ", ".join(places[:_MAX_PLACES]) + (f" and {num_more:,} more" if num_more > 0 else "")


def _size(size: Size) -> str:
    return f"{counted(size.states, 'state')}, {counted(size.masks, 'mask')}, {_bytes(size.bytes)}"


def _bytes(count: int) -> str:
    if count < 10_000:
        return f"{count:,} bytes"
    return f"{count / 1e3:,.0f} kB" if count < 10e6 else f"{count / 1e6:,.0f} MB"
