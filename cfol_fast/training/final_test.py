"""The final test of a run: every checkpoint that it kept, under the strong attack; writes result.json and
what it names.
"""

from __future__ import annotations

import logging
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from cfol_fast import atomic, data, evaluation, methods, theory
from cfol_fast.data.source import PartOfSource
from cfol_fast.machine import versions
from cfol_fast.plain_text import worst_class
from cfol_fast.runs import checkpoints, predictions, run_folder
from cfol_fast.runs.defaults import holdout_label
from cfol_fast.runs.loading import read_checkpoint
from cfol_fast.runs.metrics_log import read_rows
from cfol_fast.training.evaluations import Evaluations, figures, in_order
from cfol_fast.training.state import RunState

logger = logging.getLogger(__name__)

GALLERY_SIZE = 6
# As many as CIFAR-10's test set has: the risk of a class of 1,000 images is then known to 3 points.
TRAINING_RISK_IMAGES = 10_000
EMA_LAST = checkpoints.EMA + checkpoints.LAST


def final_test(state: RunState, evaluations: Evaluations) -> dict[str, Any]:
    """Tests the last and the best checkpoints, and those of the average, with the strong attack; writes
    gallery.json and result.json.

    `test` is the checkpoint with the best average robust accuracy (the paper's rule; without an attack in
    training the best clean one), or the last one without a hold-out.
    """
    config, model, images = state.config, state.step.model, state.images
    epochs = {checkpoints.LAST: state.position.epoch}
    epochs |= {name: int(kept["epoch"]) for name, kept in state.position.best.items()}
    if state.average is not None and state.average.updates:
        epochs[EMA_LAST] = state.position.epoch
        average = state.checkpoint(state.position.epoch, state.average.model)
        state.store.save_best(EMA_LAST, average.to_state())
    chosen = checkpoints.BEST_AVERAGE if checkpoints.BEST_AVERAGE in epochs else checkpoints.LAST
    # The rules often keep the same epoch: whose weights, the model's or the average's, and of which epoch.
    kept = {name: (name.startswith(checkpoints.EMA), epoch) for name, epoch in epochs.items()}
    tested: dict[tuple[bool, int], dict[str, Any]] = {}
    predicted: dict[tuple[bool, int], dict[str, Tensor]] = {}
    final = {key: value.clone() for key, value in model.state_dict().items()}
    try:
        for name, epoch in epochs.items():
            if kept[name] in tested:
                continue
            if name != checkpoints.LAST:
                model.load_state_dict(kept_weights(state, name))
            report = evaluations.of(model, images.test, evaluations.test_attack(model), f"test of {name}")
            found = figures(report)
            predicted[kept[name]] = report.predictions
            doubts = {"warnings": report.warnings} if report.warnings else {}
            tested[kept[name]] = {"epoch": epoch, **found, **doubts}
            for doubt in report.warnings:
                logger.warning(f"test of {name}: {doubt['reason']}")
            if kept[name] == kept[chosen]:
                state.ranks.from_first(
                    partial(write_gallery, state, evaluations, found["robust"]["worst_class"])
                )
        members = state.ensemble
        ensemble = {} if members is None else {"ensemble": ensemble_risk(state, evaluations, members)}
    finally:
        model.load_state_dict(final)

    method = methods.get(config.method)
    clean, robust = (tested[kept[chosen]][kind] for kind in ("clean", "robust"))
    result: dict[str, Any] = {
        "format": 1,
        "method": method.name,
        "title": method.title,
        "dataset": config.data.name,
        "classes": images.classes,
        "model": config.model.name,
        "seed": config.seed,
        "holdout": holdout_label(config.data.holdout),
        "augmentation": images.augmentation,
        # Of images with more than 8 bits.
        **({} if images.white is None else {"white": images.white}),
        "finished": True,
        "test": {"clean": clean, "robust": robust},
        "checkpoints": {name: tested[weights] for name, weights in kept.items()},
        "attack": evaluations.test_attack(model).describe(),
        "versions": versions(),
        "seconds": state.position.seconds,
        **({} if state.init is None else {"init": state.init}),
        "data": images.content or {},
        **({"copies": {part: [*counts] for part, counts in images.copies.items()}} if images.copies else {}),
        **({"changed_data": state.changed_data} if state.changed_data else {}),
        **ensemble,
        "gallery": run_folder.GALLERY,
    }
    by_name = {name: predicted[weights] for name, weights in kept.items()}
    result = state.ranks.from_first(lambda: write_result(state, result, by_name))
    for name in (chosen, checkpoints.EMA + chosen):
        if name in kept:
            logger.info(f"test ({name}): {in_words(tested[kept[name]])}")
    return result


def write_result(
    state: RunState, result: dict[str, Any], predicted: dict[str, dict[str, Tensor]]
) -> dict[str, Any]:
    """Writes result.json, and before it what it names. predicted: by checkpoint."""
    labels = state.images.test.labels.cpu()
    result = {**result, "predictions": predictions.write(state.folder, labels, predicted)}
    atomic.write_json(state.folder / run_folder.RESULT, result)
    return result


def kept_weights(state: RunState, name: str) -> dict[str, Tensor]:
    """Of a checkpoint that the run kept; on many ranks the first reads it for all, from its disk."""
    on = state.step.device if state.ranks.size == 1 else torch.device("cpu")
    path, model = state.store.path(name), state.images.spec.name
    return state.ranks.from_first(lambda: read_checkpoint(path, on, model).model)


def in_words(found: dict[str, Any]) -> str:
    clean, robust = found["clean"], found["robust"]
    return (
        f"clean {clean['average']:.1%}, robust {robust['average']:.1%}, 20 % tail {robust['tail']:.1%}, "
        f"worst class {worst_class(robust)}"
    )


def ensemble_risk(
    state: RunState, evaluations: Evaluations, members: theory.IterateReservoir
) -> dict[str, Any]:
    """The left-hand side of Theorem 1: every member attacked on its own, the class risks averaged over the
    members.

    It is the risk on the training images (here without augmentation), so that is where it is measured: on all
    of them or, where they are many, on a seeded part with its share of every class. About test images the
    theorem says nothing.
    """
    model, classes, images = state.step.model, state.images.classes, state.images.train
    rows = data.stratified(state.images.labels, min(len(images), TRAINING_RISK_IMAGES))
    part = PartOfSource(images, rows)

    def robust_accuracies(_: nn.Module) -> Tensor:
        found = figures(evaluations.of(model, part, evaluations.test_attack(model), "ensemble"))
        return in_order(found["robust"]["per_class"], classes)

    risk = theory.ensemble_risk(members.models(model), robust_accuracies)
    kept = {"format": 1, "spec": state.images.spec.to_dict(), "classes": classes, **members.state_dict()}
    state.store.save_best(checkpoints.ENSEMBLE, kept)
    return {
        "members": members.n,
        "split": "train",
        "images": len(part),
        "images_in_all": len(images),
        "steps": list(members.steps),
        "robust_risk": dict(zip(classes, risk.per_class.tolist(), strict=True)),
        "worst_risk": risk.worst,
        "worst_class": classes[risk.worst_class],
    }


def robust_class_accuracies(folder: Path, result: dict[str, Any]) -> Tensor:
    """(k,) of a finished stage, for the next: on its hold-out; without one, on its training examples at the
    end.

    The paper takes the test set, which is what `--holdout test` does; otherwise the test set stays unseen.
    """
    rows = read_rows(folder)
    validations = {row["epoch"]: row for row in rows if row["kind"] == "validation"}
    if validations:
        best = result["checkpoints"].get(checkpoints.BEST_AVERAGE, {"epoch": max(validations)})["epoch"]
        return in_order(validations[best]["robust"]["per_class"], result["classes"])
    errors = [row for row in rows if row["kind"] == "train"][-1]["class_error"]
    return torch.tensor([1.0 if error is None else 1.0 - error for error in errors], dtype=torch.float64)


def write_gallery(state: RunState, evaluations: Evaluations, worst_class: str) -> None:
    """Images of the worst class before and after the attack, for the report."""
    model, images = state.step.model, state.images
    attack = evaluations.test_attack(model)
    index = images.classes.index(worst_class)
    pictures = evaluation.gallery(model, images.test, attack, index, n=GALLERY_SIZE)
    atomic.write_json(state.folder / run_folder.GALLERY, pictures)
