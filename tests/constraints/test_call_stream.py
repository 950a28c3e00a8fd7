"""Answers with calls that are read in pieces: however they are cut, they are the same;
what is not complete is read so far."""

import itertools
import json
import random
import time

import pytest

from structout import StructuredOutputsParams
from structout.constraints.partial_json import JsonStream, parse_partial_json
from structout.constraints.tools.call_formats import TOOL_FORMATS
from structout.errors import GrammarError
from structout.grammar.native.backend import NativeBackend
from structout.grammar.vocabulary import Vocabulary
from support.mask_walks import MaskWalker
from support.tool_calls import read_calls

_TOKENS = (*(bytes([byte]) for byte in range(256)), "｜DSML｜".encode(), b"<|", b"</", b"parameter", b'": ', b"")
VOCABULARY = Vocabulary(_TOKENS, stop_token_ids=(len(_TOKENS) - 1,))
TOOLS = [
    {
        "name": "add",
        "parameters": {
            "type": "object",
            "properties": {
                "text": {"type": "string"},
                "items": {"type": "array", "items": {"type": "integer"}, "maxItems": 3},
                "either": {"type": ["boolean", "number"]},
                "inner": {"type": "object", "properties": {"key": {"type": "string"}}, "additionalProperties": False},
            },
            "additionalProperties": False,
        },
    },
    {"name": "add_more", "parameters": None},
]
ARGUMENTS = {"text": 'a "b"\\\nc é', "items": [1, 20], "either": True, "inner": {"key": "v"}}


def params_of(tool_format, choice="auto"):
    return StructuredOutputsParams(tools=TOOLS, tool_choice=choice, tool_format=tool_format)


def written(tool_format, *calls):
    form = params_of(tool_format).call_format
    return form.separator.join(form.write(*call) for call in calls).join(form.section or ("", ""))


def read(params, pieces, **options):
    """The content, the calls and their JSON texts of an answer in pieces."""
    stream = params.tool_call_stream(**options)
    events = [event for piece in pieces for event in stream.feed(piece)] + stream.finish()
    texts = {"content": "", "reasoning": ""}
    calls = []
    for event in events:
        if event.kind == "call":
            calls.append([event.text, "", None])
            assert event.index == len(calls) - 1
        elif event.kind == "arguments":
            calls[event.index][1] += event.text
        elif event.kind == "complete":
            calls[event.index][2] = event.call.arguments
            assert event.call.is_complete
        else:
            texts[event.kind] += event.text
    assert all(json.loads(text) == arguments for _, text, arguments in calls)
    return texts, calls


@pytest.fixture(scope="module")
def backend():
    return NativeBackend(VOCABULARY)


@pytest.mark.parametrize("tool_format", TOOL_FORMATS)
def test_answers_are_the_same_however_they_are_cut(tool_format):
    params = params_of(tool_format)
    text = f"Wait, é: {written(tool_format, ('add', ARGUMENTS), ('add_more', {}))} Done <"
    whole = read(params, [text])
    assert whole[0] == {"content": "Wait, é:  Done <", "reasoning": ""}
    assert [(name, arguments) for name, _, arguments in whole[1]] == [("add", ARGUMENTS), ("add_more", {})]
    assert read(params, list(text)) == whole
    for cut in range(len(text)):
        assert read(params, [text[:cut], text[cut:]]) == whole
    assert [(call.name, call.arguments) for call in params.parse_tool_calls(text)] == [
        (name, arguments) for name, _, arguments in whole[1]
    ]


@pytest.mark.parametrize("tool_format", TOOL_FORMATS)
def test_drawn_calls_are_read_back_in_pieces_of_tokens(backend, tool_format):
    params = params_of(tool_format, "required")
    form = params.call_format
    part = params.constraint().value["format"]
    grammar = backend.compile(params.constraint()).grammar
    closing = [] if form.argument_style is None else [form.argument_style.closing("text").encode()]
    hints = [form.end.encode(), *closing, *([form.section[1].encode()] if form.section else []), b'"', b"}"]
    walker, rng, num_calls = MaskWalker(VOCABULARY), random.Random(tool_format), 0
    for style in ("uniform", "longest", "rare") * 4:
        text = walker.draw(grammar, style, rng, 40, hints)
        if text is None:
            continue
        text = text.decode()
        expected = [arguments for _, arguments, _ in read_calls(part, text)]
        assert [arguments for _, _, arguments in read(params, [text])[1]] == expected
        assert [arguments for _, _, arguments in read(params, list(text))[1]] == expected
        cuts = sorted(rng.sample(range(len(text) + 1), 2))
        pieces = [text[a:b] for a, b in itertools.pairwise([0, *cuts, len(text)])]
        assert [arguments for _, _, arguments in read(params, pieces)[1]] == expected
        num_calls += len(expected)
    assert num_calls > 0


def begins_like(value, whole):
    """Whether a value may grow to another one."""
    if isinstance(whole, dict):
        return isinstance(value, dict) and all(begins_like(value[key], whole[key]) for key in value)
    if isinstance(whole, list):
        return isinstance(value, list) and all(map(begins_like, value, whole)) and len(value) <= len(whole)
    return whole.startswith(value) if isinstance(whole, str) else value == whole


@pytest.mark.parametrize("tool_format", TOOL_FORMATS)
def test_partial_arguments_grow(tool_format):
    params = params_of(tool_format)
    text = written(tool_format, ("add", ARGUMENTS))
    sizes = set()
    for cut in range(len(text) + 1):
        calls = params.parse_tool_calls(text[:cut], partial=True)
        assert len(calls) <= 1
        for call in calls:
            assert begins_like(call.arguments, ARGUMENTS), (text[:cut], call.arguments)
            sizes.add(len(json.dumps(call.arguments)))
            assert call.is_complete or cut < len(text)
    assert len(sizes) >= 15
    assert params.parse_tool_calls(text, partial=True)[0].is_complete


def test_reasoning_is_told_from_content_and_has_no_calls():
    call = '<tool_call>\n{"name": "add_more", "arguments": {}}\n</tool_call>'
    params = params_of(with_reasoning(TOOL_FORMATS["hermes"]))
    text = f"<think>a {call} b</think>c{call}"
    expected = ({"content": "c", "reasoning": f"a {call} b"}, [["add_more", "{}", {}]])
    assert read(params, list(text)) == read(params, [text]) == expected
    assert read(params, list(text.removeprefix("<think>")), begins_in_reasoning=True) == expected
    assert read(params, list("<thin"))[0] == {"content": "<thin", "reasoning": ""}


def test_answers_of_gpt_oss_are_a_reasoning_and_a_content_or_a_call():
    params = params_of("harmony")
    reasoning = "<|channel|>analysis<|message|>Hm <b><|end|><|start|>assistant"
    call = written("harmony", ("add", ARGUMENTS))
    answers = {
        f"{reasoning}{call}": ("Hm <b>", "", ["add"]),
        f"{reasoning}{call.removesuffix('<|call|>')}": ("Hm <b>", "", ["add"]),  # a stop token has no text
        f"{reasoning}<|channel|>final<|message|>Yes": ("Hm <b>", "Yes", []),
        "<|channel|>final<|message|>Yes": ("", "Yes", []),
        call: ("", "", ["add"]),
    }
    for text, (thought, content, names) in answers.items():
        for pieces in ([text], list(text)):
            texts, calls = read(params, pieces)
            assert (texts["reasoning"], texts["content"], [call[0] for call in calls]) == (thought, content, names)


def with_reasoning(form):
    return type(form)(**{**vars(form), "reasoning": ("<think>", "</think>")})


def test_trigger_of_no_call_is_content():
    params = params_of("hermes")
    text = "<tool_call> is how a call begins" + " and goes on" * 9
    assert read(params, list(text)) == ({"content": text, "reasoning": ""}, [])
    assert read(params, list("<tool_call>")) == ({"content": "<tool_call>", "reasoning": ""}, [])


def test_arguments_come_as_they_are_written():
    stream = params_of("hermes").tool_call_stream()
    stream.feed('<tool_call>\n{"name": "add", "arguments": ')
    assert [(event.kind, event.text, event.index) for event in stream.feed('{"te')] == [("arguments", '{"te', 0)]
    assert [(event.kind, event.text, event.index) for event in stream.feed('xt": "a')] == [("arguments", 'xt": "a', 0)]


def lengths_so_far(params, text, key):
    """How much of a string or a list has been passed on after each character."""
    stream, passed = params.tool_call_stream(), ""
    for character in text:
        passed += "".join(event.text for event in stream.feed(character) if event.kind == "arguments")
        yield len((parse_partial_json(passed) or {}).get(key) or "")
    stream.finish(partial=True)


OTHER_NOTATIONS = [name for name, form in TOOL_FORMATS.items() if form.argument_style is not None]


@pytest.mark.parametrize("tool_format", OTHER_NOTATIONS)
def test_a_long_string_comes_as_it_is_written(tool_format):
    value = 'a "line"\nand é \\ and < more\n\n' * 20
    params = params_of(tool_format)
    lengths = [*lengths_so_far(params, written(tool_format, ("add", {"text": value})), "text")]
    assert lengths == sorted(lengths)
    assert lengths[-1] == len(value)
    assert max(after - before for before, after in itertools.pairwise(lengths)) <= len("\n\n")


LOOKS_LIKE_OTHERS = {"null": 0, "12 and more": 0, "nullable": 4, "information on it": 12, "True story": 5, "plain": 5}


@pytest.mark.parametrize("tool_format", ["qwen_3_coder", "glm_4_7"])
@pytest.mark.parametrize("value", LOOKS_LIKE_OTHERS)
def test_a_string_is_passed_on_once_it_cannot_be_another_value(tool_format, value):
    note = {"anyOf": [{"type": "string"}, {"type": "null"}]}
    schema = {"type": "object", "properties": {"note": note}, "additionalProperties": False}
    params = StructuredOutputsParams(tools=[{"name": "f", "parameters": schema}], tool_format=tool_format)
    text = params.call_format.write("f", {"note": value})
    within = [*lengths_so_far(params, text[: text.index(value) + len(value)], "note")]
    assert within[-1] >= LOOKS_LIKE_OTHERS[value]
    assert any(within) == (LOOKS_LIKE_OTHERS[value] > 0)


def test_a_list_of_json_comes_as_it_is_written_and_other_values_whole():
    inner = {"type": "array", "items": {"type": "integer"}}
    schema = {"type": "object", "properties": {"a": inner, "n": {"type": "integer"}}, "additionalProperties": False}
    for tool_format, is_streamed in (("qwen_3_coder", True), ("deepseek_v4", True), ("cohere", False)):
        params = StructuredOutputsParams(tools=[{"name": "f", "parameters": schema}], tool_format=tool_format)
        form = params.call_format
        text = form.write("f", {"a": [*range(50)], "n": 123}).join(form.section or ("", ""))
        assert (len({*lengths_so_far(params, text, "a")}) > 40) == is_streamed
        stream = params.tool_call_stream()
        numbers = [event.text for character in text for event in stream.feed(character) if "n" in event.text]
        assert numbers == [', "n": 123']


@pytest.mark.parametrize("cut", [0, 20, 50, 60])
def test_calls_that_are_not_closed_are_refused(cut):
    text = '<tool_call>\n{"name": "add", "arguments": {"text": "abcdefg"}}\n</tool_call>'
    stream = params_of("hermes").tool_call_stream()
    if cut < 50:
        stream.feed(text[:cut])
        assert [event.kind for event in stream.finish()] == ["content"] * (cut > 0)
        return
    stream.feed(text[:cut])
    with pytest.raises(ValueError, match=r"the call of add is not closed by '}\\n</tool_call>'"):
        stream.finish()
    with pytest.raises(ValueError, match="the call of add is not closed by"):
        params_of("hermes").tool_call_stream().feed(text.replace("}}", "}x"))


def test_streams_need_tools():
    with pytest.raises(GrammarError, match="there are no tools whose calls could be read"):
        StructuredOutputsParams(regex="a").tool_call_stream()


VALUE = {
    "a": 'x\\y"z\n\u00e9 \U0001f600',
    "b": [1, -2.5e3, True, None, {"c": {}, "d": []}],
    "": "e\\\\",
    "k": {"q": "\\u"},
}


@pytest.mark.parametrize("options", [{}, {"ensure_ascii": False}, {"indent": 2}])
def test_json_so_far_grows_and_its_end_is_found(options):
    text = json.dumps(VALUE, **options)
    stream = JsonStream()
    for cut in range(len(text) + 1):
        value = parse_partial_json(text[:cut])
        assert value is None if cut == 0 else begins_like(value, VALUE), text[:cut]
        stream.feed(text[max(cut - 1, 0) : cut])
        assert stream.end == (cut if cut == len(text) else None)
    assert value == VALUE
    stream = JsonStream()
    stream.feed(f"{text}}} ")
    assert stream.end == len(text)


@pytest.mark.parametrize("text", ["]", "{1", "<", "[}"])
def test_what_begins_no_json_is_refused(text):
    with pytest.raises(ValueError, match="begins with"):
        parse_partial_json(text)


def values_in(value, pointer=""):
    """All values in a JSON value with their pointers, inner ones first."""
    pairs = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for name, inner in pairs:
        yield from values_in(inner, f"{pointer}/{str(name).replace('~', '~0').replace('/', '~1')}")
    yield pointer, value


@pytest.mark.parametrize("options", [{}, {"ensure_ascii": False}, {"indent": 2}])
@pytest.mark.parametrize("looks", [False, True])
def test_json_stream_gives_each_value_once_it_is_complete(options, looks):
    value = VALUE | {"a/~b": [[], "1", [0.5]]}
    text = json.dumps(value, **options)
    rng = random.Random(0)
    for size in (1, 2, 3, 7, len(text)):
        stream, finished, start = StructuredOutputsParams(json_object=True).json_stream(), [], 0
        while start < len(text):
            end = start + rng.randint(1, size)
            finished += [(pointer, json.dumps(found)) for pointer, found in stream.feed(text[start:end])]
            start = end
            if looks and start < len(text):
                assert begins_like(stream.value, value), text[:start]
        assert finished == [(pointer, json.dumps(inner)) for pointer, inner in values_in(value)]
        assert stream.value == value
        assert stream.feed(" ") == []


def test_json_stream_reads_a_long_string_once():
    stream = StructuredOutputsParams(json=list[str]).json_stream()
    stream.feed('["')
    started = time.thread_time()
    for _ in range(20_000):
        stream.feed("aaaaa")
    assert time.thread_time() - started < 3  # 0.1; 5 where each piece reads it again
    assert stream.value == ["aaaaa" * 20_000]


def test_json_stream_begins_behind_a_reasoning():
    params = StructuredOutputsParams(json=list[int], reasoning=("<think>", "</think>"))
    stream = params.json_stream()
    found = [finished for character in "<think>[1] or [2]?</think>\n\n[3]" for finished in stream.feed(character)]
    assert found == [("/0", 3), ("", [3])]
    stream = StructuredOutputsParams(json=list[int], reasoning=("[THINK]", "[/THINK]")).json_stream()
    found = [finished for character in "[THINK]1?[/THINK][[3]]" for finished in stream.feed(character)]
    assert found == [("/0/0", 3), ("/0", [3]), ("", [[3]])]
    for params in (StructuredOutputsParams(regex="a"), params_of("hermes")):
        with pytest.raises(GrammarError, match="json_stream reads json"):
            params.json_stream()


def test_parse_reads_json_and_calls_so_far():
    params = StructuredOutputsParams(json=list[int])
    assert [params.parse(text, partial=True) for text in ("", "[1", "[1, ", "[1, 22, 3")] == [None, [], [1], [1, 22]]
    (call,) = params_of("hermes").parse('<tool_call>\n{"name": "add", "arguments": {"text": "ab', partial=True)
    assert (call.arguments, call.is_complete) == ({"text": "ab"}, False)
