"""vLLM's frontend in Rust, which checks no constraint: the engine does."""

import sys
from pathlib import Path

import pytest

pytest.importorskip("vllm")

import httpx
import vllm

from support.server_processes import free_ports, running
from support.vllm_clients import MESSAGES, REFUSED

if not Path(vllm.__file__).with_name("vllm-rs").exists():
    pytest.skip("this build of vLLM has no frontend in Rust", allow_module_level=True)

# What it passes on to the engine.
REASONS = [
    ({"structured_outputs": {"regex": "[a-"}}, "a [ is not closed, at character 4"),
    ({"structured_outputs": {"json": {"properties": {"a": {"type": "strin"}}}}}, "#/properties/a/type: unknown type"),
    ({"structured_outputs": {"regex": "[a-z]{300}"}, "max_tokens": 9}, "at least"),
    ({"structured_outputs": {"grammar": "root ::= <no_such_token>"}}, "no special token <no_such_token>"),
    ({"structured_outputs": {"choice": ["a"]}, "vllm_xargs": {"structout_fit": "of"}}, "fit"),
    (
        {"structured_outputs": {"json": [1, 2]}},
        "got `array` - at `structured_outputs.json`",
    ),
]


@pytest.fixture(scope="module")
def server(small_model, tmp_path_factory):
    (port,) = free_ports(1)
    log = tmp_path_factory.mktemp("server") / "log"
    command = [sys.executable, "-P", "-m", "vllm.entrypoints.cli.main", "serve", str(small_model)]
    command += ["--served-model-name", "small", "--host", "127.0.0.1", "--port", str(port), "--max-model-len", "512"]
    command += ["--enforce-eager", "--dtype", "float32", "--num-gpu-blocks-override", "256", "--max-num-seqs", "16"]
    settings = {"VLLM_USE_RUST_FRONTEND": "1", "VLLM_CPU_KVCACHE_SPACE": "1", "HF_HUB_OFFLINE": "1"}
    settings |= {"VLLM_CPU_OMP_THREADS_BIND": "nobind", "VLLM_CPU_SIM_MULTI_NUMA": "0"}
    url = f"http://127.0.0.1:{port}"
    with running(command, settings, log, [url]):
        yield url


def post(url, **body):
    sent = {"model": "small", "max_tokens": 80, "messages": MESSAGES} | body
    return httpx.post(f"{url}/v1/chat/completions", json=sent, timeout=120)


def assert_serves(server):
    response = post(server, structured_outputs={"choice": ["red"]})
    assert response.json()["choices"][0]["message"]["content"] == "red"


@pytest.mark.parametrize("body", REFUSED, ids=str)
def test_a_bad_constraint_is_answered_with_400(server, body):
    response = post(server, **body)
    assert response.status_code == 400, response.text
    assert response.json()["error"]["type"] == "BadRequestError"


@pytest.mark.parametrize(("body", "reason"), REASONS, ids=str)
def test_the_client_learns_the_place_and_the_reason(server, body, reason):
    response = post(server, **body)
    assert response.status_code == 400, response.text
    assert reason in response.json()["error"]["message"]
    assert_serves(server)


def test_a_stream_that_is_refused_has_the_reason(server):
    response = post(server, structured_outputs={"regex": "[a-"}, stream=True)
    assert "a [ is not closed, at character 4" in response.text


def test_a_dead_end_is_an_error(server):
    response = post(server, structured_outputs={"regex": "abc[xy]"}, allowed_token_ids=[67, 68, 69])
    assert response.status_code == 500
    assert_serves(server)
