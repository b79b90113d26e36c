"""The processes of one job: which of them this one is, and the group they form, as torchrun starts them.

`with processes.joined(device) as ranks:` makes this process part of its job; alone it is rank 0 of 1 and
nothing is started. Who needs to know later asks `processes.ranks()`: `.rank`, `.size`, `.is_first` (rank 0,
the one that writes and talks), and the sums, gathers and broadcasts of `cfol_fast.ranks.Ranks`. All ranks
must ask for those equally often and in the same order.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from cfol_fast.errors import InputError, TrainingFailed

if TYPE_CHECKING:
    from cfol_fast.ranks import Ranks

# Seconds that a rank waits for the others before it takes one of them for lost.
PATIENCE = 600.0
RESUMED = "the last checkpoint stays: --resume=auto continues"
# What torch.distributed says when a rank does not answer, and when one is gone.
HANGS = ("Timed out", "timed out", "timeout")
GONE = (
    "Connection closed",
    "Connection reset",
    "Broken pipe",
    "connection was closed",
    "remote process exited",
)
# Seconds that the rank that reports a rank which hangs waits for the others to say that they wait too.
ASKING_SECONDS = 2.0

_store: Any = None
# Whether this process is the one that says how the run ended; None: that was not asked yet.
_has_the_word: bool | None = None


def group_size() -> int:
    """How many processes torch's process group has; 1 without one."""
    # A process group needs torch; the command line asks before it has loaded that.
    if "torch.distributed" not in sys.modules:
        return 1
    from cfol_fast import ranks

    return ranks.group_size()


def rank_and_size() -> tuple[int, int]:
    """This process's number and how many there are, as torchrun says.

    (0, 1): alone. What cannot be is refused: it would run twice.
    """
    return _place("RANK", "WORLD_SIZE")


def _place(number: str, how_many: str) -> tuple[int, int]:
    """A number below how many there are, from two variables; without them 0 of 1."""
    size, rank = _whole(how_many, 1, 1), _whole(number, 0, 0)
    if rank >= size:
        said = f"{how_many} is {size}" if os.environ.get(how_many) else f"{how_many} is not set"
        raise InputError(
            f"{number}={rank} is no number of a process: {said}, and numbers go from 0 to {how_many} - 1;"
            " start the processes with torchrun, or unset both"
        )
    return rank, size


def _whole(name: str, least: int, default: int) -> int:
    text = os.environ.get(name, "")
    if not text:
        return default
    if not (text.isascii() and text.isdecimal()) or int(text) < least:
        raise InputError(
            f"{name} must be a whole number of at least {least}, as torchrun writes it, got {text!r}; unset"
            " it to run one process"
        )
    return int(text)


def count() -> int:
    """How many processes the job has, also before they have joined."""
    return max(rank_and_size()[1], group_size())


def local_rank() -> int:
    """This process's number on its machine: that of its GPU."""
    # Not every launcher says how many there are on a machine.
    if not os.environ.get("LOCAL_WORLD_SIZE"):
        return _whole("LOCAL_RANK", 0, 0)
    return _place("LOCAL_RANK", "LOCAL_WORLD_SIZE")[0]


def local_count() -> int:
    """How many processes of the job are on this machine."""
    return _whole("LOCAL_WORLD_SIZE", 1, 1)


def refuse_many(what: str) -> None:
    """Stops `what`, which would be done again by each of several processes."""
    size = count()
    if size > 1:
        raise InputError(
            f"{what} runs in one process so far, and {size} were started: each would do the same work again;"
            " start one, without torchrun (a training loop of your own may have many: docs/own-loop.md)"
        )


def ranks() -> Ranks:
    """This process's place in its group; without a group it is alone."""
    from cfol_fast.ranks import Ranks

    if group_size() == 1:
        return Ranks(0, 1)
    import torch.distributed as dist

    return Ranks(dist.get_rank(), dist.get_world_size())


@contextmanager
def joined(device: str = "auto", patience: float = PATIENCE, goes_on: str = RESUMED) -> Iterator[Ranks]:
    """This process in the group of its job: gloo between CPUs, nccl between GPUs.

    One that exists already is used, and stays.

    device: "cpu" needs no nccl. patience: seconds that a rank waits for another one. goes_on: what a message
    says of continuing.
    """
    global _store, _has_the_word
    rank, size = rank_and_size()
    if size == 1 or group_size() > 1:
        yield ranks()
        return
    if not {"MASTER_ADDR", "MASTER_PORT"} <= os.environ.keys():
        raise InputError(
            f"WORLD_SIZE={size} says that there are {size} processes, but not where they meet: start them"
            " with torchrun, or unset WORLD_SIZE"
        )
    if not os.environ.get("RANK"):
        raise InputError(
            f"WORLD_SIZE={size} says that there are {size} processes, and RANK is not set, so each would be"
            " the first: start them with torchrun"
        )
    import torch
    import torch.distributed as dist

    # Loaded while there is a group (DistributedDataParallel does so), its default arguments would keep that
    # group and its threads for good, and a thread that meets the interpreter's end aborts the process.
    import torch.distributed.nn

    from cfol_fast.machine import why_no_cuda

    gpus = device != "cpu" and why_no_cuda() is None
    if gpus:
        if local_rank() >= (found := torch.cuda.device_count()):
            raise InputError(
                f"each process needs a GPU of its own, and this machine has {found}: start at most {found}"
                f" here, got at least {local_rank() + 1}, or take --device cpu"
            )
        torch.cuda.set_device(local_rank())
    with told_in_words(patience, goes_on):
        store, rank, size = next(dist.rendezvous("env://", rank, size, timeout=timedelta(seconds=patience)))
        _has_the_word = None
        _store = dist.PrefixStore(_name_of_this_start(store, rank, size, patience), store)
        dist.init_process_group(
            "cpu:gloo,cuda:nccl" if gpus else "gloo",
            store=_store,
            rank=rank,
            world_size=size,
            timeout=timedelta(seconds=patience),
        )
    try:
        with told_in_words(patience, goes_on):
            yield ranks()
            # Nobody leaves while another one still needs it.
            dist.barrier()
    except Exception as error:
        if not isinstance(error, RankLost):
            # Before the others see that this process is gone: the cause is said, not what follows from it.
            _has_the_word = _ask_for_the_word()
        raise
    finally:
        with suppress(RuntimeError):
            dist.destroy_process_group()


def _name_of_this_start(store: Any, rank: int, size: int, patience: float) -> str:
    """A name that all processes of this start know and no earlier one had: torchrun's store, with what is in
    it, outlives a restart.

    Each process leaves a number of its own. The first names the start by all that it finds; a number that an
    earlier start left is replaced sooner or later, and the name with it. Once every process has found its own
    number in the name, the name holds.
    """
    import hashlib
    import uuid

    mine, end = uuid.uuid4().hex, time.monotonic() + patience
    store.set(f"cfol-fast/hello/{rank}", mine)
    while time.monotonic() < end:
        if rank == 0:
            seen = [store.get(f"cfol-fast/hello/{other}").decode() for other in range(size)]
            name = hashlib.sha256(" ".join(seen).encode()).hexdigest()
            store.set("cfol-fast/name", " ".join([name, *seen]))
            if all(store.check([f"cfol-fast/{name}/{other}"]) for other in range(1, size)):
                store.set(f"cfol-fast/{name}/holds", "1")
                return name
        else:
            name, *seen = store.get("cfol-fast/name").decode().split()
            if len(seen) == size and seen[rank] == mine:
                store.set(f"cfol-fast/{name}/{rank}", "1")
                if store.check([f"cfol-fast/{name}/holds"]):
                    return name
        time.sleep(0.01)
    raise RuntimeError("timed out while the processes of the job were meeting")


class RankLost(TrainingFailed):
    """Another rank hangs or is gone."""


@contextmanager
def told_in_words(patience: float, goes_on: str = RESUMED) -> Iterator[None]:
    """What torch.distributed says of a rank that hangs, or is gone, as a sentence. goes_on: what is left, and
    how to continue.
    """
    try:
        yield
    except RuntimeError as error:
        said = str(error)
        if not (type(error).__name__.startswith("Dist") or "gloo" in said):
            raise
        if any(words in said for words in HANGS):
            raise RankLost(
                f"{_who_hangs()} did not answer within {patience:g} s, so the run ends; {goes_on} (--patience"
                " SECONDS waits longer)"
            ) from error
        if any(words in said for words in GONE):
            raise RankLost(
                "another process of the run is gone (killed, perhaps for lack of memory), so this one ends;"
                f" {goes_on}"
            ) from error
        raise


def speaks_first() -> bool:
    """Whether this is the first rank that has something to say about the end of the run: one message is
    enough.

    The others fail for the same reason, or because this one did. Without a store to ask, rank 0 speaks.
    """
    return _ask_for_the_word() if _has_the_word is None else _has_the_word


def _ask_for_the_word() -> bool:
    if _store is None:
        try:
            # Processes that were given no place to meet may each be alone.
            return rank_and_size()[0] == 0 or not {"MASTER_ADDR", "MASTER_PORT"} <= os.environ.keys()
        # What is wrong with it is what there is to say.
        except InputError:
            return True
    with suppress(RuntimeError):
        return bool(_store.add("said", 1) == 1)
    # Whoever holds the store is gone.
    return False


def _who_hangs() -> str:
    """The ranks that do not wait, by their numbers."""
    rank, size = rank_and_size()
    if _store is None:
        # The group is not one of ours.
        return "another rank"
    with suppress(RuntimeError):
        _store.set(f"waits/{rank}", "1")
        missing = []
        for other in range(size):
            try:
                _store.wait([f"waits/{other}"], timedelta(seconds=ASKING_SECONDS))
            except RuntimeError:
                missing.append(str(other))
        if missing:
            return f"rank {', '.join(missing)}"
    return "another rank"
