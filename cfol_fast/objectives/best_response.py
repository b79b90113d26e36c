"""The worst distribution over the classes in a ball around the uniform one: what an adversary answers to a
batch.

Both balls have their answer in closed form, up to one root: no solver, no read-back, the same number of
operations for every batch. The classes that a batch does not hold take no part: the uniform distribution is
the one over those that it holds.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from cfol_fast.errors import InputError

# Newton's steps for the root of the KL ball: enough in float64 for up to 1,000 classes, the first for radii
# from 0.1 on.
NEWTON_STEPS, NEWTON_STEPS_SMALL = 8, 16


def kl_ball(values: Tensor, present: Tensor, radius: float) -> Tensor:
    """The p that maximises sum p_y values_y over distributions with KL(uniform || p) <= radius: (k,) float64.

    values: (k,); present: (k,) bool, at least one. By the KKT conditions p_y is proportional to 1 / (nu -
    c_y) for one nu > max c, for which the constraint holds with equality. With nu = max c + exp(u) the
    divergence falls in u, and Newton's method is kept in a bracket.
    """
    check_radius("radius", radius)
    mask, n = present.to(torch.float64), present.sum().to(torch.float64)
    c = values.detach().to(torch.float64)
    # Distances to the largest value, in units of the largest distance.
    gap = (torch.where(present, c, -torch.inf).amax() - c) * mask
    spread = gap.amax()
    # Where all values are equal every answer is as good; these distances lead to the uniform one.
    gap = torch.where(spread > 0, gap / spread, 0)
    # Below the first the divergence is at least the radius for any number of ties at the top, above the
    # second at most.
    low = -(n * (radius + 1) + 10).clamp(max=600)
    high = torch.full_like(low, 5 - 0.5 * math.log(radius) if radius > 0 else 700.0)
    u, share = low, 1 / n
    for _ in range(NEWTON_STEPS if radius >= 0.1 else NEWTON_STEPS_SMALL):
        top = u.exp()
        distance = top + gap
        inverse = mask / distance
        total = inverse.sum()
        divergence = (total / n).log() + (distance.log() * mask).sum() / n
        slope = top * total * (share - (inverse / total).square().sum())
        too_far = divergence > radius
        low, high = torch.where(too_far, u, low), torch.where(too_far, high, u)
        newton = u - (divergence - radius) / slope
        # Else half of the bracket, also where the slope is zero. At the root itself rounding may lead just
        # outside.
        inside = (newton >= low - 1e-9) & (newton <= high + 1e-9)
        u = torch.where(inside, newton, (low + high) / 2)
    p = mask / (u.exp() + gap)
    uniform = mask / n
    return torch.where((spread > 0) & (radius > 0), p / p.sum(), uniform)


def chi2_ball(values: Tensor, present: Tensor, radius: float) -> Tensor:
    """The p that maximises sum p_y values_y over distributions with k/2 sum (p_y - 1/k)^2 <= radius: (k,)
    float64.

    p_y is proportional to max(0, c_y - t). As long as no weight would be negative the value is mean + sqrt(2
    radius variance). Which classes keep a weight is decided by trying t at every value, so that t itself
    follows in closed form.
    """
    check_radius("radius", radius)
    n = present.sum().to(torch.float64)
    c = torch.where(present, values.detach().to(torch.float64), -torch.inf)
    # Of sum p^2: 1/n for the uniform distribution, 1 for a single class.
    target = (1 + 2 * radius) / n
    above = (c.unsqueeze(0) - c.unsqueeze(1)).clamp(min=0).nan_to_num(0.0, posinf=0.0)
    # (k,) sum p^2 if t is this class's value: more than the target means that the true t lies below it. At
    # the top 0/0: it stays.
    squares = above.square().sum(1) / above.sum(1).square()
    kept = present & ~(squares <= target)
    m = kept.sum().to(torch.float64)
    mean = torch.where(kept, c, 0).sum() / m
    centred = torch.where(kept, c - mean, 0)
    # Where the ball holds the uniform distribution over the classes at the top, the variance is zero and so
    # is the slope.
    room = (m * target - 1).clamp(min=torch.finfo(torch.float64).tiny)
    scale = (centred.square().sum() / m / room).sqrt()
    p = torch.where(kept, (1 + torch.where(scale > 0, centred / scale, 0)) / m, 0).clamp(min=0)
    return p / p.sum()


def check_radius(name: str, value: float) -> float:
    """The radius of a ball of distributions, unless it is none."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < math.inf:
        raise InputError(f"{name} must be a finite number of at least 0, got {value!r}")
    return value
