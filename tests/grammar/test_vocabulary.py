import pathlib
import types

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from structout import StructuredOutputManager
from structout.grammar.vocabulary import Vocabulary
from support import tokenizers_on_the_spot

TEXTS = ["Ada, 36!", '{"café": [1, 2.5, null]}', "naïve 東京 🦊\n\ttab", " leading and  double"]


@pytest.mark.parametrize("make", [tokenizers_on_the_spot.byte_level, tokenizers_on_the_spot.byte_fallback])
@pytest.mark.parametrize("text", TEXTS)
def test_token_bytes_spell_the_text_of_tokens(make, text):
    tokenizer = make()
    vocabulary = Vocabulary.from_tokenizer(tokenizer)
    ids = tokenizer(text, add_special_tokens=False)["input_ids"]
    assert b"".join(vocabulary.token_bytes[i] for i in ids) == text.encode()


@pytest.mark.parametrize("make", [tokenizers_on_the_spot.byte_level, tokenizers_on_the_spot.byte_fallback])
def test_from_tokenizer_gives_special_tokens_and_padding_no_bytes(make):
    tokenizer = make()
    vocabulary = Vocabulary.from_tokenizer(tokenizer, vocab_size=512)
    assert vocabulary.size == 512
    for token in tokenizers_on_the_spot.SPECIAL:
        assert vocabulary.token_bytes[tokenizer.convert_tokens_to_ids(token)] == b""
    assert vocabulary.token_bytes[tokenizer.convert_tokens_to_ids("<tool_call>")] == b"<tool_call>"
    assert set(vocabulary.token_bytes[len(tokenizer) :]) == {b""}
    assert vocabulary.stop_token_ids == (tokenizer.eos_token_id,)


def test_from_tokenizer_takes_the_vocabulary_of_a_tokenizer_that_has_one():
    own = Vocabulary((b"a", b"b", b""), stop_token_ids=(2,), special_tokens=(("<end>", 2),))
    tokenizer = types.SimpleNamespace(vocabulary=own)
    assert Vocabulary.from_tokenizer(tokenizer) == own
    padded = Vocabulary.from_tokenizer(tokenizer, vocab_size=4, stop_token_ids=[1])
    assert padded == Vocabulary((b"a", b"b", b"", b""), (1,), own.special_tokens)
    with pytest.raises(ValueError, match="vocab_size is 2, but the tokenizer has a token of id 2"):
        Vocabulary.from_tokenizer(tokenizer, vocab_size=2)


@pytest.mark.parametrize("tokenizer", ["gpt2", pathlib.Path("gpt2"), None])
def test_from_tokenizer_with_a_name_raises(tokenizer):
    with pytest.raises(TypeError, match=r"expected a Hugging Face tokenizer, got .*load one with .*from_pretrained"):
        Vocabulary.from_tokenizer(tokenizer)
    with pytest.raises(TypeError, match="expected a Hugging Face tokenizer"):
        StructuredOutputManager(tokenizer, vocab_size=512)


def test_from_tokenizer_with_a_bad_tokenizer_raises():
    tokenizer = tokenizers_on_the_spot.byte_level()
    with pytest.raises(ValueError, match="vocab_size is 100, but the tokenizer has a token of id"):
        Vocabulary.from_tokenizer(tokenizer, vocab_size=100)
    with pytest.raises(ValueError, match=r"stop_token_ids must be in \[0, 512\), got \[512\]"):
        Vocabulary.from_tokenizer(tokenizer, vocab_size=512, stop_token_ids=[3, 512])
    words = Tokenizer(models.WordLevel({"a": 0, "b": 1}, unk_token="a"))  # noqa: S106
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    with pytest.raises(ValueError, match="no eos_token"):
        Vocabulary.from_tokenizer(PreTrainedTokenizerFast(tokenizer_object=words))
    with pytest.raises(ValueError, match="neither byte-level nor byte-fallback"):
        Vocabulary.from_tokenizer(PreTrainedTokenizerFast(tokenizer_object=words, eos_token="b"))  # noqa: S106


def test_from_tokenizer_reads_byte_level_tokens_outside_the_alphabet_as_text():
    """As in the tokenizers library, the fallback applies to the whole token."""
    table = {"<end>": 0, "Ġa": 1, "東": 2, "Ġ京": 3}
    tokenizer = Tokenizer(models.BPE(table, []))
    tokenizer.decoder = decoders.ByteLevel()
    vocabulary = Vocabulary.from_tokenizer(PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<end>"))  # noqa: S106
    assert vocabulary.token_bytes == (b"", b" a", "東".encode(), "Ġ京".encode())
    assert [tokenizer.decode([i]) for i in (1, 2, 3)] == [vocabulary.text_of([i]) for i in (1, 2, 3)]


@pytest.mark.parametrize("make", [tokenizers_on_the_spot.byte_level, tokenizers_on_the_spot.byte_fallback])
@pytest.mark.parametrize("text", ["", *TEXTS])
def test_spell_and_text_of_are_inverse(make, text):
    vocabulary = Vocabulary.from_tokenizer(make())
    assert vocabulary.text_of(vocabulary.spell(text)) == text


def test_spell_finds_the_only_spelling_or_none():
    vocabulary = Vocabulary((b"", b"a", b"ab", b"abc", b"cd"), (0,))
    assert vocabulary.spell("abcd") == [2, 4]
    assert vocabulary.spell("aab") == [1, 2]
    assert vocabulary.spell("abd") is None
