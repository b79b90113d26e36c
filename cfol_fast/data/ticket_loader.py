"""`loader`: a data set of one's own, drawn by one of our samplers, in a training loop of one's own.

Every batch comes with the ticket that drew it, so that the sampler's update stays unbiased however early the
batch was drawn. torch's
`DataLoader` reads the examples; which ones and when they are drawn is decided here, and does not depend on
its workers.
"""

from __future__ import annotations

import warnings
from collections import deque
from collections.abc import Iterator
from typing import Any

from torch.utils.data import DataLoader, IterableDataset

from cfol_fast.data.numbered import Asked, Delivered, labels_in, numbered_batches, whole_numbers
from cfol_fast.errors import InputError
from cfol_fast.ops import fault_messages
from cfol_fast.sampling.index_sampler import IndexSampler, Ticket

# Enough for four workers, and few enough to be nothing beside the steps in which a bandit's p changes.
LAG = 4
# What a DataLoader takes and this one has another word for, or no use.
DECIDED = "the sampler decides which examples come, and in which order; leave it out"
OTHERS = {
    "num_workers": "the number of processes is workers= here",
    "prefetch_factor": "how many batches are drawn ahead is lag= here",
    "shuffle": DECIDED,
    "batch_sampler": DECIDED,
}


class TicketLoader:
    """One pass: as many draws as the data set has examples. Made by `loader`."""

    def __init__(
        self,
        dataset: Any,
        sampler: IndexSampler,
        batch_size: int,
        workers: int,
        lag: int,
        drop_last: bool,
        options: dict[str, Any],
    ) -> None:
        self.dataset, self.sampler, self.batch_size, self.drop_last = dataset, sampler, batch_size, drop_last
        self.workers, self.lag, self.options = workers, lag, options
        # A misspelt option is refused now, not at the first batch.
        self._reader(deque())

    def __len__(self) -> int:
        return -(-self._draws() // self.batch_size)

    def _draws(self) -> int:
        """How many examples a pass draws."""
        n = len(self.sampler)
        return n - n % self.batch_size if self.drop_last else n

    def __iter__(self) -> Iterator[tuple[Any, ...]]:
        drawn: deque[Asked] = deque()
        # By the number of the batch: with in_order=False the batches come in the order in which workers
        # finish them.
        tickets: dict[int, Ticket] = {}
        reader = self._reader(drawn)
        batches: Iterator[Delivered] | None = None
        draws = 0
        left, updates = self._draws(), self.sampler.updates
        if updates == self.sampler.updates_before_pass:
            warnings.warn(
                "a whole pass went by and nobody told the sampler what was wrong, so it draws as it did"
                " before: call sampler.update(y, wrong, p=ticket) after every batch (Lightning: give the"
                " Trainer a SamplerCallback)",
                stacklevel=2,
            )
        while left or tickets:
            # After the update of the batch before, and always the same number ahead of it.
            while left and len(tickets) <= self.lag:
                n = min(self.batch_size, left)
                idx = self.sampler.draw(n)
                tickets[draws] = self.sampler.hand_out(idx)
                drawn.append(Asked(idx.tolist(), draws))
                left, draws = left - n, draws + 1
            if batches is None:
                batches = iter(reader)
            delivered = next(batches, None)
            if delivered is None:
                raise InputError(
                    f"the data set ended before {len(tickets)} batches came: data[i] must not raise"
                    " StopIteration"
                )
            ticket, batch = tickets.pop(delivered.number), delivered.batch
            if (problem := delivered.problem()) is not None:
                raise InputError(
                    f"{problem}: the sampler would learn of other examples than it drew; return each example,"
                    " in its place"
                )
            ticket = ticket._replace(y=whole_numbers(labels_in(batch)))
            if isinstance(batch, (tuple, list)):
                yield (*batch, ticket)
            else:
                yield batch, ticket
            if not left and not tickets:
                if ticket.p is not None:
                    self.sampler.updates_before_pass = updates
                self._check_fault()

    def _check_fault(self) -> None:
        """At the end of a pass, the only time that something is read back from the sampler's device."""
        fault = self.sampler.fault
        if not fault.is_meta and (messages := fault_messages(int(fault))):
            raise InputError(f"the sampler's kernels reported: {'; '.join(messages)}")

    def _reader(self, drawn: deque[Asked]) -> DataLoader[Any]:
        options = {"collate_fn": None, **self.options}
        # It is `workers * prefetch` batches ahead: never more than have been drawn.
        prefetch = self.lag // self.workers if self.workers else None
        return numbered_batches(
            self.dataset, _Handed(drawn), num_workers=self.workers, prefetch_factor=prefetch, **options
        )

    def __repr__(self) -> str:
        return (
            f"loader({type(self.dataset).__name__}, {self.sampler!r}, batch_size={self.batch_size}, "
            f"workers={self.workers}, lag={self.lag})"
        )


class _Handed:
    """The batch sampler of a DataLoader: hands on what was drawn for it, in order."""

    def __init__(self, drawn: deque[Asked]) -> None:
        self.drawn = drawn

    def __iter__(self) -> Iterator[Asked]:
        while self.drawn:
            yield self.drawn.popleft()


def loader(
    dataset: Any,
    sampler: IndexSampler,
    batch_size: int,
    workers: int = 0,
    lag: int = LAG,
    drop_last: bool = False,
    **options: Any,
) -> TicketLoader:
    """Yields (x, y, ticket) from a map-style data set, or (batch, ticket) if its examples are dicts.

    The ticket contains the drawn indices and their probabilities, so `sampler.update(y, loss, p=ticket)` is
    unbiased for every sampler. One pass draws as many examples as the data set has, over all ranks together.

    Args:
        dataset: map-style data set.
        sampler: draws the indices of each batch.
        batch_size: number of examples in a batch of one rank. The last batch may be smaller.
        workers: number of processes that read examples, at most `lag`. They do not change indices or tickets.
        lag: a batch is drawn before the updates of the `lag` batches in front of it. 0 draws from the latest
            p, and uses no workers.
        drop_last: omit a smaller last batch.
        options: further arguments of torch's DataLoader, such as collate_fn and pin_memory. With
            in_order=False the batches come in the order in which workers finish them.
    """
    if isinstance(dataset, IterableDataset) or not (
        hasattr(dataset, "__getitem__") and hasattr(dataset, "__len__")
    ):
        raise TypeError(
            f"a sampler draws by index: {type(dataset).__name__} must be a map-style data set, with len(data)"
            " and data[i]"
        )
    if not isinstance(sampler, IndexSampler):
        raise TypeError(f"the sampler must be one of cfol_fast.sampling, got {type(sampler).__name__}")
    if sampler.size != len(dataset):
        raise InputError(f"the sampler is for {sampler.size} examples, the data set has {len(dataset)}")
    for name in options:
        if name in OTHERS:
            raise InputError(f"{name}: {OTHERS[name]}")
    for name, value, least in (("batch_size", batch_size, 1), ("workers", workers, 0), ("lag", lag, 0)):
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise InputError(f"{name} must be a whole number of at least {least}, got {value!r}")
    if workers > lag:
        raise InputError(
            f"each worker holds a batch that was drawn ahead, so workers must be at most lag={lag}, got"
            f" {workers}: pass lag={workers} or fewer workers"
        )
    return TicketLoader(dataset, sampler, batch_size, workers, lag, drop_last, options)
