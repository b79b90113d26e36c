"""This process's place among those that work together, and what they tell each other through
torch.distributed.

Every rank holds the same sampler, computes the same global draw, and takes its slots of it. What the ranks
learn goes over as integers (sums of losses) or unchanged (FOL's examples), so that the samplers stay equal on
all ranks, bit for bit, for any number of them. With one rank every method returns what it was given.
"""

from __future__ import annotations

import pickle
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from operator import gt
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from cfol_fast.errors import InputError, TrainingFailed

T = TypeVar("T")
# Seconds after which it is no thread of the process group that holds a tensor.
LONGEST_HOLD = 1.0


def group_size() -> int:
    """How many processes torch's process group has; 1 without one."""
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


class Ranks:
    """This process's place among those that train together: `rank` of `size`.

    process_group: torch.distributed's, instead of the two numbers; with the numbers alone the default group
    sums. Without any of them the process must be alone. world_size=1: draw alone although there is a process
    group.
    """

    def __init__(
        self, rank: int | None = None, world_size: int | None = None, process_group: Any = None
    ) -> None:
        # Whether somebody said how many there are; if not, nobody may have thought of it.
        self.told = world_size is not None or process_group is not None
        self._group = process_group
        if process_group is not None:
            found = dist.get_rank(process_group), dist.get_world_size(process_group)
            if found[0] < 0:
                raise InputError("this process is not in the process_group that the sampler was given")
            if (rank, world_size) not in ((None, None), found):
                raise InputError(
                    f"rank={rank} and world_size={world_size} are not those of the process_group, {found[0]}"
                    f" of {found[1]}: give one or the other"
                )
            rank, world_size = found
        self.size = _whole("world_size", 1 if world_size is None else world_size, 1)
        if (rank is None and self.size > 1) or (rank is not None and not self.told):
            raise InputError(
                f"rank and world_size belong together, got rank={rank} and world_size={world_size}"
            )
        self.rank = _whole("rank", rank or 0, 0)
        if self.rank >= self.size:
            raise InputError(f"rank must be below world_size={self.size}, got {self.rank}")

    def check_told(self) -> None:
        """Refuses to draw the same examples on every rank of a process group of which the sampler was told
        nothing.
        """
        if not self.told and (size := group_size()) > 1:
            raise InputError(
                f"there is a process group of {size} ranks, and each would draw the same examples: make the"
                " sampler with rank=torch.distributed.get_rank(),"
                " world_size=torch.distributed.get_world_size(), or with world_size=1 to draw alone"
            )

    @property
    def is_first(self) -> bool:
        """Rank 0 writes and talks."""
        return self.rank == 0

    def mine(self, whole: Tensor) -> Tensor:
        """This rank's slots of a global draw: the same number for every rank, in the order of the ranks."""
        count = len(whole) // self.size
        return whole[self.rank * count : (self.rank + 1) * count]

    def sum(self, values: Tensor) -> Tensor:
        """The sum over the ranks, in place; exact for integers."""
        if self.size == 1:
            return values
        with _let_go([values]):
            dist.all_reduce(values, group=self._reachable(values))
        return values

    def largest(self, value: Tensor) -> Tensor:
        """The largest over the ranks, in place."""
        if self.size == 1:
            return value
        with _let_go([value]):
            dist.all_reduce(value, dist.ReduceOp.MAX, group=self._reachable(value))
        return value

    def gather(self, values: Tensor) -> list[Tensor]:
        """The values of every rank, in the order of the ranks; all have the same shape."""
        if self.size == 1:
            return [values]
        parts = [torch.empty_like(values) for _ in range(self.size)]
        with _let_go([values, *parts]):
            dist.all_gather(parts, values, group=self._reachable(values))
        return parts

    def wait_for_all(self) -> None:
        """Returns when every rank is here."""
        if self.size > 1:
            dist.barrier(group=self._group)

    def gather_objects(self, value: T) -> list[T]:
        """The plain Python values of every rank, in the order of the ranks, on every rank."""
        if self.size == 1:
            return [value]
        found: list[Any] = [None] * self.size
        dist.all_gather_object(found, value, group=self._group)
        return found

    def from_first(self, work: Callable[[], T]) -> T:
        """What `work` returns on rank 0, which alone does it; an error of it is raised on every rank."""
        if self.size == 1:
            return work()
        outcome: list[Any] = [None, None]
        if self.is_first:
            try:
                outcome[0] = work()
            # Also Stopped and what the system says: every rank must leave.
            except Exception as error:
                outcome[1] = error
        try:
            pickle.loads(pickle.dumps(outcome[1]))
        # An exception of somebody else's that does not travel is told by its words.
        except Exception:
            outcome[1] = RuntimeError(f"{type(outcome[1]).__name__}: {outcome[1]}")
        dist.broadcast_object_list(outcome, group_src=0, group=self._group)
        if outcome[1] is not None:
            raise outcome[1]
        return outcome[0]

    def check_same(self, digest: bytes, what: str) -> None:
        """Fails on every rank, and names them, unless all have the same digest."""
        if self.size == 1:
            return
        gpu = dist.get_backend(self._group) == "nccl"
        mine = torch.tensor(list(digest), dtype=torch.uint8, device="cuda" if gpu else None)
        holders: dict[bytes, list[str]] = {}
        for rank, theirs in enumerate(self.gather(mine)):
            holders.setdefault(bytes(theirs.tolist()), []).append(str(rank))
        if len(holders) > 1:
            groups = " against ".join(", ".join(ranks) for ranks in holders.values())
            raise TrainingFailed(
                f"{what} differs from rank to rank ({groups}): every rank must draw and update equally often,"
                " with the same numbers of examples"
            )

    def _reachable(self, values: Tensor) -> Any:
        """The process group, which must be there and be able to carry these values."""
        if self._group is None and group_size() != self.size:
            raise InputError(
                f"the sampler was told of {self.size} ranks, and the default process group has"
                f" {group_size()}: call torch.distributed.init_process_group first, or pass process_group="
            )
        if dist.get_backend(self._group) == "nccl" and values.device.type == "cpu":
            raise InputError(
                "the process group speaks nccl, which carries only what is on a GPU: make the sampler with"
                " device='cuda', or the group with backend='cpu:gloo,cuda:nccl'"
            )
        return self._group


@contextmanager
def _let_go(tensors: Sequence[Tensor]) -> Iterator[None]:
    """Leaves when the thread of gloo that carried these tensors holds them no more: it may, for milliseconds
    after the call.

    Whoever lets go of a tensor last needs the interpreter, and a thread that needs it while it ends aborts
    the process: a script whose last call is one of ours would fail at its end.
    """
    # On a GPU the tensors are held until the device has used them, by the process group, and nobody waits for
    # that.
    tensors = [tensor for tensor in tensors if tensor.device.type == "cpu"]
    before = [_holders(tensor) for tensor in tensors]
    yield
    end = time.monotonic() + LONGEST_HOLD
    while time.monotonic() < end and any(map(gt, map(_holders, tensors), before)):
        time.sleep(0)


def _holders(tensor: Tensor) -> int:
    """How many hold the tensor in C++: its Python object is one."""
    return int(tensor._use_count())  # type: ignore[attr-defined]


def _whole(name: str, value: Any, least: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise InputError(f"{name} must be a whole number of at least {least}, got {value!r}")
    return value
