"""Attacks of torchattacks, foolbox and ART as callables for `evaluate`: each finds what our own PGD finds."""

from __future__ import annotations

from collections.abc import Callable

import foolbox
import pytest
import torch
import torchattacks
from art.attacks.evasion import ProjectedGradientDescent
from art.estimators.classification import PyTorchClassifier
from torch import Tensor, nn

import cfol_fast as cf

EPS, STEP, STEPS = 0.1, 0.025, 10
Attack = Callable[[Tensor, Tensor], Tensor]


def images() -> tuple[Tensor, Tensor]:
    """Three classes that differ in brightness, 20 images each."""
    y = torch.arange(60) % 3
    noise = torch.rand(60, 3, 8, 8, generator=torch.Generator().manual_seed(0))
    return ((y / 3).view(-1, 1, 1, 1) + noise / 3).clamp(0, 1), y


class ByBrightness(nn.Module):
    """Tells the classes apart by the mean of their pixels; an attack within 0.1 moves some of them."""

    def forward(self, x: Tensor) -> Tensor:
        centres = torch.tensor([1 / 6, 1 / 2, 5 / 6])
        # The class in the middle has a wider margin on one side, so that not all classes fall alike.
        scale = torch.tensor([40.0, 20.0, 10.0])
        return -scale * (x.mean((1, 2, 3)).unsqueeze(1) - centres).abs()


def of_torchattacks(model: nn.Module) -> Attack:
    return torchattacks.PGD(model, eps=EPS, alpha=STEP, steps=STEPS, random_start=False)


def of_foolbox(model: nn.Module) -> Attack:
    attack = foolbox.attacks.LinfPGD(abs_stepsize=STEP, steps=STEPS, random_start=False)
    wrapped = foolbox.PyTorchModel(model, bounds=(0, 1), device="cpu")
    # foolbox returns (before clipping, clipped to the ball, success).
    return lambda x, y: attack(wrapped, x, y, epsilons=EPS)[1]


def of_art(model: nn.Module) -> Attack:
    classifier = PyTorchClassifier(
        model,
        nn.CrossEntropyLoss(),
        input_shape=(3, 8, 8),
        nb_classes=3,
        clip_values=(0, 1),
        device_type="cpu",
    )
    attack = ProjectedGradientDescent(classifier, eps=EPS, eps_step=STEP, max_iter=STEPS, verbose=False)
    # ART takes and returns numpy arrays.
    return lambda x, y: torch.from_numpy(attack.generate(x.numpy(), y.numpy()))


@pytest.mark.parametrize("make", [of_torchattacks, of_foolbox, of_art], ids=lambda make: make.__name__)
def test_an_attack_of_another_library_finds_what_ours_finds(make: Callable[[nn.Module], Attack]) -> None:
    model = ByBrightness().eval()
    x, y = images()
    ours = cf.evaluate(model, x, y, attack=cf.PGD(model, eps=EPS, step=STEP, steps=STEPS, random_start=False))
    theirs = cf.evaluate(model, x, y, attack=make(model))
    assert theirs.clean.average == 1
    assert theirs.robust.per_class.tolist() == ours.robust.per_class.tolist()
    assert 0 < theirs.robust.average < 1


def test_the_worst_case_of_several_libraries_counts() -> None:
    model = ByBrightness().eval()
    x, y = images()
    attacks = [make(model) for make in (of_torchattacks, of_foolbox, of_art)]
    result = cf.evaluate(model, x, y, attack=attacks)
    assert len(result.attacks) == 3
    assert result.robust.average == min(found.average for _, found in result.attacks)
