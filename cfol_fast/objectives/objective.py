"""Objectives: from a model and an attacked batch to the scalar that the optimiser minimises.

An objective is called as `loss, logits = objective(model, batch)`. `logits` are those that the
sampler's feedback is taken from: the adversarial ones where there is an attack. Every forward pass of the
training step, except the attack's own, happens in here, once for each input that is needed.

It has two halves: the terms of each example, which need the model, and the risk of all terms, which does not.
A batch in several shards has the terms shard by shard, and one risk.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar, Self

import torch
import torch.nn.functional as F
from torch import Tensor

from cfol_fast.errors import InputError
from cfol_fast.objectives import best_response, risk

Model = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Batch:
    """What one step trains on.

    `x` and `x_adv`: (B, C, H, W) in [0, 1]; `y`: (B,) int64; `weight`: (B,) or None.

    In training without an attack `x_adv` is `x`. `weight` is the factor of each example's loss that the
    sampler asks for (`sampler.weight(y)`), times that of its class policy. `clean` and `robust`: (B,) or
    None, the policy's factors of the two terms of a TRADES-like loss.
    """

    x: Tensor
    x_adv: Tensor
    y: Tensor
    weight: Tensor | None = None
    clean: Tensor | None = None
    robust: Tensor | None = None


@dataclass(frozen=True)
class Examples:
    """What the risk needs of a batch beside its terms; the fields are those of `Batch`."""

    y: Tensor
    weight: Tensor | None = None
    clean: Tensor | None = None
    robust: Tensor | None = None


Terms = tuple[Tensor, ...]


class Objective:
    """factors: those of a class policy that the objective makes use of. label_smoothing: of every
    cross-entropy, a setting of the run.

    separable: the risk is a mean over the examples, so that the risk of a batch is the mean of those of its
    shards. Otherwise the shards of a batch must know of each other. An objective of one's own may define
    `__call__` alone; it then takes whole batches only.
    """

    factors: ClassVar[frozenset[str]] = frozenset({"weight"})
    separable: ClassVar[bool] = False
    label_smoothing: float = 0.0

    def with_label_smoothing(self, smoothing: float) -> Self:
        """The same objective, with every cross-entropy smoothed."""
        smoothed = copy.copy(self)
        smoothed.label_smoothing = smoothing
        return smoothed

    def cross_entropy(self, logits: Tensor, y: Tensor) -> Tensor:
        """Of each example: (B,)."""
        return cross_entropy(logits, y, self.label_smoothing)

    def __call__(self, model: Model, batch: Batch) -> tuple[Tensor, Tensor]:
        """The loss, a scalar to call `backward` on, and the logits: (B, k) that the sampler's feedback is
        taken from.
        """
        terms, logits = self.terms(model, batch)
        return self.risk(terms, batch), logits

    def terms(self, model: Model, batch: Batch) -> tuple[Terms, Tensor]:
        """Tensors of shape (B,), one entry for each example, that the risk is a function of; and the
        logits.
        """
        raise NotImplementedError

    def risk(self, terms: Terms, examples: Batch | Examples) -> Tensor:
        """The scalar to minimise. terms: of all the examples."""
        raise NotImplementedError

    @property
    def takes_shards(self) -> bool:
        return type(self).terms is not Objective.terms


class OfAdversarialLosses(Objective):
    """A risk of the cross-entropies of the adversarial examples."""

    def terms(self, model: Model, batch: Batch) -> tuple[Terms, Tensor]:
        logits = model(batch.x_adv)
        return (self.cross_entropy(logits, batch.y),), logits


class Mean(OfAdversarialLosses):
    """Cross-entropy of the adversarial examples, averaged with the batch's weights: ERM-AT, CFOL-AT,
    FOL-AT.
    """

    separable = True

    def risk(self, terms: Terms, examples: Batch | Examples) -> Tensor:
        return risk.mean(terms[0], examples.weight)


class Clean(Mean):
    """Cross-entropy of the images as they are: training without an attack."""

    def terms(self, model: Model, batch: Batch) -> tuple[Terms, Tensor]:
        logits = model(batch.x)
        return (self.cross_entropy(logits, batch.y),), logits


class Both(Mean):
    """Clean plus adversarial cross-entropy, `clean_weight` times the former."""

    def __init__(self, clean_weight: float = 1.0) -> None:
        if clean_weight < 0:
            raise InputError(f"clean_weight must be at least 0, got {clean_weight}")
        self.clean_weight = clean_weight

    def terms(self, model: Model, batch: Batch) -> tuple[Terms, Tensor]:
        clean = self.cross_entropy(model(batch.x), batch.y)
        logits = model(batch.x_adv)
        return (self.clean_weight * clean + self.cross_entropy(logits, batch.y),), logits


class ClassWeighted(OfAdversarialLosses):
    """Adversarial cross-entropy with one fixed weight per class, e.g. inverse class frequencies. weights:
    (k,).
    """

    separable = True

    def __init__(self, weights: Tensor) -> None:
        if weights.dim() != 1:
            raise ValueError(
                f"weights must be a vector with one entry per class, got shape {tuple(weights.shape)}"
            )
        self.weights = weights

    def risk(self, terms: Terms, examples: Batch | Examples) -> Tensor:
        return risk.class_weighted(_weighted(terms[0], examples.weight), examples.y, self.weights)


class CVaR(OfAdversarialLosses):
    """The worst fraction `alpha` of the batch's adversarial losses (appendix B).

    BatchNorm's statistics are those of the whole batch, as in the paper; only the gradient comes from the
    worst part.
    """

    def __init__(self, alpha: float) -> None:
        risk.check_alpha(alpha)
        self.alpha = alpha

    def risk(self, terms: Terms, examples: Batch | Examples) -> Tensor:
        return risk.cvar(_weighted(terms[0], examples.weight), self.alpha)


class LCVaR(OfAdversarialLosses):
    """The worst classes of the batch by their mean adversarial loss (appendix B). prior: (k,) class masses or
    None.
    """

    def __init__(self, alpha: float, num_classes: int, prior: Tensor | None = None) -> None:
        risk.check_alpha(alpha)
        if prior is not None:
            risk.check_prior(prior, num_classes)
            # A batch that holds only classes without mass would have no distribution, and its loss would be
            # NaN.
            if not prior.is_meta and not bool(((prior > 0) & prior.isfinite()).all()):
                raise ValueError(f"prior must be positive for every class, got {prior.tolist()}")
        self.alpha = alpha
        self.num_classes = num_classes
        self.prior = prior

    def risk(self, terms: Terms, examples: Batch | Examples) -> Tensor:
        losses = _weighted(terms[0], examples.weight)
        return risk.lcvar(losses, examples.y, self.alpha, self.num_classes, self.prior)


class LHCVaR(OfAdversarialLosses):
    """LCVaR with a level alpha_y for each class; one level for all is LCVaR.

    In the CFOL authors' code, not in the paper.
    """

    def __init__(self, alpha: float | Sequence[float], num_classes: int) -> None:
        risk.check_levels(alpha, num_classes)
        self.num_classes = num_classes
        levels = list(alpha) if isinstance(alpha, (list, tuple)) else [alpha] * num_classes
        self.levels = torch.tensor(levels, dtype=torch.float64)

    def risk(self, terms: Terms, examples: Batch | Examples) -> Tensor:
        if self.levels.device != examples.y.device:
            # Once, at the first step.
            self.levels = self.levels.to(examples.y.device)
        return risk.lcvar(_weighted(terms[0], examples.weight), examples.y, self.levels, self.num_classes)


class FAAL(Objective):
    """Adversarial cross-entropy with the class weights of the worst distribution in a KL ball, by the
    classes' margins.

    Zhang et al. 2024. A class's margin is the mean over its images of the largest wrong probability minus the
    right one.
    """

    def __init__(self, radius: float, num_classes: int) -> None:
        self.radius, self.num_classes = best_response.check_radius("radius", radius), num_classes

    def terms(self, model: Model, batch: Batch) -> tuple[Terms, Tensor]:
        logits = model(batch.x_adv)
        return (
            self.cross_entropy(logits, batch.y),
            probability_margin(logits.detach(), batch.y),
        ), logits

    def risk(self, terms: Terms, examples: Batch | Examples) -> Tensor:
        losses, each_margin = terms
        margins, counts = risk.class_means(each_margin, examples.y, self.num_classes)
        present = counts > 0
        p = best_response.kl_ball(margins, present, self.radius)
        # Times the number of classes in the batch: equal margins give the mean.
        weights = (present.sum() * p).to(torch.float32)
        return risk.class_weighted(_weighted(losses, examples.weight), examples.y, weights)


class ChiSquare(OfAdversarialLosses):
    """The worst mean of the classes' adversarial losses in a chi-square ball around the uniform distribution.

    Without negative weights this is their mean plus sqrt(2 rho variance).
    """

    def __init__(self, rho: float, num_classes: int) -> None:
        self.rho, self.num_classes = best_response.check_radius("rho", rho), num_classes

    def risk(self, terms: Terms, examples: Batch | Examples) -> Tensor:
        losses = _weighted(terms[0], examples.weight)
        class_losses, counts = risk.class_means(losses, examples.y, self.num_classes)
        p = best_response.chi2_ball(class_losses, counts > 0, self.rho)
        return (p.to(class_losses.dtype) * class_losses).sum()


class Trades(Objective):
    """Clean cross-entropy + beta * KL(clean prediction || adversarial prediction), averaged over the
    examples.

    Zhang et al. 2019, whose attack climbs the same KL instead of the cross-entropy (`attacks.create("trades",
    ...)`).
    """

    factors = frozenset({"weight", "clean", "robust"})
    separable = True

    def __init__(self, beta: float = 6.0) -> None:
        if not isinstance(beta, (int, float)) or not beta >= 0:
            raise InputError(f"beta must be at least 0, got {beta!r}")
        self.beta = beta

    def terms(self, model: Model, batch: Batch) -> tuple[Terms, Tensor]:
        """The clean cross-entropies, the divergences, and the adversarial logits."""
        clean = model(batch.x)
        logits = model(batch.x_adv)
        return (self.cross_entropy(clean, batch.y), prediction_divergence(clean, logits)), logits

    def risk(self, terms: Terms, examples: Batch | Examples) -> Tensor:
        return risk.mean(self._losses(terms, examples), examples.weight)

    def losses(self, model: Model, batch: Batch) -> tuple[Tensor, Tensor]:
        """The loss of each example, (B,), and the adversarial logits."""
        terms, logits = self.terms(model, batch)
        return self._losses(terms, batch), logits

    def _losses(self, terms: Terms, examples: Batch | Examples) -> Tensor:
        clean, divergence = terms
        return _weighted(clean, examples.clean) + _weighted(self.beta * divergence, examples.robust)


class BalancedTrades(Trades):
    """(1 - b) times the clean loss plus b times the divergence, b = beta_y / (1 + beta_y): CFA's form (Wei et
    al. 2023).

    The policy's `robust` factor multiplies beta. Without one this is TRADES divided by 1 + beta.
    """

    factors = frozenset({"weight", "robust"})

    def _losses(self, terms: Terms, examples: Batch | Examples) -> Tensor:
        clean, divergence = terms
        beta = self.beta if examples.robust is None else self.beta * examples.robust
        return (clean + beta * divergence) / (1 + beta)


class NormalisedTrades(Trades):
    """TRADES with each term divided by the sum of the batch's weights of that term: FRL's form (Xu et al.

    2021).
    """

    separable = False

    def risk(self, terms: Terms, examples: Batch | Examples) -> Tensor:
        clean, divergence = (_weighted(each, examples.weight) for each in terms)
        return _weighted_mean(clean, examples.clean) + self.beta * _weighted_mean(divergence, examples.robust)


def cross_entropy(logits: Tensor, y: Tensor, label_smoothing: float = 0.0) -> Tensor:
    """Per-example cross-entropy: (B,)."""
    return F.cross_entropy(_at_least_float32(logits), y, reduction="none", label_smoothing=label_smoothing)


def prediction_divergence(logits: Tensor, other: Tensor) -> Tensor:
    """KL(softmax(logits) || softmax(other)) of each example: (B,). Gradients flow into both."""
    log_p = F.log_softmax(_at_least_float32(logits), dim=1)
    log_q = F.log_softmax(_at_least_float32(other), dim=1)
    return F.kl_div(log_q, log_p, reduction="none", log_target=True).sum(dim=1)


def probability_margin(logits: Tensor, y: Tensor) -> Tensor:
    """The largest probability of a wrong class minus that of the right one, of each example: (B,) in
    [-1, 1].
    """
    p = _at_least_float32(logits).softmax(1)
    right = y.unsqueeze(1)
    return p.scatter(1, right, -1.0).amax(1) - p.gather(1, right).squeeze(1)


def _weighted_mean(losses: Tensor, weight: Tensor | None) -> Tensor:
    return losses.mean() if weight is None else (weight * losses).sum() / weight.sum()


def _weighted(losses: Tensor, weight: Tensor | None) -> Tensor:
    return losses if weight is None else weight.to(losses.dtype) * losses


def _at_least_float32(logits: Tensor) -> Tensor:
    # Rounded to bfloat16, different losses would become equal, and their order, which CVaR depends on,
    # arbitrary.
    return logits.float() if logits.dtype.itemsize < 4 else logits
