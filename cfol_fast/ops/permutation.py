"""A shuffle that needs no memory: any piece of a pseudo-random permutation, from the random state alone."""

from __future__ import annotations

import torch
from torch import Tensor

from cfol_fast.ops.native import call, fake, library

_permutation = library.permutation.default


def permutation(rng: Tensor, n: int, start: Tensor, count: int) -> Tensor:
    """Elements start .. start+count-1 of the permutation of 0 .. n-1 that belongs to the random state; int64
    (count,).

    Pieces of one permutation fit together, and behind its end follow those of the next steps. start: (1,)
    int64 on the device of `rng`. Advances neither.
    """
    return call(_permutation, rng, n, start, count)


@fake("permutation")
def _(rng: Tensor, n: int, start: Tensor, count: int) -> Tensor:
    return rng.new_empty(count, dtype=torch.int64)
