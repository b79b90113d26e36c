"""The losses that attacks increase, as functions of the logits: values per example, and gradients in closed
form.

The gradient with respect to the logits starts the backward pass; in closed form it takes a few small ops and
no graph. A loss is
measured against a target: the labels (B,), or for "kl" the probabilities (B, k) of the clean input.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from cfol_fast.errors import InputError

Function = Callable[[Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class Loss:
    """value: logits (B, k), target -> (B,); gradient: the same -> (B, k), of the sum over the batch."""

    value: Function
    gradient: Function
    against_clean: bool = False


def one_hot(y: Tensor, like: Tensor) -> Tensor:
    """(B,) int64 -> (B, k).

    (torch.nn.functional.one_hot reads the labels back from the device to check them.)
    """
    return torch.zeros_like(like).scatter_(1, y.unsqueeze(1), 1.0)


def _cross_entropy(logits: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(logits, y, reduction="none")


def _cross_entropy_gradient(logits: Tensor, y: Tensor) -> Tensor:
    return logits.softmax(1).sub_(one_hot(y, logits))


def _kl(logits: Tensor, clean: Tensor) -> Tensor:
    return F.kl_div(logits.log_softmax(1), clean, reduction="none").sum(1)


def _kl_gradient(logits: Tensor, clean: Tensor) -> Tensor:
    return logits.softmax(1).sub_(clean)


def _others(logits: Tensor, y: Tensor) -> Tensor:
    return logits.scatter(1, y.unsqueeze(1), -torch.inf)


def _margin(logits: Tensor, y: Tensor) -> Tensor:
    """Carlini and Wagner: the best wrong logit minus the right one; positive once the example is fooled."""
    return _others(logits, y).amax(1) - logits.gather(1, y.unsqueeze(1)).squeeze(1)


def _margin_gradient(logits: Tensor, y: Tensor) -> Tensor:
    return one_hot(_others(logits, y).argmax(1), logits).sub_(one_hot(y, logits))


def _dlr(logits: Tensor, y: Tensor) -> Tensor:
    """Difference of logits ratio (Croce and Hein, 2020): the margin, divided so that the scale of the logits
    drops out.
    """
    if logits.shape[1] < 3:
        raise InputError(
            f"the dlr loss needs at least 3 classes, the model has {logits.shape[1]}; use ce or cw"
        )
    ordered = logits.sort(dim=1, descending=True).values
    return _margin(logits, y) / (ordered[:, 0] - ordered[:, 2] + 1e-12)


def _dlr_gradient(logits: Tensor, y: Tensor) -> Tensor:
    logits = logits.detach().requires_grad_()
    with torch.enable_grad():
        total = _dlr(logits, y).sum()
    return torch.autograd.grad(total, logits)[0]


LOSSES = {
    "ce": Loss(_cross_entropy, _cross_entropy_gradient),
    "kl": Loss(_kl, _kl_gradient, against_clean=True),
    "cw": Loss(_margin, _margin_gradient),
    "dlr": Loss(_dlr, _dlr_gradient),
}
