import pytest
import tokenizers_on_the_spot
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from structout.grammar.vocabulary import Vocabulary

TEXTS = ["Ada, 36!", '{"café": [1, 2.5, null]}', "naïve 東京 🦊\n\ttab", " leading and  double"]


@pytest.mark.parametrize("make", [tokenizers_on_the_spot.byte_level, tokenizers_on_the_spot.byte_fallback])
@pytest.mark.parametrize("text", TEXTS)
def test_token_bytes_spell_the_text(make, text):
    tokenizer = make()
    vocabulary = Vocabulary.from_tokenizer(tokenizer)
    ids = tokenizer(text, add_special_tokens=False)["input_ids"]
    assert b"".join(vocabulary.token_bytes[i] for i in ids) == text.encode()


@pytest.mark.parametrize("make", [tokenizers_on_the_spot.byte_level, tokenizers_on_the_spot.byte_fallback])
def test_special_tokens_and_padding_have_no_bytes(make):
    tokenizer = make()
    vocabulary = Vocabulary.from_tokenizer(tokenizer, vocab_size=512)
    assert vocabulary.size == 512
    for token in tokenizers_on_the_spot.SPECIAL:
        assert vocabulary.token_bytes[tokenizer.convert_tokens_to_ids(token)] == b""
    assert vocabulary.token_bytes[tokenizer.convert_tokens_to_ids("<tool_call>")] == b"<tool_call>"
    assert set(vocabulary.token_bytes[len(tokenizer) :]) == {b""}
    assert vocabulary.stop_token_ids == (tokenizer.eos_token_id,)


def test_bad_tokenizers_are_refused():
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
