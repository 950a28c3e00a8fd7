"""Forced tokens are those of the tokenizer itself: whatever follows, the text tokenizes
to them."""

import json
import random
from pathlib import Path

import pytest
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from structout.constraints.config import StructuredOutputsConfig
from structout.constraints.params import StructuredOutputOptions, StructuredOutputsParams
from structout.errors import GrammarError
from structout.grammar.forced_tokens import CanonicalTokenizer
from structout.grammar.mistral import Encoding
from structout.grammar.optional.xgrammar import XgrammarBackend
from structout.grammar.vocabulary import Vocabulary
from structout.scheduler.manager import StructuredOutputManager
from support import tokenizers_on_the_spot
from support.canonical_cases import (
    TOKENIZERS,
    backend,
    canonical_tokens,
    grammar_of,
    instance,
    larger_byte_level,
    llama_2,
    schema,
)


def pieces(name, tokens):
    return [backend(name).vocabulary.token_bytes[token].decode(errors="backslashreplace") for token in tokens]


def jumps_along(grammar, tokens):
    """Follow ``tokens``. Each jump on the way, and what the tokens are there."""
    position, jumps = 0, []
    while position < len(tokens):
        forced = grammar.compute_ff_tokens()
        jumps.append((forced, tokens[position : position + len(forced)]))
        step = forced if forced and jumps[-1][1] == forced else [tokens[position]]
        assert grammar.accept_tokens("", step)
        position += len(step)
    return [jump for jump in jumps if jump[0]]


@pytest.mark.parametrize("any_whitespace", [False, True])
@pytest.mark.parametrize("name", TOKENIZERS)
def test_ff_tokens_of_random_schemas_are_canonical(name, any_whitespace):
    rng = random.Random(f"{name} {any_whitespace}")
    num_forced = 0
    for _ in range(60):
        spec = schema(rng, 3)
        grammar = grammar_of(name, "json", spec, any_whitespace=any_whitespace)
        text = json.dumps(
            instance(spec, rng), ensure_ascii=False, indent=rng.choice([None, 2]) if any_whitespace else None
        )
        for forced, expected in jumps_along(grammar, canonical_tokens(name, text)):
            assert pieces(name, forced) == pieces(name, expected)
            num_forced += len(forced)
    assert num_forced > 200


def test_ff_tokens_without_lookback_are_mostly_not_canonical():
    """What the lookback is for: this is the defect that it prevents."""
    rng = random.Random(1)
    num_wrong = num_jumps = 0
    for _ in range(40):
        spec = schema(rng, 3)
        text = json.dumps(instance(spec, rng), ensure_ascii=False, indent=2)
        grammar = grammar_of("larger byte level", "json", spec, any_whitespace=True, lookback=0)
        jumps = jumps_along(grammar, canonical_tokens("larger byte level", text))
        num_wrong += sum(forced != expected for forced, expected in jumps)
        num_jumps += len(jumps)
    assert num_wrong > num_jumps / 2


@pytest.mark.parametrize(("options", "expected"), [({}, []), ({"lookback": 1}, [1]), ({"lookback": 0}, [1, 2])])
def test_ff_tokens_drop_tokens_that_one_longer_token_could_replace(options, expected):
    """Forced: "ab", which is a, b. But should c follow, the tokenizer writes abc."""
    vocab = {"<end>": 0, "a": 1, "b": 2, "c": 3, "d": 4, "bc": 5, "abc": 6, "bd": 7, "dbd": 8}
    tokenizer = Tokenizer(models.BPE(vocab, [("b", "c"), ("a", "bc"), ("b", "d"), ("d", "bd")]))
    tokenizer.decoder = decoders.ByteLevel()
    wrapped = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<end>")  # noqa: S106 - no password
    vocabulary = Vocabulary.from_tokenizer(wrapped)
    canonical = CanonicalTokenizer(wrapped, vocabulary, **options)
    engine = XgrammarBackend(vocabulary, canonical_tokenizer=canonical)
    assert engine.compile_grammar(StructuredOutputOptions.REGEX, "ab[cd]").compute_ff_tokens() == expected
    refused_after_a_byte = engine.compile_grammar(StructuredOutputOptions.REGEX, "d(b|c)c")  # dbd begins like db
    assert refused_after_a_byte.compute_ff_tokens() == [4]


@pytest.mark.parametrize("name", TOKENIZERS)
@pytest.mark.parametrize(
    ("choices", "forced"),
    [
        (["日", "旦"], ""),
        (["a日b", "a旦b"], "a"),
        (["東京 is", "東京, no"], "東京"),
        (["🦊", "🦄"], ""),
        (["<|im_start|>", "<|im_start|>!"], "<|im_start|>"),
        (["<|end|>"], "<|end|>"),
    ],
)
def test_ff_tokens_end_with_whole_characters_and_have_no_special_token(name, choices, forced):
    grammar = grammar_of(name, "choice", choices)
    assert grammar.find_jump_forward_string() == forced
    tokens = grammar.compute_ff_tokens()
    text = b"".join(backend(name).vocabulary.token_bytes[token] for token in tokens)
    assert all(backend(name).vocabulary.token_bytes[token] for token in tokens)
    assert forced.encode().startswith(text)
    assert tokens == canonical_tokens(name, choices[0])[: len(tokens)]
    assert grammar.accept_tokens("", tokens)
    assert grammar.num_tokens == len(tokens)


@pytest.mark.parametrize("name", TOKENIZERS)
def test_ff_tokens_that_begin_inside_a_character(name):
    vocabulary = backend(name).vocabulary
    whole = canonical_tokens(name, "鱼!")  # spelled byte by byte: it was not in any corpus
    assert len(whole) == 4
    grammar = grammar_of(name, "choice", ["鱼!", "日"])
    for done in range(1, 4):
        assert grammar.accept_tokens("", [whole[done - 1]])
        assert grammar.compute_ff_tokens() == whole[done:]

    grammar = grammar_of(name, "choice", ["東!", "日"])
    single = [vocabulary.token_bytes.index(bytes([byte])) for byte in "東".encode()]
    assert grammar.accept_tokens("", single[:2])
    assert grammar.forced_bytes() == "東".encode()[2:] + b"!"
    assert grammar.find_jump_forward_string() == ""
    if canonical_tokens(name, "東") == single:
        assert grammar.compute_ff_tokens() == canonical_tokens(name, "東!")[2:]
    else:  # the tokenizer would never have come here, and has no tokens for what follows
        assert grammar.compute_ff_tokens() == []


@pytest.mark.parametrize("name", TOKENIZERS)
def test_ff_tokens_at_the_start_and_the_end_of_the_text(name):
    grammar = grammar_of(name, "regex", r"name_of_the_person: [ab]; that is all")
    forced = grammar.compute_ff_tokens()
    for letter in "ab":
        assert forced == canonical_tokens(name, f"name_of_the_person: {letter}")[: len(forced)]
    assert "".join(pieces(name, forced)).startswith("name_of_the_person")
    text = canonical_tokens(name, "name_of_the_person: a; that is all")
    at_a = len(canonical_tokens(name, "name_of_the_person: a"))
    assert grammar.accept_tokens("", text[:at_a])
    assert grammar.compute_ff_tokens() == text[at_a:]  # nothing can replace the last token of all
    assert grammar.accept_tokens("", text[at_a:])
    assert grammar.forced_bytes() == b""
    assert grammar.compute_ff_tokens() == []
    assert grammar.accept_tokens("", [backend(name).vocabulary.stop_token_ids[0]])
    assert grammar.forced_bytes() == b""
    assert grammar.compute_ff_tokens() == []


def test_ff_tokens_where_the_text_may_end_are_empty():
    grammar = grammar_of("byte level", "regex", "ab?")
    assert grammar.accept_tokens("", grammar.compute_ff_tokens())
    assert grammar.num_tokens == 1
    assert grammar.forced_bytes() == b""
    assert grammar.compute_ff_tokens() == []


def test_encode_adds_nothing_before_a_text():
    for tokenizer, name in ((llama_2(), "Llama 2"), (tokenizers_on_the_spot.byte_fallback(), "byte fallback")):
        assert pieces(name, canonical_tokens(name, "name")) == pieces(name, canonical_tokens(name, " name")[1:])
        assert b"".join(backend(name).vocabulary.token_bytes[i] for i in tokenizer("x")["input_ids"]).strip() == b"x"
    spaced = Tokenizer.from_str(tokenizers_on_the_spot.byte_level().backend_tokenizer.to_str())
    spaced.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    assert spaced.encode("name").tokens[0].startswith("Ġ")
    wrapped = PreTrainedTokenizerFast(tokenizer_object=spaced, eos_token="<|end|>")  # noqa: S106 - no password
    vocabulary = Vocabulary.from_tokenizer(wrapped)
    assert vocabulary.text_of(CanonicalTokenizer(wrapped, vocabulary).encode("name")) == "name"


def test_ff_tokens_of_a_tokenizer_with_a_vocabulary_are_its_own():
    class Letters:
        vocabulary = Vocabulary((b"a", b"b", b"ab", b""), stop_token_ids=(3,))

        def encode(self, text, *, add_special_tokens):
            return Encoding(["ab".index(letter) for letter in text])

    with StructuredOutputManager(Letters(), vocab_size=4) as manager:
        manager.add_request("text", StructuredOutputsParams(regex="abba[ab]"))
        manager.wait_ready("text")
        assert manager.compute_ff_tokens("text") == [0, 1, 1]


def test_encode_with_metaspace_and_templates_adds_nothing():
    from tokenizers import processors

    tokenizer = Tokenizer.from_str(tokenizers_on_the_spot.byte_fallback().backend_tokenizer.to_str())
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always")
    tokenizer.post_processor = processors.TemplateProcessing(single="<|end|> $A", special_tokens=[("<|end|>", 1)])
    wrapped = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<|end|>")  # noqa: S106 - no password
    vocabulary = Vocabulary.from_tokenizer(wrapped)
    assert wrapped("x")["input_ids"][0] == 1
    assert vocabulary.text_of(CanonicalTokenizer(wrapped, vocabulary).encode("x y")) == "x y"


def test_ff_tokens_of_a_normalizing_tokenizer_are_empty_where_it_changes_text():
    tokenizer = Tokenizer.from_str(tokenizers_on_the_spot.byte_level().backend_tokenizer.to_str())
    tokenizer.normalizer = normalizers.Lowercase()
    wrapped = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<|end|>")  # noqa: S106 - no password
    vocabulary = Vocabulary.from_tokenizer(wrapped)
    canonical = CanonicalTokenizer(wrapped, vocabulary)
    engine = XgrammarBackend(vocabulary, canonical_tokenizer=canonical)
    assert canonical.encode("ADA") is None
    assert engine.compile_grammar(StructuredOutputOptions.REGEX, "ADA-[0-9]").compute_ff_tokens() == []
    assert engine.compile_grammar(StructuredOutputOptions.REGEX, "ada-[0-9]").compute_ff_tokens() != []


def test_ff_tokens_of_a_tokenizer_that_adds_special_tokens():
    tokenizer = Tokenizer(models.BPE({"<end>": 0, "a": 1, "b": 2, "X": 3}, []))
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.normalizer = normalizers.Replace("b", "bX")
    wrapped = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<end>", additional_special_tokens=["X"])  # noqa: S106 - no password
    canonical = CanonicalTokenizer(wrapped, Vocabulary.from_tokenizer(wrapped))
    assert canonical.encode("aa") == [1, 1]
    assert canonical.encode("ab") is None


def test_ff_tokens_of_text_that_no_tokens_spell_are_empty():
    tokenizer = Tokenizer(models.BPE({"<end>": 0, "a": 1}, []))
    tokenizer.decoder = decoders.ByteLevel()
    wrapped = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<end>")  # noqa: S106 - no password
    vocabulary = Vocabulary.from_tokenizer(wrapped)
    engine = XgrammarBackend(vocabulary, canonical_tokenizer=CanonicalTokenizer(wrapped, vocabulary))
    grammar = engine.compile_grammar(StructuredOutputOptions.REGEX, "ac")
    assert grammar.forced_bytes() == b"ac"
    assert grammar.compute_ff_tokens() == []


def test_ff_tokens_never_include_a_stop_token_with_text():
    name = "byte level"
    colon = canonical_tokens(name, ":")[0]
    grammar = backend(name).compile_grammar(StructuredOutputOptions.REGEX, "a:b", [colon])
    assert colon not in grammar.compute_ff_tokens()
    assert grammar.accept_tokens("", grammar.compute_ff_tokens())


def test_ff_tokens_of_a_very_long_text_come_in_parts():
    name = "byte level"
    text = "The quick brown fox jumps over the lazy dog; " * 100
    grammar = grammar_of(name, "choice", [text])
    tokens = canonical_tokens(name, text)
    written, num_jumps = [], 0
    while forced := grammar.compute_ff_tokens():
        assert grammar.accept_tokens("", forced)
        written += forced
        num_jumps += 1
    assert written == tokens
    assert 3 < num_jumps < 10


def test_ff_tokens_after_rollback_fork_reset_and_copy_use_the_context():
    name = "larger byte level"
    start, more = canonical_tokens(name, '{"name'), canonical_tokens(name, "e - order")
    grammar = grammar_of(name, "regex", '\\{"nam[e]{1,2} - orderId": [0-9]')
    for other in (grammar, grammar.copy()):
        assert other.accept_tokens("", start)
        fork = other.fork()
        assert other.accept_tokens("", more)
        after = other.compute_ff_tokens()
        assert pieces(name, after)[0] == "Id"
        assert fork.accept_tokens("", more)
        assert fork.compute_ff_tokens() == after
        assert fork.num_tokens == other.num_tokens == len(start) + len(more)
        other.rollback(len(more))
        assert other.num_tokens == len(start)
        assert other.compute_ff_tokens() == []
        other.reset()
        assert other.num_tokens == 0
        assert pieces(name, other.compute_ff_tokens())[0] == '{"'
    assert grammar.memory_bytes > 0


def test_compute_ff_tokens_without_a_tokenizer_raises():
    engine = XgrammarBackend(backend("byte level").vocabulary)
    grammar = engine.compile_grammar(StructuredOutputOptions.CHOICE, '["abc"]')
    assert grammar.find_jump_forward_string() == "abc"
    with pytest.raises(RuntimeError, match="needs the tokenizer: pass canonical_tokenizer"):
        grammar.compute_ff_tokens()


SLOW_IN_XGRAMMAR = ('"maxLength"', '"pattern"', '"maxItems"')


@pytest.mark.parametrize("engine", ["auto", "xgrammar"])
@pytest.mark.parametrize("any_whitespace", [False, True])
def test_ff_tokens_of_maskbench_are_canonical(request, any_whitespace, engine):
    path = request.config.getoption("--maskbench", default=None)
    if path is None:
        pytest.skip("no --maskbench PATH: MaskBench's schemas were not tried")
    tokenizer = larger_byte_level()
    styles = [{"indent": 2}, {"separators": (",", ":")}, {}] if any_whitespace else [{}]
    num_jumps, wrong = 0, []
    with StructuredOutputManager(
        tokenizer, len(tokenizer), StructuredOutputsConfig(any_whitespace=any_whitespace)
    ) as manager:
        for line in Path(path).read_text().splitlines():
            if engine != "auto" and any(keyword in line for keyword in SLOW_IN_XGRAMMAR):
                continue
            example = json.loads(line)
            valid = [test["data"] for test in example["tests"] if test["valid"]]
            texts = [json.dumps(data, ensure_ascii=False, **style) for data in valid for style in styles]
            params = StructuredOutputsParams(json=example["schema"], backend=engine)
            for forced, expected in jumps_along_all(manager, params, texts):
                num_jumps += 1
                if forced != expected:
                    wrong.append((example["name"], forced, expected))
    assert wrong == []
    assert num_jumps > 2000


def jumps_along_all(manager, params, texts):
    """The jumps along those of ``texts`` that satisfy the constraint; none where it is
    refused."""
    try:
        manager.add_request("walk", params)
        manager.wait_ready("walk", 60)
        for text in texts:
            tokens = canonical_tokens("larger byte level", text)
            if len(manager.validate_tokens("walk", tokens)) == len(tokens):
                yield from jumps_along(Walk(manager), tokens)
                manager.rollback("walk", len(tokens))
    except GrammarError:
        return
    finally:
        manager.finish_request("walk")


class Walk:
    """The manager's request, as a grammar."""

    def __init__(self, manager):
        self.manager = manager

    def accept_tokens(self, request_id, tokens):
        return self.manager.accept_tokens("walk", tokens)

    def compute_ff_tokens(self):
        return self.manager.compute_ff_tokens("walk")
