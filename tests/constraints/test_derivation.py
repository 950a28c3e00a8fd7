"""Formats of calls from chat templates and response templates of the shapes that models
have: what is derived is generated and read back."""

import json
import re

import pytest

from structout import StructuredOutputsParams
from structout.constraints.tools.call_formats import TOOL_FORMATS, ToolFormat
from structout.errors import GrammarError
from structout.grammar.native.backend import NativeBackend
from structout.grammar.vocabulary import Vocabulary
from support.chat_templates import facts_of, tokenizer_with
from support.locations import ROOT

_STOP = 256
VOCABULARY = Vocabulary((*(bytes([byte]) for byte in range(256)), b""), stop_token_ids=(_STOP,))
TOOLS = [
    {"name": "now", "parameters": None},
    {
        "name": "get.weather-für",
        "parameters": {
            "type": "object",
            "properties": {
                "city": {"type": "string"},
                "days": {"type": "integer"},
                "hours": {"type": "array", "items": {"type": "integer"}},
            },
            "additionalProperties": False,
        },
    },
]
CALLS = [("get.weather-für", {"city": "Rome", "days": 2, "hours": [8, 9]}), ("now", {})]


def template(calls, *, content="{{ m.content }}", prompt="<bot>", answer="<bot>", end="</s>"):
    """A chat template that writes ``calls`` in the messages of the assistant."""
    return (
        "{% for m in messages %}{% if m.role == 'user' %}<user>{{ m.content }}{% else %}"
        f"{answer}{content}{{% if m.tool_calls %}}{calls}{{% endif %}}{end}"
        f"{{% endif %}}{{% endfor %}}{{% if add_generation_prompt %}}{prompt}{{% endif %}}"
    )


def each(call, between=""):
    """The loop over calls. ``f`` is the function of one."""
    comma = f"{{% if not loop.last %}}{between}{{% endif %}}"
    return f"{{% for c in m.tool_calls %}}{{% set f = c.function %}}{call}{comma}{{% endfor %}}"


def pairs(entry):
    return f"{{% for k, v in f.arguments.items() %}}{entry}{{% endfor %}}"


BREAK = "{{ '\n' }}"  # one that Jinja does not take for the end of a block
VALUE = "{{ v if v is string else v | tojson }}"
ARGUMENTS = "{{ f.arguments | tojson }}"
NAMED = '{"name": "{{ f.name }}", "arguments": ' + ARGUMENTS + "}"
THINK = "{% if m.reasoning_content %}<think>\n{{ m.reasoning_content }}\n</think>\n\n{% endif %}{{ m.content }}"

SHAPES = {
    "objects in tags": (
        template(each(f"{BREAK}<call>\n{NAMED}\n</call>"), content=THINK),
        {
            "begin": '<call>\n{"name": "{name}", "arguments": ',
            "end": "}\n</call>",
            "trigger": "<call>",
            "separator": "\n",
            "reasoning": ["<think>", "</think>"],
        },
    ),
    "a list with ids": (
        template("[CALLS][" + each(NAMED[:-1] + ', "id": "{{ c.id }}"}', ", ") + "]"),
        {
            "begin": '{"name": "{name}", "arguments": ',
            "end": "}",
            "trigger": "[CALLS]",
            "section": ["[CALLS][", "]"],
            "separator": ", ",
        },
    ),
    "ids in front of arguments": (
        template(each(f"[CALL]{{{{ f.name }}}}[ID]{{{{ c.id }}}}[ARGS]{ARGUMENTS}")),
        {"begin": "[CALL]{name}[ID]{id}[ARGS]", "end": "", "trigger": "[CALL]", "call_id": "[A-Za-z0-9]{9}"},
    ),
    "ids that have the name": (
        template(f"<calls>{each(f'<call>{{{{ c.id }}}}<args>{ARGUMENTS}</call>')}</calls>"),
        {
            "begin": "<call>functions.{name}:{id}<args>",
            "end": "</call>",
            "trigger": "<calls>",
            "section": ["<calls>", "</calls>"],
            "excluded": ["<call>functions."],
        },
    ),
    "numbers": (
        template(
            "<acts>["
            + each(BREAK + '  {"n": "{{ loop.index0 }}", "tool": "{{ f.name }}", "with": ' + ARGUMENTS + "}", ",")
            + BREAK
            + "]</acts>"
        ),
        {
            "begin": '{"n": "{id}", "tool": "{name}", "with": ',
            "end": "}",
            "trigger": "<acts>",
            "section": ["<acts>[\n  ", "\n]</acts>"],
            "separator": ",\n  ",
        },
    ),
    "the style of qwen_xml": (
        template(
            each(
                "<call>\n<function={{ f.name }}>\n"
                + pairs(f"<parameter={{{{ k }}}}>\n{VALUE}\n</parameter>\n")
                + "</function>\n</call>\n"
            )
        ),
        {
            "begin": "<call>\n<function={name}>\n",
            "end": "\n</function>\n</call>",
            "trigger": "<call>",
            "style": "qwen_xml",
            "separator": "\n",
            "excluded": ["<function="],
        },
    ),
    "tags of their own": (
        template(
            "\n<do>\n"
            + each('<run tool="{{ f.name }}">\n' + pairs(f'<arg n="{{{{ k }}}}">{VALUE}</arg>\n') + "</run>\n")
            + "</do>"
        ),
        {
            "begin": '<run tool="{name}">\n',
            "end": "\n</run>",
            "trigger": "<do>",
            "style": {"begin": '<arg n="', "middle": '">', "end": "</arg>", "is_wrapped": False},
            "section": ["<do>\n", "\n</do>"],
            "separator": "\n",
            "excluded": ['<run tool="'],
        },
    ),
    "the name twice, and a header between calls": (
        template(
            each(" to={{ f.name }}<msg><call tool={{ f.name }}>" + ARGUMENTS + "</call>", "<eom><bot>"), content=""
        ),
        {
            "begin": " to={name}<msg><call tool={name}>",
            "end": "</call>",
            "trigger": " to=",
            "separator": "<eom><bot>",
            "excluded": [],
        },
    ),
    "literals of Python": (
        template(
            "<calls>["
            + each(
                '{{ f.name }}({% for k, v in f.arguments.items() %}{{ k }}={{ "\'" ~ v ~ "\'" if v is string else v }}'
                "{% if not loop.last %}, {% endif %}{% endfor %})",
                ", ",
            )
            + "]</calls>"
        ),
        {
            "begin": "{name}(",
            "end": ")",
            "trigger": "<calls>",
            "style": "python",
            "section": ["<calls>[", "]</calls>"],
            "separator": ", ",
        },
    ),
    "one call alone": (
        template("{% if m.tool_calls | length > 1 %}{{ raise_exception('one call') }}{% endif %}" + each(NAMED)),
        {"begin": '{"name": "{name}", "arguments": ', "end": "}", "trigger": '{"name":', "is_single": True},
    ),
    "a prompt that opens the reasoning": (
        template(
            each(f"<call>{NAMED}</call>"),
            content="<think>{{ m.reasoning_content }}</think>{{ m.content }}",
            prompt="<bot><think>\n",
        ),
        {
            "begin": '<call>{"name": "{name}", "arguments": ',
            "end": "}</call>",
            "trigger": "<call>",
            "reasoning": ["<think>", "</think>"],
        },
    ),
    "a prompt with a mark that begins as that of a call": (
        template(each(f"<tool>{NAMED}</tool>"), prompt="<bot><think>\n"),
        {"begin": '<tool>{"name": "{name}", "arguments": ', "end": "}</tool>", "trigger": "<tool>"},
    ),
    "a header behind the reasoning, of a content or of a call": (
        template(
            each(f"<call>{NAMED}</call>"),
            content="{% if m.reasoning %}<mind>{{ m.reasoning }}<end><bot>{% endif %}"
            "{% if m.content %}<say>{{ m.content }}{% endif %}",
        ),
        {
            "begin": '<call>{"name": "{name}", "arguments": ',
            "end": "}</call>",
            "trigger": "<call>",
            "reasoning": ["<mind>", "<end><bot>"],
            "content_begin": "<say>",
        },
    ),
    "arguments as text": (
        template(each('<call>{"name": "{{ f.name }}", "arguments": ' + "{{ '' + f.arguments }}}</call>")),
        {"begin": '<call>{"name": "{name}", "arguments": ', "end": "}</call>", "trigger": "<call>"},
    ),
}


@pytest.fixture(scope="module")
def backend():
    return NativeBackend(VOCABULARY)


@pytest.mark.parametrize("shape", SHAPES)
def test_text_around_calls_is_the_format(shape):
    chat_template, expected = SHAPES[shape]
    facts = facts_of(tokenizer_with(chat_template))
    assert facts == {name: value for name, value in expected.items() if value != []}


@pytest.mark.parametrize("choice", ["required", "auto"])
@pytest.mark.parametrize("shape", SHAPES)
def test_derived_formats_are_generated_and_read_back(backend, shape, choice):
    form = ToolFormat.from_tokenizer(tokenizer_with(SHAPES[shape][0]))
    params = StructuredOutputsParams(tools=TOOLS, tool_choice=choice, tool_format=form)
    calls = CALLS[:1] if form.is_single else CALLS
    text = form.separator.join(form.write(*call) for call in calls)
    text = text.join(form.section or ("", ""))
    text = f"Wait: {text}" if choice == "auto" else text
    assert backend.compile(params.constraint()).grammar.accept_tokens("", [*text.encode(), _STOP])
    assert [(call.name, call.arguments) for call in params.parse_tool_calls(text)] == calls
    for wrong in (
        text.replace("get.weather", "get.water"),
        text.replace('"days"', '"daze"').replace("days", "daze", 1),
    ):
        assert not backend.compile(params.constraint()).grammar.accept_tokens("", [*wrong.encode(), _STOP])


def test_format_is_derived_once_for_each_template():
    first, second = [*SHAPES.values()][:2]
    tokenizer = tokenizer_with(first[0])
    form = ToolFormat.from_tokenizer(tokenizer)
    assert ToolFormat.from_tokenizer(tokenizer) is form
    tokenizer.chat_template = second[0]
    other = ToolFormat.from_tokenizer(tokenizer)
    assert other.write("f", {"a": 1}) == ToolFormat.from_tokenizer(tokenizer_with(second[0])).write("f", {"a": 1})
    assert other is not form


@pytest.mark.parametrize(
    ("calls", "missing"),
    [
        (each("{{ f.name }}: " + ARGUMENTS), "nothing that tells a call from other text stands in front of the name"),
        (each("<c>{{ f.name }}({{ f.arguments.alpha }})</c>"), "arguments are neither JSON nor between tags"),
        (each("<c>{{ f.arguments | tojson }} for {{ f.name }}</c>"), "arguments are neither JSON nor between tags"),
        ("<all>" + each(f"<c>{NAMED}</c>") + "x" * 300, "the end of the calls is not told from what follows it"),
        ("{{ raise_exception('no calls, please') }}", "it refuses a message with calls: no calls, please"),
    ],
)
def test_what_is_not_found_is_named(calls, missing):
    with pytest.raises(GrammarError, match=f"{re.escape(missing)}; name a tool_format$"):
        ToolFormat.from_tokenizer(tokenizer_with(template(calls)))


@pytest.mark.parametrize("chat_template", [None, template("")])
def test_hermes_with_a_notice_where_no_calls_are_written(chat_template):
    with pytest.warns(UserWarning, match="calls are written in the format hermes$"):
        assert ToolFormat.from_tokenizer(tokenizer_with(chat_template)) is TOOL_FORMATS["hermes"]


def response_template(begin, end, **calls):
    return {"start_anchor": "<bot>", "fields": {"tool_calls": {"open_pattern": begin, "close": end, **calls}}}


OBJECT = {"content": "json", "transform": {"type": "function", "function": "{content}"}}
NAMED_FUNCTION = {"type": "function", "function": {"name": "{name}", "arguments": "{content}"}}
TAGS = {
    "content": "xml-inline",
    "content_args": {"tag_pattern": r"<parameter=(?P<key>[^>\n]+)>\s*(?P<value>.*?)\s*</parameter>"},
    "transform": NAMED_FUNCTION,
}


def test_response_template_comes_first():
    described = response_template(r"\s*<run>", "</run>", **OBJECT)
    tokenizer = tokenizer_with(SHAPES["objects in tags"][0], response_template=described)
    assert facts_of(tokenizer)["begin"] == '<run>{"name": "{name}", "arguments": '
    agreeing = response_template(r"\s*<call>", "</call>", **OBJECT)
    tokenizer = tokenizer_with(SHAPES["objects in tags"][0], response_template=agreeing)
    assert facts_of(tokenizer)["begin"] == '<call>\n{"name": "{name}", "arguments": '  # the whitespace of the model


def test_response_template_alone_is_enough():
    described = response_template(r"\s*<call>\s*<function=(?P<name>[^>\n]+)>", "</function></call>", **TAGS)
    described["fields"]["thinking"] = {"open": "<think>", "close": "</think>"}
    assert facts_of(tokenizer_with(None, response_template=described)) == {
        "begin": "<call><function={name}>",
        "end": "</function></call>",
        "trigger": "<call>",
        "style": {"begin": "<parameter=", "middle": ">", "end": "</parameter>"},
        "reasoning": ["<think>", "</think>"],
    }


@pytest.mark.parametrize(
    "described",
    [
        {"fields": {"content": {}}},
        response_template(r"<call>(?:a|b)(?P<name>\w+)", "</call>", content="json", transform=NAMED_FUNCTION),
        response_template("<call>", "</call>", content="json", content_args={"unquoted_keys": True}),
        response_template("<call>", "</call>", content="kv-lines", transform=NAMED_FUNCTION),
        response_template("<call>", "</call>", content="json", transform=NAMED_FUNCTION),
    ],
)
def test_response_template_without_plain_texts_leaves_it_to_the_chat_template(described):
    tokenizer = tokenizer_with(SHAPES["one call alone"][0], response_template=described)
    assert facts_of(tokenizer) == SHAPES["one call alone"][1]


def test_most_real_templates_are_derived():
    """The table holds what ``tests/check_tool_formats.py`` found in real templates."""
    table = json.loads((ROOT / "tests" / "corpus" / "tool_formats.json").read_text())
    writing = [facts for facts in table.values() if "writes no tool calls" not in facts.get("missing", "")]
    num_derived = sum("missing" not in facts for facts in writing)
    assert num_derived >= 0.9 * len(writing) >= 0.9 * 30
    page = (ROOT / "docs" / "tool_calls.md").read_text()
    assert f"{num_derived} of {len(writing)} that write calls" in page
