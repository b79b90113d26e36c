"""What every sampler is: a source of data set indices that may learn from the mistakes made on them.

The trainer draws (`draw`), keeps what the update will need (`ticket`), and after the step reports which
examples were wrong (`observe`). None of the three reads a value back from the device. A draw follows from the
state alone, so ranks that hold the same state compute the same global draw and take their slots of it
(`ranks.py`).
"""

from __future__ import annotations

import hashlib
import itertools
import math
import warnings
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils.data import Sampler

from cfol_fast import ops
from cfol_fast.errors import InputError
from cfol_fast.ranks import Ranks
from cfol_fast.user_input import shorten, whole_number

# A sampler's tickets have the numbers from its own times this.
TICKETS_EACH = 1 << 32
# The latest tickets that may still come back; more than any loader draws ahead.
WAITING = 10_000
_samplers = itertools.count(1)


class Ticket(NamedTuple):
    """What a batch was drawn with: its indices (B,), and what the sampler's `ticket()` said right after its
    draw.

    y: (B,) the batch's labels, where a loader found them. number: of this ticket among all tickets of the
    process; None for one that was made by hand.
    """

    idx: Tensor
    p: Tensor | None
    y: Tensor | None = None
    number: int | None = None


class IndexSampler(Sampler[int], ABC):
    """Base of all samplers; also a torch `Sampler`, for a plain `DataLoader` on the user's own data set.

    As a torch sampler it draws only when the loader asks: what was drawn ahead (at most `chunk` indices) is
    thrown away when an update comes in, so with `num_workers=0` every batch is drawn from the distribution
    after the latest update. A loader with workers prefetches: it asks for `num_workers * prefetch_factor`
    batches before the first is used, and an update is seen that many batches later. Iterating reads indices
    back from the device, as a host loader must.
    """

    chunk = 32
    # Whether it draws otherwise once it is told what was wrong.
    learns = False
    # Whether `hear` wants the errors of a hold-out after an epoch.
    hears_holdout = False
    # Whether `ticket()` has an entry for each drawn example; otherwise it is the same on all ranks.
    tickets_each_example = False

    def __init__(self, size: int, seed: int, device: torch.device | str | None, ranks: Ranks) -> None:
        self.size = whole_number("n, the number of examples,", size, 1)
        self.ranks = ranks
        self.rng = ops.new_rng(seed, device)
        self.fault = ops.new_fault(device)
        self.device = self.rng.device
        self._updates = 0
        # The updates at the start of a loader's latest whole pass, however many loaders there are.
        self.updates_before_pass: int | None = None
        # How many examples this rank asked for.
        self._asked = 0
        # The numbers of the tickets that no update has had; and this sampler's own part of all numbers.
        self._waiting: dict[int, None] = {}
        self._tickets = TICKETS_EACH * next(_samplers)
        # What is wrong with the settings and was not yet said: a warning at the next draw.
        self.unsaid: str | None = None
        self._untold_is_said = False

    def join(self, ranks: Ranks) -> None:
        """Before the first draw: takes its place among the processes that train together."""
        self.ranks = ranks

    @property
    def updates(self) -> int:
        """How often it was told what was wrong, or given a state."""
        return self._updates

    def draw(self, n: int) -> Tensor:
        """The next n indices into the data set: (n,) int64 on the sampler's device; of w ranks each gets its
        n of a draw of n * w.
        """
        n, ranks = whole_number("n", n, 0), self.ranks
        ranks.check_told()
        # A state that was loaded comes from a sampler that has warned.
        if not self._updates:
            self._warn_if_untold()
            self.warn_once()
        idx = self._draw(n * ranks.size)
        self._asked += n
        return idx if ranks.size == 1 else ranks.mine(idx)

    def warn_once(self) -> None:
        """Warns of what is wrong with the settings, on the first rank and once for each sampler."""
        text, self.unsaid = self.unsaid, None
        if text is not None and self.ranks.rank == 0:
            warnings.warn(f"{type(self).__name__}: {text}", stacklevel=3)

    def _warn_if_untold(self) -> None:
        """A learning sampler that nobody tells what was wrong draws as at first.

        `loader` says so itself, in its own words.
        """
        if self._untold_is_said or not self.learns or self._asked <= 2 * len(self):
            return
        self._untold_is_said = True
        if self.updates_before_pass is None:
            self.unsaid = (
                "more than two passes were drawn and nobody told the sampler what was wrong, so p stays as it"
                " was: call sampler.update(y, wrong) after every batch"
            )

    @abstractmethod
    def _draw(self, n: int) -> Tensor:
        """The next n indices for all ranks together."""

    def batches(self, batch_size: int) -> Batches:
        """For `DataLoader(dataset, batch_sampler=sampler.batches(128))`: each batch is one draw, made when
        the loader asks for it.
        """
        return Batches(self, batch_size)

    def ticket(self) -> Tensor | None:
        """What the latest batch was drawn with; pass it to `observe` together with that batch's mistakes,
        however late.
        """
        return None

    def hand_out(self, idx: Tensor) -> Ticket:
        """The ticket of the latest draw, for one update."""
        self._tickets += 1
        self._waiting[self._tickets] = None
        if len(self._waiting) > WAITING:
            del self._waiting[next(iter(self._waiting))]
        return Ticket(idx, self.ticket(), None, self._tickets)

    def take_back(self, ticket: Ticket, y: Tensor, loss: Tensor) -> None:
        """Refuses a ticket that is not of the batch with these labels (B,).

        On a GPU other labels set a flag, which a loader reads.
        """
        number, drawn = ticket.number, len(ticket.idx)
        if number is not None and number // TICKETS_EACH != self._tickets // TICKETS_EACH:
            raise InputError("the ticket is of another sampler: pass the ticket that came with the batch")
        if number is not None and number not in self._waiting:
            raise InputError(
                "the ticket was used for an update before: pass the ticket that came with the batch, and"
                " update once for each batch"
            )
        if y.shape != (drawn,) or loss.shape != (drawn,):
            raise InputError(
                f"the ticket is of a batch of {drawn} examples, the update has labels {tuple(y.shape)} and"
                f" losses {tuple(loss.shape)}: pass the ticket that came with the batch"
            )
        expected = self._labels_of(ticket)
        if expected is not None and not (y.is_meta or expected.is_meta):
            other = (y != expected.to(y.device, non_blocking=True)).any()
            if y.device.type != "cpu":
                self.fault.bitwise_or_(other.to(self.fault) * ops.TICKET_FAULT)
            elif bool(other):
                raise InputError(
                    f"the ticket is of another batch: {int((y != expected.cpu()).sum())} of {drawn} labels"
                    " are not those of its examples; pass the ticket that came with the batch"
                )
        if number is not None:
            del self._waiting[number]

    def update(self, y: Tensor, loss: Tensor, p: Tensor | Ticket | None = None) -> None:
        """Feedback on a batch with labels y: (B,) and losses (B,), in a loop of one's own. p: its ticket."""
        if not isinstance(p, Ticket):
            raise TypeError(f"{type(self).__name__} learns from a loader's ticket: pass p=ticket")
        self.take_back(p, y, loss)
        self.observe(p.idx, y, loss, p.p)

    def _labels_of(self, ticket: Ticket) -> Tensor | None:
        """(B,) the labels that the ticket's batch must have, as far as they are known."""
        return ticket.y

    @abstractmethod
    def observe(self, idx: Tensor, y: Tensor, loss: Tensor, ticket: Tensor | None) -> None:
        """Feedback on a batch: loss: (B,) in [0, 1] or bool, of examples idx: (B,) with labels y: (B,)."""

    def hear(self, error: Tensor, draws: int) -> None:
        """The classes' errors on a hold-out, (k,), after so many draws of all ranks: for `hears_holdout`."""
        raise NotImplementedError

    def weight(self, y: Tensor) -> Tensor | None:
        """The factor of each example's loss: (B,), or None for 1."""
        return None

    @property
    def p(self) -> Tensor | None:
        """The distribution over classes that is drawn from or weighted with: (k,) float64, or None if there
        is none.
        """
        return None

    def outlook(self, draws: int) -> list[str]:
        """What the sampler can do in a run of so many draws, for the start of the run; nothing where it does
        not learn.
        """
        return []

    def review(self, history: list[list[float]]) -> list[str]:
        """What was wrong with its settings, at the end of a run. history: p after every epoch."""
        return []

    @abstractmethod
    def state_dict(self) -> dict[str, Any]:
        """Everything the next draw depends on. An iterator in the middle of a pass is not part of it."""

    @abstractmethod
    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continues exactly where the sampler that made `state` was."""

    def fingerprint(self) -> str:
        """A hash of the state: equal on all ranks, and for any number of them.

        Reads the state back from the device.
        """
        digest = hashlib.sha256()
        for name, value in sorted(self.state_dict().items()):
            for part in value if isinstance(value, list) else [value]:
                said = part.cpu().numpy().tobytes() if isinstance(part, Tensor) else repr(part).encode()
                digest.update(name.encode() + b"=" + said)
        return digest.hexdigest()

    def check_ranks(self) -> None:
        """Fails on every rank, and names them, unless all have the same state; every rank calls it, at each
        epoch's end say.
        """
        digest = hashlib.sha256(f"{self.fingerprint()} {self._asked}".encode()).digest()
        self.ranks.check_same(digest, f"the state of {type(self).__name__}")

    def settings(self) -> dict[str, Any]:
        """What the sampler was made with, for its repr; nothing that is on the device."""
        ranks = self.ranks
        place = {} if ranks.size == 1 else {"rank": ranks.rank, "world_size": ranks.size}
        return {"n": self.size, **place}

    def __repr__(self) -> str:
        said = ", ".join(f"{name}={value!r}" for name, value in self.settings().items())
        return f"{type(self).__name__}({said}, device={str(self.device)!r})"

    def __len__(self) -> int:
        """The draws of one pass on this rank: all ranks together draw as many as there are examples."""
        return -(-self.size // self.ranks.size)

    def __iter__(self) -> Iterator[int]:
        remaining = len(self)
        while remaining:
            pending = self.draw(min(self.chunk, remaining)).tolist()
            updates = self._updates
            for index in pending:
                yield index
                remaining -= 1
                if self._updates != updates:
                    break


class Batches(Sampler[list[int]]):
    """A sampler's pass in batches, the last one possibly smaller.

    With workers a loader asks early, as it does for single indices.
    """

    def __init__(self, sampler: IndexSampler, batch_size: int) -> None:
        self.sampler, self.batch_size = sampler, whole_number("batch_size", batch_size, 1)

    def __len__(self) -> int:
        return -(-len(self.sampler) // self.batch_size)

    def __iter__(self) -> Iterator[list[int]]:
        for first in range(0, len(self.sampler), self.batch_size):
            yield self.sampler.draw(min(self.batch_size, len(self.sampler) - first)).tolist()


def bandit_loss(loss: Tensor) -> Tensor:
    """Losses as the ops take them: float32 or bool."""
    check_tensor("loss", loss)
    return loss if loss.dtype is torch.float32 or loss.dtype is torch.bool else loss.to(torch.float32)


def check_tensor(name: str, value: Any) -> None:
    if not isinstance(value, Tensor):
        raise TypeError(
            f"{name} must be a tensor of shape (B,), one entry for each example, got {shorten(value)}"
        )


def checked_gamma(gamma: float) -> float:
    if isinstance(gamma, bool) or not isinstance(gamma, (int, float)) or not 0 < gamma <= 1:
        raise InputError(f"gamma must be in (0, 1], got {gamma!r}")
    return float(gamma)


# Distributions over the classes in a state: how long they are is how many classes there are.
OF_CLASSES = ("w", "base", "p")
# What says with which probability something was drawn.
PROBABILITIES = ("base", "p", "drawn")


def checked_state(state: Any, own: dict[str, Any]) -> dict[str, Any]:
    """`state`, if it can be that of the sampler whose own state is `own`.

    Nothing has been changed where it is refused.
    """
    kind, size = own["kind"], own["size"]
    if not isinstance(state, Mapping):
        raise InputError(f"the state of a sampler is a dict, got {shorten(state)}")
    if state.get("kind") != kind:
        raise InputError(f"the state is that of a {state.get('kind')!r} sampler, not of a {kind!r} sampler")
    missing = [name for name in own if name not in state and name != "drawn"]
    if missing:
        raise InputError(
            f"the state has no {', '.join(missing)}: it is damaged, or no state of a {kind!r} sampler"
        )
    if state["size"] != size:
        raise InputError(
            f"the state belongs to a data set with {state['size']} examples, this one has {size}"
        )
    for name in OF_CLASSES:
        mine, theirs = own.get(name), state.get(name)
        if isinstance(mine, Tensor) and isinstance(theirs, Tensor) and theirs.shape != mine.shape:
            raise InputError(f"the state has {theirs.numel()} classes, this sampler has {mine.numel()}")
    for name, mine in own.items():
        if (wrong := _not_like(name, mine, state.get(name))) is not None:
            raise InputError(f"the state's {name} {wrong}: it is damaged")
    return dict(state)


def _not_like(name: str, mine: Any, theirs: Any) -> str | None:
    """Why a part of a state cannot take the place of `mine`."""
    if isinstance(mine, list):
        if not isinstance(theirs, (list, tuple)) or len(theirs) != len(mine):
            return f"must be {len(mine)} tensors, got {shorten(theirs)}"
        return next(filter(None, (_not_like(name, *pair) for pair in zip(mine, theirs, strict=True))), None)
    if isinstance(mine, Tensor):
        # Nothing may have been drawn yet.
        if name == "drawn" and theirs is None:
            return None
        # An empty one stands for any length.
        shape = (-1,) if not mine.numel() else tuple(mine.shape)
        fits = isinstance(theirs, Tensor) and (
            tuple(theirs.shape) == shape or (shape == (-1,) and theirs.dim() == 1)
        )
        if not fits or theirs.dtype != mine.dtype:
            got = (
                f"{theirs.dtype} of shape {tuple(theirs.shape)}"
                if isinstance(theirs, Tensor)
                else shorten(theirs)
            )
            return f"must be {mine.dtype} of shape {shape}, got {got}"
        if theirs.is_meta:
            return None
        if not bool(theirs.isfinite().all()):
            return "is not finite"
        if name in PROBABILITIES and not bool(((theirs > 0) & (theirs <= 1)).all()):
            return "must be probabilities in (0, 1]"
        return "must not be negative" if name == "rng" and bool((theirs < 0).any()) else None
    if name == "reweight":
        return None if isinstance(theirs, bool) else f"must be True or False, got {shorten(theirs)}"
    if name in ("eta", "gamma"):
        fine = isinstance(theirs, (int, float)) and not isinstance(theirs, bool) and 0 < theirs < math.inf
        if not fine or (name == "gamma" and theirs > 1):
            return f"must be a positive number{' of at most 1' * (name == 'gamma')}, got {shorten(theirs)}"
    return None
