"""Masks of chains and trees of drafts, against forks that accept the drafts one by
one."""

import json
import random

import pytest
import torch

from structout.constraints.params import StructuredOutputOptions
from structout.grammar.native.backend import NativeBackend
from structout.grammar.optional.xgrammar import XgrammarBackend
from structout.grammar.vocabulary import Vocabulary
from structout.ops.token_bitmask import allocate_token_bitmask, unpack_bitmask
from support import native_steps
from support.managers import STOP, TOKENIZER, V, ids_of
from support.native_steps import expected_rows, mask_of
from support.seeds import for_each_seed

REGEX = '\\{"a":(true|false|[0-9]{1,3})\\}'


@pytest.fixture(scope="module", params=[NativeBackend, XgrammarBackend])
def backend(request):
    return request.param(Vocabulary.from_tokenizer(TOKENIZER, V))


@pytest.fixture(scope="module")
def start(backend):
    return backend.compile_grammar(StructuredOutputOptions.REGEX, REGEX)


def random_drafts(rng, grammar):
    """Drafts that mostly continue from the position of the grammar."""
    here, drafts = grammar.fork(), []
    for _ in range(rng.randrange(7)):
        token = rng.choice([-1, V, -7, rng.randrange(V), STOP]) if rng.random() < 0.15 else allowed_token(rng, here)
        drafts.append(token)
        here.accept_tokens("", [token])
    return drafts


def allowed_token(rng, grammar, among=V):
    """One of the first ``among`` tokens that are allowed."""
    is_allowed = unpack_bitmask(mask_of(grammar), V)
    return rng.choice(is_allowed.nonzero().flatten().tolist()[:among])


def at_some_position(rng, grammar):
    here = grammar.copy()
    for token in rng.choice([[], ids_of("{"), ids_of('{"a":'), ids_of('{"a":12'), [*ids_of('{"a":true}'), STOP]]):
        assert here.accept_tokens("", [token])
    return here


@for_each_seed(20, long=60)
def test_draft_chain_has_the_masks_of_accepting_its_tokens(start, seed):
    rng = random.Random(seed)
    here = at_some_position(rng, start)
    drafts = random_drafts(rng, here)
    before = here.num_tokens
    bitmask = torch.full((len(drafts) + 3, allocate_token_bitmask(1, V).shape[1]), 77, dtype=torch.int32)
    num_allowed = here.fill_bitmask_drafts(bitmask, 1, drafts)
    rows, expected = expected_rows(here, drafts)
    assert num_allowed == expected
    assert torch.equal(bitmask[1:-1], rows)
    assert (bitmask[[0, -1]] == 77).all()
    assert here.num_tokens == before


@for_each_seed(10, long=60)
def test_draft_chains_of_a_step_have_the_masks_of_each_alone(start, seed):
    rng = random.Random(seed)
    grammars = [at_some_position(rng, start) for _ in range(6)]
    drafts = [random_drafts(rng, grammar) for grammar in grammars]
    before = [grammar.num_tokens for grammar in grammars]
    expected = [expected_rows(grammar, tokens) for grammar, tokens in zip(grammars, drafts, strict=True)]
    step = native_steps.step_of(grammars, drafts)
    rows = native_steps.run(step, V)
    is_over = [grammar.is_terminated() for grammar in grammars]
    num_allowed = [0 if over else allowed for (_, allowed), over in zip(expected, is_over, strict=True)]
    assert step.num_allowed.tolist() == num_allowed
    assert torch.equal(rows, torch.cat([rows for (rows, _), over in zip(expected, is_over, strict=True) if not over]))
    assert [grammar.num_tokens for grammar in grammars] == before


def random_tree(rng, grammar, num_nodes, among=V):
    """Tokens, next_token and next_sibling of a tree whose nodes have random parents,
    and the parents."""
    here = [grammar.fork()]
    tokens, next_token, next_sibling, above = [0], [-1], [-1], [-1]
    for node in range(1, num_nodes):
        parent = rng.randrange(node)
        wrong = rng.random() < 0.2 or here[parent].is_terminated()
        tokens.append(rng.choice([-1, V, STOP, rng.randrange(V)]) if wrong else allowed_token(rng, here[parent], among))
        next_token.append(-1)
        next_sibling.append(next_token[parent])
        next_token[parent] = node
        above.append(parent)
        here.append(here[parent].fork())
        here[node].accept_tokens("", [tokens[node]])
    return tokens, next_token, next_sibling, above


@for_each_seed(20, long=60)
def test_draft_tree_node_has_the_mask_of_the_chain_to_it(start, seed):
    rng = random.Random(1000 + seed)
    here = at_some_position(rng, start)
    tokens, next_token, next_sibling, above = random_tree(rng, here, rng.randrange(1, 12))
    before = here.num_tokens
    bitmask = torch.full((len(tokens), allocate_token_bitmask(1, V).shape[1]), 77, dtype=torch.int32)
    num_allowed = native_steps.fill_tree(here, bitmask, tokens, next_token, next_sibling)
    allowed = 0
    for node in range(len(tokens)):
        chain, at = [], node
        while at:
            chain.insert(0, tokens[at])
            at = above[at]
        rows, accepted = expected_rows(here, chain)
        assert torch.equal(bitmask[node], rows[-1]), (node, chain)
        allowed += node > 0 and accepted == len(chain)
    assert num_allowed == allowed
    assert here.num_tokens == before


@pytest.mark.parametrize(
    ("next_token", "next_sibling"),
    [([1, 0], [-1, -1]), ([1, 1], [-1, -1]), ([2, -1], [-1, -1]), ([1, -1], [-1, 1]), ([-2, -1], [-1, -1])],
    ids=["cycle", "own child", "out of range", "own sibling", "negative"],
)
def test_draft_tree_with_cycle_or_bad_index_is_refused(start, next_token, next_sibling):
    here = start.copy()
    with pytest.raises(ValueError, match="must form a tree"):
        native_steps.fill_tree(here, allocate_token_bitmask(2, V), [0, 1], next_token, next_sibling)
    assert here.num_tokens == 0


REMEMBERED = {"type": ["array", "string"], "items": {"$ref": "#"}, "uniqueItems": True}
CONTENT = {"type": "json_schema", "json_schema": REMEMBERED}
TAG = {"type": "structural_tag", "format": {"type": "tag", "begin": "<a>", "end": "</a>", "content": CONTENT}}
RECURSIVE = {
    "json": (StructuredOutputOptions.JSON, json.dumps(REMEMBERED)),
    "grammar": (StructuredOutputOptions.GRAMMAR, 'root ::= "(" root ")" | "[" root "]" root | [a-c]*'),
    "tag": (StructuredOutputOptions.STRUCTURAL_TAG, json.dumps(TAG)),
}


@pytest.mark.parametrize("name", RECURSIVE)
@for_each_seed(15, long=60)
def test_text_that_follows_its_drafts_is_where_one_without_them_is(name, seed):
    start = NativeBackend(Vocabulary.from_tokenizer(TOKENIZER, V)).compile_grammar(*RECURSIVE[name])
    rng = random.Random(2000 + seed)
    drafted, plain = start.copy(), start.copy()
    for _ in range(20):
        tokens, next_token, next_sibling, _ = random_tree(rng, plain, rng.randrange(1, 12), rng.choice([2, 3, 20]))
        mask = allocate_token_bitmask(len(tokens), V)
        native_steps.fill_tree(drafted, mask, tokens, next_token, next_sibling)
        path, at = [], 0
        while (at := next_token[at]) != -1:
            while next_sibling[at] != -1 and rng.random() < 0.5:
                at = next_sibling[at]
            path.append(tokens[at])
        path = path[: rng.randrange(len(path) + 1)]
        if rng.random() < 0.3:
            path.append(rng.randrange(V))
        for part in [path] if rng.random() < 0.5 else [[token] for token in path]:
            assert drafted.accept_tokens("", part) == plain.accept_tokens("", part)
        if rng.random() < 0.3:
            count = rng.randint(0, plain.num_tokens)
            drafted.rollback(count)
            plain.rollback(count)
        assert drafted.num_tokens == plain.num_tokens
        assert torch.equal(mask_of(drafted), mask_of(plain))


# -- the end of thinking ---------------------------------------------------------------

MARK = ids_of("</think>")
REASONING = torch.full((V // 32,), -1, dtype=torch.int32)  # the mask before the mark
REASONING[STOP // 32] ^= 1 << STOP % 32


def gated(start):
    grammar = start.copy()
    grammar.begin_after(MARK)
    return grammar


def after(start, mark, tokens):
    """By definition, the grammar after the tokens of a text that reasons up to a mark:
    None while it reasons, False if a token is not allowed. Only the mark ends the
    reasoning, unless the text may be empty."""
    ends = (i for i in range(len(mark), len(tokens) + 1) if tokens[i - len(mark) : i] == mark)
    num_free = next(ends, None)
    stops = set() if start.validate_tokens([STOP]) else {STOP} - set(mark)
    if not all(0 <= token < V and token not in stops for token in tokens[:num_free]):
        return False
    if num_free is None:
        return None
    here = start.copy()
    return here.accept_tokens("", tokens[num_free:]) and here


@pytest.mark.parametrize("pattern", ["[ab]{2}(cd)*", "([ab]{2}(cd)*)?"])
def test_reasoning_ends_with_the_first_occurrence_of_the_mark(backend, num_cases, pattern):
    """Along random texts of few tokens, in which the mark often begins."""
    start = backend.compile_grammar(StructuredOutputOptions.REGEX, pattern)
    may_be_empty = start.validate_tokens([STOP]) == [STOP]
    rng = random.Random(5)
    letters = ids_of("abcd")
    a, b = letters[:2]
    for _ in range(num_cases(60, long=2_000)):
        mark = rng.choice([[a], [a, a, b], [a, b, a, b, a], [a, a], [a, STOP]])
        grammar, text = start.copy(), []
        grammar.begin_after(mark)
        may_end_anywhere = may_be_empty or STOP in mark
        for _ in range(12):
            tokens = rng.choices([*letters, STOP, -1, V], [6, 6, 3, 3, 1, 0.3, 0.3], k=rng.randrange(4))
            num_valid = next(
                i for i in range(len(tokens), -1, -1) if after(start, mark, text + tokens[:i]) is not False
            )
            assert grammar.validate_tokens(tokens) == tokens[:num_valid]
            assert grammar.accept_tokens("", tokens) == (num_valid == len(tokens))
            text += tokens if num_valid == len(tokens) else []
            if rng.random() < 0.3:
                count = rng.randint(0, len(text))
                grammar.rollback(count)
                del text[len(text) - count :]
            if rng.random() < 0.2:
                grammar = grammar.fork()
            here = after(start, mark, text)
            assert grammar.num_tokens == len(text)
            assert grammar.is_unconstrained() == (may_end_anywhere if here is None else here.is_terminated())
            assert grammar.forced_bytes() == (b"" if here is None else here.forced_bytes())
            drafts = rng.choices([*letters, STOP, -1], [6, 6, 3, 3, 1, 0.5], k=rng.randrange(1, 6))
            if not grammar.is_terminated():
                rows = allocate_token_bitmask(len(drafts) + 1, V)
                expected, num_allowed = expected_rows(grammar, drafts)
                assert grammar.fill_bitmask_drafts(rows, 0, drafts) == num_allowed
                assert torch.equal(rows, expected)


@pytest.mark.parametrize("num_before", range(len(MARK) + 1))
@pytest.mark.parametrize("num_after", range(4))
def test_reasoning_end_inside_a_draft_constrains_the_tokens_after_it(start, num_before, num_after):
    grammar = gated(start)
    assert grammar.accept_tokens("", [*ids_of("so {"), *MARK[:num_before]])
    drafts = [*MARK[num_before:], *ids_of('{"a":1}')[:num_after]]
    bitmask = allocate_token_bitmask(len(drafts) + 1, V)
    assert grammar.fill_bitmask_drafts(bitmask, 0, drafts) == len(drafts)
    num_free = len(MARK) - num_before
    assert (bitmask[:num_free] == REASONING).all()
    rows, _ = expected_rows(start, drafts[num_free:])
    assert torch.equal(bitmask[num_free:], rows)


def test_reasoning_grammar_before_the_mark_is_free_and_after_it_constrained(start):
    grammar = gated(start)
    text = [*ids_of('hm {"a":"x"} '), MARK[0], *MARK]  # a false start of the mark
    assert grammar.accept_tokens("", text[:3])
    assert torch.equal(mask_of(grammar), REASONING)
    assert not grammar.accept_tokens("", [STOP])
    assert grammar.accept_tokens("", [*text[3:], *ids_of("{")])
    assert not grammar.is_unconstrained()
    assert not grammar.accept_tokens("", ids_of("{"))
    assert grammar.accept_tokens("", [*ids_of('"a":7}'), STOP])
    assert grammar.is_terminated()


def test_reasoning_grammar_accepts_a_chunk_across_the_mark_whole_or_not_at_all(start):
    grammar = gated(start)
    assert not grammar.accept_tokens("", [*MARK, *ids_of("wrong")])
    assert grammar.num_tokens == 0
    assert torch.equal(mask_of(grammar), REASONING)
    assert grammar.validate_tokens([*MARK, *ids_of("{"), *ids_of("wrong")]) == [*MARK, *ids_of("{")]
    for bad in (-1, V, None, 2**40):
        assert not grammar.accept_tokens("", [5, bad])
        assert grammar.validate_tokens([5, bad]) == [5]


ACROSS_THE_MARK = [*ids_of("so"), *MARK, *ids_of('{"a":1}'), STOP]


@pytest.mark.parametrize("num_tokens", range(len(ACROSS_THE_MARK) + 1))
def test_rollback_across_the_mark_equals_a_fresh_replay(start, num_tokens):
    text = ACROSS_THE_MARK
    grammar, replayed = gated(start), gated(start)
    assert grammar.accept_tokens("", text)
    grammar.rollback(num_tokens)
    assert replayed.accept_tokens("", text[: len(text) - num_tokens])
    assert grammar.num_tokens == replayed.num_tokens
    assert grammar.is_unconstrained() == replayed.is_unconstrained()
    assert torch.equal(mask_of(grammar), mask_of(replayed))
    assert grammar.accept_tokens("", text[len(text) - num_tokens :])


def test_fork_of_reasoning_grammar_advances_independently(start):
    grammar = gated(start)
    assert grammar.accept_tokens("", [1, 2, *MARK[:1]])
    fork = grammar.fork()
    assert grammar.accept_tokens("", MARK[1:])
    assert torch.equal(mask_of(grammar), mask_of(start))
    assert torch.equal(mask_of(fork), REASONING)
    assert fork.num_tokens == 2 + 1
