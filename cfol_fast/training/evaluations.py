"""The evaluations inside a run: any of its models on any of its images, under the attacks that its
configuration names.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from cfol_fast import attacks, evaluation
from cfol_fast.data.source import Source
from cfol_fast.progress import Progress
from cfol_fast.ranks import Ranks
from cfol_fast.runs.config import TrainConfig
from cfol_fast.runs.defaults import evaluation_step
from cfol_fast.training.images import RunImages


@dataclass(frozen=True)
class Evaluations:
    """between_batches: called between two batches; it raises where the run was asked to stop."""

    config: TrainConfig
    images: RunImages
    device: torch.device
    ranks: Ranks
    progress: Progress
    between_batches: Callable[[], None]

    def of(
        self, model: nn.Module, source: Source, attack: attacks.Attack, what: str
    ) -> evaluation.Evaluation:
        """The model as it is, clean and under the attack. what: for the progress display."""

        def show(done: int, total: int) -> None:
            self.between_batches()
            self.progress.busy(what, done, total)

        return evaluation.evaluate(
            model,
            source,
            attack=attack,
            num_classes=len(self.images.classes),
            class_names=self.images.classes,
            batch_size=self.config.test.batch_size,
            device=self.device,
            progress=show,
            ranks=self.ranks,
        )

    def holdout_attack(self, model: nn.Module) -> attacks.Attack:
        steps = self.config.validation.steps
        return self._pgd(model, steps, self._step(steps))

    def _step(self, steps: int) -> float:
        return evaluation_step(self.config.test.eps, steps, self.config.attack.norm)

    def test_attack(self, model: nn.Module) -> attacks.Attack:
        return self._pgd(model, self.config.test.steps, self.config.test.step)

    def _pgd(self, model: nn.Module, steps: int, step: float) -> attacks.Attack:
        """PGD with a fresh random state, so that an evaluation does not depend on those before it."""
        options = {"eps": self.config.test.eps, "norm": self.config.attack.norm, "seed": self.config.seed}
        return attacks.create("pgd", model, steps=steps, step=step, **options)


def figures(report: evaluation.Evaluation) -> dict[str, Any]:
    """The clean and the robust accuracies, for JSON."""
    assert report.robust is not None
    return {"clean": report.clean.to_json(), "robust": report.robust.to_json()}


def in_order(per_class: dict[str, float], classes: list[str]) -> Tensor:
    """(k,) float64, in the order of the classes; NaN for one without images."""
    found = [per_class[name] for name in classes]
    return torch.tensor([float("nan") if a is None else a for a in found], dtype=torch.float64)
