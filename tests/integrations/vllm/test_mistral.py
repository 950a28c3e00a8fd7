"""Tokenizers of mistral-common, as vLLM wraps them."""

import json
import re
import shutil
from pathlib import Path

import pytest

pytest.importorskip("vllm")

import mistral_common
from mistral_common.protocol.instruct.validator import ValidationMode
from transformers import MistralCommonBackend
from vllm.config import StructuredOutputsConfig
from vllm.tokenizers.mistral import MistralTokenizer

from structout import StructuredOutputManager, StructuredOutputsParams
from structout.grammar.vocabulary import Vocabulary
from structout.integrations.vllm import request_params
from support.vllm_engines import engine
from support.vllm_models import save_small_model
from support.vllm_requests import LETTERS, SCHEMA, greedy, structured

DATA = Path(mistral_common.__file__).parent / "data"
TEKKEN, SENTENCEPIECE = "tekken_240911.json", "mistral_instruct_tokenizer_240323.model.v3"
TEXT = '{"a": -120, "b": "naïve café 東京 🦊\\n"}'


def read(name):
    return MistralTokenizer(MistralCommonBackend(str(DATA / name), mode=ValidationMode.test))


@pytest.fixture(scope="module", params=[TEKKEN, SENTENCEPIECE])
def tokenizer(request):
    return read(request.param)


def test_the_vocabulary_is_that_of_the_tokenizer(tokenizer):
    assert request_params.serves(StructuredOutputsConfig(), tokenizer)
    vocabulary = Vocabulary.from_tokenizer(tokenizer)
    assert vocabulary.size == tokenizer.vocab_size
    assert vocabulary.stop_token_ids == (tokenizer.eos_token_id,)
    ids = tokenizer.encode(TEXT, add_special_tokens=False)
    assert vocabulary.text_of(ids).removeprefix(" ") == tokenizer.decode(ids, skip_special_tokens=True) == TEXT
    names = dict(vocabulary.special_tokens)
    assert names["[INST]"] == names["<INST>"] == tokenizer.convert_tokens_to_ids("[INST]")
    assert vocabulary.token_bytes[names["[INST]"]] == b""
    assert not any(vocabulary.token_bytes[i] for i in tokenizer.all_special_ids)


def test_a_width_below_the_tokens_is_refused(tokenizer):
    with pytest.raises(ValueError, match="vocab_size is 9, but the tokenizer has a token of id"):
        Vocabulary.from_tokenizer(tokenizer, 9)


def test_forced_text_is_split_as_tekken_splits_it():
    tokenizer = read(TEKKEN)
    with StructuredOutputManager(tokenizer, tokenizer.vocab_size) as manager:
        manager.add_request("r", StructuredOutputsParams(regex='\\{"temperature": [0-9]\\}'))
        manager.wait_ready("r", 60)
        tokens = manager.compute_ff_tokens("r")
    assert tokens
    assert tokens == tokenizer.encode('{"temperature": 7}', add_special_tokens=False)[: len(tokens)]


def test_an_engine_with_tekken_serves_constraints(tmp_path):
    save_small_model(tmp_path, vocab_size=read(TEKKEN).vocab_size)
    for path in tmp_path.glob("*token*"):
        path.unlink()
    shutil.copy(DATA / TEKKEN, tmp_path / "tekken.json")
    with engine(tmp_path, tokenizer_mode="mistral") as running:
        assert running.manager.structout is not None
        outputs = running.generate(
            [greedy(80, **structured(regex=LETTERS)), greedy(80, **structured(json=SCHEMA, whitespace_pattern=""))]
        )
        letters, value = (output.outputs[0] for output in outputs)
        assert letters.finish_reason == value.finish_reason == "stop"
        assert re.fullmatch(LETTERS, letters.text)
        assert json.loads(value.text)["b"] in ("x", "y")
        assert running.num_held == 0
