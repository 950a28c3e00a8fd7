"""The masks of SGLang's batches, and the positions that its grammar objects keep:
rollback, trees of drafts, jump-forward and reasoning."""

import pytest
import torch

from structout import StructuredOutputsConfig, allocate_token_bitmask, unpack_bitmask
from structout.integrations.sglang.grammar_cache import GrammarCache
from support.sglang_imports import make_sglang_importable
from support.tokenizers_on_the_spot import byte_level

if not make_sglang_importable():
    pytest.skip("needs SGLang: make test-sglang", allow_module_level=True)

from sglang.srt.constrained.base_grammar_backend import GrammarRow, InvalidGrammarObject, create_grammar_backend
from sglang.srt.constrained.reasoner_grammar_backend import ReasonerGrammarBackend
from sglang.srt.runtime_context import get_context
from sglang.srt.speculative.spec_utils import traverse_tree

from structout.integrations.sglang.grammar_backend import StructoutGrammarBackend
from structout.integrations.sglang.grammar_object import StructoutGrammar
from support.sglang_requests import (
    EOS,
    KEYS,
    WIDTH,
    allowed,
    compile_key,
    generate,
    is_valid,
    row_of,
    sampling_info,
    text_of,
)

# -- masks of a batch ------------------------------------------------------------------


def test_batched_fill_over_kinds_equals_fills_one_by_one(backend):
    grammars = [compile_key(backend, key) for key in KEYS.values()]
    assert {grammar._compiled.backend_name for grammar in grammars} == {"native"}
    ended = compile_key(backend, ("regex", "a"))
    ended.accept_token(backend._vocabulary.spell("a")[0])
    ended.accept_token(EOS)
    grammars += [ended, *(grammar.copy() for grammar in grammars * 4)]
    rows = torch.randperm(len(grammars) + 5, generator=torch.Generator().manual_seed(0))[: len(grammars)].tolist()
    serial = grammars[0].allocate_vocab_mask(WIDTH, len(grammars) + 5, "cpu")
    batched = serial.clone()
    for grammar, row in zip(grammars, rows, strict=True):
        grammar.fill_vocab_mask(serial, row)
    entries = [GrammarRow(row, grammar) for grammar, row in zip(grammars, rows, strict=True)]
    grammars[0].fill_vocab_mask_batched(entries, batched)
    assert torch.equal(batched, serial)
    untouched = sorted(set(range(len(grammars) + 5)) - set(rows))
    assert bool((batched[untouched] == -1).all())
    assert bool((batched[rows[len(KEYS)]] == -1).all())  # ended


def test_masks_of_sglangs_own_batch_reach_the_logits(backend):
    """update_regex_vocab_mask and apply_logits_bias are what SGLang's workers call."""
    grammars = [None, compile_key(backend, KEYS["json"]), None, compile_key(backend, KEYS["regex"])]
    ended = compile_key(backend, KEYS["ebnf"])
    for token in [*backend._vocabulary.spell("yes"), EOS]:
        ended.accept_token(token)
    finished = compile_key(backend, KEYS["ebnf"])
    finished.finished = True
    grammars += [ended, finished]
    info = sampling_info(len(grammars), grammars=grammars)
    info.update_regex_vocab_mask()
    logits = torch.randn(len(grammars), WIDTH + 3)  # the lm_head may be wider than the vocabulary
    before = logits.clone()
    info.apply_logits_bias(logits)
    for row, grammar in enumerate(grammars):
        is_free = grammar is None or grammar in (ended, finished)
        expected = set(range(WIDTH)) if is_free else allowed(grammar)
        kept = set((logits[row] > -torch.inf).nonzero().flatten().tolist())
        assert {token for token in kept if token < WIDTH} == expected
        assert torch.equal(logits[row][sorted(expected)], before[row][sorted(expected)])


def test_reset_allows_everything(backend):
    mask = torch.zeros(2, (WIDTH + 31) // 32, dtype=torch.int32)
    compile_key(backend, KEYS["json"]).reset_vocab_mask(mask)
    assert torch.equal(mask, allocate_token_bitmask(2, WIDTH))


# -- positions -------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["json", "regex"])
def test_rollback_gives_back_every_earlier_mask(backend, kind):
    grammar = compile_key(backend, KEYS[kind])
    tokens = generate(backend, grammar.copy(), 1)
    masks = []
    for token in tokens:
        masks.append(row_of(grammar).clone())
        grammar.accept_token(token)
    assert grammar.is_terminated()
    for back in (1, 3, len(tokens)):
        grammar.rollback(back)
        assert not grammar.is_terminated()
        assert torch.equal(row_of(grammar), masks[len(tokens) - back])
        for token in tokens[len(tokens) - back :]:
            grammar.accept_token(token)


def test_accept_after_the_end_changes_nothing_and_can_be_rolled_back(backend):
    grammar = compile_key(backend, KEYS["ebnf"])
    for token in [*backend._vocabulary.spell("yes"), EOS]:
        grammar.accept_token(token)
    for token in (5, EOS, WIDTH + 7):
        grammar.accept_token(token)
        assert grammar.is_terminated()
    assert bool((row_of(grammar) == -1).all())
    grammar.rollback(4)
    assert not grammar.is_terminated()
    assert allowed(grammar) == {EOS}


@pytest.mark.parametrize("token", [-1, WIDTH, 2**40, True, 1.5, None, EOS])
def test_token_that_is_none_raises_value_error(backend, token):
    grammar = compile_key(backend, KEYS["regex"])
    with pytest.raises(ValueError, match="does not allow token"):
        grammar.accept_token(token)
    assert (grammar.num_tokens, grammar.current_token) == (0, None)


@pytest.mark.parametrize("k", [-1, 2, 10**9])
def test_rollback_of_too_much_raises_value_error(backend, k):
    grammar = compile_key(backend, KEYS["regex"])
    grammar.accept_token(min(allowed(grammar)))
    with pytest.raises(ValueError, match="cannot roll back"):
        grammar.rollback(k)
    assert grammar.num_tokens == 1


def test_traverse_tree_fills_the_masks_of_a_tree_of_drafts(backend):
    grammar = compile_key(backend, KEYS["json"])
    spell = backend._vocabulary.spell
    good, bad = spell('{"name'), spell("]")
    #        0 ─ good[0] ─ good[1] …, with bad[0] as the sibling of good[1]
    drafts = torch.tensor([EOS, good[0], good[1], bad[0]])
    next_token = torch.tensor([1, 2, -1, -1])
    next_sibling = torch.tensor([-1, -1, 3, -1])
    mask = grammar.allocate_vocab_mask(WIDTH, 8, "cpu")
    traverse_tree(next_token, next_sibling, drafts, grammar, mask[2:6], vocab_size=WIDTH)
    assert grammar.num_tokens == 0
    expected = grammar.copy()
    for row, token in ((2, good[0]), (3, good[1]), (4, None)):
        assert torch.equal(mask[row], row_of(expected))
        if token is not None:
            expected.accept_token(token)
    assert bool((mask[[0, 1, 5, 6, 7]] == -1).all())


def test_traverse_tree_at_the_end_leaves_later_rows_free(backend):
    grammar = compile_key(backend, KEYS["ebnf"])
    for token in backend._vocabulary.spell("yes"):
        grammar.accept_token(token)
    mask = grammar.allocate_vocab_mask(WIDTH, 3, "cpu")
    chain = torch.tensor([1, 2, -1])
    none = torch.tensor([-1, -1, -1])
    traverse_tree(chain, none, torch.tensor([7, EOS, 5]), grammar, mask, vocab_size=WIDTH)
    assert unpack_bitmask(mask[:1], WIDTH)[0].nonzero().flatten().tolist() == [EOS]
    assert bool((mask[1:] == -1).all())
    assert not grammar.is_terminated()


def test_jump_forward_keeps_the_text(backend):
    """The jumped text is tokenized anew with the text before it, as SGLang's own jump
    did."""
    tokenizer = byte_level()
    compact = StructoutGrammarBackend(tokenizer, WIDTH, [EOS], StructuredOutputsConfig(any_whitespace=False))
    for seed in range(5):
        grammar = compile_key(compact, KEYS["json"])
        generator = torch.Generator().manual_seed(seed)
        output, num_jumps = [], 0
        while not grammar.is_terminated():
            helper = grammar.try_jump_forward(tokenizer)
            if helper is not None:
                jumped, state = grammar.jump_forward_str_state(helper)
                text = text_of(compact, output) + jumped
                retokenized = tokenizer.encode(text, add_special_tokens=False)
                grammar.jump_and_retokenize(output, retokenized, state)
                assert text_of(compact, retokenized) == text
                output, num_jumps = retokenized, num_jumps + 1
                continue
            choices = sorted(allowed(grammar))
            token = choices[int(torch.randint(len(choices), (), generator=generator))]
            grammar.accept_token(token)
            output.append(token)
        assert num_jumps >= 2
        assert is_valid("json", text_of(compact, output[:-1]))


def test_jump_to_tokens_that_are_not_allowed_changes_nothing(backend):
    grammar = compile_key(backend, KEYS["ebnf"])
    old = backend._vocabulary.spell("y")
    for token in old:
        grammar.accept_token(token)
    before = row_of(grammar).clone()
    with pytest.raises(ValueError, match="does not allow the tokens after a jump"):
        grammar.jump_and_retokenize(old, backend._vocabulary.spell("maybe"), -1)
    assert torch.equal(row_of(grammar), before)
    assert grammar.num_tokens == len(old)


# -- reasoning -------------------------------------------------------------------------


@pytest.fixture(scope="module")
def reasoning():
    """The backend of a server with a reasoning parser, and the id of ``</think>``."""
    tokenizer = type(byte_level())(tokenizer_object=byte_level().backend_tokenizer, eos_token="<|end|>")  # noqa: S106
    tokenizer.add_tokens(["<think>", "</think>"], special_tokens=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(StructoutGrammarBackend, "prepare", lambda self: None)
        settings = {"reasoning_parser": "deepseek-r1", "enable_strict_thinking": True}
        with get_context().override_server_args(grammar_backend="structout", **settings) as server_args:
            backend = create_grammar_backend(server_args, tokenizer, WIDTH, {EOS})
    return backend, tokenizer.convert_tokens_to_ids("</think>")


def test_reasoning_is_free_and_the_constraint_applies_after_it(reasoning):
    backend, end = reasoning
    assert isinstance(backend, ReasonerGrammarBackend)
    grammar = compile_key(backend, KEYS["json"], require_reasoning=True)
    for token in (5, 300, 7):
        assert bool((row_of(grammar) == -1).all())
        grammar.accept_token(token)
    grammar.accept_token(end)
    constrained = compile_key(backend.grammar_backend, KEYS["json"])
    assert allowed(grammar) == allowed(constrained)
    tokens = generate(backend.grammar_backend, grammar, 0)
    assert is_valid("json", text_of(backend.grammar_backend, tokens[:-1]))
    grammar.rollback(len(tokens) + 1)
    assert bool((row_of(grammar) == -1).all())


def test_request_without_reasoning_is_constrained_at_once(reasoning):
    backend, _ = reasoning
    grammar = compile_key(backend, KEYS["regex"], require_reasoning=False)
    assert allowed(grammar) == allowed(compile_key(backend.grammar_backend, KEYS["regex"]))
    again = compile_key(backend, KEYS["regex"], require_reasoning=True)
    assert bool((row_of(again) == -1).all())


def test_refused_constraint_under_reasoning_stays_refused(reasoning):
    backend, _ = reasoning
    assert isinstance(compile_key(backend, ("regex", "("), True), InvalidGrammarObject)


def test_cache_under_reasoning_is_bounded_too(reasoning):
    backend, _ = reasoning
    compile_key(backend, ("regex", "bounded"))
    assert isinstance(backend.cache, GrammarCache)
    assert backend.cache.num_bytes > 0


def test_batch_of_wrapped_and_plain_grammars(reasoning):
    """The one is wrapped for reasoning; "full_assistant_ebnf" never is."""
    backend, end = reasoning
    plain = compile_key(backend, KEYS["full_assistant_ebnf"])
    assert isinstance(plain, StructoutGrammar)
    wrapped = compile_key(backend, KEYS["json"], require_reasoning=True)
    wrapped.accept_token(end)
    for grammars in ([plain, wrapped], [wrapped, plain]):
        mask = grammars[0].allocate_vocab_mask(WIDTH, 2, "cpu")
        grammars[0].fill_vocab_mask_batched([GrammarRow(row, g) for row, g in enumerate(grammars)], mask)
        for row, grammar in enumerate(grammars):
            assert torch.equal(mask[row], row_of(grammar))


def test_strict_thinking_ends_the_reasoning_at_its_budget(reasoning, monkeypatch):
    backend, end = reasoning
    monkeypatch.setattr(backend, "enable_token_filter", True)
    monkeypatch.setattr(backend, "max_think_tokens", 2)
    monkeypatch.setattr(backend, "_token_filter_fn", backend.grammar_backend.set_token_filter)
    grammar = backend.init_strict_reasoning_grammar(True)
    assert grammar.grammar is None
    for token in (5, 6):
        assert bool((row_of(grammar) == -1).all())
        grammar.accept_token(token)
    assert allowed(grammar) == {end}
    logits = torch.zeros(1, WIDTH)
    grammar.apply_vocab_mask(logits, grammar.move_vocab_mask(row_of(grammar)[None], "cpu"))
    assert (logits > -torch.inf).nonzero().tolist() == [[0, end]]
