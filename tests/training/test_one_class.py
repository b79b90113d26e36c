"""A run whose network answers one class to everything says so: at the second such epoch and at its end, with
the rate to try.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from cfol_fast.runs.setting_groups import OptimizerConfig
from cfol_fast.training import one_class, train
from tests.training import tiny

K = 10
EVEN = [1 / K] * K


class Constant(nn.Module):
    """Its ReLUs are dead: nothing of the image arrives, and only the biases learn.

    One class is ahead from the start.
    """

    def __init__(self, num_classes: int) -> None:
        super().__init__()
        self.bias = nn.Parameter(torch.zeros(num_classes))
        self.register_buffer("lead", torch.eye(num_classes)[3] * 0.3)

    def forward(self, x: Tensor) -> Tensor:
        return x.flatten(1)[:, :1] * 0 + self.bias * 0.01 + self.lead


def constant(num_classes: int) -> nn.Module:
    return Constant(num_classes)


def row(right: list[float], loss: float, p: list[float] | None = None) -> dict[str, Any]:
    return {"epoch": 1, "kind": "train", "class_error": [1 - share for share in right], "loss": loss, "p": p}


def held(right: list[float | None]) -> dict[str, Any]:
    return {
        "epoch": 1,
        "kind": "validation",
        "clean": {"per_class": {str(c): r for c, r in enumerate(right)}},
    }


LN = math.log(K)
ONE = [0.0] * (K - 1) + [1.0]
STUCK = {
    "one class, by the hold-out": (row(EVEN, 99.0), held(list(ONE)), EVEN),
    "a class without images in the hold-out": (row(EVEN, 99.0), held([None, *ONE[1:]]), EVEN),
    "two classes": (row([0, 1], math.log(2)), held([1.0, 0.0]), [0.5, 0.5]),
    "one class, by the training images": (row(ONE, LN), None, EVEN),
    "another class in every batch": (row(EVEN, 1.001 * LN), None, EVEN),
    "few images of most classes": (row([1, 0], 0.33), None, [0.9, 0.1]),
    "drawn by a bandit": (row([0, 1], 0.34, [0.1, 0.9]), None, [0.5, 0.5]),
}
LEARNING = {
    "a start under a strong attack": (row([0.0] * K, LN), held([0.3] * K), EVEN),
    "nothing withstands": (row([0.0] * K, 2.5), None, EVEN),
    "a first epoch": (row([0.2, 0.0, 0.4, 0.1, 0.1, 0.3, 0.2, 0.5, 0.4, 0.1], 2.2), None, EVEN),
    "a guess with a falling loss": (row(EVEN, 0.9 * LN), None, EVEN),
    "three classes of ten": (row(EVEN, LN), held([1.0, 1.0, 1.0] + [0.0] * 7), EVEN),
    "a worst class of nothing": (row(EVEN, LN), held([0.9] * 9 + [0.0]), EVEN),
}


@pytest.mark.parametrize("name", STUCK)
def test_a_network_that_answers_one_class_is_seen(name: str) -> None:
    assert one_class.is_stuck(*STUCK[name])


@pytest.mark.parametrize("name", LEARNING)
def test_a_network_that_learns_is_left_alone(name: str) -> None:
    assert not one_class.is_stuck(*LEARNING[name])


@pytest.mark.parametrize(
    ("name", "lr", "expected"),
    [
        ("sgd", 0.1, 0.02),
        ("sgd", 0.05, 0.01),
        ("sgd", 1e-4, 5e-4),
        ("adamw", 1e-3, 2e-4),
        ("adamw", 1e-6, 5e-6),
    ],
)
def test_the_next_rate_is_a_fifth_or_fivefold_where_it_was_tiny(
    name: str, lr: float, expected: float
) -> None:
    chosen = OptimizerConfig(name=name, lr=lr, schedule="constant")
    assert one_class.next_rate(chosen) == pytest.approx(expected)


@pytest.mark.parametrize("holdout", ["0.2", "test", "none"])
@pytest.mark.parametrize(("epochs", "said"), [(1, ["the run ends"]), (3, ["epoch 2", "the run ends"])])
def test_a_run_says_it_twice(
    tmp_path: Path,
    few_images: None,
    capsys: pytest.CaptureFixture[str],
    holdout: str,
    epochs: int,
    said: list[str],
) -> None:
    config = tiny.tiny_config(tmp_path / "run", "erm", epochs=epochs, data__holdout=holdout)
    settings = {"steps_per_epoch": 4, "batch_size": 50, "optimizer.lr": 0.1}
    train(config.replace(settings, model={"name": f"{__name__}:constant"}))
    lines = [line for line in capsys.readouterr().out.splitlines() if "one class to everything" in line]
    assert [word for word, line in zip(said, lines, strict=True) if word in line] == said
    assert all("--lr 0.02" in line for line in lines)


def test_a_run_that_learns_says_nothing(
    tmp_path: Path, few_images: None, capsys: pytest.CaptureFixture[str]
) -> None:
    config = tiny.tiny_config(tmp_path / "run", "erm", epochs=3, attack__eps=0.0, optimizer__lr=0.05)
    train(config.replace(steps_per_epoch=10, batch_size=50))
    assert "one class to everything" not in capsys.readouterr().out
