"""Objectives: from a model and an attacked batch to the scalar that the optimiser minimises.

An objective is called as `loss, logits = objective(model, batch)`. `logits` are those that the
sampler's feedback is taken from: the adversarial ones where there is an attack. Every forward pass of the training step,
except the attack's own, happens in here, once for each input that is needed.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass

import torch.nn.functional as F
from torch import Tensor

from cfol_fast.errors import InputError
from cfol_fast.objectives import risk

Model = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Batch:
    """What one step trains on. `x` and `x_adv`: (B, C, H, W) in [0, 1]; `y`: (B,) int64; `weight`: (B,) or None.

    In training without an attack `x_adv` is `x`. `weight` is the factor of each example's loss that the sampler asks for
    (`sampler.weight(y)`).
    """

    x: Tensor
    x_adv: Tensor
    y: Tensor
    weight: Tensor | None = None


class Objective(ABC):
    @abstractmethod
    def __call__(self, model: Model, batch: Batch) -> tuple[Tensor, Tensor]:
        """The loss, a scalar to call `backward` on, and the logits: (B, k) that the sampler's feedback is taken from."""


class Mean(Objective):
    """Cross-entropy of the adversarial examples, averaged with the batch's weights: ERM-AT, CFOL-AT, FOL-AT."""

    def __call__(self, model: Model, batch: Batch) -> tuple[Tensor, Tensor]:
        logits = model(batch.x_adv)
        return risk.mean(cross_entropy(logits, batch.y), batch.weight), logits


class Clean(Objective):
    """Cross-entropy of the images as they are: training without an attack."""

    def __call__(self, model: Model, batch: Batch) -> tuple[Tensor, Tensor]:
        logits = model(batch.x)
        return risk.mean(cross_entropy(logits, batch.y), batch.weight), logits


class Both(Objective):
    """Clean plus adversarial cross-entropy, `clean_weight` times the former."""

    def __init__(self, clean_weight: float = 1.0) -> None:
        if clean_weight < 0:
            raise InputError(f"clean_weight must be at least 0, got {clean_weight}")
        self.clean_weight = clean_weight

    def __call__(self, model: Model, batch: Batch) -> tuple[Tensor, Tensor]:
        clean = cross_entropy(model(batch.x), batch.y)
        logits = model(batch.x_adv)
        losses = self.clean_weight * clean + cross_entropy(logits, batch.y)
        return risk.mean(losses, batch.weight), logits


class ClassWeighted(Objective):
    """Adversarial cross-entropy with one fixed weight per class, e.g. inverse class frequencies. weights: (k,)."""

    def __init__(self, weights: Tensor) -> None:
        if weights.dim() != 1:
            raise ValueError(
                f"weights must be a vector with one entry per class, got shape {tuple(weights.shape)}"
            )
        self.weights = weights

    def __call__(self, model: Model, batch: Batch) -> tuple[Tensor, Tensor]:
        logits = model(batch.x_adv)
        losses = _weighted(cross_entropy(logits, batch.y), batch.weight)
        return risk.class_weighted(losses, batch.y, self.weights), logits


class CVaR(Objective):
    """The worst fraction `alpha` of the batch's adversarial losses (appendix B).

    BatchNorm's statistics are those of the whole batch, as in the paper; only the gradient comes from the worst part.
    """

    def __init__(self, alpha: float) -> None:
        risk.check_alpha(alpha)
        self.alpha = alpha

    def __call__(self, model: Model, batch: Batch) -> tuple[Tensor, Tensor]:
        logits = model(batch.x_adv)
        return risk.cvar(_weighted(cross_entropy(logits, batch.y), batch.weight), self.alpha), logits


class LCVaR(Objective):
    """The worst classes of the batch by their mean adversarial loss (appendix B). prior: (k,) class masses or None."""

    def __init__(self, alpha: float, num_classes: int, prior: Tensor | None = None) -> None:
        risk.check_alpha(alpha)
        if prior is not None:
            risk.check_prior(prior, num_classes)
            # A batch that holds only classes without mass would have no distribution, and its loss would be NaN.
            if not prior.is_meta and not bool(((prior > 0) & prior.isfinite()).all()):
                raise ValueError(f"prior must be positive for every class, got {prior.tolist()}")
        self.alpha = alpha
        self.num_classes = num_classes
        self.prior = prior

    def __call__(self, model: Model, batch: Batch) -> tuple[Tensor, Tensor]:
        logits = model(batch.x_adv)
        losses = _weighted(cross_entropy(logits, batch.y), batch.weight)
        return risk.lcvar(losses, batch.y, self.alpha, self.num_classes, self.prior), logits


class Trades(Objective):
    """Clean cross-entropy + beta * KL(clean prediction || adversarial prediction), averaged over the examples.

    Zhang et al. 2019, whose attack climbs the same KL instead of the cross-entropy (`attacks.create("trades", ...)`).
    """

    def __init__(self, beta: float = 6.0) -> None:
        if not isinstance(beta, (int, float)) or not beta >= 0:
            raise InputError(f"beta must be at least 0, got {beta!r}")
        self.beta = beta

    def __call__(self, model: Model, batch: Batch) -> tuple[Tensor, Tensor]:
        clean = model(batch.x)
        logits = model(batch.x_adv)
        losses = cross_entropy(clean, batch.y) + self.beta * prediction_divergence(clean, logits)
        return risk.mean(losses, batch.weight), logits


def cross_entropy(logits: Tensor, y: Tensor) -> Tensor:
    """Per-example cross-entropy: (B,)."""
    return F.cross_entropy(_at_least_float32(logits), y, reduction="none")


def prediction_divergence(logits: Tensor, other: Tensor) -> Tensor:
    """KL(softmax(logits) || softmax(other)) of each example: (B,). Gradients flow into both."""
    log_p = F.log_softmax(_at_least_float32(logits), dim=1)
    log_q = F.log_softmax(_at_least_float32(other), dim=1)
    return F.kl_div(log_q, log_p, reduction="none", log_target=True).sum(dim=1)


def _weighted(losses: Tensor, weight: Tensor | None) -> Tensor:
    return losses if weight is None else weight.to(losses.dtype) * losses


def _at_least_float32(logits: Tensor) -> Tensor:
    # Rounded to bfloat16, different losses would become equal, and their order, which CVaR depends on, arbitrary.
    return logits.float() if logits.dtype.itemsize < 4 else logits
