"""Exp3 over the classes: the distribution, draws from it, the update of its weights; and the tally of errors
by class.
"""

from __future__ import annotations

import torch
from torch import Tensor

from cfol_fast.errors import InputError
from cfol_fast.ops.native import call, fake, library

_distribution = library.exp3_distribution.default
_draw = library.exp3_draw.default
_update = library.exp3_update.default
_learn = library.exp3_learn.default
_tally = library.class_tally.default
# As in csrc/fixed_point.h.
_LOSS_UNIT = 2.0**-30
# As in csrc/exp3.h and fixed_point.h.
_LARGEST_WEIGHT = 64.0
_SMALLEST_CHANCE = 2.0**-60
MAX_CLASSES = 1 << 16
# A row of what was seen has fewer draws.
MEMORY = 1024


def exp3_distribution(w: Tensor, base: Tensor, gamma: float) -> tuple[Tensor, Tensor, Tensor]:
    """(p, q, cdf) with q = softmax(w) and p = gamma * base + (1 - gamma) * q.

    w, base, p, q: (k,) float64, k from 2 to `MAX_CLASSES`; base sums to 1; gamma in (0, 1]. w may be -inf for
    a class that only `base` draws. cdf: (k,) int64, the sums of floor(2^52 p), which decide the draws.
    """
    return call(_distribution, w, base, gamma)


def exp3_draw(
    w: Tensor, base: Tensor, gamma: float, offsets: Tensor, members: Tensor, rng: Tensor, n: int
) -> tuple[Tensor, Tensor, Tensor]:
    """(idx, y, p): n classes drawn from p, and for each an example of the class, drawn uniformly.

    offsets: (k+1,), members: (N,) int64 as `group_by_class` returns them. idx: members of the classes y, both
    (n,) int64;
    p: (k,) float64, what they were drawn from. Advances `rng`.
    """
    return call(_draw, w, base, gamma, offsets, members, rng, n)


def exp3_update_(
    w: Tensor, p: Tensor, y: Tensor, loss: Tensor, eta: float, fault: Tensor | None = None
) -> None:
    """w[y] += eta * loss / p[y], summed over the batch; then, if max w > 64, w -= max w, which does not
    change the softmax.

    w, p: (k,) float64; y: (n,) int64; loss: (n,) float32 or bool in [0, 1]. The sum is exact to 2^-30 and
    does not depend on the order of the examples.
    """
    call(_update, w, p, y.contiguous(), as_loss(loss), eta, fault)


def exp3_add_sums_(w: Tensor, p: Tensor, sums: Tensor, eta: float) -> None:
    """What `exp3_update_` does, bit for bit, from the classes' sums of losses: (k,) int64 in units of 2^-30,
    as a tally has them.
    """
    if p.shape != w.shape:
        raise ValueError(f"p must have shape {tuple(w.shape)}, got {tuple(p.shape)}")
    if w.device.type == "cpu" and bool(((p < _SMALLEST_CHANCE) & (sums != 0)).any()):
        raise ValueError(f"p must be at least 2^-60 for every class with a loss, got {float(p.min())}")
    gained = w + eta * (sums.to(torch.float64) * _LOSS_UNIT) / p
    _set(w, torch.where(sums != 0, gained, w))


def exp3_add_(w: Tensor, gain: Tensor) -> None:
    """w += gain, both (k,) float64, and w is shifted as by `exp3_update_`."""
    _set(w, w + gain)


def _set(w: Tensor, gained: Tensor) -> None:
    largest = gained.max()
    w.copy_(torch.where(largest > _LARGEST_WEIGHT, gained - largest, gained))


def new_seen(rows: int, device: torch.device | str | None = None) -> Tensor:
    """What `exp3_learn_` remembers, of nothing: (rows, 2) int64, draws and their losses in units of 2^-30.

    rows: the number of classes for a baseline of each, 1 for one baseline of all.
    """
    return torch.zeros(rows, 2, dtype=torch.int64, device=device)


def is_seen(rows: Tensor) -> bool:
    """Whether (n, 2) int64 can be what `exp3_learn_` remembers. Reads it back from the device."""
    draws, losses = rows[:, 0], rows[:, 1]
    possible = (draws >= 0) & (draws < MEMORY) & (losses >= 0) & (losses <= draws * 2**30)
    return bool(possible.all())


def exp3_learn_(
    w: Tensor, p: Tensor, tally: Tensor, seen: Tensor, eta: float, fault: Tensor | None = None
) -> None:
    """w[y] += eta * (n * b[y] + (losses[y] - draws[y] * b[y]) / p[y]), with the baseline b of what was seen
    before; then the batch is added to `seen`, and w is shifted as by `exp3_update_`.

    w, p: (k,) float64. tally: (k, 2) int64, the draws and losses of the batch as `class_tally_` counts them;
    n: its draws. seen: `new_seen`; with one row n * b is the same for all classes and is left out. b is the
    mean loss, shrunk to that of all classes by 8 pseudo-draws; a row of 1,024 draws is halved.
    """
    call(_learn, w, p, tally, seen, eta, fault)


def group_by_class(labels: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """The examples sorted by class: those of class y are members[offsets[y] : offsets[y + 1]], in the data
    set's order.

    labels: (N,) integers in [0, k), read once, on the host. A class without examples is refused.
    """
    if labels.dim() != 1:
        raise ValueError(f"labels must have shape (N,), got {tuple(labels.shape)}")
    if labels.is_floating_point() or labels.dtype == torch.bool:
        raise TypeError(f"labels must be integers, got {labels.dtype}")
    on_host = labels.to("cpu", torch.int64)
    if len(on_host) and not (int(on_host.min()) >= 0 and int(on_host.max()) < k):
        bad = on_host[(on_host < 0) | (on_host >= k)][0]
        raise InputError(f"labels must be in [0, {k}), got {int(bad)}")
    counts = torch.bincount(on_host, minlength=k)
    if bool((counts == 0).any()):
        raise InputError(f"class {int((counts == 0).nonzero()[0])} has no examples; every class needs one")
    offsets = torch.cat([torch.zeros(1, dtype=torch.int64), counts.cumsum(0)])
    return offsets.to(labels.device), on_host.argsort(stable=True).to(labels.device)


def new_tally(k: int, device: torch.device | str | None = None) -> Tensor:
    """An empty tally for `class_tally_`: (k, 2) int64, the examples seen and their losses in units of
    2^-30.
    """
    return torch.zeros(k, 2, dtype=torch.int64, device=device)


def class_tally_(tally: Tensor, y: Tensor, loss: Tensor, fault: Tensor | None = None) -> None:
    """Counts each example of y, and adds its loss to the sum of its class. y: (n,) int64; loss: (n,) float32
    or bool in [0, 1].
    """
    call(_tally, tally, y.contiguous(), as_loss(loss), fault)


def read_tally(tally: Tensor) -> tuple[Tensor, Tensor]:
    """(examples seen (k,) int64, sums of their losses (k,) float64)."""
    return tally[:, 0], tally[:, 1].to(torch.float64) * _LOSS_UNIT


def as_loss(loss: Tensor) -> Tensor:
    """Zero-one losses may be bool; the op refuses every other dtype but float32."""
    return (loss.to(torch.float32) if loss.dtype is torch.bool else loss).contiguous()


@fake("exp3_distribution")
def _(w: Tensor, base: Tensor, gamma: float) -> tuple[Tensor, Tensor, Tensor]:
    return torch.empty_like(w), torch.empty_like(w), torch.empty_like(w, dtype=torch.int64)


@fake("exp3_draw")
def _(w, base, gamma, offsets, members, rng, n) -> tuple[Tensor, Tensor, Tensor]:
    return w.new_empty(n, dtype=torch.int64), w.new_empty(n, dtype=torch.int64), torch.empty_like(w)


@fake("exp3_update")
def _(w, p, y, loss, eta, fault) -> None:
    return None


@fake("exp3_learn")
def _(w, p, tally, seen, eta, fault) -> None:
    return None


@fake("class_tally")
def _(tally, y, loss, fault) -> None:
    return None
