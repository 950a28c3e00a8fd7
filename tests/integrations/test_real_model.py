"""The demo model end to end: texts with the right values, the same ones in every loop.

Greedy texts are compared between batches, backends, jump-forward and transformers' own
loops. Prompts are such that the logits of the two likeliest tokens never lie close.
"""

import dataclasses
import json

import pytest
from transformers import ContinuousBatchingConfig, GenerationConfig

from structout import StructuredOutputManager, StructuredOutputsParams
from structout.integrations.transformers import (
    StructuredLogitsProcessor,
    generate,
    shared_manager,
    stream,
    structured_batching,
)
from structout.masks.bitmask import allowed_tokens
from support.example_scripts import load_example, serving
from support.openai_client import chat_client


@dataclasses.dataclass
class Person:
    name: str
    age: int
    city: str


MARIA = Person("Maria Lopez", 34, "Madrid")
PEOPLE = {
    "Maria Lopez is 34 years old and lives in Madrid.": MARIA,
    "My name is Tom Baker, I am 51 and I live in London.": Person("Tom Baker", 51, "London"),
    "In Paris lives Anne Petit, who is 28 years old.": Person("Anne Petit", 28, "Paris"),
}


def messages(text):
    return [{"role": "user", "content": f"Extract the person as JSON (name, age, city): {text}"}]


PROMPTS = [messages(text) for text in PEOPLE]


@pytest.fixture(scope="module")
def alone(demo):
    """The text of each person, generated alone."""
    return [generate(*demo, prompt, json=Person).texts[0] for prompt in PROMPTS]


def test_generate_reads_people_right_alone_in_a_batch_and_beside_other_constraints(demo, alone):
    batch = generate(*demo, PROMPTS, json=Person)
    assert batch.parsed == list(PEOPLE.values())
    assert batch.texts == alone
    question = [{"role": "user", "content": "What is the capital of France?"}]
    params = [StructuredOutputsParams(json=Person), StructuredOutputsParams(choice=["Paris", "Rome"]), None]
    mixed = generate(*demo, [PROMPTS[0], question, question], params=params, max_new_tokens=40)
    assert mixed.parsed == [MARIA, "Paris", "The capital of France is Paris."]


@pytest.mark.parametrize("mode", ["ff_tokens", "retokenize", "draft"])
def test_generate_with_jump_forward_reads_people_right(demo, alone, mode):
    jumped = generate(*demo, PROMPTS[:2], json=Person, jump_forward=mode)
    assert jumped.parsed == list(PEOPLE.values())[:2]
    assert mode != "draft" or jumped.texts == alone[:2]


def test_generate_with_xgrammar_reads_people_right(demo):
    params = StructuredOutputsParams(json=Person, backend="xgrammar")
    assert generate(*demo, PROMPTS[0], params=params).parsed == [MARIA]


@pytest.mark.parametrize("options", [{}, {"num_beams": 2}, {"prompt_lookup_num_tokens": 3}], ids=str)
def test_logits_processor_reads_people_right_in_transformers_own_loops(demo, alone, options):
    model, tokenizer = demo
    prompt = tokenizer.apply_chat_template(
        PROMPTS[0], add_generation_prompt=True, return_tensors="pt", return_dict=True
    )
    processor = StructuredLogitsProcessor(tokenizer, json=Person)
    ids = model.generate(**prompt, logits_processor=[processor], do_sample=False, max_new_tokens=60, **options)
    text = tokenizer.decode(ids[0, prompt["input_ids"].shape[1] :], skip_special_tokens=True)
    assert Person(**json.loads(text)) == MARIA
    assert "num_beams" in options or text == alone[0]


def test_continuous_batching_gives_the_texts_of_generate(demo, alone):
    model, tokenizer = demo
    config = GenerationConfig(do_sample=False, max_new_tokens=60, eos_token_id=tokenizer.eos_token_id, pad_token_id=2)
    cache = ContinuousBatchingConfig(num_blocks=64, page_size=16, max_batch_tokens=128, max_requests_per_batch=4)
    with StructuredOutputManager(tokenizer, model.config.vocab_size) as manager:
        manager.add_request("person", StructuredOutputsParams(json=Person))
        options = {"generation_config": config, "continuous_batching_config": cache}
        with structured_batching(model, manager, default_request_id="person", **options):
            chats = [tokenizer.apply_chat_template(p, add_generation_prompt=True, tokenize=False) for p in PROMPTS]
            outputs = model.generate_batch([tokenizer(text)["input_ids"] for text in chats])
    texts = [tokenizer.decode(output.generated_tokens, skip_special_tokens=True) for output in outputs.values()]
    assert texts == alone


def test_stream_gives_the_pieces_of_the_text(demo, alone):
    pieces = stream(*demo, PROMPTS[0], json=Person)
    assert "".join(pieces) == alone[0]
    assert pieces.result.parsed == [MARIA]
    assert shared_manager(demo[1], 49_152).num_requests == 0


def test_described_tools_are_called_with_the_right_numbers(demo, capsys, monkeypatch):
    monkeypatch.setattr("structout.cli.demo_model.load_demo_model", lambda: (*demo, None))
    load_example("tool_loop").main()
    assert capsys.readouterr().out.splitlines() == [
        "add({'a': 17, 'b': 25}) = 42",
        "paint({'color': 'green', 'coats': 3}) = 3 x green",
        "add({'a': 5, 'b': 8}) = 13",
    ]


def test_demo_shows_an_order_with_structout_and_without(demo, capsys, monkeypatch):
    monkeypatch.setattr("structout.cli.demo_model.load_demo_model", lambda: (*demo, None))
    load_example("demo").main()
    output = capsys.readouterr().out
    assert "as an object: Order(item='pear', quantity=3, gift=True)" in output
    assert "tokens/s" in output
    assert output.splitlines()[-1].startswith("as JSON: Extra data: line 6")


# -- the server, with OpenAI's client --------------------------------------------------


@pytest.fixture(scope="module")
def chat(demo):
    app = load_example("openai_server").create_app(*demo, temperature=0.0, num_blocks=256)
    with serving(app) as port, chat_client(f"http://127.0.0.1:{port}") as chat:
        yield chat


def test_server_reads_a_person_right_whole_and_in_a_stream(chat):
    schema = {"type": "object", "properties": {"name": {"type": "string"}, "age": {"type": "integer"}}}
    schema |= {"required": ["name", "age"], "additionalProperties": False}
    wanted = {"type": "json_schema", "json_schema": {"name": "person", "schema": schema}}
    options = {"messages": PROMPTS[0], "response_format": wanted, "max_tokens": 60}
    text = chat(**options).choices[0].message.content
    assert json.loads(text) == {"name": "Maria Lopez", "age": 34}
    pieces = [chunk.choices[0].delta.content or "" for chunk in chat(**options, stream=True) if chunk.choices]
    assert "".join(pieces) == text
    assert len(pieces) > 5


def test_server_calls_the_right_tool_with_the_right_arguments(chat):
    def tool(name, description, **properties):
        parameters = {"type": "object", "properties": properties, "required": list(properties)}
        function = {
            "name": name,
            "description": description,
            "parameters": parameters | {"additionalProperties": False},
        }
        return {"type": "function", "function": function}

    number = {"type": "integer"}
    tools = [tool("add", "Add two numbers.", a=number, b=number), tool("ring", "Ring a bell.", times=number)]
    question = [{"role": "user", "content": "What is 17 plus 25?"}]
    answer = chat(messages=question, tools=tools, tool_choice="required", parallel_tool_calls=False, max_tokens=80)
    (call,) = answer.choices[0].message.tool_calls
    assert (call.function.name, json.loads(call.function.arguments)) == ("add", {"a": 17, "b": 25})


def test_answer_may_begin_right_behind_a_reasoning_or_after_line_breaks(demo):
    model, tokenizer = demo
    vocab_size = model.get_output_embeddings().weight.shape[0]
    params = StructuredOutputsParams(json={"type": "integer"}, reasoning=("", "</think>"))
    with StructuredOutputManager(tokenizer, vocab_size) as manager:
        manager.add_request("r", params)
        manager.wait_ready("r")
        assert manager.accept_tokens("r", tokenizer.encode("Well.</think>"))
        tokens = allowed_tokens(manager.grammar_bitmask(["r"]).bitmask[0], vocab_size).nonzero()[0].tolist()
        assert sorted(map(tokenizer.decode, tokens)) == ["\n", "\n\n", "-", *"0123456789"]
