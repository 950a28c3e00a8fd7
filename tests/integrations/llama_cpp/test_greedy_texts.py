"""Greedy texts of a GGUF model beside those of transformers on the same weights.

llama.cpp multiplies quantized weights with activations that it rounds to eight bits,
and keeps keys and values in 16, which moves logits by up to 1.5. So texts part where
the two likeliest of the allowed tokens are nearer than that. With the same weights,
keys and values in float32 no text parts.
"""

from itertools import takewhile
from typing import NamedTuple

import pytest
import torch

pytest.importorskip("llama_cpp", reason="llama-cpp-python is not installed: make test-llama-cpp")

import llama_cpp
from gguf import GGUFReader, GGUFWriter
from gguf.quants import dequantize

import structout
from structout import StructuredOutputsParams, unpack_bitmask
from structout.cli.demo_model import NAME, load_demo_model
from structout.cli.smollm2 import find_gguf
from structout.integrations.llama_cpp import generate, tokenizer_of
from structout.integrations.llama_cpp.llama_generation import LlamaFeed
from structout.integrations.transformers import shared_manager

MAX_TOKENS = 40
PROMPTS = [
    "Maria Lopez is 34 years old and lives in Madrid.",
    "I bought two apples and a bottle of milk.",
    "List three animals.",
    "Our meeting is on Monday at noon.",
]
PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "age": {"type": "integer"}, "city": {"type": "string"}},
    "required": ["name", "age", "city"],
    "additionalProperties": False,
}
CONSTRAINTS = [
    {"json": PERSON},
    {"json": {"type": "array", "items": {"type": "string"}}},
    {"regex": r"[A-Z][a-z]+( [a-z]+){6,20}\."},
]


class Case(NamedTuple):
    """A prompt, its constraint and transformers' text."""

    prompt: list[int]
    constraint: dict
    text: list[int]


@pytest.fixture(scope="module")
def reference(tmp_path_factory):
    """The model and the tokenizer of transformers."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("STRUCTOUT_CACHE_DIR", str(tmp_path_factory.mktemp("transformers")))
        model, tokenizer, directory = load_demo_model()
    assert directory.name == NAME
    return model, tokenizer


@pytest.fixture(scope="module")
def cases(reference):
    model, tokenizer = reference
    found = []
    for prompt in PROMPTS:
        chat = tokenizer.apply_chat_template(
            [{"role": "user", "content": prompt}], tokenize=False, add_generation_prompt=True
        )
        token_ids = list(tokenizer(chat, add_special_tokens=False)["input_ids"])
        for constraint in CONSTRAINTS:
            options = {"do_sample": False, "max_new_tokens": MAX_TOKENS}
            text = structout.generate(model, tokenizer, token_ids, **constraint, **options).token_ids[0]
            found.append(Case(token_ids, constraint, text))
    return found


@pytest.fixture(scope="module")
def float_llama(tmp_path_factory):
    """The weights that transformers has, in float32."""
    reader = GGUFReader(find_gguf(None))
    path = tmp_path_factory.mktemp("float32") / "model.gguf"
    writer = GGUFWriter(path, "llama")
    written = "GGUF.", "general.architecture", "general.file_type", "general.quantization_version"
    for field in reader.fields.values():
        if not field.name.startswith(written):
            writer.add_key_value(field.name, field.contents(), field.types[0], field.types[-1])
    for tensor in reader.tensors:
        weights = torch.tensor(dequantize(tensor.data, tensor.tensor_type))
        writer.add_tensor(tensor.name, weights.bfloat16().float().numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    threads = {"n_threads": 1, "n_threads_batch": 1}
    cache = {"type_k": llama_cpp.GGML_TYPE_F32, "type_v": llama_cpp.GGML_TYPE_F32}
    return llama_cpp.Llama(str(path), n_ctx=512, verbose=False, **threads, **cache)


def differences(reference, llama, case, count):
    """The logits of both models after the first tokens of a text, float32 ``[count + 1,
    V]``, each row with a mean of 0."""
    llama.reset()
    feed = LlamaFeed(llama, case.prompt)
    rows = [feed.forward(1)[0].clone()]
    for token in case.text[:count]:
        feed.append([[token]])
        rows.append(feed.forward(1)[0].clone())
    with torch.no_grad():
        expected = reference[0](torch.tensor([case.prompt + case.text[:count]])).logits[0, -count - 1 :]
    return [logits - logits.mean(1, keepdim=True) for logits in (torch.cat(rows), expected)]


def allowed_after(manager, case, count):
    """The mask after the first tokens of a text, bool ``[V]``."""
    manager.add_request("mask", StructuredOutputsParams(**case.constraint), max_tokens=MAX_TOKENS)
    try:
        manager.wait_ready("mask")
        assert manager.accept_tokens("mask", case.text[:count])
        masks = manager.grammar_bitmask(["mask"])
        return unpack_bitmask(torch.from_numpy(masks.bitmask.copy()), manager.vocabulary.size)[0]
    finally:
        manager.finish_request("mask")


def test_texts_on_float32_weights_are_those_of_transformers(reference, float_llama, cases):
    for case in cases:
        text = generate(float_llama, case.prompt, **case.constraint, max_tokens=MAX_TOKENS).token_ids[0]
        assert text == case.text, case.constraint
    found, expected = differences(reference, float_llama, cases[0], len(cases[0].text))
    assert (found - expected).abs().max() < 0.01


def test_texts_on_quantized_weights_part_where_rounding_decides(reference, llama, cases):
    managers = tokenizer_of(llama).manager, shared_manager(reference[1], llama.n_vocab())
    stops = [*tokenizer_of(llama).vocabulary.stop_token_ids]
    num_parted = 0
    for case in cases:
        text = generate(llama, case.prompt, **case.constraint, max_tokens=MAX_TOKENS).token_ids[0]
        if text == case.text:
            continue
        num_parted += 1
        count = sum(1 for _ in takewhile(bool, map(int.__eq__, text, case.text)))
        masks = [allowed_after(manager, case, count) for manager in managers]
        for mask in masks:
            mask[stops] = mask[stops].any()  # llama.cpp knows more tokens that end a text
        assert torch.equal(*masks)
        logits = differences(reference, llama, case, count)
        rounding = (logits[0] - logits[1]).abs().max()
        assert 0.1 < rounding < 3
        found, expected = (each[-1].masked_fill(~masks[0], -torch.inf) for each in logits)
        for drawn, own in ((text, found), (case.text, expected)):
            assert int(own.argmax()) in ([drawn[count]] if count < len(drawn) else stops)
        likeliest = int(found.argmax()), int(expected.argmax())
        for own in (found, expected):
            assert abs(own[likeliest[0]] - own[likeliest[1]]) < rounding
    assert num_parted > 0
