"""Evaluations inside a run: the hold-out after an epoch, and the final test of every kept checkpoint."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from cfol_fast import atomic, attacks, evaluation, methods, theory
from cfol_fast.machine import versions
from cfol_fast.progress import Progress
from cfol_fast.runs import checkpoints, run_folder
from cfol_fast.runs.config import TrainConfig
from cfol_fast.runs.defaults import holdout_label
from cfol_fast.runs.metrics import Row, read_rows
from cfol_fast.training.parts import Parts

Interrupt = Callable[[str], None]
GALLERY_SIZE = 6


def validate(config: TrainConfig, parts: Parts, epoch: int, step: int, interrupt: Interrupt) -> Row:
    """Clean and robust accuracy on the hold-out. The attack starts from the same noise each time: only the model changes."""
    eps = config.test.eps or 0.0
    attack = {"steps": config.validation.steps, "step": 2.5 * eps / config.validation.steps}
    clean, robust, _ = _accuracies(config, parts, parts.splits.validation, attack, interrupt, "validation")
    row = {"kind": "validation", "epoch": epoch, "step": step, "split": parts.splits.validation_split}
    return {**row, "clean": _without_confusion(clean), "robust": _without_confusion(robust)}


def final_test(
    config: TrainConfig,
    parts: Parts,
    folder: Path,
    store: checkpoints.CheckpointStore,
    best: dict[str, dict[str, float]],
    seconds: float,
    interrupt: Interrupt,
    show: Progress,
) -> dict[str, Any]:
    """Tests the last and the best checkpoints with the strong attack and writes gallery.json and result.json.

    `test` is the checkpoint with the best average robust accuracy (the paper's rule; without an attack in training the best clean
    one), or the last one without a hold-out.
    """
    epochs = {checkpoints.LAST: config.epochs or 0} | {
        name: int(kept["epoch"]) for name, kept in best.items()
    }
    chosen = checkpoints.BEST_AVERAGE if checkpoints.BEST_AVERAGE in epochs else checkpoints.LAST
    tested: dict[int, dict[str, Any]] = {}  # by epoch: the rules often keep the same one
    final = {key: value.clone() for key, value in parts.model.state_dict().items()}
    attack = {"steps": config.test.steps, "step": config.test.step}
    described: dict[str, Any] = {}
    try:
        for name, epoch in epochs.items():
            if epoch in tested:
                continue
            if name != checkpoints.LAST:
                parts.model.load_state_dict(checkpoints.read(store.path(name), parts.step.device)["model"])
            clean, robust, described = _accuracies(
                config, parts, parts.splits.test, attack, interrupt, f"test of {name}"
            )
            tested[epoch] = {"epoch": epoch, "clean": clean, "robust": robust}
            if epoch == epochs[chosen]:
                _write_gallery(config, parts, folder, attack, robust["worst_class"])
        ensemble = None if parts.reservoir is None else _ensemble(config, parts, store, attack, interrupt)
    finally:
        parts.model.load_state_dict(final)

    method = methods.get(config.method)
    result: dict[str, Any] = {
        "format": 1,
        "method": method.name,
        "title": method.title,
        "dataset": config.data.name,
        "classes": parts.splits.classes,
        "model": config.model.name,
        "seed": config.seed,
        "holdout": holdout_label(config.data.holdout),
        "finished": True,
        "test": {key: tested[epochs[chosen]][key] for key in ("clean", "robust")},
        "checkpoints": {name: tested[epoch] for name, epoch in epochs.items()},
        "attack": described,
        "versions": versions(),
        "seconds": seconds,
    }
    if ensemble is not None:
        result["ensemble"] = ensemble
    if (folder / run_folder.GALLERY).exists():
        result["gallery"] = run_folder.GALLERY
    atomic.write_json(folder / run_folder.RESULT, result)
    robust = result["test"]["robust"]
    show.say(
        f"test ({chosen}): clean {result['test']['clean']['average']:.1%}, robust {robust['average']:.1%}, "
        f"20 % tail {robust['tail']:.1%}, worst class {robust['worst_class']} {robust['worst']:.1%}"
    )
    return result


def robust_class_accuracies(folder: Path, result: dict[str, Any]) -> Tensor:
    """(k,) of a finished stage, for the next: on its hold-out; without one, on its training examples at the end.

    The paper takes the test set, which is what `--holdout test` does; otherwise the test set stays unseen.
    """
    rows = list(read_rows(folder))
    validations = {row["epoch"]: row for row in rows if row["kind"] == "validation"}
    if validations:
        best = result["checkpoints"].get(checkpoints.BEST_AVERAGE, {"epoch": max(validations)})["epoch"]
        per_class = validations[best]["robust"]["per_class"]
        return torch.tensor([per_class[name] for name in result["classes"]], dtype=torch.float64)
    errors = [row for row in rows if row["kind"] == "train"][-1]["class_error"]
    return torch.tensor([1.0 if error is None else 1.0 - error for error in errors], dtype=torch.float64)


def _ensemble(
    config: TrainConfig,
    parts: Parts,
    store: checkpoints.CheckpointStore,
    attack: dict[str, Any],
    interrupt: Interrupt,
) -> dict[str, Any]:
    """The left-hand side of Theorem 1: every member attacked on its own, the class risks averaged over the members."""
    assert parts.reservoir is not None
    classes = parts.splits.classes

    def accuracies(_: Any) -> Tensor:
        per_class = _accuracies(config, parts, parts.splits.test, attack, interrupt, "ensemble")[1][
            "per_class"
        ]
        return torch.tensor([per_class[name] for name in classes], dtype=torch.float64)

    risk = theory.ensemble_risk(parts.reservoir.models(parts.model), accuracies)
    store.save_best(
        checkpoints.ENSEMBLE,
        {
            "format": 1,
            "spec": parts.splits.spec.to_dict(),
            "classes": classes,
            **parts.reservoir.state_dict(),
        },
    )
    return {
        "members": parts.reservoir.n,
        "steps": list(parts.reservoir.steps),
        "robust_risk": dict(zip(classes, risk.per_class.tolist(), strict=True)),
        "worst_risk": risk.worst,
        "worst_class": classes[risk.worst_class],
    }


def _accuracies(
    config: TrainConfig, parts: Parts, source: Any, attack: dict[str, Any], interrupt: Interrupt, note: str
) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
    """(clean R, robust R, what the attack was)."""
    pgd = _pgd(config, parts, attack)
    report = evaluation.evaluate(
        parts.model,
        source,
        attack=pgd,
        num_classes=len(parts.splits.classes),
        class_names=parts.splits.classes,
        batch_size=config.test.batch_size,
        device=parts.step.device,
        progress=lambda done, total: interrupt(f"{note}: {done:,} of {total:,} images"),
    )
    assert report.robust is not None
    return report.clean.to_json(), report.robust.to_json(), pgd.describe()


def _pgd(config: TrainConfig, parts: Parts, attack: dict[str, Any]) -> Any:
    return attacks.create(
        "pgd", parts.model, eps=config.test.eps, norm=config.attack.norm, seed=config.seed, **attack
    )


def _write_gallery(
    config: TrainConfig, parts: Parts, folder: Path, attack: dict[str, Any], worst_class: str
) -> None:
    index = parts.splits.classes.index(worst_class)
    attacker = _pgd(config, parts, attack)
    pictures = evaluation.gallery(parts.model, parts.splits.test, attacker, index, n=GALLERY_SIZE)
    atomic.write_json(folder / run_folder.GALLERY, pictures)


def _without_confusion(accuracies: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in accuracies.items() if key != "confusion"}
