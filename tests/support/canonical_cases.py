"""Tokenizers made on the spot, and random schemas with instances, for tests of forced
text."""

import functools
import json
import random

from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from structout.constraints.params import StructuredOutputOptions
from structout.grammar.forced_tokens import CanonicalTokenizer
from structout.grammar.optional.xgrammar import XgrammarBackend
from structout.grammar.vocabulary import Vocabulary
from support import tokenizers_on_the_spot

KEYS = "name orderId orderName name_of_the_person age tags city é 東京 emoji🦊 a b items x-y".split()
WORDS = "Ada London naïve 東京 fox, engine. 🦊 A-17 a\\b".split()

# Long names, which are forced, beside short values, which are not.
ORDER = {
    "type": "object",
    "properties": {
        "name_of_the_person": {"type": "string", "maxLength": 8},
        "orders": {
            "type": "array",
            "items": {
                "type": "object",
                "properties": {"orderId": {"type": "integer"}, "orderName": {"enum": ["Ada", "東京"]}},
                "required": ["orderId", "orderName"],
                "additionalProperties": False,
            },
            "minItems": 1,
            "maxItems": 2,
        },
        "paid": {"type": "boolean"},
    },
    "required": ["name_of_the_person", "orders", "paid"],
    "additionalProperties": False,
}


@functools.cache
def larger_byte_level():
    """4,000 tokens learned from JSON, so that many join punctuation, as those of real
    vocabularies do."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    rng = random.Random(0)
    corpus = [json.dumps(instance(schema(rng, 3), rng), ensure_ascii=rng.random() < 0.5) for _ in range(3000)]
    corpus += [json.dumps(json.loads(text), indent=2, ensure_ascii=False) for text in corpus]
    corpus += [text.replace(": ", ":").replace(", ", ",") for text in corpus]
    trainer = trainers.BpeTrainer(
        vocab_size=4000, special_tokens=["<|end|>"], initial_alphabet=pre_tokenizers.ByteLevel.alphabet()
    )
    trainer.show_progress = False
    tokenizer.train_from_iterator(corpus, trainer)
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<|end|>")  # noqa: S106 - no password


@functools.cache
def llama_2():
    """As Llama 2 has it: no pre-tokenizer, and a normalizer that puts a space before
    every text."""
    spec = json.loads(tokenizers_on_the_spot.byte_fallback().backend_tokenizer.to_str())
    tokenizer = Tokenizer.from_str(json.dumps(spec))
    tokenizer.pre_tokenizer = None
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<|end|>")  # noqa: S106 - no password


TOKENIZERS = {
    "byte level": tokenizers_on_the_spot.byte_level,
    "byte fallback": tokenizers_on_the_spot.byte_fallback,
    "larger byte level": larger_byte_level,
    "Llama 2": llama_2,
}


def schema(rng, depth):
    if depth == 0 or rng.random() < 0.3:
        values = rng.choices([0, 12, True, None, *WORDS], k=rng.randint(1, 4))
        kinds = [{"type": "string"}, {"type": "integer"}, {"type": "boolean"}, {"enum": values}, {"const": values[0]}]
        return rng.choice(kinds)
    if rng.random() < 0.25:
        return {"type": "array", "items": schema(rng, depth - 1), "minItems": 1}
    keys = rng.sample(KEYS, rng.randint(1, 4))
    required = [key for key in keys if rng.random() < 0.8]
    properties = {key: schema(rng, depth - 1) for key in keys}
    return {"type": "object", "properties": properties, "required": required, "additionalProperties": False}


def instance(schema, rng):
    match schema:
        case {"enum": values}:
            return rng.choice(values)
        case {"const": value}:
            return value
        case {"type": "string"}:
            return " ".join(rng.choices(WORDS, k=rng.randint(0, 3)))
        case {"type": "integer"}:
            return rng.randint(-5, 12345)
        case {"type": "boolean"}:
            return rng.random() < 0.5
        case {"type": "array", "items": items}:
            return [instance(items, rng) for _ in range(rng.randint(1, 3))]
        case {"properties": properties, "required": required}:
            keys = [key for key in properties if key in required or rng.random() < 0.5]
            return {key: instance(properties[key], rng) for key in keys}


@functools.cache
def backend(name, any_whitespace=False, lookback=4):
    tokenizer = TOKENIZERS[name]()
    vocabulary = Vocabulary.from_tokenizer(tokenizer)
    canonical = CanonicalTokenizer(tokenizer, vocabulary, lookback=lookback)
    return XgrammarBackend(vocabulary, canonical_tokenizer=canonical, any_whitespace=any_whitespace)


def grammar_of(name, kind, spec, **options):
    text = spec if isinstance(spec, str) else json.dumps(spec)
    return backend(name, **options).compile_grammar(StructuredOutputOptions(kind), text)


def canonical_tokens(name, text):
    return backend(name)._canonical_tokenizer.encode(text)
