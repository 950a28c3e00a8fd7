"""The scripts of examples/ run; the server answers over HTTP."""

import asyncio
import http.client
import json
import os
import re
import socket
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import jsonschema
import openai
import pytest

from structout import decide
from structout.constraints.tools.call_formats import TOOL_FORMATS
from support import fresh_process
from support.example_scripts import EXAMPLES, load_example, serving
from support.locations import ROOT
from support.openai_client import MESSAGES, NAMED, SCHEMA, TOOLS, ChatTests, chat_client


@pytest.fixture(autouse=True)
def random_demo(parts, monkeypatch):
    """The random model in place of the demo model."""
    monkeypatch.setattr("structout.cli.demo_model.load_demo_model", lambda: (*parts, None))


def test_model_code_writes_a_text_of_its_regular_expression(capsys):
    load_example("model_code").main()
    assert re.fullmatch("(one|two|three|four|five|six) of six\n", capsys.readouterr().out)


def test_model_code_is_ten_lines():
    source = (EXAMPLES / "model_code.py").read_text()
    lines = source[source.index("# BEGIN\n") : source.index("    # END")].splitlines()[1:]
    assert len(lines) <= 12


def test_device_fsm_writes_a_text_of_each_constraint(capsys):
    load_example("device_fsm").main()
    date, color = capsys.readouterr().out.splitlines()
    assert re.fullmatch("[0-9]{4}-[0-9]{2}-[0-9]{2}", date)
    assert color in ("red", "green")


def test_engine_loop_serves_constrained_and_free_requests_and_fails_the_bad_one(capsys):
    load_example("engine_loop").main()
    texts = dict(line.split(": ", 1) for line in capsys.readouterr().out.splitlines() if ": " in line)
    jsonschema.validate(json.loads(texts["order"]), SCHEMA)
    assert re.fullmatch("[A-Z]{3}-[0-9]{4}", texts["code"])
    assert "a ( is not closed" in texts["bad"]
    assert texts["free"]


def test_tensor_parallel_writes_a_text_of_each_request(pytestconfig):
    """Runs it on two ranks: under --long as its docstring says, under torchrun, and
    otherwise with the variables that torchrun sets."""
    example = str(EXAMPLES / "tensor_parallel.py")
    if pytestconfig.getoption("--long"):
        command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", example]
        runs = [subprocess.run(command, capture_output=True, text=True, timeout=240)]
    else:
        with socket.create_server(("localhost", 0)) as server:
            port = server.getsockname()[1]
        environment = {"MASTER_ADDR": "localhost", "MASTER_PORT": str(port), "WORLD_SIZE": "2"}
        script = "import os, sys, runpy; os.environ['RANK'] = sys.argv[2]; runpy.run_path(sys.argv[1], {}, '__main__')"
        programs = [("-c", script, example, str(rank)) for rank in range(2)]
        runs = fresh_process.run_at_once(*programs, env={**os.environ, **environment}, timeout=240)
    assert [run.returncode for run in runs] == [0] * len(runs), [run.stderr for run in runs]
    texts = dict(line.split(": ", 1) for line in runs[0].stdout.splitlines())
    assert len(texts) == 6
    for text in texts.values():
        assert re.fullmatch("ORD-[0-9]{4}, (pending|paid|shipped), [1-9][0-9]? (apple|pear|plum)s", text)
    assert f"```text\n{runs[0].stdout}```" in (ROOT / "docs" / "tensor_parallel.md").read_text()


def test_tool_loop_is_25_lines():
    source = (EXAMPLES / "tool_loop.py").read_text()
    lines = source[source.index("# BEGIN\n") : source.index("    # END")].splitlines()[1:]
    assert len([line for line in lines if line]) <= 25


# -- the server, over HTTP -------------------------------------------------------------


@pytest.fixture(scope="module")
def server(parts):
    """The port and the manager of a server on this machine."""
    app = load_example("openai_server").create_app(*parts, num_blocks=64)
    with serving(app) as port:
        yield port, app.state.manager


def post(port, **body):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    connection.request("POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"})
    return connection.getresponse()


def complete(port, **body):
    response = post(port, **body)
    answer = json.loads(response.read())
    assert response.status == 200, answer
    (choice,) = answer["choices"]
    return choice["text"], choice["finish_reason"]


def wait_for_no_request(manager):
    deadline = time.monotonic() + 60
    while manager.num_requests:
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_server_answers_with_a_text_of_the_constraint(server):
    port, manager = server
    schema = {"response_format": {"type": "json_schema", "json_schema": {"name": "order", "schema": SCHEMA}}}
    text, reason = complete(port, prompt="order: ", **schema)
    jsonschema.validate(json.loads(text), SCHEMA)
    assert reason == "stop"
    schema["response_format"]["json_schema"] |= {"strict": True, "schema": {"type": "object", "properties": {}}}
    assert json.loads(complete(port, prompt="order: ", **schema)[0]) == {}
    constraint = {"regex": "[a-z]{60}", "fit": "off"}
    text, reason = complete(port, prompt="order: ", structured_outputs=constraint, max_tokens=5)
    assert re.fullmatch("[a-z]{1,60}", text)
    assert reason == "length"
    assert complete(port, prompt="order: ", max_tokens=4)[1] in ("length", "stop")
    wait_for_no_request(manager)


def test_server_streams_pieces_of_the_text(server):
    port, manager = server
    response = post(port, prompt="order: ", structured_outputs={"regex": "(東京🦊){3}[a-z]{20}"}, stream=True)
    assert response.headers["Content-Type"].startswith("text/event-stream")
    events = [line[6:] for line in response.read().decode().split("\n\n") if line]
    assert events[-1] == "[DONE]"
    choices = [json.loads(event)["choices"][0] for event in events[:-1]]
    assert re.fullmatch("(東京🦊){3}[a-z]{20}", "".join(choice["text"] for choice in choices))
    assert [choice["finish_reason"] for choice in choices] == [None] * (len(choices) - 1) + ["stop"]
    assert len(choices) > 10
    wait_for_no_request(manager)


def test_server_decodes_many_requests_together(server):
    port, manager = server
    constraints = [{"json": SCHEMA}, {"regex": "[a-z]{5,9}"}, {"choice": ["yes", "no"]}, {"grammar": 'root ::= "a"+'}]
    with ThreadPoolExecutor(12) as pool:
        bodies = [{"prompt": f"request {i}: ", "structured_outputs": constraints[i % 4]} for i in range(12)]
        answers = list(pool.map(lambda body: complete(port, **body)[0], bodies))
    for i, text in enumerate(answers):
        match i % 4:
            case 0:
                jsonschema.validate(json.loads(text), SCHEMA)
            case 1:
                assert re.fullmatch("[a-z]{5,9}", text)
            case 2:
                assert text in ("yes", "no")
            case 3:
                assert re.fullmatch("a+", text)
    wait_for_no_request(manager)


def test_server_ends_a_text_within_max_tokens_or_answers_with_the_number_it_needs(server):
    port, manager = server
    asked = {"prompt": "order: ", "structured_outputs": {"regex": "[a-z]{60}"}}
    response = post(port, **asked, max_tokens=5)
    assert response.status == 400
    found = re.search(r"needs at least (\d+) tokens, max_tokens is 5", json.loads(response.read())["error"]["message"])
    text, reason = complete(port, **asked, max_tokens=int(found[1]))
    assert re.fullmatch("[a-z]{60}", text)
    assert reason == "stop"
    wait_for_no_request(manager)


@pytest.mark.parametrize(
    ("constraint", "message"),
    [
        ({"regex": "("}, "a ( is not closed"),
        ({"json": {"$ref": "#"}}, "constraint refused"),
        ({"regex": "a", "choice": ["a"]}, "expected exactly one constraint"),
        ({"regexp": "a"}, "unexpected keyword argument 'regexp'"),
    ],
)
def test_server_answers_a_bad_constraint_with_400(server, constraint, message):
    port, manager = server
    response = post(port, prompt="order: ", structured_outputs=constraint)
    assert response.status == 400
    error = json.loads(response.read())["error"]
    assert message in error["message"]
    assert error["type"] == "invalid_request_error"
    wait_for_no_request(manager)


def test_server_forgets_requests_whose_client_has_gone(server):
    port, manager = server
    response = post(port, prompt="order: ", structured_outputs={"regex": "[a-z]{900}"}, max_tokens=900, stream=True)
    assert response.read(20)
    assert manager.num_requests == 2  # the client's, and its fork
    response.close()
    wait_for_no_request(manager)


# -- the server, for OpenAI's client ---------------------------------------------------


ARGUMENTS = [{"item": "pear", "quantity": 1}, {"item": "apple", "quantity": 2}]


@pytest.fixture
def chat(server):
    port, manager = server
    with chat_client(f"http://127.0.0.1:{port}") as chat:
        yield chat
    wait_for_no_request(manager)


class TestChat(ChatTests):
    """The tests that vLLM's server passes, too."""

    def test_streamed_arguments_come_in_pieces(self, chat):
        chunks = chat(tools=TOOLS, tool_choice=NAMED, stream=True, max_tokens=400)
        calls = [call for chunk in chunks for call in chunk.choices[0].delta.tool_calls or ()]
        assert [call.function.name for call in calls if call.function.name] == [NAMED["function"]["name"]]
        assert len(calls) > 3

    def test_server_has_one_model(self, server):
        port, _ = server
        with openai.OpenAI(base_url=f"http://127.0.0.1:{port}/v1", api_key="none") as client:
            assert [model.id for model in client.models.list()] == ["demo"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"response_format": {"type": "xml"}}, "response_format is not supported"),
        ({"tools": TOOLS, "tool_choice": "sell"}, "got 'sell'"),
        ({"tools": TOOLS, "extra_body": {"structured_outputs": {"regex": "a"}}}, "expected exactly one constraint"),
        ({"logprobs": True}, "logprobs: Extra inputs are not permitted"),
        ({"n": 2}, "n: Input should be 1"),
    ],
)
def test_chat_answers_what_it_does_not_support_with_400(chat, options, message):
    with pytest.raises(openai.BadRequestError) as raised:
        chat(**options)
    assert message in raised.value.body["message"]


QUESTIONS = [
    {"type": "choice", "name": "topic", "instructions": "What is it about?",
     "choices": [{"value": "weather", "description": "rain and sun"}, {"value": "money"}, {"value": "news"}]},
    {"type": "predicate", "instructions": "It is urgent."},
    {"type": "score", "name": "mood", "instructions": "How does the writer feel?",
     "levels": [{"label": "bad"}, {"label": "neutral"}, {"label": "good", "description": "happy"}]},
    {"type": "choice", "instructions": "Is it new?", "choices": [{"value": True}, {"value": False}]},
]  # fmt: skip


@pytest.fixture
def client(server):
    port, _ = server
    with openai.OpenAI(base_url=f"http://127.0.0.1:{port}/v1", api_key="none", max_retries=0) as client:
        yield client


def test_decisions_are_those_of_decide_in_openais_form(parts, client):
    made = client.decisions.create(model="demo", input="It rains.", questions=QUESTIONS)
    choice, predicate, score, is_new = made.answers
    asked = "What is it about? Answer with one of:\n- weather: rain and sun\n- money\n- news"
    prompt = f"user: It rains.\n\n{asked}\nassistant: "
    model, tokenizer = parts
    prompt_ids = tokenizer(prompt, add_special_tokens=False)["input_ids"]
    (alone,) = decide(model, tokenizer, prompt_ids, ["weather", "money", "news"], tokenizations="canonical")
    assert (choice.type, choice.name, choice.choice) == ("choice", "topic", alone.answer)
    assert [each.value for each in choice.probabilities] == ["weather", "money", "news"]
    shares = dict(zip(alone.answers, alone.probabilities, strict=True))
    assert {each.value: each.probability for each in choice.probabilities} == pytest.approx(shares, abs=1e-4)
    assert choice.log_kept == pytest.approx(alone.log_kept, abs=1e-3)
    assert (predicate.type, predicate.name) == ("predicate", None)
    assert 0 < predicate.probability < 1
    assert [(each.value, each.label) for each in score.probabilities] == [*enumerate(("bad", "neutral", "good"))]
    assert score.score == pytest.approx(sum(each.value * each.probability for each in score.probabilities))
    assert [each.value for each in is_new.probabilities] == [True, False]
    for answer in (choice, score, is_new):
        assert sum(each.probability for each in answer.probabilities) == pytest.approx(1)
        assert answer.confidence == max(each.probability for each in answer.probabilities)
    assert made.usage.total_tokens == made.usage.input_tokens > len(prompt_ids)


def test_decisions_take_messages_while_texts_are_decoded(server, client):
    port, _ = server
    streamed = post(port, prompt="order: ", structured_outputs={"regex": "[a-z]{60}"}, max_tokens=80, stream=True)
    messages = [{"role": "user", "content": "Hello"}, {"role": "assistant", "content": "What is the matter?"}]
    first = client.decisions.create(model="demo", input=messages, questions=QUESTIONS)
    assert b"[DONE]" in streamed.read()
    again = client.decisions.create(model="demo", input=messages, questions=QUESTIONS)
    assert first == again


@pytest.mark.parametrize(
    ("question", "message"),
    [
        (QUESTIONS[0] | {"choices": [{"value": "a"}, {"value": "a"}]}, "must be written once"),
        (QUESTIONS[0] | {"choices": [{"value": "a"}]}, "at least 2 items"),
        (QUESTIONS[0] | {"choices": [{"value": "ab" * 400}, {"value": "b"}]}, "more than max_tokens=512 tokens"),
        ({"type": "guess", "instructions": "?"}, "'predicate', 'choice', 'score'"),
        (QUESTIONS[1] | {"threshold": 1}, "Extra inputs are not permitted"),
    ],
)
def test_decisions_answer_what_they_do_not_support_with_400(client, question, message):
    with pytest.raises(openai.BadRequestError, match=message):
        client.decisions.create(model="demo", input="x", questions=[question])


def test_events_of_text_with_calls_hold_back_what_may_begin_one():
    """A text of a model that writes both after a reasoning, a character at a time."""
    example = load_example("openai_server")
    begin, end = '<tool_call>\n{"name": "order", "arguments": ', "}\n</tool_call>"
    calls = [f"{begin}{json.dumps(arguments)}{end}" for arguments in ARGUMENTS]
    written = f"<think>Hm, {calls[0]}</think>\n\n1 < 2, so: {calls[0]} and {calls[1]}"
    form = replace(TOOL_FORMATS["hermes"], reasoning=("<think>", "</think>"))

    async def pieces():
        for length in range(1, len(written) + 1):
            yield example.Piece(written[:length], length, "stop" if length == len(written) else None)

    async def events():
        asked = example.ChatCompletion(messages=MESSAGES, tools=TOOLS, stream=True)
        text = example.Text("cmpl-0", asked.params(form), 3, pieces())
        return [event async for event in example.Answer(asked, text, "demo").events()]

    *sent, done = asyncio.run(events())
    choices = [json.loads(event.removeprefix("data: "))["choices"][0] for event in sent]
    assert done == "data: [DONE]\n\n"
    assert "".join(choice["delta"].get("content", "") for choice in choices) == "1 < 2, so:  and "
    assert "".join(choice["delta"].get("reasoning_content", "") for choice in choices) == f"Hm, {calls[0]}"
    found = [call for choice in choices for call in choice["delta"].get("tool_calls", ())]
    texts = [""] * len(ARGUMENTS)
    for call in found:
        texts[call["index"]] += call["function"]["arguments"]
    assert [json.loads(text) for text in texts] == ARGUMENTS
    assert [call["function"]["name"] for call in found if "id" in call] == ["order", "order"]
    assert choices[-1]["finish_reason"] == "tool_calls"
