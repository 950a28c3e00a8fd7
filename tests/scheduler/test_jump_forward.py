"""Jump-forward decoding: its effect on tokens, on the grammar and on the model's
cache."""

import functools
import json
import random

import pytest
import torch
from canonical_cases import TOKENIZERS, backend, canonical_tokens, grammar_of, instance, schema
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    MambaConfig,
    MambaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
)

from structout.bitmask import allocate_token_bitmask
from structout.cli.demo_model import load_demo_model
from structout.grammar.forced_tokens import CanonicalTokenizer
from structout.integrations.transformers.decode import _Decoding, generate
from structout.integrations.transformers.kv_cache import CachedModel
from structout.jump_forward import NO_JUMP, JumpForward, draft, ff_tokens, jump, retokenize
from structout.params import StructuredOutputOptions, StructuredOutputsParams
from structout.scheduler.manager import StructuredOutputManager

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


def tokenizer_of(name):
    return backend(name)._canonical_tokenizer


def text_of(name, tokens):
    return backend(name).vocabulary.text_of(tokens)


def mask_of(grammar, name):
    bitmask = allocate_token_bitmask(1, backend(name).vocabulary.size)
    grammar.fill_bitmask(bitmask, 0)
    return bitmask.tolist()


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
    assert mask_of(fresh, name) == mask_of(grammar, name)
    assert ff_tokens(grammar, tokenizer_of(name)) == NO_JUMP


@pytest.mark.parametrize("name", TOKENIZERS)
def test_draft_leaves_the_grammars_position(name):
    grammar = grammar_of(name, "json", ORDER)
    before = mask_of(grammar, name)
    offer = draft(grammar, tokenizer_of(name))
    assert offer == ff_tokens(grammar_of(name, "json", ORDER), tokenizer_of(name))
    assert (grammar.num_tokens, mask_of(grammar, name)) == (0, before)
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
    assert mask_of(grammar, name) == mask_of(grammar.copy(), name)


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
        assert mask_of(fresh, name) == mask_of(grammar, name)


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
    before = mask_of(grammar, name)
    assert grammar.find_jump_forward_string() == "x:y"
    assert retokenize(grammar, tokenizer_of(name), start) == NO_JUMP
    assert (grammar.num_tokens, mask_of(grammar, name)) == (len(start), before)


# -- in a model's cache ----------------------------------------------------------------

SHAPE = {"hidden_size": 32, "intermediate_size": 64, "num_attention_heads": 2, "num_hidden_layers": 2, "vocab_size": 50}


@functools.cache
def small_model(window=None):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        if window is None:
            return LlamaForCausalLM(LlamaConfig(**SHAPE)).eval()
        config = MistralConfig(**SHAPE, num_key_value_heads=2, sliding_window=window)
        return MistralForCausalLM(config).eval()


def logits_of(model, text):
    with torch.inference_mode():
        return model(input_ids=torch.tensor([text])).logits[0]


@pytest.mark.parametrize("window", [None, 64])
@pytest.mark.parametrize("num_texts", [1, 3])
def test_cached_model_with_gaps_gives_the_logits_of_a_fresh_start(num_texts, window):
    rng = random.Random(num_texts)
    model = small_model(window)
    cached = CachedModel(model, num_texts)
    texts = [[] for _ in range(num_texts)]
    for step in range(20):
        new = [rng.choices(range(50), k=rng.randint(step == 0, 3)) for _ in texts]
        new[0] = new[0] or [7]
        logits = cached.forward(new)
        for i, tokens in enumerate(new):
            texts[i] += tokens
            if tokens:
                expected = logits_of(model, texts[i])[-len(tokens) :]
                torch.testing.assert_close(logits[i, : len(tokens)], expected, atol=1e-5, rtol=1e-4)
            count = rng.randint(0, len(texts[i]) - 1)
            cached.forget(i, min(count, 2))
            del texts[i][len(texts[i]) - min(count, 2) :]
    assert cached.num_passes == 20


def test_cached_model_crops_columns_that_all_texts_have_forgotten():
    cached = CachedModel(small_model(), 2)
    cached.forward([[1, 2, 3, 4], [5, 6, 7, 8]])
    cached.forget(0, 2)
    assert cached._cache.get_seq_length() == 4
    cached.forget(1, 1)
    assert cached._cache.get_seq_length() == 3
    cached.forget(1, 0)
    assert cached._cache.get_seq_length() == 3


def test_cached_model_beside_a_longer_text_stays_within_the_learned_positions():
    """A gap at the position after the last one would raise IndexError."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = GPT2LMHeadModel(GPT2Config(vocab_size=50, n_positions=6, n_embd=16, n_layer=1, n_head=2)).eval()
    cached = CachedModel(model, 2)
    cached.forward([[1, 2, 3, 4, 5], [1]])
    logits = cached.forward([[6], [2, 3, 4]])
    torch.testing.assert_close(logits[0, :1], logits_of(model, [1, 2, 3, 4, 5, 6])[-1:], atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(logits[1], logits_of(model, [1, 2, 3, 4])[1:], atol=1e-5, rtol=1e-4)


# -- in generation ---------------------------------------------------------------------

PARAMS = {
    "order": StructuredOutputsParams(json=ORDER),
    "regex": StructuredOutputsParams(regex="(name|orderId): [a-z]{1,5}; that is all[.!]"),
    "no choice": StructuredOutputsParams(choice=["naïve 東京 🦊"]),
}


@pytest.fixture(scope="module")
def demo(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("STRUCTOUT_CACHE_DIR", str(tmp_path_factory.mktemp("cache")))
        model, tokenizer, _ = load_demo_model()
    manager = StructuredOutputManager(tokenizer, 1024)
    yield model, manager, CanonicalTokenizer(tokenizer, manager.vocabulary)
    manager.close()


def generation(demo, params, mode, **options):
    model, manager, tokenizer = demo
    return generate(
        model, manager, params, [0], jump_forward=mode, canonical_tokenizer=tokenizer, max_tokens=150, **options
    )


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("n", [1, 4])
@pytest.mark.parametrize("params", PARAMS.values(), ids=PARAMS)
def test_generate_with_drafts_draws_the_tokens_of_generate_without(demo, params, n, temperature):
    for seed in range(3):
        off, drafted = (
            generation(demo, params, mode, n=n, seed=seed, temperature=temperature)
            for mode in (JumpForward.OFF, JumpForward.DRAFT)
        )
        assert drafted.token_ids == off.token_ids
        assert drafted.is_complete == off.is_complete
        assert off.num_passes_saved == 0
        assert drafted.num_passes_saved > 0


@pytest.mark.parametrize("mode", JumpForward)
def test_generate_feeds_the_model_each_text_and_nothing_else(demo, mode, monkeypatch):
    """In every step the logits are those of a model that starts anew."""
    model, _, _ = demo
    forward = _Decoding._forward
    num_steps = []

    def checked(decoding, live, prompt_ids):
        logits = forward(decoding, live, prompt_ids)
        expected = [
            logits_of(model, [0, *sample.token_ids, *sample.drafts])[-1 - len(sample.drafts) :]
            for sample in live.values()
        ]
        torch.testing.assert_close(logits, torch.cat(expected), atol=1e-4, rtol=1e-4)
        num_steps.append(len(live))
        return logits

    monkeypatch.setattr(_Decoding, "_forward", checked)
    for n in (1, 3):
        generation(demo, PARAMS["order"], mode, n=n, seed=n)
    assert len(num_steps) > 20


@pytest.mark.parametrize("mode", [JumpForward.FF_TOKENS, JumpForward.RETOKENIZE])
@pytest.mark.parametrize("params", PARAMS.values(), ids=PARAMS)
def test_generate_with_forced_tokens_writes_valid_texts_in_fewer_passes(demo, params, mode):
    _, manager, _ = demo
    for n in (1, 4):
        result = generation(demo, params, mode, n=n, seed=1)
        assert result.num_passes_saved > 0
        for tokens, complete in zip(result.token_ids, result.is_complete, strict=True):
            if complete:
                stop = manager.vocabulary.stop_token_ids[0]
                manager.add_request("again", params, output_token_ids=[*tokens, stop])
                manager.wait_ready("again", 30)
                assert manager.is_terminated("again")
                manager.finish_request("again")


@pytest.mark.parametrize("mode", JumpForward)
def test_generate_stops_at_max_tokens_within_a_jump(demo, mode):
    model, manager, tokenizer = demo
    for max_tokens in (1, 3, 5, 9):
        result = generate(
            model,
            manager,
            PARAMS["no choice"],
            [0],
            jump_forward=mode,
            canonical_tokenizer=tokenizer,
            max_tokens=max_tokens,
            seed=0,
        )
        assert len(result.token_ids[0]) == max_tokens
        assert result.is_complete == [False]


def test_generate_with_jump_forward_needs_a_tokenizer_and_a_cache_that_can_forget(demo):
    model, manager, tokenizer = demo
    with pytest.raises(ValueError, match="jump_forward=draft needs a canonical_tokenizer"):
        generate(model, manager, PARAMS["regex"], [0], jump_forward=JumpForward.DRAFT)
    mamba = MambaForCausalLM(MambaConfig(hidden_size=8, num_hidden_layers=1, vocab_size=1024))
    with pytest.raises(ValueError, match="MambaForCausalLM cannot forget tokens: jump_forward must be off"):
        generate(
            mamba, manager, PARAMS["regex"], [0], jump_forward=JumpForward.FF_TOKENS, canonical_tokenizer=tokenizer
        )


def test_generate_past_the_positions_of_the_model_raises(demo):
    model, manager, _ = demo
    message = "a prompt of 2 tokens and max_tokens=4,095 need 4,097 positions, but the model has 4,096"
    with pytest.raises(ValueError, match=message):
        generate(model, manager, PARAMS["regex"], [0, 1], max_tokens=4095)
    assert manager.stats().ready == 0
