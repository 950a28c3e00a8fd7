"""The vocabulary of a GGUF model, and its tokenizer."""

import ctypes
import gc
import weakref

import pytest

pytest.importorskip("llama_cpp", reason="llama-cpp-python is not installed: make test-llama-cpp")

import llama_cpp

from structout.cli.smollm2 import find_gguf
from structout.grammar.vocabulary import Vocabulary
from structout.integrations.llama_cpp import tokenizer_of, vocabulary_of

TEXTS = ["Ada, 36!", '{"café": [1, 2.5, null]}', "naïve 東京 🦊\n\ttab", " leading and  double", "\n\n\tlines"]


def test_vocabulary_of_byte_level_model_is_that_of_its_tokenizer_in_transformers(llama):
    from gguf import GGUFReader

    from structout.cli.smollm2 import _tokenizer

    fields = {name: field.contents() for name, field in GGUFReader(find_gguf(None)).fields.items()}
    expected = Vocabulary.from_tokenizer(_tokenizer(fields))
    found = vocabulary_of(llama)
    assert found.token_bytes == expected.token_bytes
    assert found.special_tokens == expected.special_tokens
    assert set(expected.stop_token_ids) < set(found.stop_token_ids)
    assert {dict(found.special_tokens)[name] for name in ("<|im_end|>", "<|endoftext|>")} <= set(found.stop_token_ids)


def test_vocabulary_of_sentencepiece_has_bytes_words_and_names(sentencepiece):
    vocabulary = vocabulary_of(sentencepiece)
    assert vocabulary.token_bytes[:4] == (b"",) * 4
    assert vocabulary.token_bytes[4:260] == tuple(bytes([byte]) for byte in range(256))
    assert vocabulary.token_bytes[260:267] == (b" ", b" the", b"the", b"a", "é".encode(), b"{", b'"')
    assert vocabulary.token_bytes[267:] == (b"<tool_call>", b"")
    assert vocabulary.stop_token_ids == (2, 3)
    names = ["<unk>", "<s>", "</s>", "<|im_end|>", "<tool_call>"]
    assert vocabulary.special_tokens == tuple(zip(names, [0, 1, 2, 3, 267], strict=True))


@pytest.mark.parametrize("name", ["llama", "sentencepiece"])
@pytest.mark.parametrize("text", TEXTS)
def test_encode_spells_text_inside_a_text(name, text, request):
    tokenizer = tokenizer_of(request.getfixturevalue(name))
    assert tokenizer.vocabulary.bytes_of(tokenizer.encode(text).ids) == text.encode()


def test_vocabulary_of_gives_no_bytes_to_tokens_that_llama_cpp_writes_otherwise(sentencepiece, monkeypatch):
    changed = {262}

    def write(vocab, token, buffer, size, lstrip, special, original=llama_cpp.llama_token_to_piece):
        length = original(vocab, token, buffer, size, lstrip, special)
        if token in changed and size:
            ctypes.memset(buffer, ord("T"), 1)
        return length

    expected = list(vocabulary_of(sentencepiece).token_bytes)
    monkeypatch.setattr(llama_cpp, "llama_token_to_piece", write)
    expected[262] = b""
    assert list(vocabulary_of(sentencepiece).token_bytes) == expected
    changed |= {261, 263}
    with pytest.raises(ValueError, match=r"llama.cpp writes b'Tthe' for token 261, in the file b'\\xe2"):
        vocabulary_of(sentencepiece)


def test_vocabulary_of_model_without_stop_tokens_raises(sentencepiece, monkeypatch):
    monkeypatch.setattr(llama_cpp, "llama_vocab_is_eog", lambda vocab, token: False)
    with pytest.raises(ValueError, match="no token that ends a generation"):
        vocabulary_of(sentencepiece)


def test_tokenizer_of_a_path_raises():
    with pytest.raises(TypeError, match=r"expected a llama_cpp.Llama, got 'model.gguf'"):
        tokenizer_of("model.gguf")


def test_chat_without_template_raises(sentencepiece):
    with pytest.raises(ValueError, match="the model has no chat template"):
        tokenizer_of(sentencepiece).apply_chat_template([{"role": "user", "content": "Hi"}])


def test_manager_is_shared_and_lives_as_long_as_the_model():
    model = llama_cpp.Llama(str(find_gguf(None)), vocab_only=True, verbose=False)
    manager = weakref.ref(tokenizer_of(model).manager)
    assert tokenizer_of(model).manager is manager()
    del model
    gc.collect()
    assert manager() is None


def test_decoded_tokens_are_their_text_with_the_names_of_special_ones(llama):
    tokenizer = tokenizer_of(llama)
    for text in ("<|im_start|>assistant\n", *TEXTS):
        assert tokenizer.decode(tokenizer(text, add_special_tokens=False)["input_ids"]) == text
