"""What the steps of an epoch counted, as a row of metrics.jsonl; making it reads from the device."""

from __future__ import annotations

import torch
from torch import Tensor

from cfol_fast import ops
from cfol_fast.progress import Reading
from cfol_fast.runs.metrics_log import Row
from cfol_fast.training.position import Length, Position
from cfol_fast.training.step import Step


def training_row(step: Step, position: Position, length: Length) -> Row:
    """The row of the epoch at hand. Every rank asks for it at the same time: the counts are summed."""
    tally, loss_sum = step.counts.over_ranks()
    counts, errors = ops.read_tally(tally)
    images, p = int(counts.sum()), step.sampler.p
    return {
        "kind": "train",
        "epoch": position.epoch + 1,
        "step": position.step,
        "lr": step.optimizer.rate,
        "loss": float(loss_sum) / length.steps_per_epoch,
        "robust_error": float(errors.sum()) / max(1, images),
        "class_error": [e / n if n else None for e, n in zip(errors.tolist(), counts.tolist(), strict=True)],
        "p": None if p is None else p.tolist(),
        **{f"class_{name}": getattr(step.policy.view, name).tolist() for name in step.policy.factors},
        "images_per_second": images / position.epoch_seconds if position.epoch_seconds > 0 else 0.0,
        "seconds": position.seconds,
    }


def class_errors(row: Row) -> Tensor:
    """(k,) float64 of a training row; NaN for a class without images."""
    errors = row["class_error"]
    return torch.tensor([torch.nan if e is None else e for e in errors], dtype=torch.float64)


def reading(row: Row, classes: list[str]) -> Reading:
    """What the live line shows of a training row: the error, and the class with the largest."""
    errors = [error or 0.0 for error in row["class_error"]]
    worst = max(range(len(errors)), key=errors.__getitem__)
    p = None if row["p"] is None else row["p"][worst]
    return Reading(row["robust_error"], classes[worst], p)
