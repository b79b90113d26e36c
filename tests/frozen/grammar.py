"""A grammar of small models: feature layers, a head, an idiom around them, and a change between two attacks.

`features x heads x idioms x changes` are millions of models with other people's habits; `cases` draws some of
them by a seed. A model is built twice from one seed: one is attacked fast, the other plainly (`fast=False`),
and both see the same calls and changes.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from cfol_fast.attacks import PGD
from tests.attacks.small_models import awaken
from tests.frozen import hidden_changes
from tests.frozen.changes import CHANGES
from tests.frozen.idioms import ERROR, IDIOMS
from tests.frozen.layers import CLASSES, FEATURES, HEADS, SIDE, network

assert hidden_changes  # It adds to the changes.
BATCH, EPS, STEPS = 4, 0.05, 2


@dataclass(frozen=True)
class Case:
    """The words of one sentence of the grammar, and the seed of its weights and images."""

    features: str = "conv bn relu"
    head: str = "pool flatten linear"
    idiom: str = "The network as it is"
    change: str = "nothing"
    seed: int = 0

    def __str__(self) -> str:
        return " / ".join((self.features, self.head, self.idiom, self.change))

    def build(self) -> nn.Module:
        """In float64 and eval mode, with weights as after training."""
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(self.seed)
            model = awaken(network(self.features, self.head), self.seed)
            return CHANGES[self.change].carry(IDIOMS[self.idiom].wrap(model)).double().eval()

    def batch(self) -> tuple[Tensor, Tensor]:
        generator = torch.Generator().manual_seed(self.seed + 1)
        x = torch.rand(BATCH, 3, SIDE, SIDE, generator=generator, dtype=torch.float64)
        return x, torch.randint(0, CLASSES, (BATCH,), generator=generator)


class Watched(PGD):
    """Keeps the iterate, the logits and the gradient of every step."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.seen: list[tuple[Tensor, Tensor, Tensor]] = []

    def gradient(self, net: Any, adv: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
        logits, gradient = super().gradient(net, adv, target)
        self.seen.append((adv.clone(), logits.clone(), gradient.clone()))
        return logits, gradient


def attacked(model: nn.Module, x: Tensor, y: Tensor, fast: bool, **options: Any) -> tuple[Tensor, list]:
    """The perturbed images and what every step saw; models that draw numbers draw the same ones."""
    attack = Watched(model, EPS, steps=STEPS, fast=fast, **options)
    # Not `torch.manual_seed`, which notes who called it, at ten times the price.
    for seed in (random.seed, np.random.seed, torch.default_generator.manual_seed):
        seed(5)
    return attack(x.clone(), y), attack.seen


def check_equal(fast: nn.Module, plain: nn.Module, x: Tensor, y: Tensor) -> list[Any]:
    """Attacks two models that are the same, in float64, and compares logits, gradients and perturbations.

    A pixel whose gradient is within rounding of zero may move to either side; from there on its image is
    another one.
    """
    (found, steps), (wanted, plain_steps) = attacked(fast, x, y, True), attacked(plain, x, y, False)
    assert len(steps) == len(plain_steps) == STEPS
    free = torch.zeros_like(x, dtype=torch.bool)
    for (_, logits, gradient), (_, right_logits, right_gradient) in zip(steps, plain_steps, strict=True):
        scale = float(right_gradient.abs().max())
        assert scale > 0, "the gradient is zero: nothing is compared"
        same = ~free.flatten(1).any(1)
        assert same.any()
        torch.testing.assert_close(logits[same], right_logits[same], rtol=1e-5, atol=1e-6)
        torch.testing.assert_close(gradient[same], right_gradient[same], rtol=0, atol=1e-6 * scale)
        # Where it is exactly zero in both passes the pixel stays where it is.
        free |= (right_gradient.abs() <= 1e-11 * scale) & (gradient != right_gradient)
    same = ~free.flatten(1).any(1)
    assert torch.equal(found[same], wanted[same])
    return plain_steps


def moved(before: list[Any], after: list[Any]) -> bool:
    """Whether a change between two attacks changed the function: logits or gradient of the first step."""
    return any(
        not torch.allclose(a, b, rtol=1e-3, atol=1e-4)
        for a, b in zip(before[0][1:], after[0][1:], strict=True)
    )


def cases(change: str, count: int, seed: int = 0) -> Iterator[Case]:
    """Sentences with this change in which the plain model runs before and after it, and in which it changes
    what it should.
    """
    draw = random.Random(f"{change} {seed}")
    words = [
        list(FEATURES),
        list(HEADS),
        [idiom.name for idiom in IDIOMS.values() if idiom.runs != ERROR and not idiom.slow],
    ]
    found = 0
    for number in range(60 * count):
        case = Case(*(draw.choice(kind) for kind in words), change, 1000 * seed + number)
        if _is_valid(case):
            found += 1
            yield case
            if found == count:
                return
    raise AssertionError(f"{found} of {count} sentences with the change {change!r}")


def _is_valid(case: Case) -> bool:
    change = CHANGES[case.change]
    with pytest.MonkeyPatch.context() as patch:
        # Words that do not fit together, such as a parametrisation and the replacement of its parameter,
        # raise anything.
        try:
            model, (x, y) = case.build(), case.batch()
            before = attacked(model, x, y, False)[1]
            change.apply(model, patch)
            after = attacked(model, x, y, False)[1]
        except Exception:
            return False
    visible = all(float(step[2].abs().max()) > 0 for step in before + after)
    return visible and (change.neutral or IDIOMS[case.idiom].random or moved(before, after))


def check(case: Case) -> nn.Module:
    """Fast and plain attacks agree before the change, right after it and at the next call; the model that was
    attacked fast.
    """
    change, (x, y) = CHANGES[case.change], case.batch()
    fast, plain = case.build(), case.build()
    with pytest.MonkeyPatch.context() as patch:
        check_equal(fast, plain, x, y)
        for model in (fast, plain):
            change.apply(model, patch)
        check_equal(fast, plain, x, y)
        check_equal(fast, plain, 1 - x, y)
    return fast
