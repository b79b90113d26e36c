"""The native PGD step, which moves, projects and clamps in one pass over memory, against the same in torch's
ops.
"""

from __future__ import annotations

import torch
from torch import Tensor

from benchmarks.rows import Row, faster, main
from benchmarks.timing import interleaved
from cfol_fast import ops

EPS, STEP = 8 / 255, 2 / 255


def eager(adv: Tensor, x: Tensor, grad: Tensor) -> Tensor:
    """As torchattacks and most training code do it."""
    adv = adv.detach() + STEP * grad.sign()
    return (x + (adv - x).clamp(-EPS, EPS)).clamp(0, 1)


def eager_in_place(adv: Tensor, x: Tensor, grad: Tensor) -> Tensor:
    """With as little memory as torch's ops allow."""
    return adv.add_(grad.sign(), alpha=STEP).sub_(x).clamp_(-EPS, EPS).add_(x).clamp_(0, 1)


def measure(tiny: bool) -> list[Row]:
    shape = (4, 3, 8, 8) if tiny else (128, 3, 32, 32)
    torch.manual_seed(0)
    x, grad = torch.rand(shape), torch.randn(shape)
    start = (x + EPS * (2 * torch.rand(shape) - 1)).clamp(0, 1)
    a, b, c = start.clone(), start.clone(), start.clone()
    timings = interleaved(
        {
            "ours": lambda: ops.pgd_step_(a, x, grad, STEP, EPS),
            "eager": lambda: eager(b, x, grad),
            "in place": lambda: eager_in_place(c, x, grad),
        },
        2 if tiny else 15,
        at_least=0.0 if tiny else 0.02,
    )
    name = f"PGD step op, {'x'.join(map(str, shape))}"
    return [
        faster(name, "eager torch ops", timings["ours"], timings["eager"], 4),
        faster(name, "eager torch ops, all in place", timings["ours"], timings["in place"], 3),
    ]


if __name__ == "__main__":
    main(measure)
