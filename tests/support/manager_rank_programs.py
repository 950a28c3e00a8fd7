"""Programs of ShardedManager for the ranks of ranks.py. Results are plain data; a rank that raises fails the test."""

from __future__ import annotations

import contextlib
import random
import time
from typing import Any

import numpy as np
import tokenizers_on_the_spot
import torch

import structout
from structout.errors import CollectiveError

CONSTRAINTS: list[dict[str, Any]] = [
    {"regex": "[a-c]{2,5}"},
    {"choice": ["yes", "no", "maybe"]},
    {"json": {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}},
    {"regex": "[0-9]+"},
    {"regex": "(unclosed"},  # fails
    {"json_object": True},
    {"grammar": 'root ::= "ab" root | "c"'},
]


def _manager() -> structout.StructuredOutputManager:
    tokenizer = tokenizers_on_the_spot.byte_level()
    return structout.StructuredOutputManager(tokenizer, vocab_size=len(tokenizer) + 3)


def _settle(manager: structout.ShardedManager, request_ids: list[str]) -> dict[str, str]:
    """Poll until no request waits. What all ranks know of each then."""
    deadline = time.monotonic() + 30
    while any(manager.status(i) is structout.GrammarStatus.WAITING for i in request_ids):
        assert time.monotonic() < deadline
        manager.poll_ready()
    return {i: manager.status(i).value for i in request_ids}


def serve_together(rank: int, num_requests: int, seed: int) -> dict[str, Any]:
    """Steps with drafts, forks, finishes; each step's masks compared with those of a manager that has all requests."""
    rng = random.Random(seed)  # the same on all ranks
    sharded, whole = structout.ShardedManager(_manager()), _manager()
    ids = [f"r{i}" for i in range(num_requests)]
    for i, request_id in enumerate(ids):
        params = structout.StructuredOutputsParams(**CONSTRAINTS[i % len(CONSTRAINTS)])
        assert sharded.add_request(request_id, params) is structout.GrammarStatus.WAITING
        whole.add_request(request_id, params)
    statuses = _settle(sharded, ids)
    for request_id in ids:
        with contextlib.suppress(structout.GrammarError):
            whole.wait_ready(request_id, 30)
    assert statuses == {i: whole.status(i).value for i in ids}
    num_rows = 0
    for step in range(25):
        drafts = {i: [rng.randrange(len(CONSTRAINTS) * 40) for _ in range(rng.randrange(3))] for i in ids if step % 2}
        ours = sharded.grammar_bitmask([*ids, "unknown"], drafts)
        theirs = whole.grammar_bitmask([*ids, "unknown"], drafts)
        _assert_same_masks(ours, theirs, ids)
        num_rows += len(ours.bitmask)
        if step % 5 == 4:
            shard = sharded.grammar_bitmask_shard(ids, drafts)
            gathered = structout.distributed.gather_device_masks(shard, ids, "cpu")
            again = structout.DeviceMasks.of(whole.grammar_bitmask(ids, drafts), ids, "cpu")
            for ours_row, row in zip(gathered.rows.tolist(), again.rows.tolist(), strict=True):
                assert (ours_row < 0) == (row < 0)
                assert row < 0 or torch.equal(gathered.bitmask[ours_row], again.bitmask[row])
        for request_id in ids:
            if whole.status(request_id) is not structout.GrammarStatus.READY:
                continue
            assert sharded.is_terminated(request_id) == whole.is_terminated(request_id)
            row = int(theirs.rows_for([request_id])[0])
            if row >= 0 and rng.random() < 0.8:
                allowed = structout.unpack_bitmask(torch.from_numpy(theirs.bitmask[row]), whole.vocabulary.size)
                token = rng.choice(allowed.flatten().nonzero().flatten().tolist())
                sharded.accept_tokens(request_id, [token])
                assert whole.accept_tokens(request_id, [token])
        if step == 8:
            sharded.fork("r0", "fork")
            whole.fork("r0", "fork")
            ids.append("fork")
        if step == 12:
            for manager in (sharded, whole):
                manager.finish_request("r1")
                manager.finish_request("nobody")
            ids.remove("r1")
            again_params = structout.StructuredOutputsParams(regex="x*")
            sharded.add_request("r1", again_params)
            whole.add_request("r1", again_params)
            ids.append("r1")
            _settle(sharded, ids)
            whole.wait_ready("r1", 30)
    return {"owners": [sharded.owner(i) for i in ids], "rows": num_rows, "error": str(sharded.error("r4"))}


def _assert_same_masks(ours: structout.MaskBatch, theirs: structout.MaskBatch, ids: list[str]) -> None:
    for request_id in ids:
        i, j = ours.request_ids.index(request_id), theirs.request_ids.index(request_id)
        mine = ours.bitmask[ours.row_indptr[i] : ours.row_indptr[i + 1]]
        expected = theirs.bitmask[theirs.row_indptr[j] : theirs.row_indptr[j + 1]]
        assert np.array_equal(mine, expected), request_id
        assert ours.num_acceptable_drafts[i] == theirs.num_acceptable_drafts[j]
    assert ours.errors.keys() == theirs.errors.keys()


def think_first(rank: int) -> list[bool]:
    """Whether a text is complete: while its thinking is free, while it is constrained, and at its end."""
    tokenizer = tokenizers_on_the_spot.byte_level()
    manager = structout.ShardedManager(_manager())
    (end_of_thinking,) = tokenizer.encode("<tool_call>")
    params = structout.StructuredOutputsParams(choice=["a"])
    manager.add_request("t", params, constrain_after=[end_of_thinking])
    _settle(manager, ["t"])
    seen = []
    for token in (tokenizer.encode("z")[0], end_of_thinking, tokenizer.encode("a")[0], tokenizer.eos_token_id, None):
        manager.grammar_bitmask(["t"])
        seen.append(manager.is_terminated("t"))
        if token is not None:
            manager.accept_tokens("t", [token])
    manager.rollback("t", 1)
    manager.grammar_bitmask(["t"])
    return [*seen, manager.is_terminated("t")]


def err_on_one_rank(rank: int) -> list[str]:
    """What only the owner can find out is told to all, and none of it breaks the group."""
    manager = structout.ShardedManager(_manager())
    said = []
    manager.add_request("bad", structout.StructuredOutputsParams(regex="a"), stop_token_ids=5)
    for request_id in ("a", "b"):
        manager.add_request(request_id, structout.StructuredOutputsParams(regex=f"{request_id}*"))
    said.append(_settle(manager, ["bad", "a", "b"])["bad"])
    closed = manager.grammar_bitmask(["bad"])
    assert closed.bitmask.shape[0] == 1
    assert not closed.bitmask.any()
    assert "TypeError: 'int' object is not iterable" in str(manager.error("bad"))
    assert "TypeError: 'int' object is not iterable" in closed.errors["bad"]
    for call in (
        lambda: manager.grammar_bitmask(["a", "b", "a"]),
        lambda: manager.grammar_bitmask(["a", "b"], {"a": 5}),
        lambda: manager.fork("bad", "c"),
    ):
        try:
            call()
        except Exception as error:
            said.append(type(error).__name__)
        else:
            raise AssertionError("nobody noticed")
    manager.rollback("a", 3)
    letter = tokenizers_on_the_spot.byte_level().encode("x")[0]
    manager.accept_tokens("b", [letter])
    manager.fork("b", "forked")
    masks = manager.grammar_bitmask(["a", "b", "forked"])
    said += [f"{request_id}: {masks.errors[request_id]}" for request_id in sorted(masks.errors)]
    for request_id in ("bad", "a", "b", "forked"):
        manager.finish_request(request_id)
    manager.add_request("a", structout.StructuredOutputsParams(regex="a*"))
    return [*said, _settle(manager, ["a"])["a"]]


def mix_whole_and_shard(rank: int) -> str:
    manager = structout.ShardedManager(_manager())
    manager.add_request("a", structout.StructuredOutputsParams(regex="a*"))
    _settle(manager, ["a"])
    try:
        manager.grammar_bitmask(["a"]) if rank == 0 else manager.grammar_bitmask_shard(["a"])
    except CollectiveError as error:
        return str(error)
    raise AssertionError("nobody noticed")


def share_constraints(rank: int) -> list[int]:
    """The owners of eight different constraints, then of eight equal ones."""
    manager = structout.ShardedManager(_manager())
    for i in range(16):
        manager.add_request(f"r{i}", structout.StructuredOutputsParams(regex=f"x{min(i, 8)}"))
    return [manager.owner(f"r{i}") for i in range(16)]


def serve_apart(rank: int, odd_one: int, difference: str) -> str:
    """One rank does something that the others do not; what this rank is told at the next step."""
    manager = structout.ShardedManager(_manager())
    ids = ["a", "b", "c"]
    for request_id in ids:
        manager.add_request(request_id, structout.StructuredOutputsParams(regex="[ab]*"))
    _settle(manager, ids)
    masks = manager.grammar_bitmask(ids)
    allowed = structout.unpack_bitmask(torch.from_numpy(masks.bitmask[:1]), 400).flatten().nonzero().flatten().tolist()
    if rank == odd_one:
        if difference == "aborts":
            manager.finish_request("b")
        elif difference == "draws another token":
            manager.accept_tokens("c", [allowed[1]])
        elif difference == "asks for others":
            ids = ["a", "b"]
    if difference == "draws another token" and rank != odd_one:
        manager.accept_tokens("c", [allowed[0]])
    try:
        manager.grammar_bitmask(ids)
    except CollectiveError as error:
        return str(error)
    raise AssertionError("nobody noticed")


def refuse_tokens(rank: int) -> list[dict[str, str]]:
    """A token that the grammar does not allow, seen by its owner alone, told to all."""
    manager = structout.ShardedManager(_manager())
    for request_id in ("a", "b"):
        manager.add_request(request_id, structout.StructuredOutputsParams(regex="[0-9]*"))
    _settle(manager, ["a", "b"])
    told = [dict(manager.grammar_bitmask(["a", "b"]).errors)]
    letter = tokenizers_on_the_spot.byte_level().encode("x")[0]
    manager.accept_batch({"a": [letter], "b": [], "nobody": [3]})
    masks = manager.grammar_bitmask(["a", "b"])
    assert [bool(masks.bitmask[int(masks.rows_for([i])[0])].any()) for i in ("a", "b")] == [False, True]
    return [*told, dict(masks.errors)]
