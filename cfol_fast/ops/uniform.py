"""Uniform numbers in [0, 1) of any stream of random numbers, for what is written in plain torch."""

from __future__ import annotations

import torch
from torch import Tensor

from cfol_fast.ops.native import call, fake, library

# csrc/philox.h: enum class Stream
AUGMENT = 5
_uniform = library.uniform.default


def uniform(rng: Tensor, stream: int, first: int, n: int) -> Tensor:
    """Numbers first .. first+n-1 of a stream of the random state; float32 (n,) on the device of `rng`, which
    does not advance.

    Each depends on the seed, the step, the stream and its own place alone, so pieces of one stream fit
    together.
    """
    return call(_uniform, rng, stream, first, n)


@fake("uniform")
def _(rng: Tensor, stream: int, first: int, n: int) -> Tensor:
    return rng.new_empty(n, dtype=torch.float32)
