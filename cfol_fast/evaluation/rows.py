"""One value for each example, filled in batch by batch.

An example without a value, or with two, is an error and never a figure.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from cfol_fast.data.source import Source
from cfol_fast.errors import InputError
from cfol_fast.ranks import Ranks

# No class and no loss: what a row holds until its example has come.
MISSING = -1


class Rows:
    """values: (n,), `MISSING` until they are known. times: (n,) how often each was filled in."""

    def __init__(self, n: int, dtype: torch.dtype = torch.int64) -> None:
        self.values = torch.full((n,), MISSING, dtype=dtype)
        self.times = torch.zeros(n, dtype=torch.int64)

    def fill(self, rows: Tensor, values: Tensor, batch: int) -> None:
        """rows, values: (B,) of one batch."""
        rows, values = rows.cpu(), values.detach().cpu()
        if rows.shape != values.shape:
            raise InputError(f"batch {batch}: there are {len(values)} results for {len(rows)} examples")
        if len(rows) and (int(rows.min()) < 0 or int(rows.max()) >= len(self.values)):
            raise InputError(
                f"batch {batch}: its examples have the numbers {int(rows.min())}..{int(rows.max())}, the"
                f" source has {len(self.values)}"
            )
        self.times.index_add_(0, rows, torch.ones_like(rows))
        self.values[rows] = values.to(self.values.dtype)

    def whole(self, ranks: Ranks, what: str, batch_of: Callable[[int], int]) -> Tensor:
        """(n,): what all ranks found. batch_of: the number of the batch that an example belongs to, for a
        message.
        """
        # Each rank has the values of its own batches.
        values = ranks.sum(torch.where(self.times > 0, self.values, 0))
        times = ranks.sum(self.times.clone())
        check_complete(times, what, batch_of)
        if int(values.min()) <= MISSING:
            row = int((values <= MISSING).nonzero()[0])
            raise InputError(f"{what}: batch {batch_of(row)} has no result for example {row}")
        return values


def check_complete(times: Tensor, what: str, batch_of: Callable[[int], int]) -> None:
    """Every example must have come once. times: (n,) how often each did."""
    for wrong, how in ((times == 0, "did not come"), (times > 1, "came more than once")):
        if count := int(wrong.sum()):
            batch = batch_of(int(wrong.nonzero()[0]))
            raise InputError(
                f"{what}: {count} of {len(times)} examples {how}, the first in batch {batch}; a source must"
                " give each example once"
            )


def batches_of(source: Source, batch_size: int) -> Callable[[int], int]:
    """The number of the batch that an example of the source is in."""
    own = getattr(source, "batch_of", None)
    return (lambda row: row // batch_size) if own is None else lambda row: int(own(row, batch_size))
