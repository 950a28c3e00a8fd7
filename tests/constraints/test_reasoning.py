"""Reasoning in front of constrained texts: masks and readers agree on where it ends."""

import re

import pytest

from structout import StructuredOutputsParams
from structout.constraints.tools.call_formats import TOOL_FORMATS, ToolFormat
from structout.errors import GrammarError
from structout.grammar.native.backend import NativeBackend
from structout.grammar.vocabulary import Vocabulary
from support.chat_templates import tokenizer_with
from support.grammar_walks import mask_of

_NAMES = ("<|channel|>", "<|message|>", "<|end|>", "<|start|>", "<|constrain|>", "<|call|>", "<|return|>")
_STOPS = (256 + _NAMES.index("<|call|>"), 256 + _NAMES.index("<|return|>"))
VOCABULARY = Vocabulary(
    (*(bytes([byte]) for byte in range(256)), *(b"" for _ in _NAMES)),
    stop_token_ids=_STOPS,
    special_tokens=tuple((name, 256 + number) for number, name in enumerate(_NAMES)),
)
THINK = ("<think>", "</think>")
TOOLS = [{"name": "now", "parameters": None}]
CALL = '<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>'
TAG = {"format": {"type": "const_string", "value": "{}"}, "markers": "text"}


@pytest.fixture(scope="module")
def backend():
    return NativeBackend(VOCABULARY)


def tokens_of(text):
    pieces = re.split(f"({'|'.join(map(re.escape, _NAMES))})", text)
    ids = [[256 + _NAMES.index(piece)] if piece in _NAMES else piece.encode() for piece in pieces]
    return [token for each in ids for token in each]


def takes(backend, params, text):
    """Whether a text is a whole one of the params."""
    tokens = tokens_of(text)
    stop = [] if tokens[-1:] == [_STOPS[0]] else [_STOPS[1]]
    return backend.compile(params.constraint()).grammar.accept_tokens("", tokens + stop)


@pytest.mark.parametrize(
    ("constraint", "value"),
    [
        ({"json": {"type": "object", "additionalProperties": False}}, {}),
        ({"json_object": True}, {}),
        ({"regex": r"\{\}"}, "{}"),
        ({"choice": ["{}", "[]"]}, "{}"),
        ({"grammar": 'root ::= "{" "}"'}, "{}"),
        ({"grammar": 'start: "{" "}"'}, "{}"),
        ({"structural_tag": TAG}, "{}"),
        ({"json_object": True, "tools": TOOLS}, {}),
    ],
)
def test_reasoning_stands_in_front_of_every_constraint(backend, constraint, value):
    expected = {  # whether the reasoning is off, may be there, and has begun in the prompt
        "{}": (True, True, False),
        "<think>a{<|b</think>{}": (False, True, True),
        "<think>\n</think>\n\n{}": (False, True, True),
        "a</think>{}": (False, False, True),
        "</think>\n{}": (False, False, True),
        "<think>a": (False, False, False),
        "<think>a</think>": (False, False, False),
        "<think>a</think>\n\n\n{}": (False, False, False),
        "a": (False, False, False),
    }
    for mode, reasoning in enumerate(["disabled", THINK, ("", THINK[1])]):
        params = StructuredOutputsParams(**constraint, reasoning=reasoning)
        found = {text: takes(backend, params, text) for text in expected}
        assert found == {text: modes[mode] for text, modes in expected.items()}
        assert all(params.parse(text) == value for text, is_taken in found.items() if is_taken)


def test_masks_behind_a_reasoning_are_those_of_the_constraint(backend):
    schema = {"type": "object", "properties": {"a": {"type": "string", "maxLength": 3}}, "required": ["a"]}
    for extra in ({}, {"whitespace_pattern": " ?"}, {"additional_properties": "closed"}):
        params = StructuredOutputsParams(json=schema, **extra)
        alone = backend.compile(params.constraint()).grammar
        behind = backend.compile(StructuredOutputsParams(json=schema, reasoning=THINK, **extra).constraint()).grammar
        assert behind.accept_tokens("", tokens_of("<think>a</think>"))
        for byte in b'{ "a": "xy", "b" :':
            accepted = alone.accept_tokens("", [byte])
            assert behind.accept_tokens("", [byte]) == accepted
            assert (mask_of(alone) == mask_of(behind)).all()


def read(params, pieces):
    """The reasoning, the content and the names of calls of an answer in pieces."""
    stream = params.tool_call_stream()
    events = [event for piece in pieces for event in stream.feed(piece)] + stream.finish()
    texts = {kind: "".join(each.text for each in events if each.kind == kind) for kind in ("reasoning", "content")}
    return texts["reasoning"], texts["content"], [event.call.name for event in events if event.call is not None]


@pytest.mark.parametrize(
    ("choice", "texts"),
    [
        (
            "auto",
            {
                f"<think>a{CALL}<tool_call></think>\n\nb{CALL}c": (f"a{CALL}<tool_call>", "bc", ["now"]),
                "<think></think>": ("", "", []),
                f"a{CALL}": ("", "a", ["now"]),
                "a<think>": None,
                "<think>a": None,
                f"<think>a{CALL}": None,
            },
        ),
        (
            "required",
            {
                f"<think>a</think>\n{CALL}{CALL}": ("a", "", ["now", "now"]),
                f"<think>a</think>b{CALL}": None,
                "<think>a</think>": None,
                CALL: ("", "", ["now"]),
            },
        ),
        ("none", {f"<think>{CALL}</think>b": (CALL, "b", []), f"<think>a</think>{CALL}": None}),
    ],
)
def test_calls_come_behind_the_reasoning(backend, choice, texts):
    for reasoning in (THINK, ("", THINK[1])):
        params = StructuredOutputsParams(tools=TOOLS, tool_choice=choice, reasoning=reasoning)
        for text, expected in texts.items():
            if not reasoning[0]:  # it has begun in the prompt
                if not text.startswith(THINK[0]):
                    continue
                text = text.removeprefix(THINK[0])
            assert takes(backend, params, text) == (expected is not None), text
            if expected is not None:
                for pieces in ([text], list(text), [text[:9], text[9:]]):
                    assert read(params, pieces) == expected
                assert [call.name for call in params.parse_tool_calls(text)] == expected[2]
                assert params.read_reasoning(text)[0] == expected[0]


def test_marks_whose_begin_is_in_every_prompt_are_read_where_a_reasoning_is_allowed():
    form = ToolFormat(**vars(TOOL_FORMATS["hermes"]) | {"reasoning": ("", "[END]")})
    params = StructuredOutputsParams(tools=TOOLS, tool_format=form)
    assert read(params, f"a{CALL}") == ("", "a", ["now"])
    params = StructuredOutputsParams(tools=TOOLS, tool_format=form, reasoning="auto").for_prompt("<bot>")
    assert read(params, f"a{CALL}[END]{CALL}") == (f"a{CALL}", "", ["now"])
    assert params.for_prompt("<bot>").reasoning == ("", "[END]")


REASONED = "<|channel|>analysis<|message|>Hm<|end|><|start|>assistant"
FINAL = "<|channel|>final<|message|>"
CALLED = "<|channel|>commentary to=functions.now<|constrain|>json<|message|>{}<|call|>"


@pytest.mark.parametrize(
    ("reasoning", "choice", "valid", "invalid"),
    [
        ("auto", "auto", [REASONED + CALLED, REASONED + FINAL + "Yes", FINAL + "Yes", CALLED], ["Yes" + CALLED[:11]]),
        ("auto", "required", [REASONED + CALLED, CALLED], [REASONED + FINAL + "Yes", "Yes"]),
        ("enabled", "required", [REASONED + CALLED], [CALLED, REASONED + "\n" + CALLED]),
        ("disabled", "auto", [FINAL + "Yes", CALLED], [REASONED + CALLED]),
        ("auto", "none", [REASONED + FINAL + "Yes", FINAL + "Yes"], [REASONED + CALLED]),
    ],
)  # fmt: skip
def test_channels_of_gpt_oss_are_its_own_tokens(backend, reasoning, choice, valid, invalid):
    params = StructuredOutputsParams(tools=TOOLS, tool_format="harmony", tool_choice=choice, reasoning=reasoning)
    assert [text for text in valid if not takes(backend, params, text)] == []
    assert [text for text in invalid if takes(backend, params, text)] == []
    for text in valid:
        expected = ("Hm" * (REASONED in text), "Yes" * (FINAL in text), ["now"] * (CALLED in text))
        assert read(params, list(text)) == expected


def test_json_of_gpt_oss_stands_in_the_final_channel(backend):
    params = StructuredOutputsParams(json_object=True, tool_format="harmony", reasoning="enabled")
    assert takes(backend, params, f"{REASONED}{FINAL}{{}}")
    assert not takes(backend, params, f"{FINAL}{{}}")
    assert params.parse(f'{REASONED}{FINAL}{{"a": 1}}') == {"a": 1}
    params = StructuredOutputsParams(json_object=True, tools=TOOLS, tool_format="harmony", reasoning="auto")
    for text in (f"{REASONED}{FINAL}{{}}", f"{FINAL}{{}}", REASONED + CALLED):
        assert takes(backend, params, text)
    assert params.parse(f"{REASONED}{FINAL}{{}}") == {}
    assert [call.name for call in params.parse(REASONED + CALLED)] == ["now"]


@pytest.mark.parametrize(
    ("prompt", "found"),
    [
        ("<user>Hi<bot>", "auto"),
        ("<user>Hi</think> <bot>", "auto"),
        ("<user>Hi<bot><think>\n", ("", "</think>")),
        ("<user>Hi<bot><think>\n\n</think>\n\n", "disabled"),
        ("<user>Hi<bot></think>", "disabled"),
    ],
)
def test_end_of_a_prompt_tells_whether_its_reasoning_has_begun(prompt, found):
    form = ToolFormat(**vars(TOOL_FORMATS["hermes"]) | {"reasoning": THINK})
    params = StructuredOutputsParams(json_object=True, tool_format=form, reasoning="auto")
    assert params.for_prompt(prompt).reasoning == found
    required = StructuredOutputsParams(json_object=True, tool_format=form, reasoning="enabled")
    assert required.for_prompt(prompt).reasoning == (found if isinstance(found, tuple) else "enabled")
    given = StructuredOutputsParams(json_object=True, reasoning=THINK)
    assert given.for_prompt(prompt).reasoning == (THINK if found == "auto" else found)
    for reasoning in ("disabled", ("", "</think>")):
        params = StructuredOutputsParams(json_object=True, reasoning=reasoning)
        assert params.for_prompt(prompt) is params


def test_prompt_alone_tells_the_marks_of_a_reasoning_that_it_opens():
    params = StructuredOutputsParams(json_object=True, reasoning="auto")
    assert params.for_prompt("<bot><seed:think>\n").reasoning == ("", "</seed:think>")
    for prompt in ("<bot>", "<bot><think></think>\n", "<bot><thin"):
        assert params.for_prompt(prompt).reasoning == "disabled"
    harmony = StructuredOutputsParams(json_object=True, tool_format="harmony", reasoning="auto")
    assert harmony.for_prompt("Hi<|end|><|start|>assistant").reasoning == "auto"


TEMPLATE = (
    "{% for m in messages %}<{{ m.role }}>{% if m.reasoning_content %}<mind>{{ m.reasoning_content }}</mind>{% endif %}"
    "{{ m.content }}{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}"
)


def test_marks_are_those_of_the_chat_template():
    tokenizer = tokenizer_with(TEMPLATE)
    params = StructuredOutputsParams(json_object=True, reasoning="enabled").for_tokenizer(tokenizer)
    assert params.call_format.reasoning == ("<mind>", "</mind>")
    with pytest.warns(UserWarning, match="calls are written in the format hermes$"):
        params = StructuredOutputsParams(tools=TOOLS, reasoning="auto").for_tokenizer(tokenizer)
    assert read(params, f"<mind>a</mind>{CALL}") == ("a", "", ["now"])
    for silent in (None, "{% for m in messages %}{{ m.content }}{% endfor %}", "{{ raise_exception('no') }}"):
        params = StructuredOutputsParams(json_object=True, reasoning="auto").for_tokenizer(tokenizer_with(silent))
        assert params.call_format is TOOL_FORMATS["hermes"]
        assert params.constraint().spec == StructuredOutputsParams(json_object=True).constraint().spec
    params = StructuredOutputsParams(json_object=True)
    assert params.for_tokenizer(tokenizer) is params


def test_objects_grow_behind_a_reasoning():
    params = StructuredOutputsParams(json=list[int], reasoning=THINK)
    text = "<think>[9, </think>\n[1, 22, 3"
    values = [params.parse(text[:cut], partial=True) for cut in range(7, len(text) + 1)]
    assert [value for value in values if value] == [[1]] * 4 + [[1, 22]] * 3
    with pytest.raises(ValueError, match="Invalid JSON"):
        params.parse("<think>[9]")


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"reasoning": "on"}, 'reasoning must be "disabled", "auto", "enabled", or the texts'),
        ({"reasoning": ("<think>", "")}, "reasoning must be"),
        ({"reasoning": ("<think>",)}, "reasoning must be"),
        ({"reasoning": 3}, "reasoning must be"),
        ({"reasoning": "enabled"}, "the marks of the reasoning are not known: name a tool_format"),
        ({"reasoning": THINK, "regex": "("}, "expected exactly one constraint"),
        ({"reasoning": THINK, "schemas": {"https://a.b/c": {}}}, "schemas apply to json only"),
    ],
)
def test_what_is_wrong_with_a_reasoning_is_named(given, message):
    with pytest.raises(GrammarError, match=message):
        StructuredOutputsParams(json={"type": "object"}, **given).validate()
