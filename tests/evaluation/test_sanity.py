"""The check for masked gradients: it passes an honest model and names the class and the check of a blind
attack.
"""

from __future__ import annotations

import importlib.util
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from cfol_fast.errors import InputError
from cfol_fast.evaluation import sanity
from cfol_fast.evaluation.sanity import Check, check_gradients, describe
from tests.attacks import small_models
from tests.attacks.small_models import EPS, Trained

pytestmark = pytest.mark.slow

PGD = {"eps": EPS, "steps": 4}


class Blind(nn.Module):
    """No gradient for images that are predicted as one of `classes`."""

    def __init__(self, model: nn.Module, classes: tuple[int, ...]) -> None:
        super().__init__()
        self.model, self.classes = model, classes

    def forward(self, x: Tensor) -> Tensor:
        logits = self.model(x)
        masked = torch.isin(logits.argmax(1), torch.tensor(self.classes))
        return torch.where(masked[:, None], logits.detach() + 0 * logits, logits)


class Turned(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return -grad


class Misleading(nn.Module):
    """The gradient points the wrong way, so that every further step helps the model."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: Tensor) -> Tensor:
        return self.model(Turned.apply(x))


@pytest.fixture
def many(trained: Trained) -> Trained:
    return Trained(trained.model, *small_models.images(300, 8))


def without_square(monkeypatch: pytest.MonkeyPatch) -> None:
    real = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == "pyautoattack" else real(name)
    )


def failures(checks: list[Check]) -> dict[str, list[str]]:
    return {check.name: list(check.failures) for check in checks}


def test_an_honest_model_passes(many: Trained, monkeypatch: pytest.MonkeyPatch) -> None:
    without_square(monkeypatch)
    checks = check_gradients(*many, attack={**PGD, "steps": 6})
    assert failures(checks) == {"more steps and restarts": [], "Square": [], "large radius": []}


def test_a_class_without_gradients_keeps_its_accuracy_at_any_radius(
    many: Trained, monkeypatch: pytest.MonkeyPatch
) -> None:
    without_square(monkeypatch)
    blind = Blind(many.model, tuple(range(10))).eval()
    found = check_gradients(blind, many.x, many.y, attack=PGD)
    assert found[2].name == "large radius"
    assert found[2].failures
    assert all("are still right, chance is 10.0%" in why for why in found[2].failures.values())


def test_steps_that_help_the_model_are_found(many: Trained, monkeypatch: pytest.MonkeyPatch) -> None:
    without_square(monkeypatch)
    attack = {"eps": 0.15, "steps": 2, "step": 0.01}
    # Labels that the model gets wrong, so that there is something to gain.
    found = check_gradients(Misleading(many.model).eval(), many.x, (many.y + 1) % 10, attack=attack)
    assert found[0].failures
    assert all("right again under the stronger attack" in why for why in found[0].failures.values())


def test_an_attack_that_has_not_converged_is_found(many: Trained, monkeypatch: pytest.MonkeyPatch) -> None:
    without_square(monkeypatch)
    found = check_gradients(*many, attack={**PGD, "steps": 2, "step": EPS / 10})
    assert found[0].failures
    assert all("had not converged" in why for why in found[0].failures.values())


def test_without_pyautoattack_it_says_what_was_not_checked(
    trained: Trained, monkeypatch: pytest.MonkeyPatch
) -> None:
    without_square(monkeypatch)
    checks = check_gradients(*trained, attack=PGD)
    assert checks[1].to_json()["passed"] is None
    assert "not checked: Square needs pyautoattack: pip install" in describe(checks, {"0": 20})


@pytest.mark.slow
def test_square_finds_the_class_whose_gradients_are_masked(many: Trained) -> None:
    pytest.importorskip("pyautoattack")
    x, y = small_models.images(300, 8)
    chosen = (y == 3) | (y == 5)
    blind = Blind(many.model, (3,)).eval()
    found = check_gradients(blind, x[chosen], y[chosen], attack={"eps": 1.5 * EPS, "steps": 4})
    assert list(found[1].failures) == ["3"]
    assert "that PGD does not" in found[1].failures["3"]


def test_a_radius_is_needed(trained: Trained) -> None:
    with pytest.raises(InputError, match="needs a radius above 0"):
        check_gradients(*trained, attack={"eps": 0})


def test_the_text_names_check_class_and_reason() -> None:
    checks = [Check("Square", "a against b", {"Shirt": "why"}), Check("large radius", "c")]
    lines = [line.split() for line in describe(checks, {"Shirt": 300, "Bag": 300}).splitlines()]
    assert lines == [
        ["check", "for", "masked", "gradients"],
        ["Square", "FAILED", "a", "against", "b"],
        ["Shirt:", "why"],
        ["large", "radius", "passed", "c"],
    ]


def test_few_images_are_said_to_be_few() -> None:
    said = describe([Check("large radius", "c")], {str(c): 4 for c in range(10)})
    assert "less than 10 images is not told from chance, and a class has only 4" in said
    assert 0.5**10 < sanity.ERROR / (sanity.COMPARISONS * 10) < 0.5**9
