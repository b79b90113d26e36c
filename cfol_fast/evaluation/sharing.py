"""One evaluation on many processes: each rank computes whole batches of the division that one process would
make, in turn.

What an attack draws depends on a batch's number and not on who computed the batches before it, so the figures
are those of one process, bit for bit. The ranks meet after each round of batches: there an error of one
becomes an error of all.
"""

from __future__ import annotations

import contextlib
import hashlib
import random
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from cfol_fast.attacks.attack import Attack
from cfol_fast.attacks.pgd import PGD
from cfol_fast.data.source import Batch, Source, every_nth_batch
from cfol_fast.errors import InputError, Stopped, TrainingFailed, one_line
from cfol_fast.evaluation.readers import loader_in
from cfol_fast.frozen import bare, count_attacks, decide_for_all, paused
from cfol_fast.ranks import Ranks


class Round:
    """found: what this rank found in its batch, in plain Python; None without a batch. all: that of every
    rank, after the round.
    """

    def __init__(self) -> None:
        self.found: Any = None
        self.all: list[Any] = []


@contextlib.contextmanager
def one_round(ranks: Ranks) -> Iterator[Round]:
    """A batch on each rank. What is raised in here on one of them is raised on all, at the end."""
    this = Round()
    if ranks.size == 1:
        yield this
        this.all = [this.found]
        return
    problem: Exception | None = None
    try:
        yield this
    except Exception as error:
        problem = error
    outcomes = ranks.gather_objects((this.found, _told(problem, ranks.rank)))
    if problem is not None:
        raise problem
    for _, theirs in outcomes:
        if theirs is not None:
            raise theirs
    this.all = [found for found, _ in outcomes]


def _told(problem: Exception | None, rank: int) -> Exception | None:
    """The problem as the other ranks may know it: not every exception can travel."""
    if problem is None or isinstance(problem, (InputError, TrainingFailed, Stopped)):
        return problem
    return TrainingFailed(f"rank {rank} failed: {type(problem).__name__}: {one_line(problem)}")


def over_batches(
    ranks: Ranks,
    source: Source,
    batch_size: int,
    attacks: Sequence[Any],
    work: Callable[[int, Batch, RandomStates], Any],
    between: Callable[[], None],
) -> Iterator[list[Any]]:
    """Lets `work` compute this rank's batches, given their numbers; what it returns for each is plain Python,
    and not None.

    Yields what the ranks found in each round of batches, in the batches' order. between: called on every rank
    before each round. Of many ranks the first one proves the fast networks of the attacks, on its first
    batch, for all.
    """
    states, number = RandomStates(attacks, ranks), 0
    mine = batches_of_rank(ranks, source, batch_size, attacks)
    waiting: tuple[int, Batch] | None = None
    if ranks.size > 1:
        with one_round(ranks):
            waiting = next(mine, None)
        for one in attacks:
            if isinstance(one, PGD) and one.fast:
                images = None if waiting is None else waiting[1][1].to(one.rng.device)
                decide_for_all(one.model, images, ranks)
    while True:
        with one_round(ranks) as this:
            between()
            number, batch = waiting or next(mine, (number, None))
            waiting = None
            if batch is not None:
                states.go_to(number)
                with paused() if ranks.size > 1 else contextlib.nullcontext():
                    this.found = work(number, batch, states)
        computed = [found for found in this.all if found is not None]
        if not computed:
            break
        states.batches += len(computed)
        yield computed
    states.go_to(states.batches)
    if ranks.size > 1:
        for one in attacks:
            if isinstance(one, PGD) and one.fast:
                count_attacks(one.model, states.batches)


def batches_of_rank(
    ranks: Ranks, source: Source, batch_size: int, attacks: Sequence[Any]
) -> Iterator[tuple[int, Batch]]:
    """The batches that this rank computes, with their numbers.

    An attack that is not ours runs on the first rank alone.

    It may draw from a generator of its own, or learn from batch to batch; with `per_example = True` it says
    that it does not.
    """
    alone = [one for one in attacks if not may_be_shared(one)]
    if ranks.size == 1 or not alone:
        return every_nth_batch(source, batch_size, ranks.rank, ranks.size)
    if not ranks.is_first:
        return iter(())
    name = getattr(alone[0], "__name__", type(alone[0]).__name__)
    warnings.warn(
        f"{name} runs on one of {ranks.size} processes: set per_example = True on it if its result for an"
        " image depends on no other batch",
        stacklevel=2,
    )
    return every_nth_batch(source, batch_size, 0, 1)


class RandomStates:
    """Gives each batch the random numbers that its attacks would draw in one process. batches: of all ranks
    so far.

    Attacks of others draw from the generators that torch, numpy and Python have for everybody, which are
    therefore seeded for each batch.
    """

    def __init__(self, attacks: Sequence[Any], ranks: Ranks) -> None:
        # An attack that is there twice is called twice for each batch.
        self._ours = [one for one in attacks if isinstance(one, Attack)]
        others = [one for one in attacks if not isinstance(one, Attack)]
        self._seed = ranks.from_first(torch.initial_seed) if others else 0
        self._at = self.batches = 0

    def go_to(self, number: int) -> None:
        """To batch `number`, which is then computed."""
        for one in self._ours:
            one.skip(number - self._at)
        self._at = number + 1

    @contextlib.contextmanager
    def of_others(self, attack: Any, number: int, device: torch.device) -> Iterator[None]:
        """Everybody's generators for an attack that is not ours; they are put back afterwards."""
        if isinstance(attack, Attack):
            yield
            return
        gpu, seed = device.type == "cuda", (self._seed + number) % 2**63
        of_python, of_numpy = random.getstate(), np.random.get_state()
        with torch.random.fork_rng([device] if gpu else []):
            torch.default_generator.manual_seed(seed)
            if gpu:
                with torch.cuda.device(device):
                    torch.cuda.manual_seed(seed)
            random.seed(seed)
            np.random.seed(seed % 2**32)
            try:
                yield
            finally:
                random.setstate(of_python)
                np.random.set_state(of_numpy)


def may_be_shared(attack: Any) -> bool:
    """Whether any process may compute any batch under the attack: what it does to an image depends on no
    other batch.
    """
    return isinstance(attack, Attack) or bool(getattr(attack, "per_example", False))


def check_same_work(ranks: Ranks, model: nn.Module, source: Any) -> None:
    """Ranks with different weights or examples would each compute a part of something else."""
    if ranks.size == 1:
        return
    loader = loader_in(source)
    order = source.labels if loader is None else repr(loader.order)
    for what, mine in (("weights", model_fingerprint(model)), ("examples", fingerprint([order]))):
        found = ranks.gather_objects(mine)
        if len(set(found)) > 1:
            others = [str(rank) for rank, theirs in enumerate(found) if theirs != found[0]]
            who = (
                f"ranks {', '.join(others[:-1])} and {others[-1]} have"
                if others[1:]
                else f"rank {others[0]} has"
            )
            raise InputError(
                f"{who} other {what} than rank 0: give every rank the same model and the same examples in the"
                " same order (no DistributedSampler, no shuffling); the evaluation divides them itself"
            )


def fingerprint(parts: Sequence[Tensor | str]) -> str:
    """A hash of names, shapes and bytes."""
    digest = hashlib.sha256()
    for part in parts:
        if isinstance(part, str):
            digest.update(part.encode())
            continue
        value = part.detach().cpu().contiguous()
        digest.update(f"{value.dtype}{tuple(value.shape)}".encode())
        digest.update(value.reshape(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def model_fingerprint(model: nn.Module) -> str:
    weights = bare(model).state_dict()
    return fingerprint([part for name, value in weights.items() for part in (name, value)])
