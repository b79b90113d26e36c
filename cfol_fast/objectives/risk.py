"""Risks of a batch: how its per-example losses become one number to minimise.

Each is a plain differentiable function of a loss vector, free of read-backs and of data-dependent shapes, so
that it runs on any device and under `torch.compile`. CVaR and LCVaR are the values of their linear programmes
(appendix B of the paper), found by sorting: the worst examples, or the worst classes, take as much mass as
they are allowed to.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from cfol_fast.errors import InputError


def mean(losses: Tensor, weight: Tensor | None = None) -> Tensor:
    """The average of `losses`: (B,), each times its `weight`: (B,) if given.

    The sum is divided by B and not by the sum of the weights: only then is the gradient unbiased with the
    weights k*p_y of the reweighted variant (section 4.1).
    """
    return losses.mean() if weight is None else (weight.to(losses.dtype) * losses).mean()


def class_weighted(losses: Tensor, y: Tensor, weights: Tensor) -> Tensor:
    """`mean` with the weight of each example's class. losses: (B,), y: (B,) int64, weights: (k,)."""
    return mean(losses, weights[y])


def cvar(losses: Tensor, alpha: float) -> Tensor:
    """Conditional value at risk of `losses`: (m,), the mean of the worst fraction `alpha`, in (0, 1], of
    them.

    The supremum of sum p_i l_i over distributions p with p_i <= 1 / (alpha m). alpha = 1 is the mean, alpha
    <= 1/m the maximum.
    """
    check_alpha(alpha)
    _check_losses(losses)
    cap = torch.full(
        (losses.numel(),), 1 / (alpha * losses.numel()), dtype=torch.float64, device=losses.device
    )
    return _worst_case(losses, cap)


def lcvar(
    losses: Tensor, y: Tensor, alpha: float | Tensor, num_classes: int, prior: Tensor | None = None
) -> Tensor:
    """Labelled CVaR: conditional value at risk over the classes' mean losses.

    The supremum of sum q_y L_y over distributions q with q_y <= P_y / alpha, where L_y is the mean loss of
    class y in the batch. alpha may be (k,), a level alpha_y for each class: labelled heterogeneous CVaR. P is
    the batch's class frequencies, or `prior`: (k,), restricted to the classes that the batch holds and scaled
    to sum 1 there, since nothing is known of the others' losses; it must be positive.
    losses: (B,), y: (B,) int64, alpha in (0, 1].
    """
    if not isinstance(alpha, Tensor):
        check_alpha(alpha)
    elif alpha.shape != (num_classes,):
        raise ValueError(
            f"alpha must be a number or have {num_classes} entries, got shape {tuple(alpha.shape)}"
        )
    class_losses, counts = class_means(losses, y, num_classes)
    if prior is None:
        mass = counts.to(torch.float64) / losses.numel()
    else:
        check_prior(prior, num_classes)
        mass = torch.where(counts > 0, prior.to(losses.device, torch.float64), 0)
        mass = mass / mass.sum()
    return _worst_case(class_losses, mass / alpha)


def class_means(losses: Tensor, y: Tensor, num_classes: int) -> tuple[Tensor, Tensor]:
    """(k,) the mean loss of each class in the batch, 0 for one that it does not hold, and (k,) int64 how many
    it holds.
    """
    _check_losses(losses)
    if y.shape != losses.shape:
        raise ValueError(f"y and losses must have one shape, got {tuple(y.shape)} and {tuple(losses.shape)}")
    # One row per class: k*B products, but the same sum in the same order on every device, unlike a scatter of
    # floats.
    members = torch.arange(num_classes, device=y.device).unsqueeze(1) == y
    counts = members.sum(dim=1)
    return torch.where(members, losses, 0).sum(dim=1) / counts.clamp(min=1), counts


def _worst_case(values: Tensor, cap: Tensor) -> Tensor:
    """Max of sum q_i values_i over q with 0 <= q_i <= cap_i and sum q = 1: the largest values get their full
    cap first.
    """
    ordered, order = values.sort(descending=True)
    # In float64, since q is a difference of partial sums; a cap of 0 (an absent class) takes no mass.
    filled = _running_sum(cap[order]).clamp(max=1)
    q = torch.diff(filled, prepend=filled.new_zeros(1))
    return (q.to(ordered.dtype) * ordered).sum()


def _running_sum(values: Tensor) -> Tensor:
    """(n,) -> (n,).

    On a GPU torch's own adds in an order that varies, so --deterministic takes n^2 additions instead.
    """
    if values.is_cuda and torch.are_deterministic_algorithms_enabled():
        return values.expand(len(values), -1).tril().sum(dim=1)
    return values.cumsum(0)


def check_alpha(alpha: float) -> None:
    """Refuses a tail fraction that is not in (0, 1]."""
    if not isinstance(alpha, (int, float)) or not 0 < alpha <= 1:
        raise InputError(f"alpha must be in (0, 1], got {alpha!r}")


def check_levels(alpha: float | Sequence[float], num_classes: int) -> None:
    """Refuses what is not one tail fraction, or a list with one for each class."""
    levels = alpha if isinstance(alpha, Sequence) and not isinstance(alpha, str) else [alpha] * num_classes
    if len(levels) != num_classes:
        raise InputError(
            f"alpha must be a number or a list of {num_classes}, one for each class, got {len(levels)}"
        )
    for level in levels:
        check_alpha(level)


def check_prior(prior: Tensor, num_classes: int) -> None:
    """Refuses class masses that do not fit the classes."""
    if prior.shape != (num_classes,):
        raise ValueError(f"prior must have {num_classes} entries, got shape {tuple(prior.shape)}")


def _check_losses(losses: Tensor) -> None:
    if losses.dim() != 1 or losses.numel() == 0:
        raise ValueError(f"losses must be a vector of at least one loss, got shape {tuple(losses.shape)}")
