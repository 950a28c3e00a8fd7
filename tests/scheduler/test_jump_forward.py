"""Jump-forward decoding: its effect on tokens and on the grammar."""

import json
import random

import pytest

from structout.constraints.params import StructuredOutputOptions
from structout.jump_forward import NO_JUMP, JumpForward, draft, ff_tokens, jump, retokenize
from support import grammar_walks
from support.canonical_cases import ORDER, TOKENIZERS, backend, canonical_tokens, grammar_of, instance, schema


def tokenizer_of(name):
    return backend(name)._canonical_tokenizer


def text_of(name, tokens):
    return backend(name).vocabulary.text_of(tokens)


def mask_of(grammar):
    return grammar_walks.mask_of(grammar).tolist()


# -- over a grammar --------------------------------------------------------------------


@pytest.mark.parametrize("name", TOKENIZERS)
def test_ff_tokens_appends_forced_tokens_and_advances_the_grammar(name):
    grammar = grammar_of(name, "json", ORDER)
    step = ff_tokens(grammar, tokenizer_of(name))
    assert step.num_dropped == 0
    assert step.text == text_of(name, step.token_ids)
    assert '{"name_of_the_person": "'.startswith(step.text)
    assert grammar.num_tokens == len(step.token_ids) > 0
    fresh = grammar_of(name, "json", ORDER)
    assert fresh.accept_tokens("", list(step.token_ids))
    assert mask_of(fresh) == mask_of(grammar)
    assert ff_tokens(grammar, tokenizer_of(name)) == NO_JUMP


@pytest.mark.parametrize("name", TOKENIZERS)
def test_draft_leaves_the_grammars_position(name):
    grammar = grammar_of(name, "json", ORDER)
    before = mask_of(grammar)
    offer = draft(grammar, tokenizer_of(name))
    assert offer == ff_tokens(grammar_of(name, "json", ORDER), tokenizer_of(name))
    assert (grammar.num_tokens, mask_of(grammar)) == (0, before)
    assert grammar.validate_tokens(list(offer.token_ids)) == list(offer.token_ids)


@pytest.mark.parametrize("name", TOKENIZERS)
def test_retokenize_replaces_tokens_that_are_no_longer_canonical(name):
    """The example of SGLang's post: a text that ended in a quote goes on with a token
    that begins with the quote."""
    grammar = grammar_of(name, "regex", '\\{"name": "[a-z]{1,3}", "age": [0-9]')
    single = [backend(name).vocabulary.token_bytes.index(bytes([byte])) for byte in b'{"name": "fox"']
    assert grammar.accept_tokens("", single)
    step = retokenize(grammar, tokenizer_of(name), single)
    whole = canonical_tokens(name, '{"name": "fox", "age": ')
    assert step.text == ', "age": '
    assert [*single[: len(single) - step.num_dropped], *step.token_ids] == whole
    assert step.num_dropped > 0
    assert grammar.num_tokens == len(whole)
    assert jump(JumpForward.RETOKENIZE, grammar, tokenizer_of(name), whole) == NO_JUMP
    grammar.rollback(len(whole))
    assert mask_of(grammar) == mask_of(grammar.copy())


@pytest.mark.parametrize("mode", JumpForward)
@pytest.mark.parametrize("name", TOKENIZERS)
def test_random_texts_with_jumps_and_rollbacks_are_complete_and_valid(name, mode):
    rng = random.Random(f"{name} {mode}")
    for _ in range(12):
        spec = schema(rng, 3)
        text = json.dumps(instance(spec, rng), ensure_ascii=False)
        grammar = grammar_of(name, "json", spec)
        tokens = write(grammar, name, mode, text, rng)
        assert text_of(name, tokens) == text
        assert mode is not JumpForward.FF_TOKENS or tokens == canonical_tokens(name, text)
        fresh = grammar.copy()
        assert fresh.accept_tokens("", tokens)
        assert grammar.num_tokens == len(tokens)
        assert mask_of(fresh) == mask_of(grammar)


def write(grammar, name, mode, text, rng):
    """Write ``text`` with jumps. Now and then the last tokens are taken back and
    written again."""
    tokenizer, tokens = tokenizer_of(name), []
    for _ in range(1000):
        if tokens and rng.random() < 0.1:
            count = rng.randint(1, min(4, len(tokens)))
            grammar.rollback(count)
            del tokens[-count:]
        done = b"".join(backend(name).vocabulary.token_bytes[token] for token in tokens)
        if done == text.encode():
            return tokens
        step = jump(mode, grammar, tokenizer, tokens)
        if mode is JumpForward.DRAFT:
            assert grammar.accept_tokens("", list(step.token_ids))
        tokens = [*tokens[: len(tokens) - step.num_dropped], *step.token_ids]
        assert grammar.num_tokens == len(tokens)
        if not step.token_ids:
            tokens.append(next_token(name, tokens, done, text))
            assert grammar.accept_tokens("", [tokens[-1]])
    raise AssertionError("no end")


def next_token(name, tokens, done, text):
    """The tokenizer's next one; after a jump that cut across its tokens, any that
    fits."""
    whole = canonical_tokens(name, text)
    if whole[: len(tokens)] == tokens:
        return whole[len(tokens)]
    rest = text.encode()[len(done) :]
    fitting = [i for i, data in enumerate(backend(name).vocabulary.token_bytes) if data and rest.startswith(data)]
    return max(fitting, key=lambda i: len(backend(name).vocabulary.token_bytes[i]))


@pytest.mark.parametrize("mode", [JumpForward.FF_TOKENS, JumpForward.RETOKENIZE, JumpForward.DRAFT])
@pytest.mark.parametrize("name", TOKENIZERS)
def test_text_without_a_choice_is_one_jump(name, mode):
    grammar = grammar_of(name, "choice", ["naïve 東京 🦊"])
    step = jump(mode, grammar, tokenizer_of(name), [])
    assert list(step.token_ids) == canonical_tokens(name, "naïve 東京 🦊")
    assert step.text == "naïve 東京 🦊"
    if mode is JumpForward.DRAFT:
        assert grammar.accept_tokens("", list(step.token_ids))
    assert jump(mode, grammar, tokenizer_of(name), list(step.token_ids)) == NO_JUMP  # the stop token is the model's
    stop = backend(name).vocabulary.stop_token_ids[0]
    assert grammar.accept_tokens("", [stop])
    assert jump(mode, grammar, tokenizer_of(name), [*step.token_ids, stop]) == NO_JUMP


def test_jump_in_mode_off_does_nothing():
    grammar = grammar_of("byte level", "choice", ["abc"])
    assert jump(JumpForward.OFF, grammar, tokenizer_of("byte level"), []) == NO_JUMP


def test_retokenize_of_unsuitable_text_changes_nothing():
    name = "byte level"
    grammar = grammar_of(name, "choice", ["鱼!", "日"])
    half = canonical_tokens(name, "鱼")[:1]
    assert grammar.accept_tokens("", half)
    assert retokenize(grammar, tokenizer_of(name), half) == NO_JUMP
    assert grammar.num_tokens == 1

    colon = canonical_tokens(name, ":")[0]  # as a stop token it may not stand in the middle
    grammar = backend(name).compile_grammar(StructuredOutputOptions.REGEX, "nam[e]{1,2}x:y", [colon])
    start = [backend(name).vocabulary.token_bytes.index(bytes([byte])) for byte in b"namee"]
    assert start != canonical_tokens(name, "namee")
    assert grammar.accept_tokens("", start)
    before = mask_of(grammar)
    assert grammar.find_jump_forward_string() == "x:y"
    assert retokenize(grammar, tokenizer_of(name), start) == NO_JUMP
    assert (grammar.num_tokens, mask_of(grammar)) == (len(start), before)
