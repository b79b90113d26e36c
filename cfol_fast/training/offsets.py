"""Class logit offsets, fitted on a finished run's hold-out: the baseline without training that a trained
method must beat.

The offsets are added to the bias of the network's last layer. So they are part of the model, attacks see
them, and the checkpoint with them is used as any other. RUN/offsets.json has them and the test with them,
every image's predicted class among it.
"""

from __future__ import annotations

import dataclasses
import logging
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
from cfol_fast.runs import checkpoints, run_folder
from cfol_fast.runs.config import TrainConfig
from cfol_fast.runs.defaults import evaluation_step, holdout_fraction
from cfol_fast.runs.json_files import made_from
from cfol_fast.runs.loading import checkpoint_path, read_checkpoint
from cfol_fast.runs.records import read_finished
from cfol_fast.runs.run_lock import RunLock
from cfol_fast.training.evaluations import figures, in_order
from cfol_fast.training.images import load_images

NAME = "offsets"
ROUNDS, RATE = 20, 1.0
OWN_DATA = "Offsets need the run's own data: put them back"

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Fit:
    """offsets: (k,), of the round with the best worst class. holdout: the worst robust class before and
    after, on the hold-out.

    test: clean and robust accuracies as result.json has them, "before" and "after". checkpoint: where the
    model with them is.
    """

    offsets: Tensor
    holdout: tuple[float, float]
    test: dict[str, dict[str, Any]]
    checkpoint: Path


def fit_offsets(
    run: Path,
    rounds: int = ROUNDS,
    rate: float = RATE,
    device: str = "auto",
    model_name: str | None = None,
    checkpoint: str | None = None,
) -> Fit:
    """Raises the offset of each class by `rate` times how much more than the mean it errs under attack,
    `rounds` times.

    The first round is without offsets, so that the fit is never worse on the hold-out. Writes
    checkpoints/offsets.pt.
    model_name: of a run whose model is code, see `load`. checkpoint: which of the run's; the tested one by
    default.
    """
    config = run_folder.read_config(run)
    if run_folder.read_result(run) is None:
        raise InputError(f"{run} is not finished: let it end first (cfol-fast train --resume --out {run})")
    if holdout_fraction(config.data.holdout) is None:
        raise InputError(
            f"{run} has no hold-out (--holdout {config.data.holdout}), and offsets are not fitted on the"
            " test set"
        )
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
        bias = last_bias(model, len(images.classes))
        start = bias.detach().clone()
        best, offsets, before = -1.0, torch.zeros_like(start), 0.0
        best_offsets = offsets
        for number in range(rounds + 1):
            set_bias(bias, start + offsets)
            steps = config.validation.steps
            found = figures(measure(model, images.validation, images.classes, config, steps, None))
            worst, average = found["robust"]["worst"], found["robust"]["average"]
            logger.info(f"round {number}: hold-out worst class {worst:.1%}, average {average:.1%}")
            before = worst if number == 0 else before
            if worst > best:
                best, best_offsets = worst, offsets
            errors = 1 - in_order(found["robust"]["per_class"], images.classes)
            # A class without images in the hold-out keeps its offset.
            change = (errors - errors.nanmean()).nan_to_num(0.0)
            offsets = offsets + rate * change.to(offsets)

        def tested(offsets: Tensor) -> evaluation.Evaluation:
            set_bias(bias, start + offsets)
            return measure(model, images.test, images.classes, config, config.test.steps, config.test.step)

        # The run has tested its checkpoints; `previous` alone it has not.
        before_test = read_finished(run)["checkpoints"].get(source.stem)
        test = {"before": before_test or figures(tested(torch.zeros_like(start)))}
        report = tested(best_offsets)
        test["after"] = figures(report)
        for doubt in report.warnings:
            logger.warning(doubt["reason"])
        kept = dataclasses.replace(
            trained, model=model.state_dict(), offsets=best_offsets, validation=None, run=None
        )
        path = checkpoints.CheckpointStore(run).save_best(NAME, kept.to_state())
        found = {"format": 1, "kind": NAME, "offsets": best_offsets.tolist(), "holdout": [before, best]}
        atomic.write_json(run / run_folder.OFFSETS, {**found, "test": report.to_json()})
    return Fit(best_offsets.cpu(), (before, best), test, path)


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
    layers = [module for module in model.modules() if isinstance(module, nn.Linear)]
    if not layers or layers[-1].out_features != num_classes or layers[-1].bias is None:
        raise InputError("the model does not end in a linear layer with a bias: it takes no class offsets")
    return layers[-1].bias


def set_bias(bias: Tensor, value: Tensor) -> None:
    with torch.no_grad():
        bias.copy_(value)
