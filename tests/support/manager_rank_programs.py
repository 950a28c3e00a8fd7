"""ShardedManager programs for the ranks of ranks.py.

Results are plain data; a rank that raises fails the test.
"""

from __future__ import annotations

import collections
import contextlib
import gc
import os
import random
import signal
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import structout
from structout.errors import CollectiveError
from support import tokenizers_on_the_spot
from support.ranks import JOIN_TIMEOUT_S

CONSTRAINTS: list[dict[str, Any]] = [
    {"regex": "[a-c]{2,5}"},
    {"choice": ["yes", "no", "maybe"]},
    {"json": {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}},
    {"regex": "[0-9]+"},
    {"regex": "(unclosed"},  # fails
    {"json_object": True},
    {"grammar": 'root ::= "ab" root | "c"'},
    {"regex": "(ab)*", "backend": "xgrammar:no-fallback"},
]


def _manager() -> structout.StructuredOutputManager:
    tokenizer = tokenizers_on_the_spot.byte_level()
    return structout.StructuredOutputManager(tokenizer, vocab_size=len(tokenizer) + 3)


def _poll_until_settled(manager: structout.ShardedManager, request_ids: list[str]) -> dict[str, str]:
    """Poll until no request is WAITING. Return the status of each."""
    deadline = time.monotonic() + JOIN_TIMEOUT_S
    while any(manager.status(i) is structout.GrammarStatus.WAITING for i in request_ids):
        assert time.monotonic() < deadline
        manager.poll_ready()
    return {i: manager.status(i).value for i in request_ids}


def compare_with_one_manager(rank: int, num_requests: int, seed: int) -> dict[str, Any]:
    """Run steps with drafts, forks and finishes; compare masks with one manager's."""
    rng = random.Random(seed)  # the same on all ranks
    sharded, single = structout.ShardedManager(_manager()), _manager()
    ids = [f"r{i}" for i in range(num_requests)]
    for i, request_id in enumerate(ids):
        params = structout.StructuredOutputsParams(**CONSTRAINTS[i % len(CONSTRAINTS)])
        assert sharded.add_request(request_id, params) is structout.GrammarStatus.WAITING
        single.add_request(request_id, params)
    statuses = _poll_until_settled(sharded, ids)
    for request_id in ids:
        with contextlib.suppress(structout.GrammarError):
            single.wait_ready(request_id, JOIN_TIMEOUT_S)
    assert statuses == {i: single.status(i).value for i in ids}
    num_rows = 0
    for step in range(30):
        asked = rng.sample(ids, rng.choice([len(ids), rng.randint(1, len(ids))]))
        drafts = {i: [rng.randrange(280) for _ in range(rng.randrange(5))] for i in ids if step % 2}
        trees = {i: _random_tree(rng, len(tokens)) for i, tokens in drafts.items() if step % 4 == 3}
        sharded_masks = sharded.grammar_bitmask([*asked, "unknown"], drafts, draft_trees=trees, strict=False)
        expected_masks = single.grammar_bitmask([*asked, "unknown"], drafts, draft_trees=trees, strict=False)
        _assert_same_masks(sharded_masks, expected_masks, asked)
        for manager in (sharded, single):
            with pytest.raises(structout.UnknownRequestError, match="'unknown'"):
                manager.grammar_bitmask([*ids, "unknown"], drafts)
        assert sharded.num_requests == single.num_requests
        num_rows += len(sharded_masks.bitmask)
        if step % 5 == 4:
            shard = sharded.grammar_bitmask_shard(ids, drafts)
            gathered = structout.distributed.gather_device_masks(shard, ids, "cpu")
            expected_gathered = structout.DeviceMasks.of(single.grammar_bitmask(ids, drafts), ids, "cpu")
            for gathered_row, row in zip(gathered.rows.tolist(), expected_gathered.rows.tolist(), strict=True):
                assert (gathered_row < 0) == (row < 0)
                assert row < 0 or torch.equal(gathered.bitmask[gathered_row], expected_gathered.bitmask[row])
        for request_id in asked:
            if single.status(request_id) is not structout.GrammarStatus.READY:
                continue
            assert sharded.is_terminated(request_id) == single.is_terminated(request_id)
            row = int(expected_masks.rows_for([request_id])[0])
            if row >= 0 and rng.random() < 0.8:
                allowed = structout.unpack_bitmask(expected_masks.to("cpu")[row], single.vocabulary.size)
                token = rng.choice(allowed.flatten().nonzero().flatten().tolist())
                sharded.accept_tokens(request_id, [token])
                assert single.accept_tokens(request_id, [token])
        if step == 8:
            sharded.fork("r0", "fork")
            single.fork("r0", "fork")
            ids.append("fork")
        if step == 12:
            for manager in (sharded, single):
                manager.finish_request("r1")
                manager.finish_request("nobody")
            ids.remove("r1")
            new_params = structout.StructuredOutputsParams(regex="x*")
            sharded.add_request("r1", new_params)
            single.add_request("r1", new_params)
            ids.append("r1")
            _poll_until_settled(sharded, ids)
            single.wait_ready("r1", JOIN_TIMEOUT_S)
    return {"owners": [sharded.owner(i) for i in ids], "rows": num_rows, "error": str(sharded.error("r4"))}


def _random_tree(rng: random.Random, num_nodes: int) -> tuple[list[int], list[int]]:
    """Return ``next_token`` and ``next_sibling``."""
    next_token, next_sibling = [-1] * num_nodes, [-1] * num_nodes
    for node in range(1, num_nodes):
        parent = rng.randrange(node)
        next_sibling[node], next_token[parent] = next_token[parent], node
    return next_token, next_sibling


def break_a_step(rank: int, victim: int, fault: str) -> list[str]:
    """Let one rank's second step fail.

    Return how each step ended. Where it gave masks, they are those of one manager. No
    step changes the masks of the two before it.
    """
    local, single = _manager(), _manager()
    sharded = structout.ShardedManager(local)
    ids = [f"r{i}" for i in range(6)]
    for i, request_id in enumerate(ids):
        for manager in (sharded, single):
            manager.add_request(request_id, structout.StructuredOutputsParams(regex=f"[a-c]{{{i + 1},9}}"))
            manager.wait_ready(request_id, JOIN_TIMEOUT_S)

    def fail(*_: object) -> None:
        if fault == "is killed while it fills":
            os.kill(os.getpid(), signal.SIGKILL)
        raise KeyboardInterrupt if "interrupted" in fault else OSError("out of order")

    letters = tokenizers_on_the_spot.byte_level().encode("abcabcab")
    outcomes = []
    kept: collections.deque[tuple[structout.MaskBatch, Any]] = collections.deque(maxlen=2)
    for step, token in enumerate(letters):
        expected = single.grammar_bitmask(ids)
        with pytest.MonkeyPatch.context() as patch:
            if rank == victim and step == 1:
                patch.setattr(
                    *((sharded._mask_exchange, "gather") if "reads" in fault else (local, "_fill_for_ranks")), fail
                )
            try:
                masks = sharded.grammar_bitmask(ids)
            except (KeyboardInterrupt, OSError, CollectiveError) as error:
                outcomes.append(f"{type(error).__name__}: {error}")
            else:
                _assert_same_masks(masks, expected, ids)
                outcomes.append("masks")
                kept.append((masks, masks.bitmask.copy()))
        for request_id in ids:
            sharded.accept_tokens(request_id, [token])
            assert single.is_terminated(request_id) or single.accept_tokens(request_id, [token])
        if outcomes[-2:] == ["masks", "masks"] or outcomes[-1] != "masks":
            for batch, copy in kept:
                with contextlib.suppress(structout.errors.StaleMasksError):
                    assert np.array_equal(batch.bitmask, copy)
    return outcomes


def keep_masks(rank: int, slow_rank: int) -> list[bool]:
    """Look at each batch until the call that ends its time, on one rank late.

    Return whether batches are stale from then on.
    """
    sharded = structout.ShardedManager(_manager())
    for request_id in ("a", "b"):  # of different owners
        sharded.add_request(request_id, structout.StructuredOutputsParams(regex="([0-9]{2}[a-z]{2})*"))
        sharded.add_request(f"other {request_id}", structout.StructuredOutputsParams(regex=f"{request_id}*"))
    sharded.wait_all()
    num_batches = sharded._manager.config.num_mask_buffers
    kept: list[tuple[structout.MaskBatch, Any]] = []
    for character in "01ab23cd45":
        if rank == slow_rank:
            time.sleep(0.02)  # the other rank is in its next call by now
        for masks, copy in kept[-num_batches:]:
            assert np.array_equal(masks.bitmask, copy)
        masks = sharded.grammar_bitmask(["a", "b"])
        kept.append((masks, masks.bitmask.copy()))
        token = tokenizers_on_the_spot.byte_level().encode(character)
        sharded.accept_batch({"a": token, "b": token})
    assert not np.array_equal(kept[0][1], kept[2][1])  # so a buffer that is written too soon is noticed
    return [_is_stale(masks) for masks, _ in kept]


def _is_stale(masks: structout.MaskBatch) -> bool:
    try:
        return masks.bitmask is None
    except structout.errors.StaleMasksError:
        return True


def grow(rank: int, failing_call: str, failing_rank: int) -> tuple[int, str]:
    """Ask for more and more rows.

    Args:
        failing_call: what raises OSError on ``failing_rank`` when memory grows.

    Return how many descriptors are left over, and how masks are exchanged in the end.
    """
    sharded, single = structout.ShardedManager(_manager()), _manager()
    ids: list[str] = []

    def step() -> structout.MaskBatch:
        for manager in (sharded, single):
            manager.add_request(f"r{len(ids)}", structout.StructuredOutputsParams(regex=f"x{len(ids)}y*"))
        ids.append(f"r{len(ids)}")
        sharded.wait_all()
        single.wait_all()
        masks = sharded.grammar_bitmask(ids)
        _assert_same_masks(masks, single.grammar_bitmask(ids), ids)
        return masks

    first = step()
    kept, copy = first.to("cpu"), first.bitmask.copy()
    num_before = len(list(Path("/proc/self/fd").iterdir()))
    with pytest.MonkeyPatch.context() as patch:
        if rank == failing_rank:
            patch.setattr(failing_call, _fail_with_os_error)
        for _ in range(9):
            step()
        assert np.array_equal(kept.numpy(), copy)  # also if its buffer is none of the ring's any more
        del first, kept
        gc.collect()
        return len(list(Path("/proc/self/fd").iterdir())) - num_before, type(sharded._mask_exchange).__name__


def _fail_with_os_error(*_: object) -> None:
    raise OSError("no memory")


ASKED = [
    {"regex": "ab{2}[a-c]"},
    {"choice": ["yes", "no"]},
    {"json": {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}},
    {"json": {"type": "string", "pattern": "(?<=a)b"}, "lenient": True},
    {"json": {"type": "string", "format": "colour"}},
    {"regex": "(unclosed"},
]


def wait_and_ask_owners(rank: int) -> dict[str, Any]:
    """Compare wait_all and the answers of owners with one manager's. Return those."""
    sharded, single = structout.ShardedManager(_manager()), _manager()
    tokenizer = tokenizers_on_the_spot.byte_level()
    ids = [f"r{i}" for i in range(len(ASKED))]
    for request_id, constraint in zip(ids, ASKED, strict=True):
        for manager in (sharded, single):
            manager.add_request(request_id, structout.StructuredOutputsParams(**constraint))
    assert sharded.wait_all(timeout=JOIN_TIMEOUT_S) == single.wait_all(timeout=JOIN_TIMEOUT_S)
    assert sharded.wait_all(ids[:2]) == dict.fromkeys(ids[:2], structout.GrammarStatus.READY)
    assert sorted(sharded.poll_changed()) == sorted(single.poll_changed())
    assert sharded.poll_changed() == []
    answers: dict[str, Any] = {}
    for request_id in ids:
        for name in ("weakened", "annotations", "backend_name"):
            answers[f"{name} {request_id}"] = getattr(single, name)(request_id)
            assert getattr(sharded, name)(request_id) == getattr(single, name)(request_id)
    for _ in range(2):  # at the beginning, and after the forced tokens
        for request_id in ids[:-1]:
            for name in ("num_tokens", "find_jump_forward_string", "compute_ff_tokens"):
                answers[f"{name} {request_id}"] = getattr(single, name)(request_id)
                assert getattr(sharded, name)(request_id) == getattr(single, name)(request_id)
            for tokens in ([], tokenizer.encode("abb?"), [-1], [None], tokenizer.encode('{"name": 1')):
                assert sharded.validate_tokens(request_id, tokens) == single.validate_tokens(request_id, tokens)
                assert sharded.explain_refusal(request_id, tokens) == single.explain_refusal(request_id, tokens)
            forced = single.compute_ff_tokens(request_id)
            for manager in (sharded, single):
                manager.accept_tokens(request_id, forced)
    answers["refusal"] = str(sharded.explain_refusal("r1", tokenizer.encode("x")))
    sharded.wait_ready("r0")
    for ask, error, message in (
        (lambda: sharded.wait_ready("r5"), structout.GrammarError, r"a \( is not closed"),
        (lambda: sharded.num_tokens("r5"), structout.StructOutError, "'r5' has no grammar: it is failed"),
        (lambda: sharded.num_tokens("nobody"), structout.UnknownRequestError, "'nobody'"),
        (lambda: sharded.wait_all(["r0", "nobody"]), structout.UnknownRequestError, "'nobody'"),
    ):
        with pytest.raises(error, match=message):
            ask()
    grammar = structout.StructuredOutputsParams(grammar='start: word\nword[capture]: "ab"')
    for manager in (sharded, single):
        manager.add_request("captured", grammar)
        manager.wait_ready("captured", JOIN_TIMEOUT_S)
        manager.accept_tokens("captured", [*tokenizer.encode("ab"), tokenizer.eos_token_id])
    assert sharded.captures("captured") == single.captures("captured") == [("word", b"ab")]
    sharded.poll_changed()
    sharded.add_failed_request("refused", structout.GrammarError("not today"))
    assert sharded.wait_all()["refused"] is structout.GrammarStatus.FAILED
    assert sharded.poll_changed() == [("refused", structout.GrammarStatus.FAILED)]
    assert str(sharded.error("refused")) == "not today"
    return answers


def wait_for_a_slow_compilation(rank: int) -> list[str]:
    """Wait in vain for one owner's compilation, and again when it is allowed to end.
    Return what was raised, and the statuses in the end."""
    may_compile = threading.Event()
    local = _manager()
    compile_constraint = local._backends.compile

    def compile_late(constraint: Any) -> Any:
        may_compile.wait(JOIN_TIMEOUT_S)
        return compile_constraint(constraint)

    local._backends.compile = compile_late  # type: ignore[method-assign]
    manager = structout.ShardedManager(local)
    manager.add_request("a", structout.StructuredOutputsParams(regex="a"))
    manager.add_request("b", structout.StructuredOutputsParams(regex="b"))
    if manager.owner("b") == rank:
        may_compile.set()
        local.wait_ready("b", JOIN_TIMEOUT_S)
    results = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("structout.distributed.sharded_manager._WAIT_SECONDS", 0.05)
        for timeout in (0, 0.2):
            with pytest.raises(structout.GrammarTimeoutError) as raised:
                manager.wait_all(timeout=timeout)
            results.append(str(raised.value))
    may_compile.set()
    manager.wait_ready("a", JOIN_TIMEOUT_S)
    return [*results, *(status.value for status in manager.wait_all().values())]


def wait_and_ask_a_failing_owner(rank: int) -> list[str]:
    """Let an owner's manager fail while it waits and while it answers. Return what each
    rank gets; the group must still work."""
    local = _manager()
    manager = structout.ShardedManager(local)
    manager.add_request("a", structout.StructuredOutputsParams(regex="a"))
    results = []
    with pytest.MonkeyPatch.context() as patch:
        if manager.owner("a") == rank:
            patch.setattr(local, "wait_all", _fail)
        with pytest.raises(structout.StructOutError) as raised:
            manager.wait_all()
        results.append(type(raised.value).__name__)
    manager.wait_ready("a")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(local, "num_tokens", _fail)
        with pytest.raises(structout.StructOutError) as raised:
            manager.num_tokens("a")
        results.append(f"{type(raised.value).__name__}: {raised.value}")
    return [*results, str(manager.num_tokens("a"))]


def _fail(*_: object, **__: object) -> None:
    raise structout.StructOutError("the manager was closed")


def _assert_same_masks(got: structout.MaskBatch, expected: structout.MaskBatch, ids: list[str]) -> None:
    for request_id in ids:
        i, j = got.request_ids.index(request_id), expected.request_ids.index(request_id)
        got_rows = got.bitmask[got.row_indptr[i] : got.row_indptr[i + 1]]
        expected_rows = expected.bitmask[expected.row_indptr[j] : expected.row_indptr[j + 1]]
        if len(expected_rows) == 0:  # a ShardedManager keeps the rows of a request that needs none
            expected_rows = np.full_like(got_rows, -1)
        assert np.array_equal(got_rows, expected_rows), request_id
        assert got.num_acceptable_drafts[i] == expected.num_acceptable_drafts[j]
    assert got.errors.keys() == expected.errors.keys()


def report_termination_with_thinking(rank: int) -> list[bool]:
    """Return is_terminated during and after thinking, at the end, after a rollback."""
    tokenizer = tokenizers_on_the_spot.byte_level()
    manager = structout.ShardedManager(_manager())
    (end_of_thinking,) = tokenizer.encode("<tool_call>")
    params = structout.StructuredOutputsParams(choice=["a"])
    manager.add_request("t", params, constrain_after=[end_of_thinking])
    _poll_until_settled(manager, ["t"])
    seen = []
    for token in (tokenizer.encode("z")[0], end_of_thinking, tokenizer.encode("a")[0], tokenizer.eos_token_id, None):
        manager.grammar_bitmask(["t"])
        seen.append(manager.is_terminated("t"))
        if token is not None:
            manager.accept_tokens("t", [token])
    manager.rollback("t", 1)
    manager.grammar_bitmask(["t"])
    return [*seen, manager.is_terminated("t")]


def fail_on_owner(rank: int) -> list[str]:
    """Cause errors that only the owner notices.

    Return what this rank learns of each; the group must still work.
    """
    manager = structout.ShardedManager(_manager())
    messages = []
    manager.add_request("bad", structout.StructuredOutputsParams(regex="a"), stop_token_ids=5)
    for request_id in ("a", "b"):
        manager.add_request(request_id, structout.StructuredOutputsParams(regex=f"{request_id}*"))
    messages.append(_poll_until_settled(manager, ["bad", "a", "b"])["bad"])
    masks_of_failed = manager.grammar_bitmask(["bad"])
    assert masks_of_failed.bitmask.shape[0] == 1
    assert not masks_of_failed.bitmask.any()
    assert "TypeError: 'int' object is not iterable" in str(manager.error("bad"))
    assert "TypeError: 'int' object is not iterable" in masks_of_failed.errors["bad"]
    for call in (
        lambda: manager.grammar_bitmask(["a", "b", "a"]),
        lambda: _step_that_fails(manager, rank == manager.owner("a")),
        lambda: manager.grammar_bitmask(["a", "b"], 5 if rank == manager.owner("a") else None),
        lambda: manager.fork("bad", "c"),
    ):
        try:
            call()
        except Exception as error:
            messages.append(type(error).__name__)
        else:
            raise AssertionError("no error was raised")
    manager.rollback("a", 3)
    letter = tokenizers_on_the_spot.byte_level().encode("x")[0]
    manager.accept_tokens("b", [letter])
    manager.fork("b", "forked")
    masks = manager.grammar_bitmask(["a", "b", "forked"])
    messages += [f"{request_id}: {masks.errors[request_id]}" for request_id in sorted(masks.errors)]
    for request_id in ("bad", "a", "b", "forked"):
        manager.finish_request(request_id)
    manager.add_request("a", structout.StructuredOutputsParams(regex="a*"))
    return [*messages, _poll_until_settled(manager, ["a"])["a"]]


def _step_that_fails(manager: Any, is_owner: bool) -> None:
    """A step in which this rank's own manager raises, if it is the owner."""

    def fail(*_: object) -> None:
        raise TypeError("out of order")

    local = manager._manager
    if is_owner:
        local._fill_for_ranks = fail
    try:
        manager.grammar_bitmask(["a", "b"])
    finally:
        vars(local).pop("_fill_for_ranks", None)


def fork_with_failing_owner(rank: int) -> dict[str, Any]:
    """Let the owner's fork fail.

    Return the masks' errors, and whether each request may take a token.
    """

    def failing_fork(request_id: str, new_id: str) -> None:
        raise RuntimeError("out of memory")

    local = _manager()
    local.fork = failing_fork
    manager = structout.ShardedManager(local)
    manager.add_request("a", structout.StructuredOutputsParams(regex="a*"))
    _poll_until_settled(manager, ["a"])
    manager.fork("a", "forked")
    masks = manager.grammar_bitmask(["a", "forked"])
    rows = masks.rows_for(["a", "forked"]).tolist()
    return {"errors": dict(masks.errors), "allows": [row < 0 or bool(masks.bitmask[row].any()) for row in rows]}


def call_grammar_bitmask_on_one_rank_only(rank: int) -> str:
    """Rank 0 asks for whole masks, the others for shards. Return this rank's error."""
    manager = structout.ShardedManager(_manager())
    manager.add_request("a", structout.StructuredOutputsParams(regex="a*"))
    _poll_until_settled(manager, ["a"])
    try:
        manager.grammar_bitmask(["a"]) if rank == 0 else manager.grammar_bitmask_shard(["a"])
    except CollectiveError as error:
        return str(error)
    raise AssertionError("no error was raised")


def share_constraints(rank: int) -> list[int]:
    """Return the owners of eight different constraints, then of eight equal ones."""
    manager = structout.ShardedManager(_manager())
    for i in range(16):
        manager.add_request(f"r{i}", structout.StructuredOutputsParams(regex=f"x{min(i, 8)}"))
    return [manager.owner(f"r{i}") for i in range(16)]


def diverge(rank: int, odd_rank: int, difference: str) -> str:
    """One rank makes a call that the others do not.

    Return this rank's error at the next step.
    """
    manager = structout.ShardedManager(_manager())
    ids = ["a", "b", "c"]
    for request_id in ids:
        manager.add_request(request_id, structout.StructuredOutputsParams(regex="[ab]*"))
    _poll_until_settled(manager, ids)
    masks = manager.grammar_bitmask(ids)
    allowed = structout.unpack_bitmask(masks.to("cpu")[:1], 400).flatten().nonzero().flatten().tolist()
    if rank == odd_rank:
        if difference == "aborts":
            manager.finish_request("b")
        elif difference == "draws another token":
            manager.accept_tokens("c", [allowed[1]])
        elif difference == "asks for others":
            ids = ["a", "b"]
        elif difference == "waits for one":
            manager.wait_ready("a")
        elif difference == "waits for less time":
            manager.wait_all(timeout=1)
    if difference == "draws another token" and rank != odd_rank:
        manager.accept_tokens("c", [allowed[0]])
    if difference == "waits for less time" and rank != odd_rank:
        manager.wait_all()
    try:
        manager.grammar_bitmask(ids)
    except CollectiveError as error:
        return str(error)
    raise AssertionError("no error was raised")


def accept_illegal_token(rank: int) -> list[dict[str, str]]:
    """Return the masks' errors before and after a token that the grammar refuses."""
    manager = structout.ShardedManager(_manager())
    for request_id in ("a", "b"):
        manager.add_request(request_id, structout.StructuredOutputsParams(regex="[0-9]*"))
    _poll_until_settled(manager, ["a", "b"])
    errors = [dict(manager.grammar_bitmask(["a", "b"]).errors)]
    letter = tokenizers_on_the_spot.byte_level().encode("x")[0]
    manager.accept_batch({"a": [letter], "b": [], "nobody": [3]})
    masks = manager.grammar_bitmask(["a", "b"])
    assert [bool(masks.bitmask[int(masks.rows_for([i])[0])].any()) for i in ("a", "b")] == [False, True]
    return [*errors, dict(masks.errors)]
