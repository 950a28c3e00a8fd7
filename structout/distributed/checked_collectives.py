"""CheckedCollectives exchanges CPU tensors among the ranks of a process group.

Before each exchange the ranks compare their calls, so that a rank that differs or has
failed raises on all of them, and no tensor is sent to a rank that expects another.
"""

import contextlib
import hashlib
import weakref
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from structout.distributed.cuda_communicator import CollectiveCommunicator, all_gather_object
from structout.distributed.process_groups import resolve_group
from structout.distributed.vocab_shard import VocabShard, vocab_size_from
from structout.errors import CollectiveError


class CheckedCollectives(CollectiveCommunicator):
    """Uses the group's collectives for the call that :meth:`begin` has named.

    Every exchange raises a CollectiveError if a rank is lost, reports a failure, or has
    begun another call. If a rank is lost, further exchanges raise at once. Otherwise
    all ranks raise, and the group can still be used.
    """

    def __init__(self, group: dist.ProcessGroup):
        super().__init__(group)
        self._step = 0
        self._call: dict[str, object] = {}
        self._local_columns: tuple[int, int] | None = None
        self._breakdown: str | None = None  # why the group cannot be used any more

    def begin(
        self, operation: str, expected_equal: Mapping[str, object], columns: tuple[int, int] | None = None
    ) -> None:
        """Begin a call of an op.

        Args:
            operation: the op's name.
            expected_equal: by name, what must be equal on all ranks.
            columns: this rank's first column and number of columns, if the ranks
                together must hold a vocabulary.
        """
        self._call = {"operation": operation, **expected_equal}
        self._local_columns = columns

    def all_gather(self, local: torch.Tensor, expected_equal: tuple[object, ...], fill_on_error: int) -> torch.Tensor:
        self._compare_calls()
        with self._exchange():
            return super().all_gather(local, expected_equal, fill_on_error)

    def gather_owned_rows(self, shard: VocabShard, vocab_size: int) -> tuple[torch.Tensor, torch.Tensor | None]:
        with self._exchange():
            return super().gather_owned_rows(shard, vocab_size)

    def all_columns(self, local_columns: tuple[int, int]) -> list[tuple[int, int]]:
        return [call["columns"] for call in self._compare_calls()]

    def report_failure(self, operation: str, error: Exception) -> None:
        """Take part in the other ranks' current or next exchange, to make it fail."""
        if self._breakdown is None:
            self._call = {"operation": operation}
            self._all_gather_calls({"failure": f"{type(error).__name__}: {error}"})

    def _compare_calls(self) -> list[dict[str, Any]]:
        """Return the calls of all ranks, in rank order."""
        calls = self._all_gather_calls(self._call | {"columns": self._local_columns})
        failed = tuple(rank for rank, call in enumerate(calls) if "failure" in call)
        if failed:
            reason = calls[failed[0]]["failure"]
            raise self._error(f"rank {failed[0]} failed at step {self._step}: {reason}", failed)
        for name in self._call:
            values = [call.get(name) for call in calls]
            differing = tuple(rank for rank, value in enumerate(values) if value != values[0])
            if differing:
                raise self._error(
                    f"ranks disagree on the {name}: {', '.join(map(str, values))}, in rank order. All ranks must make "
                    "the same calls, in the same order, with the same rows, dtypes, masks and parameters",
                    differing,
                )
        if self._local_columns is not None:
            try:
                vocab_size_from(tuple(call["columns"] for call in calls))
            except ValueError as error:
                raise self._error(str(error)) from None
        return calls

    def _all_gather_calls(self, local_call: dict[str, Any]) -> list[dict[str, Any]]:
        self._step += 1
        with self._exchange():
            return all_gather_object(self._live_group(), local_call)

    @contextlib.contextmanager
    def _exchange(self) -> Iterator[None]:
        if self._breakdown is not None:
            raise self._error(f"the group broke down earlier: {self._breakdown}")
        try:
            yield
        except CollectiveError:
            raise
        except BaseException as error:  # such as KeyboardInterrupt: the others may have gone on
            self._breakdown = str(error).partition("\n")[0] or repr(error)
            if not isinstance(error, RuntimeError):
                raise
            problem = f"a rank has died or did not answer in time ({self._breakdown}). Make a new process group"
            raise self._error(problem) from error

    def _error(self, problem: str, at_fault: tuple[int, ...] = ()) -> CollectiveError:
        return CollectiveError(f"{self._call['operation']}: {problem}", self.rank, self._step, at_fault)


_of_groups: "weakref.WeakKeyDictionary[dist.ProcessGroup, CheckedCollectives]" = weakref.WeakKeyDictionary()


def checked_collectives(group_name: str) -> CheckedCollectives:
    """Return the communicator of the process group with that ``group.group_name``.

    Raises:
        ValueError: there is no such group, or it has no backend for CPU tensors.
    """
    group = resolve_group(group_name)
    if group not in _of_groups:
        try:
            group._get_backend(torch.device("cpu"))
        except RuntimeError as error:
            raise ValueError(
                f"the process group {group_name!r} has no backend for CPU tensors; make it with backend='gloo', or "
                "'cpu:gloo,cuda:nccl'"
            ) from error
        _of_groups[group] = CheckedCollectives(group)
    return _of_groups[group]


def checksum_tensors(*tensors: torch.Tensor | None) -> str:
    """Return a text that depends on the dtypes, shapes and contents of CPU tensors."""
    digest = hashlib.blake2b(digest_size=8)
    for tensor in tensors:
        if tensor is None:
            digest.update(b"none")
            continue
        digest.update(f"{tensor.dtype}{list(tensor.shape)}".encode())
        digest.update(np.ascontiguousarray(tensor.numpy()).data)
    return digest.hexdigest()
