"""An attack that was built for another model is noticed, however it is wrapped; one on the model itself is
not.
"""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from cfol_fast.attacks import PGD
from cfol_fast.evaluation import evaluate
from tests.attacks.small_models import EPS, Trained

Given = Callable[[Tensor, Tensor], Tensor]


def pgd(model: nn.Module) -> PGD:
    return PGD(model, EPS, steps=1)


def one_step(logits: Callable[[Tensor], Tensor], x: Tensor, y: Tensor) -> Tensor:
    leaf = x.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(nn.functional.cross_entropy(logits(leaf), y), leaf)
    return (x + EPS * gradient.sign()).clamp(0, 1)


class Holding:
    """An attack of a library that calls its model by any name."""

    def __init__(self, **parts: Any) -> None:
        vars(self).update(parts)

    def __call__(self, x: Tensor, y: Tensor) -> Tensor:
        return self.attack(x, y) if hasattr(self, "attack") else one_step(self.net, x, y)

    perturb = __call__


class Slotted:
    __slots__ = ("net",)

    def __init__(self, net: nn.Module) -> None:
        self.net = net

    def __call__(self, x: Tensor, y: Tensor) -> Tensor:
        return one_step(self.net, x, y)


class AsModule(nn.Module):
    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.basic_net = net

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return one_step(self.basic_net, x, y)


def on_a_class(model: nn.Module) -> Given:
    class Static:
        attack = pgd(model)

        @classmethod
        def run(cls, x: Tensor, y: Tensor) -> Tensor:
            return cls.attack(x, y)

    return Static.run


def with_default(model: nn.Module) -> Given:
    attack = pgd(model)
    return lambda x, y, inner=attack: inner(x, y)


def with_keyword_default(model: nn.Module) -> Given:
    attack = pgd(model)
    return lambda x, y, *, inner=attack: inner(x, y)


def closing(over: Any, call: Callable[..., Tensor]) -> Given:
    return lambda x, y: call(over, x, y)


def wrapped(attack: Given) -> Given:
    @functools.wraps(attack)
    def timed(x: Tensor, y: Tensor) -> Tensor:
        return attack(x, y)

    return timed


CALL = lambda attack, x, y: attack(x, y)  # noqa: E731
WRAPPED: dict[str, Callable[[nn.Module], Any]] = {
    "attack": pgd,
    "subclass": lambda model: type("Own", (PGD,), {})(model, EPS, steps=1),
    "attack in a closure": lambda model: closing(pgd(model), CALL),
    "model in a closure": lambda model: closing(model, one_step),
    "function in a function": lambda model: closing(closing(pgd(model), CALL), CALL),
    "decorator": lambda model: wrapped(closing(pgd(model), CALL)),
    "partial": lambda model: functools.partial(one_step, model),
    "keyword of a partial": lambda model: functools.partial(lambda x, y, net: one_step(net, x, y), net=model),
    "default": with_default,
    "keyword default": with_keyword_default,
    "list": lambda model: closing([pgd(model)], lambda held, x, y: held[0](x, y)),
    "dict": lambda model: closing({"a": pgd(model)}, lambda held, x, y: held["a"](x, y)),
    "object with an attack": lambda model: Holding(attack=pgd(model)),
    "object with a network": lambda model: Holding(net=model),
    "method": lambda model: Holding(net=model).perturb,
    "estimator": lambda model: Holding(
        attack=closing(SimpleNamespace(_model=model), lambda held, x, y: one_step(held._model, x, y))
    ),
    "slots": Slotted,
    "module": AsModule,
    "class": on_a_class,
    "function of the model": lambda model: Holding(net=lambda x: model(x)),
    "forward of the model": lambda model: closing(model.forward, one_step),
    "parallel": lambda model: pgd(nn.DataParallel(model)),
}


def other_weights(model: nn.Module) -> nn.Module:
    other = copy.deepcopy(model)
    with torch.no_grad():
        for weight in other.parameters():
            weight.mul_(0.8)
    return other


def is_noticed(trained: Trained, attack: Any) -> bool:
    model, x, y = trained
    report = evaluate(model, x[:20], y[:20], attack=attack)
    return "attack on another model" in [one["warning"] for one in report.warnings]


@pytest.mark.parametrize("name", WRAPPED)
def test_it_is_noticed_however_it_is_wrapped(trained: Trained, name: str) -> None:
    wrap = WRAPPED[name]
    assert is_noticed(trained, wrap(other_weights(trained.model)))
    assert not is_noticed(trained, wrap(trained.model))
    assert not is_noticed(trained, wrap(copy.deepcopy(trained.model)))


def test_an_attack_on_another_model_is_noticed_beside_the_model_itself(trained: Trained) -> None:
    attack, model = pgd(other_weights(trained.model)), trained.model
    assert is_noticed(trained, lambda x, y: attack(x, y) + 0 * model(x).sum())


def test_one_of_several_attacks_may_be_on_the_model(trained: Trained) -> None:
    attacks = {"own": pgd(trained.model), "other": pgd(other_weights(trained.model))}
    assert not is_noticed(trained, lambda x, y: attacks["own"](x, y))


def test_a_look_draws_no_random_numbers(trained: Trained) -> None:
    class Noisy(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return torch.rand(len(x), 10)

    states = []
    for held in (nn.Identity(), Noisy()):
        torch.manual_seed(0)
        attack = Holding(net=copy.deepcopy(trained.model), held=held)
        evaluate(trained.model, trained.x[:20], trained.y[:20], attack=attack)
        states.append(torch.get_rng_state())
    assert torch.equal(*states)
