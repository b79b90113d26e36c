"""A sampler that learns in somebody else's training loop: it is told of every batch, and says how the classes
fare.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from cfol_fast import ops
from cfol_fast.errors import InputError
from cfol_fast.ranks import Ranks
from cfol_fast.sampling import IndexSampler, Ticket
from cfol_fast.sampling.index_sampler import bandit_loss

# Beyond that many classes a curve for each would drown a log: only the largest p is logged.
MOST_CURVES = 100


class LearningSampler:
    """class_names: for the logged figures; without them classes have numbers."""

    def __init__(self, sampler: IndexSampler, class_names: Sequence[str] | None = None) -> None:
        if not isinstance(sampler, IndexSampler):
            raise TypeError(f"the sampler must be one of cfol_fast.sampling, got {type(sampler).__name__}")
        self.sampler = sampler
        self.k: int | None = getattr(sampler, "k", None)
        names = range(self.k or 0) if class_names is None else class_names
        self.names = [str(name).replace("/", "-") for name in names]
        if self.k is not None and len(self.names) != self.k:
            raise InputError(f"there are {len(self.names)} class names for the sampler's {self.k} classes")
        # How many batches it was told of.
        self.heard = 0
        self._tally = ops.new_tally(self.k or 1, sampler.device)

    def join(self, rank: int, size: int) -> None:
        """The loop has `size` processes and this is one of them; a sampler that was told so itself stays as
        it is.
        """
        if not self.sampler.ranks.told:
            self.sampler.ranks = Ranks(rank, size)

    def hear(self, y: Tensor, wrong: Tensor, ticket: Ticket) -> None:
        """y: (B,) labels; wrong: (B,) bool or in [0, 1]; ticket: what the batch was drawn with."""
        self.heard += 1
        device = self.sampler.device
        y, wrong = y.to(device), bandit_loss(wrong.detach().to(device))
        p = None if ticket.p is None else ticket.p.to(device)
        self.sampler.update(y, wrong, p=ticket._replace(idx=ticket.idx.to(device), p=p))
        if self.k is not None:
            ops.class_tally_(self._tally, y, wrong, self.sampler.fault)

    def figures(self) -> dict[str, float]:
        """Of the examples since the last call, on all ranks: the worst class and its accuracy; and p.

        Every rank asks at the same time.
        """
        if self.k is None:
            return {}
        counts, errors = ops.read_tally(self.sampler.ranks.sum(self._tally.clone()))
        self._tally.zero_()
        found: dict[str, float] = {}
        seen = {
            c: 1 - e / n for c, (e, n) in enumerate(zip(errors.tolist(), counts.tolist(), strict=True)) if n
        }
        if seen:
            worst = min(seen, key=seen.__getitem__)
            found |= {"worst_class": float(worst), "worst_class_accuracy": seen[worst]}
        p = self.sampler.p
        if p is not None:
            shares = p.tolist()
            found["p/largest"] = max(shares)
            if self.k <= MOST_CURVES:
                found |= {f"p/{name}": share for name, share in zip(self.names, shares, strict=True)}
        return found
