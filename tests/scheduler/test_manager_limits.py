"""Limits on the tokens of a request that are part of its constraint (max_tokens)."""

import json
import random
import re

import pytest

from structout import (
    GrammarError,
    GrammarStatus,
    StructuredOutputsParams,
)
from structout.errors import GrammarErrorKind
from support.managers import STOP, TOKENIZER, allowed, ids_of

CONSTRAINTS = {
    "regex": {"regex": "(name|orderId): [a-z ]{1,60}; that is all[.!]{1,9}"},
    "choice": {"choice": ["no", "I would rather not say", "yes, and that for several reasons"]},
}


@pytest.fixture(params=CONSTRAINTS)
def params(request):
    return StructuredOutputsParams(**CONSTRAINTS[request.param])


def add(manager, request_id, params, **options):
    manager.add_request(request_id, params, **options)
    manager.wait_ready(request_id, timeout=60)


def text_of(tokens):
    return TOKENIZER.decode(tokens[:-1])


def needed_for(manager, params, **options):
    add(manager, "unlimited", params, **options)
    num_needed = manager.num_needed("unlimited")
    manager.finish_request("unlimited")
    return num_needed


def walk(manager, request_id, draw):
    """Tokens drawn until the text ends."""
    tokens = []
    while not manager.is_terminated(request_id):
        rows = allowed(manager, request_id)
        tokens.append(draw(rows[0]) if rows else ids_of("a")[0])  # a free row, of the reasoning, has no mask
        assert manager.accept_tokens(request_id, tokens[-1:])
    return tokens


def longest(choices):
    """A draw that avoids the end of the text."""
    return random.choice([token for token in choices if token != STOP] or choices)


def matches(params, text):
    return text in params.choice if params.choice else re.fullmatch(params.regex, text) is not None


# -- texts -----------------------------------------------------------------------------


@pytest.mark.parametrize("spare", [0, 1, 5, 30])
def test_text_under_a_limit_ends_within_it(manager, params, spare):
    limit = needed_for(manager, params) + spare
    for i in range(10):
        add(manager, str(i), params, max_tokens=limit)
        tokens = walk(manager, str(i), longest)
        assert len(tokens) <= limit
        assert tokens[-1] == STOP
        assert matches(params, text_of(tokens))


def test_masks_far_from_the_limit_are_those_without_it(manager, params):
    add(manager, "free", params)
    add(manager, "limited", params, max_tokens=10_000)
    for token in walk(manager, "free", longest):
        manager.accept_tokens("limited", [token])
    assert manager.is_terminated("limited")
    assert not manager.was_fitted("limited")


OPTIONAL_FIRST = {
    "type": "object",
    "properties": {"note": {"type": "string"}, "name": {"type": "string"}},
    "required": ["name"],
    "additionalProperties": False,
}


@pytest.mark.parametrize(("fit", "may_begin_note"), [("exact", True), ("on", False)])
def test_optional_key_begins_only_where_its_limit_is_exact(manager, fit, may_begin_note):
    params = StructuredOutputsParams(json=json.dumps(OPTIONAL_FIRST), fit=fit)
    add(manager, "r", params, max_tokens=needed_for(manager, params) + 12)
    manager.accept_tokens("r", ids_of('{"'))
    assert (ids_of("no")[0] in allowed(manager, "r")[0]) is may_begin_note
    assert ids_of("na")[0] in allowed(manager, "r")[0]


def test_string_that_has_begun_takes_what_the_limit_leaves(manager):
    params = StructuredOutputsParams(json='{"type": "string"}')
    limit = needed_for(manager, params) + 6
    add(manager, "r", params, max_tokens=limit)
    word = ids_of(" the")[0]
    assert walk(manager, "r", lambda row: word if word in row else row[0]).count(word) == 6


def test_was_fitted_when_a_mask_was_narrowed(manager):
    params = StructuredOutputsParams(regex="[a-c]+")
    add(manager, "r", params, max_tokens=4)
    assert not manager.was_fitted("r")
    assert len(walk(manager, "r", longest)) == 4
    assert manager.was_fitted("r")


def test_fit_off_leaves_the_limit_out_of_the_constraint(manager):
    add(manager, "r", StructuredOutputsParams(regex="[a-c]{20}", fit="off"), max_tokens=2)
    tokens = walk(manager, "r", longest)
    assert len(tokens) > 2
    assert not manager.was_fitted("r")


def test_fit_is_no_part_of_the_compiled_constraint(manager):
    add(manager, "on", StructuredOutputsParams(regex="[a-c]{20}"))
    add(manager, "off", StructuredOutputsParams(regex="[a-c]{20}", fit="off"))
    assert manager.stats().compilation.cache_entries == 1


# -- refusals --------------------------------------------------------------------------


def test_limit_below_the_shortest_text_is_refused_with_the_number_that_it_needs(manager, params):
    num_needed = needed_for(manager, params)
    assert manager.add_request("r", params, max_tokens=num_needed - 1) is GrammarStatus.FAILED
    error = manager.error("r")
    assert error.kind is GrammarErrorKind.LIMIT
    assert error.client_fault
    assert error.num_needed == num_needed
    assert GrammarError.from_dict(error.as_dict()).num_needed == num_needed
    assert str(error) == f"the text needs at least {num_needed} tokens, max_tokens is {num_needed - 1}"


@pytest.mark.parametrize("max_tokens", [0, -1, 1.5, True, "5"])
@pytest.mark.parametrize("fit", ["on", "off"])
def test_limit_that_is_no_positive_int_is_refused(manager, fit, max_tokens):
    params = StructuredOutputsParams(regex="a", fit=fit)
    assert manager.add_request("r", params, max_tokens=max_tokens) is GrammarStatus.FAILED
    assert str(manager.error("r")) == f"max_tokens must be an int of at least 1, got {max_tokens!r}"


def test_another_value_of_fit_is_refused(manager):
    assert manager.add_request("r", StructuredOutputsParams(regex="a", fit="no")) is GrammarStatus.FAILED
    assert str(manager.error("r")) == 'fit must be "on", "exact" or "off", got \'no\''


# -- positions -------------------------------------------------------------------------


def test_rollback_gives_the_tokens_back(manager, params):
    add(manager, "r", params, max_tokens=needed_for(manager, params) + 5)
    start = allowed(manager, "r")
    tokens = walk(manager, "r", longest)
    for _ in range(3):
        count = random.randint(1, len(tokens))
        manager.rollback("r", count)
        kept = tokens[: len(tokens) - count]
        tokens = kept + walk(manager, "r", longest)
        assert len(tokens) <= needed_for(manager, params) + 5
    manager.rollback("r", len(tokens))
    assert allowed(manager, "r") == start


def test_fork_has_the_tokens_that_its_parent_has_left(manager):
    params = StructuredOutputsParams(regex="[a-c]+")
    add(manager, "r", params, max_tokens=8)
    tokens = [longest(allowed(manager, "r")[0])]
    manager.accept_tokens("r", tokens)
    manager.fork("r", "fork")
    assert len(tokens + walk(manager, "fork", longest)) == 8
    assert manager.was_fitted("fork")
    assert not manager.was_fitted("r")


def test_replayed_tokens_count(manager, params):
    limit = needed_for(manager, params) + 5
    add(manager, "r", params, max_tokens=limit)
    tokens = walk(manager, "r", longest)
    for count in range(len(tokens)):
        add(manager, f"replay {count}", params, max_tokens=limit, output_token_ids=tokens[:count])
        rest = walk(manager, f"replay {count}", longest)
        assert count + len(rest) <= limit
        assert matches(params, text_of([*tokens[:count], *rest]))


def test_replay_that_cannot_end_within_the_limit_is_refused(manager):
    params = StructuredOutputsParams(regex="[a-c]{2}|d{30}")
    tokens = ids_of("d" * 10)
    status = manager.add_request("r", params, max_tokens=12, output_token_ids=tokens)
    assert status is not GrammarStatus.READY  # FAILED at once, if its compilation is quick
    with pytest.raises(GrammarError) as caught:
        manager.wait_ready("r", timeout=60)
    add(manager, "unlimited", params, output_token_ids=tokens)
    assert caught.value.num_needed == len(tokens) + manager.num_needed("unlimited")


def test_drafts_have_one_token_less_left_each(manager, params):
    limit = needed_for(manager, params) + 3
    add(manager, "r", params, max_tokens=limit)
    drafts = walk(manager, "r", longest)[:-1]
    manager.rollback("r", manager.num_tokens("r"))
    rows = allowed(manager, "r", drafts)
    for row, token in zip(rows, [*drafts, STOP], strict=True):
        assert allowed(manager, "r") == [row]
        manager.accept_tokens("r", [token])


def test_draft_after_which_the_text_is_too_long_is_not_acceptable(manager):
    add(manager, "r", StructuredOutputsParams(regex="a|b{9}"), max_tokens=3)
    (draft,) = ids_of("b")
    assert manager.grammar_bitmask(["r"], {"r": [draft]}).num_acceptable_drafts.tolist() == [0]


def test_limit_does_not_count_drafts_before_the_grammar(manager):
    add(manager, "r", StructuredOutputsParams(regex="a|b{3}"), max_tokens=4)
    (row,) = allowed(manager, "r")
    batch = manager.grammar_bitmask(["r"], {"r": ids_of("zzb")}, bounds={"r": (2, 2)})
    after_the_free_tokens = batch.bitmask[2].copy()
    assert (after_the_free_tokens == manager.grammar_bitmask(["r"]).bitmask[0]).all()
    assert set(ids_of("ab")) <= set(row)


def test_end_within_limits_a_request_before_its_first_token(manager):
    params = StructuredOutputsParams(regex="[a-c]{2,}")
    add(manager, "r", params, max_tokens=9)
    num_needed = manager.num_needed("r")
    with pytest.raises(GrammarError) as caught:
        manager.end_within("r", num_needed - 1)
    assert caught.value.num_needed == num_needed
    manager.end_within("r", 6)
    manager.end_within("r", 8)  # the lower one counts
    manager.accept_tokens("r", ids_of("a"))
    manager.end_within("r", 4)  # too late
    assert 1 + len(walk(manager, "r", longest)) == 6


# -- stop tokens and reasoning ---------------------------------------------------------


def test_any_of_several_stop_tokens_ends_the_text(manager):
    other = ids_of("z")[0]
    add(manager, "r", StructuredOutputsParams(regex="[a-c]+"), max_tokens=3, stop_token_ids=[STOP, other])
    for _ in range(2):
        manager.accept_tokens("r", ids_of("a"))
    assert sorted(allowed(manager, "r")[0]) == sorted([STOP, other])


@pytest.mark.parametrize("end", ["z", "xyz"])
def test_reasoning_ends_in_time_for_the_text(manager, params, end):
    end_ids = [ids_of(character)[0] for character in end]
    num_needed = needed_for(manager, params, constrain_after=end_ids)
    assert num_needed == needed_for(manager, params) + len(end_ids)
    add(manager, "r", params, max_tokens=num_needed + 4, constrain_after=end_ids)
    tokens = walk(manager, "r", longest)
    assert tokens[4 : 4 + len(end_ids)] == end_ids
    assert len(tokens) <= num_needed + 4
    assert matches(params, text_of(tokens[4 + len(end_ids) :]))
    for count in range(len(tokens)):  # also in the middle of the end of the reasoning
        add(
            manager,
            f"replay {count}",
            params,
            max_tokens=num_needed + 4,
            constrain_after=end_ids,
            output_token_ids=tokens[:count],
        )


def test_reasoning_that_leaves_too_few_tokens_is_refused_at_its_replay(manager):
    end_ids = ids_of("z")
    manager.add_request(
        "r",
        StructuredOutputsParams(choice=["yes"]),
        max_tokens=10,
        constrain_after=end_ids,
        output_token_ids=ids_of("a") * 8,
    )
    with pytest.raises(GrammarError, match=r"needs at least \d+ tokens, max_tokens is 10") as caught:
        manager.wait_ready("r", timeout=60)
    assert caught.value.num_needed > 10


# -- other engines ---------------------------------------------------------------------


def test_limit_has_no_effect_where_no_end_is_known(manager):
    pytest.importorskip("xgrammar", reason="xgrammar is an optional package")
    params = StructuredOutputsParams(regex="[a-c]{20}", backend="xgrammar")
    add(manager, "r", params, max_tokens=2)
    assert manager.num_needed("r") is None
    assert len(walk(manager, "r", longest)) > 2
