"""What the paper proves, as numbers: the step size, the bound of Theorem 1, the CVaR level of the same
uncertainty set, and the ensemble of iterates that the bound speaks of.

Theorem 1 holds for Algorithm 1 with gamma = 1/2, a uniform base distribution and single draws, for models
with a mistake bound C (assumption 1): at most C mistakes on any sequence of examples.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from cfol_fast.errors import InputError


def step_size(k: int, C: float | None = None) -> float:
    """The bandit's step size of Theorem 1, sqrt(log k / (4 k C)), at most 1 / (2 k).

    `C` is the model's mistake bound; the theorem needs at least k log k, which is taken where C is smaller or
    not given.
    """
    C = _mistakes(k, C)
    return math.sqrt(math.log(k) / (4 * k * C))


class WorstClassBound(float):
    """The right-hand side of Theorem 1: a number, with the terms that it is the sum of.

    regret: 6C/T, what the bandit and the model lose while learning; sampling, sampling_tail: a step sees
    single examples, not the whole class; ensemble, ensemble_tail: n members stand for all T iterates.
    """

    terms: dict[str, float]

    def __new__(cls, terms: dict[str, float]) -> WorstClassBound:
        bound = super().__new__(cls, sum(terms.values()))
        bound.terms = dict(terms)
        return bound

    def __getattr__(self, name: str) -> float:
        if name != "terms" and name in self.terms:
            return self.terms[name]
        raise AttributeError(name)


def worst_class_bound(
    C: float, T: int, k: int, delta: float, n: int, baseline: str = "none"
) -> WorstClassBound:
    """Theorem 1: with probability at least 1 - delta no class's risk, averaged over the ensemble, is above
    this.

    C: mistake bound (raised to k log k where smaller); T: steps; k: classes; n: members drawn i.i.d. from the
    T iterates. baseline: of the bandit; the theorem is about the one without.
    """
    if baseline != "none":
        raise InputError(
            f"Theorem 1 is about the bandit without a baseline, got baseline={baseline!r}: train with"
            " baseline=none for its bound"
        )
    if T < 1 or n < 1:
        raise ValueError(f"T and n must be at least 1, got T = {T}, n = {n}")
    if not 0 < delta < 1:
        raise ValueError(f"delta must be in (0, 1), got {delta}")
    C = _mistakes(k, C)
    log = math.log(2 * k / delta)
    return WorstClassBound(
        {
            "regret": 6 * C / T,
            "sampling": math.sqrt(4 * k * log / T),
            "sampling_tail": (1 + 2 * k) * log / (3 * T),
            "ensemble": math.sqrt(2 * log / n),
            "ensemble_tail": 2 * log / (3 * n),
        }
    )


def cvar_alpha(gamma: float, m: int) -> float:
    """The CVaR level with the same cap on each probability as mixing with gamma over m arms: 1 / ((1 - gamma)
    m + gamma).
    """
    if not 0 < gamma <= 1:
        raise InputError(f"gamma must be in (0, 1], got {gamma}")
    if m < 1:
        raise ValueError(f"m must be at least 1, got {m}")
    return 1 / ((1 - gamma) * m + gamma)


class IterateReservoir:
    """n iterates drawn independently and uniformly from a training run, kept while it goes: the ensemble of
    Theorem 1.

    Each member is a reservoir of size one of its own, so that a step may be chosen more than once. Call
    `observe(step, model)` at the start of every step, before the model is updated: the theorem's theta^t is
    the model that step t's mistakes are counted on. Only the about n * log(T) steps that are chosen cost a
    copy of the weights.
    """

    def __init__(self, n: int, seed: int = 0) -> None:
        if n < 1:
            raise ValueError(f"n must be at least 1, got {n}")
        self.n = n
        self.seed = seed
        self.seen = 0
        # For each member: the step whose iterate it holds, that iterate's weights, and the step that replaces
        # it next.
        self.steps = [-1] * n
        self.weights: list[dict[str, Tensor]] = [{} for _ in range(n)]
        self._due = [0] * n
        self._replaced = [0] * n
        self._next = 0

    def observe(self, step: int, model: nn.Module) -> None:
        """Offers the model as it is before step `step`, counted from 0 without gaps."""
        if step != self.seen:
            raise ValueError(
                f"step {step} was observed where {self.seen} was due: every step must be observed once"
            )
        self.seen += 1
        if step < self._next:
            return
        copy = {name: t.detach().clone() for name, t in model.state_dict().items()}
        for member in range(self.n):
            if self._due[member] == step:
                self.steps[member], self.weights[member] = step, copy
                self._due[member] = self._next_due(member, step)
        self._next = min(self._due)

    def _next_due(self, member: int, step: int) -> int:
        # A reservoir of size one takes the t-th item with probability 1/t, so its next item after the t-th is
        # beyond the s-th with probability t/s: the floor of t/U, plus one, for U uniform in (0, 1]. Steps
        # count from 0, items from 1.
        self._replaced[member] += 1
        uniform = 1 - random.Random(f"{self.seed}/{member}/{self._replaced[member]}").random()
        return int((step + 1) / uniform)

    def models(self, network: nn.Module) -> Iterator[nn.Module]:
        """`network` with the weights of each member in turn; it is one object, so use each before asking for
        the next.
        """
        if not self.seen:
            raise ValueError(
                "the reservoir has seen no iterate: call observe(step, model) in the training loop"
            )
        for weights in self.weights:
            network.load_state_dict(weights)
            yield network

    def state_dict(self) -> dict[str, Any]:
        return {
            "n": self.n,
            "seed": self.seed,
            "seen": self.seen,
            "steps": list(self.steps),
            "due": list(self._due),
            "replaced": list(self._replaced),
            "weights": list(self.weights),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if state["n"] != self.n:
            raise InputError(f"the state has {state['n']} members, this reservoir has {self.n}")
        self.seed, self.seen = state["seed"], state["seen"]
        self.steps, self.weights = list(state["steps"]), list(state["weights"])
        self._due, self._replaced = list(state["due"]), list(state["replaced"])
        self._next = min(self._due)


@dataclass(frozen=True)
class EnsembleRisk:
    """The risk of each class, averaged over the members; Theorem 1 bounds the largest of them.

    per_class: (k,) float64. members: (n, k) float64, the risk of each class under each member.
    """

    per_class: Tensor
    members: Tensor

    @property
    def worst(self) -> float:
        return float(self.per_class.max())

    @property
    def worst_class(self) -> int:
        return int(self.per_class.argmax())


def ensemble_risk(models: Iterable[Any], evaluate: Callable[[Any], Any]) -> EnsembleRisk:
    """The left-hand side of Theorem 1: each member is attacked and evaluated on its own, then each class is
    averaged.

    `evaluate(model)` gives the class accuracies: a (k,) tensor or something with `per_class`, e.g.
    `lambda m: cf.evaluate(m, source, attack=cf.PGD(m, eps=8/255)).robust`. `AveragedLogits` is a different
    model.
    """
    rows = []
    for model in models:
        found = evaluate(model)
        accuracies = found if isinstance(found, Tensor) else found.per_class
        rows.append(1 - torch.as_tensor(accuracies).detach().to("cpu", torch.float64))
    if not rows:
        raise ValueError("the ensemble has no members")
    members = torch.stack(rows)
    return EnsembleRisk(members.mean(dim=0), members)


class AveragedLogits(nn.Module):
    """One classifier out of several: the mean of their logits, class by class.

    Members that have class names (`load` sets them) are matched by them, in the order of the first; `classes`
    is there if all have. Not what Theorem 1 bounds: see `ensemble_risk`.
    """

    def __init__(self, models: Iterable[nn.Module]) -> None:
        super().__init__()
        self.members = nn.ModuleList(models)
        if not self.members:
            raise ValueError("the ensemble has no members")
        if len(set(map(id, self.members))) < len(self.members):
            raise ValueError(
                "the same model is there twice: IterateReservoir.models yields one object, so copy.deepcopy"
                " each member"
            )

        names = [_names(member) for member in self.members]
        self._places = _places(names)
        if all(names):
            self.classes = names[0]

    def forward(self, x: Tensor) -> Tensor:
        return torch.stack(
            [
                member(x) if places is None else member(x)[:, places]
                for member, places in zip(self.members, self._places, strict=True)
            ]
        ).mean(dim=0)


def _places(names: list[list[str]]) -> list[list[int] | None]:
    """Of each member the places of the first named one's classes; None where its order is the same."""
    first = next((mine for mine in names if mine), [])
    for mine in names:
        if mine and sorted(mine) != sorted(first):
            both = f"{', '.join(first)}; {', '.join(mine)}"
            raise InputError(f"the members of an ensemble must have the same classes, got {both}")
    return [[mine.index(name) for name in first] if mine and mine != first else None for mine in names]


def _names(model: nn.Module) -> list[str]:
    """Of a model's classes, also where DataParallel is around it; empty where it has none."""
    found = getattr(model, "classes", None) or getattr(getattr(model, "module", None), "classes", None)
    return list(found) if isinstance(found, (list, tuple)) and all(isinstance(n, str) for n in found) else []


def _mistakes(k: int, C: float | None) -> float:
    if k < 2:
        raise ValueError(f"k must be at least 2 classes, got {k}")
    least = k * math.log(k)
    if C is None:
        return least
    if not isinstance(C, (int, float)) or not 0 < C < math.inf:
        raise InputError(f"C must be a positive number of mistakes, got {C!r}")
    return max(least, C)
