"""Signs that a result looks good by accident: of a broken attack, or of a model that computes nonsense.

What is counted is counted on the device, batch by batch, and read once, at the end.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from cfol_fast.attacks import PGD
from cfol_fast.evaluation.class_accuracy import ClassAccuracy
from cfol_fast.frozen import logits_in
from cfol_fast.ranks import Ranks

# What is counted in each pass: images with logits that are not finite, images whose loss the attack raised;
# batches whose gradients were all 0, or not finite; batches on which the attack's own model says something
# else.
INFINITE, RAISED, FLAT, BROKEN, OTHER = range(5)
# Differences of logits, and of a loss, that are rounding: in units of the precision, for logits of size 1.
ROUNDING = 16


class Counts:
    """A row for the clean pass and one for each attack."""

    def __init__(self, attacks: int, device: torch.device) -> None:
        self._counts = torch.zeros(1 + attacks, 5, dtype=torch.int64, device=device)

    def clean(self, logits: Tensor) -> None:
        self._counts[0, INFINITE] += _infinite(logits)

    def attacked(self, attack: int, y: Tensor, before: Tensor, after: Tensor) -> None:
        """before, after: (B, k) logits of the model without and with the attack. y: (B,)"""
        row = self._counts[1 + attack]
        row[INFINITE] += _infinite(after)
        row[RAISED] += raised(y, before, after)

    def gradients(self, attack: int, seen: Gradients) -> None:
        if seen.largest is not None:
            row = self._counts[1 + attack]
            row[FLAT] += seen.largest == 0
            row[BROKEN] += ~seen.largest.isfinite()

    def add(self, attack: int, what: int, number: int | Tensor) -> None:
        self._counts[1 + attack, what] += number

    def of_all(self, ranks: Ranks) -> list[list[int]]:
        return ranks.sum(self._counts.cpu().clone()).tolist()


class Gradients:
    """The largest entry of all gradients of a batch, in all steps: a scalar on the device; None before the
    first.
    """

    def __init__(self) -> None:
        self.largest: Tensor | None = None

    def __call__(self, gradient: Tensor) -> None:
        if gradient.numel():
            largest = torch.linalg.vector_norm(gradient, torch.inf)
            self.largest = largest if self.largest is None else torch.maximum(self.largest, largest)


@contextmanager
def watched(attack: Any) -> Iterator[Gradients]:
    """Looks at the gradients of an attack of ours inside the block."""
    seen = Gradients()
    if not isinstance(attack, PGD):
        yield seen
        return
    attack.watch = seen
    try:
        yield seen
    finally:
        attack.watch = None


def raised(y: Tensor, before: Tensor, after: Tensor) -> Tensor:
    """The number of images whose loss is larger in `after`, by more than rounding: a scalar on the device."""
    size = 1 + before.abs().amax(1) + after.abs().amax(1)
    rounding = ROUNDING * torch.finfo(after.dtype).eps * size.float()
    return (_loss(after, y) - _loss(before, y) > rounding).sum()


def _loss(logits: Tensor, y: Tensor) -> Tensor:
    # In double precision a loss of exp(-100) is not 0 yet.
    exact = logits.double() if logits.device.type != "mps" else logits.float()
    right = exact.gather(1, y.view(-1, 1))
    # The sum over the other classes alone, in logarithms: a confident model's loss does not vanish.
    others = exact.scatter(1, y.view(-1, 1), -torch.inf).logsumexp(1, keepdim=True)
    return (others - right).squeeze(1)


def _infinite(logits: Tensor) -> Tensor:
    return (~logits.isfinite()).any(1).sum()


def raised_by_one_step(model: nn.Module, x: Tensor, y: Tensor, eps: float, norm: str) -> Tensor:
    """The number of images whose loss one step of size eps along the model's gradient raises: for an attack
    that shows no images.
    """
    leaf = x.detach().clone().requires_grad_()
    with torch.enable_grad():
        before = logits_in(model(leaf.clone()))
        if not before.requires_grad:
            return torch.zeros((), dtype=torch.int64)
        (gradient,) = torch.autograd.grad(_loss(before, y).sum(), leaf)
    if norm == "linf":
        step = gradient.sign()
    else:
        step = torch.nn.functional.normalize(gradient.flatten(1), dim=1).view_as(x)
    with torch.no_grad():
        after = logits_in(model((x + eps * step).clamp(0, 1)))
    return raised(y, before.detach(), after)


def judge(
    counts: list[list[int]], kinds: list[str], clean: ClassAccuracy, attacked: list[ClassAccuracy]
) -> tuple[list[dict[str, Any]], list[str]]:
    """(warnings, notes). kinds: the names of the attacks.

    A warning is {"warning", "attack": its number or None, "reason"}.
    """
    warnings: list[dict[str, Any]] = []
    notes = []

    def warn(warning: str, attack: int | None, reason: str) -> None:
        warnings.append({"warning": warning, "attack": attack, "reason": reason})

    n, hits = len(clean.labels), int(clean.correct.sum())
    if wrong := counts[0][INFINITE]:
        warn("logits not finite", None, f"the model's logits for {wrong} of {n} images are infinite")
    for number, (kind, accuracy) in enumerate(zip(kinds, attacked, strict=True)):
        count, under_attack = counts[1 + number], int(accuracy.correct.sum())
        if count[INFINITE]:
            reason = (
                f"the model's logits for {count[INFINITE]} of {n} images of the attack {kind} are infinite"
            )
            warn("logits not finite", number, reason)
        if count[OTHER]:
            warn("attack on another model", number, f"the attack {kind} was built for another model")
        if count[FLAT]:
            reason = (
                f"all gradients of {count[FLAT]} batches are 0, so the attack {kind} has no direction there"
            )
            warn("no gradient", number, reason)
        if count[BROKEN]:
            reason = f"gradients of {count[BROKEN]} batches are infinite or NaN in the attack {kind}"
            warn("gradient not finite", number, reason)
        if under_attack > hits:
            reason = (
                f"{under_attack} of {n} images are right under the attack {kind}, and only {hits} without it"
            )
            warn("robust above clean", number, reason)
        elif under_attack == hits > 0 and kind != "none":
            same = f"robust accuracy under the attack {kind} equals clean accuracy"
            if count[RAISED]:
                notes.append(f"{same}; the attack raised the loss of {count[RAISED]} of {n} images")
            else:
                warn("attack without effect", number, f"{same}, and the attack raised the loss of no image")
    return warnings, notes
