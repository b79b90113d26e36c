"""The two ops of a PGD attack: the random start in the ball and the projected ascent step."""

from __future__ import annotations

import torch
from torch import Tensor

from cfol_fast.errors import InputError
from cfol_fast.ops.native import call, fake, library, number_or_each

NORMS = ("linf", "l2")
_pgd_start = library.pgd_start.default
_pgd_step = library.pgd_step.default


def _is_l2(norm: str) -> bool:
    if norm not in NORMS:
        raise InputError(f"norm must be one of {', '.join(NORMS)}, got {norm!r}")
    return norm == "l2"


def dense(x: Tensor) -> Tensor:
    """x itself where the kernels can walk its memory (contiguous or channels_last), else a contiguous
    copy.
    """
    if x.is_contiguous() or (x.dim() == 4 and x.is_contiguous(memory_format=torch.channels_last)):
        return x
    return x.contiguous()


def pgd_start(
    x: Tensor,
    eps: float | Tensor,
    rng: Tensor,
    norm: str = "linf",
    fault: Tensor | None = None,
    slots: tuple[int, int] | None = None,
) -> Tensor:
    """x plus noise, uniform in the eps-ball, clamped to [0, 1].

    x: (B, ...) float32 in [0, 1], contiguous or channels_last; the result has its layout. The noise depends
    only on the random state and the logical position, not on the layout. Advances `rng`. slots: (first, size)
    where x is a part of a global batch: the slot of x[0] in it, and how many it has; x then gets its part of
    the noise of the global batch, and no more is drawn.
    """
    number, each = number_or_each(eps, x, "eps")
    first, size = (0, None) if slots is None else slots
    return call(_pgd_start, dense(x), number, each, rng, _is_l2(norm), fault, first, size)


def pgd_step_(
    adv: Tensor,
    x: Tensor,
    grad: Tensor,
    step: float | Tensor,
    eps: float | Tensor,
    norm: str = "linf",
    fault: Tensor | None = None,
) -> Tensor:
    """One ascent step in place on `adv`: signed (linf) or normalised (l2), projected to the ball around x and
    to [0, 1].

    adv, x, grad: (B, ...) float32. Where `x` or `grad` lies differently in memory than `adv`, it is copied to
    fit. A gradient of zero moves nothing.
    """
    step_number, step_each = number_or_each(step, x, "step")
    eps_number, eps_each = number_or_each(eps, x, "eps")
    x, grad = _like(x, adv), _like(grad, adv)
    call(_pgd_step, adv, x, grad, step_number, eps_number, step_each, eps_each, _is_l2(norm), fault)
    return adv


def _like(t: Tensor, model: Tensor) -> Tensor:
    # The op refuses another shape with a message of its own.
    if t.stride() == model.stride() or t.shape != model.shape:
        return t
    if all(a == b or n == 1 for a, b, n in zip(t.stride(), model.stride(), t.shape, strict=True)):
        return t
    return torch.empty_like(model).copy_(t)


@fake("pgd_start")
def _(x, eps, eps_each, rng, l2, fault, first=0, whole=None) -> Tensor:
    return torch.empty_like(x)


@fake("pgd_step")
def _(adv, x, grad, step, eps, step_each, eps_each, l2, fault) -> None:
    return None
