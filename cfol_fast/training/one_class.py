"""A network that answers one class to everything: its loss stays at the entropy of the labels, and no epoch
changes that.

It happens where the learning rate is too high for a network without shortcuts: its ReLUs die. Such a run ends
well, in words and status.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from cfol_fast.runs.metrics_log import Row, read_rows
from cfol_fast.runs.setting_groups import OptimizerConfig

# The hold-out has it exactly: one class is right, and the others are not.
ALL, NONE = 0.9, 0.1
# Without one there are the training images, during whose epoch the answer may change: right as often as a
# guess, with the loss of a guess.
AS_OFTEN, AS_LARGE = 0.25, 0.98
# So few may not be enough to learn anything.
FEW_STEPS = 50
# A rate below this is not too high; nothing was learned with it.
LOW = {"sgd": 1e-3, "adamw": 1e-5}


def is_stuck(training: Row, validated: Row | None, frequencies: Sequence[float]) -> bool:
    """Whether the network of this epoch answers one class to everything. frequencies: (k,) of the training
    labels.
    """
    if validated is not None:
        shares = sorted(share for share in validated["clean"]["per_class"].values() if share is not None)
        return len(shares) > 1 and shares[-1] >= ALL and sum(shares[:-1]) <= NONE
    right = [1 - error for error in training["class_error"] if error is not None]
    drawn = training["p"] or frequencies
    guess = -sum(share * math.log(share) for share in drawn if share > 0)
    return len(right) > 1 and abs(sum(right) - 1) <= AS_OFTEN and training["loss"] >= AS_LARGE * guess


def next_rate(optimizer: OptimizerConfig) -> float:
    """The learning rate to try after one with which nothing is learned."""
    rate = optimizer.lr or 0.0
    return rounded(rate * 5) if rate < LOW[optimizer.name] else lower_rate(optimizer)


def lower_rate(optimizer: OptimizerConfig) -> float:
    return rounded((optimizer.lr or 0.0) / 5)


def rounded(rate: float) -> float:
    return float(f"{rate:.2g}")


def warning_of_epoch(
    run: Path, rows: Sequence[Row], labels: Tensor, optimizer: OptimizerConfig
) -> str | None:
    """At the second such epoch. rows: of the epoch that was just logged; run: its folder; labels: of the
    training images.
    """
    if not stuck_epochs(rows, _frequencies(labels)):
        return None
    stuck = stuck_epochs(read_rows(run), _frequencies(labels))
    if len(stuck) != 2:
        return None
    what = f"epoch {stuck[-1]['epoch']}: the network answers one class to everything, for the second time"
    return _sentence(what, stuck[-1], optimizer)


def warning_at_the_end(run: Path, labels: Tensor, optimizer: OptimizerConfig) -> str | None:
    """Of a run whose last epoch was such a one."""
    rows = read_rows(run)
    last = [row for row in rows if row["kind"] == "train"][-1:]
    if not last or last[0] not in stuck_epochs(rows, _frequencies(labels)):
        return None
    return _sentence("the run ends, and the network answers one class to everything", last[0], optimizer)


def _sentence(what: str, row: Row, optimizer: OptimizerConfig) -> str:
    longer = f"for more than {row['step']} steps, or " if row["step"] < FEW_STEPS else ""
    rates = f"with --lr {next_rate(optimizer):g} (now {optimizer.lr:g})"
    return f"{what}. The loss is {row['loss']:.3g}. Train again {longer}{rates}"


def _frequencies(labels: Tensor) -> list[float]:
    counts = torch.bincount(labels)
    found: list[float] = (counts / counts.sum()).tolist()
    return found


def stuck_epochs(rows: Sequence[Row], frequencies: Sequence[float]) -> list[Row]:
    """The training rows of the epochs of metrics.jsonl in which it was so."""
    validations = {row["epoch"]: row for row in rows if row["kind"] == "validation"}
    trainings = [row for row in rows if row["kind"] == "train"]
    return [row for row in trainings if is_stuck(row, validations.get(row["epoch"]), frequencies)]
