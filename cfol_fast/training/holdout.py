"""The hold-out of a run: tested after an epoch, for early stopping and for class policies."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from cfol_fast import attacks, objectives
from cfol_fast.data.source import Batch, Source
from cfol_fast.evaluation.rows import Rows, batches_of
from cfol_fast.evaluation.sharing import RandomStates, over_batches
from cfol_fast.frozen import evaluation_mode
from cfol_fast.policies import EpochFacts, Need
from cfol_fast.runs.config import TrainConfig
from cfol_fast.runs.metrics_log import Row
from cfol_fast.training.building import training_attack
from cfol_fast.training.evaluations import Evaluations, figures, in_order
from cfol_fast.training.position import Position
from cfol_fast.training.step import Step

# Robust accuracy on the training images minus that under PGD on the hold-out. Overfitting alone stays far
# below it.
COLLAPSE_GAP = 0.3


class HoldOut:
    """The attack starts from the same noise each time: only the model changes."""

    def __init__(self, evaluations: Evaluations, source: Source, split: str) -> None:
        self.evaluations, self.source, self.split = evaluations, source, split

    def row(self, model: nn.Module, position: Position) -> Row:
        """The row of metrics.jsonl: clean and robust accuracy after the epoch at hand."""
        facts = {"epoch": position.epoch + 1, "step": position.step, "split": self.split}
        return {"kind": "validation", **facts, **self.accuracies(model, "validation")}

    def accuracies(self, model: nn.Module, what: str) -> dict[str, Any]:
        """The clean and the robust accuracies, without the confusion between the classes."""
        evaluations = self.evaluations
        found = figures(evaluations.of(model, self.source, evaluations.holdout_attack(model), what))
        for accuracy in found.values():
            del accuracy["confusion"]
        return found

    def epoch_facts(self, epoch: int, class_error: Tensor, validated: Row, step: Step) -> EpochFacts:
        """What the step's class policy may use. class_error: (k,) of the training images; validated: the
        epoch's row.
        """
        classes = self.evaluations.images.classes
        clean, robust = (in_order(validated[kind]["per_class"], classes) for kind in ("clean", "robust"))
        losses = mean = None
        if Need.HOLDOUT_LOSSES in step.policy.needs:
            losses, mean = self.losses(step.model, step.objective)
        return EpochFacts(epoch, class_error, clean, robust, losses, mean)

    def losses(self, model: nn.Module, objective: objectives.Objective) -> tuple[Tensor, float]:
        """The objective's loss under the training attack, without class factors: (k,) class means, and over
        all images.

        The radius is that of the configuration.
        """
        here = self.evaluations
        source, k, batch_size = self.source, len(here.images.classes), here.config.test.batch_size
        assert isinstance(objective, objectives.Trades)
        attack = training_attack(model, here.config)
        labels, losses = source.labels.cpu(), Rows(len(source), torch.float64)

        def one_batch(number: int, batch: Batch, _: RandomStates) -> int:
            idx, x, y = batch
            found, _logits = objective.losses(model, objectives.Batch(x, attack(x, y), y))
            losses.fill(idx, found, number)
            return len(idx)

        with evaluation_mode(model), torch.no_grad():
            for _ in over_batches(
                here.ranks, source, batch_size, [attack], one_batch, between=here.between_batches
            ):
                pass
        # They are added up in the images' order, whoever computed them.
        of_all = losses.whole(here.ranks, "the hold-out", batches_of(source, batch_size))
        sums = torch.zeros(k, dtype=torch.float64).index_add_(0, labels, of_all)
        counts = torch.bincount(labels, minlength=k)
        # 0/0 is NaN: a class without images.
        return sums / counts, float(sums.sum() / counts.sum())


def judged(config: TrainConfig, found: Row) -> Row:
    """The accuracies by which weights are judged: the robust ones.

    Training without an attack is judged by its clean accuracies. Its robust accuracies fall while it learns:
    a network that has learned nothing answers alike for every image, attacked or not, so they would choose
    the first epoch.
    """
    accuracies: Row = found["clean" if config.attack.kind == "none" else "robust"]
    return accuracies


def collapse_warning(config: TrainConfig, training: Row, validated: Row | None = None) -> str | None:
    """Single-step training may collapse: the network withstands the one step it is trained with and nothing
    else (Wong et al. 2020).
    """
    kind = config.attack.kind
    if validated is None or not attacks.KINDS[kind].single_step:
        return None
    trained, held = 1 - training["robust_error"], validated["robust"]["average"]
    if trained - held <= COLLAPSE_GAP:
        return None
    return (
        f"epoch {training['epoch']}: {trained:.0%} of the training images withstand {kind}, but only "
        f"{held:.0%} of the validation images PGD: single-step training has collapsed. "
        "Take --set attack.kind=n-fgsm, pgd or a smaller eps"
    )
