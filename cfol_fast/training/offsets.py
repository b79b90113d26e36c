"""Class logit offsets, fitted on a finished run's hold-out: the baseline without training that a trained
method must beat, and what shows whether training gained more than a threshold.

The offsets are added to the bias of the network's last layer. So they are part of the model, attacks see
them, and the checkpoint with them is used as any other. RUN/offsets.json has the whole path, the offsets and
the test with them, every image's predicted class among it; result.json has the adjusted figures.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from cfol_fast import atomic, evaluation
from cfol_fast.data import content
from cfol_fast.data.classes import places
from cfol_fast.data.source import Source
from cfol_fast.errors import InputError
from cfol_fast.machine import choose_device
from cfol_fast.models.head import last_linear
from cfol_fast.runs import checkpoints, run_folder
from cfol_fast.runs.config import TrainConfig
from cfol_fast.runs.defaults import evaluation_step, has_holdout
from cfol_fast.runs.json_files import made_from
from cfol_fast.runs.loading import checkpoint_path, read_checkpoint
from cfol_fast.runs.offset_file import ADJUSTED, RULE
from cfol_fast.runs.records import read_finished
from cfol_fast.runs.run_lock import RunLock
from cfol_fast.training.callbacks import Callback, RunInfo
from cfol_fast.training.evaluations import figures, in_order
from cfol_fast.training.images import RunImages, load_images
from cfol_fast.training.offset_path import RATE, ROUNDS, Round, keeping_average, rounds_of, taken

NAME = "offsets"
FORMAT = 2
OWN_DATA = "Offsets need the run's own data: put them back"

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Fit:
    """path: every round on the hold-out. images: the smallest number of hold-out images of a class. chosen:
    the round by the rule of all tables; kept: the round whose offsets the checkpoint has, another one only
    where `keep_average` asks for it.

    test: clean and robust accuracies as result.json has them, "before" and "after" (the checkpoint's), and
    "adjusted" (by the rule). checkpoint: where the model with the kept offsets is.
    """

    path: list[Round]
    images: int
    chosen: int
    kept: int
    test: dict[str, dict[str, Any]]
    checkpoint: Path

    @property
    def offsets(self) -> Tensor:
        """(k,), of the checkpoint."""
        return self.path[self.kept].offsets

    @property
    def holdout(self) -> tuple[float, float]:
        """The worst robust class before and after."""
        return self.path[0].worst, self.path[self.kept].worst


def fit_offsets(
    run: Path,
    rounds: int = ROUNDS,
    rate: float = RATE,
    device: str = "auto",
    model_name: str | None = None,
    checkpoint: str | None = None,
    keep_average: float | None = None,
) -> Fit:
    """Raises the offset of each class by `rate` times how much more than the mean it errs under attack,
    `rounds` times, and takes a round by `offset_path.taken`.

    Writes checkpoints/offsets.pt, offsets.json and, where nothing but the defaults was asked for, the
    adjusted figures in result.json, which tables and pages show.
    model_name: of a run whose model is code, see `load`. checkpoint: which of the run's; the tested one by
    default. keep_average: the checkpoint gets the best round that loses at most so much of the hold-out's
    average (0.02: two points), perhaps that without offsets; tables never use it.
    """
    config = run_folder.read_config(run)
    result = run_folder.read_result(run)
    if result is None:
        raise InputError(f"{run} is not finished: let it end first (cfol-fast train --resume --out {run})")
    check_holdout(config, str(run))
    config = config.with_settled({"device": str(choose_device(device))})
    with RunLock(run):
        images = load_images(config)
        assert images.validation is not None
        _check_data(run, images.content or {})
        source = checkpoint_path(run, checkpoint)
        trained = read_checkpoint(source, config.device, model_name)
        if places(trained.classes, images.classes, str(source), OWN_DATA) is not None:
            raise InputError(f"{source} has the classes in another order than the data. {OWN_DATA}")
        model = trained.spec.create().to(config.device).eval()
        model.load_state_dict(trained.model)
        fitting = _Fitting(config, images, model)
        path = []
        for number, one in enumerate(fitting.path(rounds, rate)):
            logger.info(f"round {number}: hold-out worst class {one.worst:.1%}, average {one.average:.1%}")
            path.append(one)
        counts = torch.bincount(images.validation.labels.cpu(), minlength=len(images.classes))
        smallest = int(counts[counts > 0].min())
        chosen = kept = taken(path, smallest)
        if keep_average is not None:
            kept = taken(path, smallest, keeping_average(path, keep_average))
        # The run has tested its checkpoints; `previous` alone it has not.
        before_test = read_finished(run)["checkpoints"].get(source.stem)
        test = {"before": before_test or figures(fitting.tested(fitting.zero))}
        report = fitting.tested(path[chosen].offsets)
        test["adjusted"] = figures(report)
        after = report if kept == chosen else fitting.tested(path[kept].offsets)
        test["after"] = figures(after)
        fitting.put(path[kept].offsets)
        for doubt in report.warnings:
            logger.warning(doubt["reason"])
        by_rule = (rounds, rate) == (ROUNDS, RATE) and source == checkpoint_path(run, None)
        with_offsets = dataclasses.replace(
            trained, model=model.state_dict(), offsets=path[kept].offsets, validation=None, run=None
        )
        place = checkpoints.CheckpointStore(run).save_best(NAME, with_offsets.to_state())
        fit = Fit(path, smallest, chosen, kept, test, place)
        _write(run, result, fit, report, (source.stem, rounds, rate, keep_average), by_rule)
    return fit


def _write(
    run: Path,
    result: dict[str, Any],
    fit: Fit,
    report: evaluation.Evaluation,
    asked: tuple[str, int, float, float | None],
    by_rule: bool,
) -> None:
    """offsets.json, and in result.json the figures of a fit by the rule of all tables. asked: checkpoint,
    rounds, rate and keep_average of the fit.
    """
    checkpoint, rounds, rate, keep_average = asked
    facts = {
        "format": FORMAT,
        "kind": NAME,
        "rule": RULE if by_rule else None,
        "checkpoint": checkpoint,
        "rounds": rounds,
        "rate": rate,
        "images": fit.images,
        "path": [{"worst": one.worst, "average": one.average} for one in fit.path],
        "round": fit.chosen,
        "offsets": fit.path[fit.chosen].offsets.tolist(),
        "kept": {"round": fit.kept, "keep_average": keep_average, "offsets": fit.offsets.tolist()},
        "test": report.to_json(),
    }
    atomic.write_json(run / run_folder.OFFSETS, facts)
    if by_rule:
        adjusted = {"checkpoint": checkpoint, "round": fit.chosen, **fit.test["adjusted"]}
        atomic.write_json(run / run_folder.RESULT, {**result, ADJUSTED: adjusted})


class _Fitting:
    """The model of a run, with offsets added to the bias of its last layer."""

    def __init__(self, config: TrainConfig, images: RunImages, model: nn.Module) -> None:
        self.config, self.images, self.model = config, images, model
        self.bias = last_bias(model, len(images.classes))
        self.start = self.bias.detach().clone()
        self.zero = torch.zeros_like(self.start)

    def put(self, offsets: Tensor) -> None:
        set_bias(self.bias, self.start + offsets.to(self.start))

    def path(self, rounds: int, rate: float) -> Iterator[Round]:
        assert self.images.validation is not None
        classes, steps, source = self.images.classes, self.config.validation.steps, self.images.validation

        def errors_with(offsets: Tensor) -> Tensor:
            self.put(offsets)
            found = figures(measure(self.model, source, classes, self.config, steps, None))
            return 1 - in_order(found["robust"]["per_class"], classes)

        return rounds_of(errors_with, self.zero.cpu(), rounds, lambda _: rate)

    def tested(self, offsets: Tensor) -> evaluation.Evaluation:
        self.put(offsets)
        test = self.config.test
        return measure(self.model, self.images.test, self.images.classes, self.config, test.steps, test.step)


class TakesOffsets(Callback):
    """Refuses, before the first step, a model that takes no offsets."""

    def on_start(self, run: RunInfo) -> None:
        last_bias(run.model, len(run.classes))


def check_holdout(config: TrainConfig, what: str) -> None:
    """Refuses a run without a hold-out. what: its name, for the message."""
    if not has_holdout(config.data.holdout):
        raise InputError(
            f"{what} has no hold-out (--holdout {config.data.holdout}), and offsets are not fitted on the"
            " test set"
        )


def _check_data(run: Path, now: dict[str, dict[str, Any]]) -> None:
    """Refuses other data than those of the run's result, which is what the offsets are compared with."""
    before = (run_folder.read_result(run) or {}).get("data")
    if not isinstance(before, dict):
        # Of version 0.2 or older.
        return
    with made_from(run / run_folder.RESULT):
        if different := content.differences(before, now):
            raise InputError(
                f"the data of {run} are not those it was trained with"
                f" ({content.in_words(different, before, now)}). {OWN_DATA}"
            )


def measure(
    model: nn.Module, source: Source, classes: list[str], config: TrainConfig, steps: int, step: float | None
) -> evaluation.Evaluation:
    """The model, clean and with the attack of the run's validation or test."""
    eps, norm = config.test.eps, config.attack.norm
    step = evaluation_step(eps, steps, norm) if step is None else step
    attack = {"kind": "pgd", "eps": eps, "steps": steps, "step": step, "norm": norm, "seed": config.seed}
    return evaluation.evaluate(
        model,
        source,
        attack=attack,
        num_classes=len(classes),
        class_names=classes,
        batch_size=config.test.batch_size,
        device=config.device,
    )


def last_bias(model: nn.Module, num_classes: int) -> Tensor:
    """The bias of the layer that makes the logits: offsets of the logits can be added to it."""
    layer = last_linear(model)
    if layer is None or layer.out_features != num_classes or layer.bias is None:
        raise InputError("the model does not end in a linear layer with a bias: it takes no class offsets")
    return layer.bias


def set_bias(bias: Tensor, value: Tensor) -> None:
    with torch.no_grad():
        bias.copy_(value)
