"""Exp3 over single examples (FOL): weights for up to 2^31 examples, drawn from and updated in O(log N) on a
tree of sums.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from cfol_fast.ops.exp3 import as_loss
from cfol_fast.ops.native import call, fake, library

_build = library.sum_tree_build.default
_draw = library.sum_tree_draw.default
_update = library.sum_tree_update.default
# As in csrc/sum_tree.h.
WEIGHT_UNIT = 2.0**-36
_FAN_OUT = 16


class SumTreeState(NamedTuple):
    """tree: int64, the sums, leaves first, the root last; w: (N,) int64, the weights in units of 2^-36;
    meta: (2,) int64, the latest update's shift of all weights and the number of shifts so far."""

    tree: Tensor
    w: Tensor
    meta: Tensor


def sum_tree_new(n: int, device: torch.device | str | None = None, w: Tensor | None = None) -> SumTreeState:
    """A tree over n examples of equal weight, or of weights w: (n,) in natural logarithms, of which only
    differences matter.
    """
    if n < 1:
        raise ValueError(f"n must be at least 1, got {n}")
    if w is None:
        units = torch.zeros(n, dtype=torch.int64, device=device)
    else:
        if w.shape != (n,):
            raise ValueError(f"w must have shape ({n},), got {tuple(w.shape)}")
        relative = (w.to(torch.float64) - w.max()).clamp(min=-(2.0**20)) / WEIGHT_UNIT
        units = relative.round().to(device=device, dtype=torch.int64)
    tree, meta = call(_build, units)
    return SumTreeState(tree, units, meta)


def sum_tree_draw(state: SumTreeState, gamma: float, rng: Tensor, n: int) -> tuple[Tensor, Tensor]:
    """(idx, p): n examples drawn from p_i = gamma / N + (1 - gamma) * softmax(w)_i, and the probability of
    each; both (n,), int64 and float64. Advances `rng`."""
    return call(_draw, state.tree, state.w.shape[0], gamma, rng, n)


def sum_tree_update_(
    state: SumTreeState, idx: Tensor, loss: Tensor, p: Tensor, eta: float, fault: Tensor | None = None
) -> None:
    """w[idx] += eta * loss / p; an example that is there several times gains several times, in any order.

    idx: (n,) int64; loss: (n,) float32 or bool in [0, 1]; p: (n,) float64, the probabilities that drew them;
    n up to 2^20. One example gains at most 64 at a time. When weights grow large, the tree shifts all of
    them, which does not change the softmax.
    """
    call(
        _update,
        state.tree,
        state.w,
        state.meta,
        idx.contiguous(),
        as_loss(loss),
        p.contiguous(),
        eta,
        fault,
    )


def sum_tree_probabilities(state: SumTreeState, gamma: float) -> Tensor:
    """p of all examples, (N,) float64: for inspection, since it costs O(N)."""
    n = state.w.shape[0]
    q = state.tree[:n].to(torch.float64) / state.tree[-1].to(torch.float64)
    return gamma / n + (1.0 - gamma) * q


def _tree_size(n: int) -> int:
    """The length of `tree`, as csrc/sum_tree.h lays it out: every level padded to whole nodes, then
    the root.
    """
    size, width = 0, n
    while True:
        width = (width + _FAN_OUT - 1) // _FAN_OUT
        size += width * _FAN_OUT
        if width <= 1:
            return size + 1


@fake("sum_tree_build")
def _(w: Tensor) -> tuple[Tensor, Tensor]:
    return w.new_empty(_tree_size(w.shape[0])), w.new_empty(2)


@fake("sum_tree_draw")
def _(tree: Tensor, leaves: int, gamma: float, rng: Tensor, n: int) -> tuple[Tensor, Tensor]:
    return tree.new_empty(n), tree.new_empty(n, dtype=torch.float64)


@fake("sum_tree_update")
def _(tree, w, meta, idx, loss, p, eta, fault) -> None:
    return None
