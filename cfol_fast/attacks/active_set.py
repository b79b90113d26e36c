"""PGD for evaluation that only pays for the survivors: an example leaves the batch at the first iterate that
fools the model.

An attack has succeeded if any iterate fooled the model, even if the last one does not. Every step reads
values back from the device, so this is for evaluation and not for the training loop.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from cfol_fast.attacks.attack import Radius
from cfol_fast.attacks.pgd import PGD, in_dtype, like, logits_of
from cfol_fast.frozen import frozen, minds_layout
from cfol_fast.machine import changing_shapes

# The sizes of the active set on a GPU, as shares of the batch.
SHARES = (1, 3 / 4, 1 / 2, 3 / 8, 1 / 4, 1 / 8, 1 / 16, 1 / 32)


class Outcome(NamedTuple):
    """x_adv: (B, ...) the iterate that fooled the model, or the last one; fooled: (B,) bool; predicted: (B,)
    int64.
    """

    x_adv: Tensor
    fooled: Tensor
    predicted: Tensor


def attack_survivors(attack: PGD, x: Tensor, y: Tensor, alive: Tensor, judge_last: bool = True) -> Outcome:
    """Attacks the examples marked in `alive`, (B,) bool; the others count as fooled and are not changed.

    judge_last: whether the very last iterate is looked at, too. Whoever asks the model about x_adv, which is
    the same in both cases, saves that pass; `fooled` and `predicted` are then those of the iterates before.
    """
    attack.check(x, y)
    eps, step = attack.radii()
    # Tensors made under inference_mode cannot carry gradients, so it is switched off here.
    with (
        torch.inference_mode(False),
        torch.no_grad(),
        changing_shapes(),
        frozen(attack.model, x.device, attack.fast, attack.dtype) as net,
    ):
        guarded, net = net, in_dtype(net, x.dtype)
        clean = attack.prepare(x)
        target = attack.target(net, clean, y)
        result = clean.clone()
        predicted, fooled = y.clone(), ~alive

        def record(rows: Tensor, adv: Tensor, logits: Tensor) -> Tensor:
            """Keeps the iterates that fool the model; returns the positions of the examples that are left.

            adv and logits may have more rows, which are there for the shape alone.
            """
            guess = logits[: len(rows)].argmax(1)
            wrong = guess != y[rows]
            new = wrong.nonzero().squeeze(1)
            if len(new):
                changed = rows[new]
                result[changed], predicted[changed], fooled[changed] = adv[new], guess[new], True
            return (~wrong).nonzero().squeeze(1)

        for restart in range(attack.restarts):
            # Noise is drawn for the whole batch, so that an example's start does not depend on which others
            # are fooled.
            start = attack.start(clean, eps)
            rows = (~fooled).nonzero().squeeze(1)
            padded = _padded(rows, len(x))
            adv, images = _take(start, padded), _take(clean, padded)
            for _ in range(attack.steps):
                if not len(rows):
                    break
                logits, grad = attack.gradient(net, adv, target[padded])
                left = record(rows, adv, logits)
                if len(left) < len(rows):
                    kept, rows = _padded(left, len(x)), rows[left]
                    padded, adv, images, grad = padded[kept], *(_take(t, kept) for t in (adv, images, grad))
                attack.ascend_(adv, images, grad, _each(eps, padded), _each(step, padded))
            if len(rows) and (judge_last or restart + 1 < attack.restarts):
                left = record(rows, adv, logits_of(net, adv).float())
                result[rows[left]] = _take(adv, left)
            elif len(rows):
                result[rows] = adv[: len(rows)]
    result = result.to(x.dtype)
    return Outcome(like(result, x) if minds_layout(guarded) else result, fooled, predicted)


def _padded(rows: Tensor, batch: int) -> Tensor:
    """The rows, on a GPU followed by copies of the first one up to one of a few sizes: cuDNN prepares itself
    for every new shape.
    """
    if not len(rows) or not _pays(rows.device):
        return rows
    size = min(size for share in SHARES if (size := math.ceil(share * batch)) >= len(rows))
    return torch.cat((rows, rows[:1].expand(size - len(rows))))


def _pays(device: torch.device) -> bool:
    """On the CPU a new shape costs nothing, and every row its time."""
    return device.type == "cuda"


def _take(t: Tensor, rows: Tensor) -> Tensor:
    """The rows, in the memory layout of the whole: with the channels last they are taken in one piece each,
    and not laid out anew.
    """
    if t.dim() == 4 and t.is_contiguous(memory_format=torch.channels_last) and not t.is_contiguous():
        return t.permute(0, 2, 3, 1).index_select(0, rows).permute(0, 3, 1, 2)
    return t.index_select(0, rows)


def _each(radius: Radius, rows: Tensor) -> Radius:
    return radius[rows] if isinstance(radius, Tensor) and radius.dim() == 1 else radius
