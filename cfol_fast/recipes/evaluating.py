"""Evaluations that training did not make: another attack on a run's checkpoint, and checkpoints given by
path.
"""

from __future__ import annotations

import importlib.util
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from cfol_fast import atomic, data, evaluation
from cfol_fast.data import ImageData
from cfol_fast.errors import InputError
from cfol_fast.evaluation.foreign_weights import load_weights, normalisation
from cfol_fast.machine import choose_device
from cfol_fast.recipes.planning import Cell, Job, Plan, configure
from cfol_fast.runs.config import TrainConfig
from cfol_fast.runs.loading import load as load_checkpoint

logger = logging.getLogger(__name__)


def has_autoattack() -> bool:
    return importlib.util.find_spec("pyautoattack") is not None


def check(plan: Plan, out: Path, load: Callable[[TrainConfig], ImageData]) -> None:
    """Finds out before anything is trained whether the evaluations can be made at all."""
    there = has_autoattack()
    for cell in plan.cells:
        wanted = cell.attack is not None and cell.attack["kind"] == "autoattack"
        missing = _open_evaluations(plan, cell, out)
        if wanted and missing and not there:
            raise InputError(f"recipe {plan.recipe.name} needs AutoAttack: pip install pyautoattack")
        for job, _ in missing:
            if job.finished(out):
                _kept(job, out, plan.recipe.checkpoint)
        if cell.checkpoint is not None:
            _pretrained(plan, cell, load)


def _open_evaluations(plan: Plan, cell: Cell, out: Path) -> list[tuple[Job, Path]]:
    """The runs of a cell whose evaluation under the recipe's attack is not there yet, and its file."""
    if cell.attack is None or cell.checkpoint is not None:
        return []
    files = [(job, job.evaluation_file(out, cell.attack, plan.recipe.checkpoint)) for job in cell.jobs]
    return [(job, file) for job, file in files if not file.exists()]


def _pretrained(
    plan: Plan, cell: Cell, load: Callable[[TrainConfig], ImageData]
) -> tuple[nn.Module, ImageData, TrainConfig]:
    assert cell.checkpoint is not None
    assert cell.entry.pretrained is not None
    config = TrainConfig(configure(plan.recipe, cell.block, cell.entry, plan.scale, plan.root))
    bundle = load(config)
    path = cell.checkpoint.expanduser()
    name = config.model.name
    mean, std = None, None
    if cell.entry.pretrained.normalize is not None:
        mean, std = normalisation(cell.entry.pretrained.normalize, bundle.channels, (bundle.mean, bundle.std))
    model = load_weights(path, name, len(bundle.classes), bundle.size[0], bundle.channels, mean, std)
    return model, bundle, config


def evaluate_all(plan: Plan, out: Path, device: str, load: Callable[[TrainConfig], ImageData]) -> None:
    """Makes every evaluation that is not there yet; each is written at once, so that an interruption loses
    one at most.
    """
    for cell in plan.cells:
        if cell.checkpoint is not None and not (file := cell.pretrained_file(out)).exists():
            logger.info(f"testing {cell.checkpoint}")
            model, bundle, config = _pretrained(plan, cell, load)
            attack = cell.attack or {"kind": "pgd", "steps": config.test.steps, "step": config.test.step}
            file.parent.mkdir(parents=True, exist_ok=True)
            _write(file, model, bundle, config, attack, device)
        for job, _ in _open_evaluations(plan, cell, out):
            assert cell.attack is not None
            evaluate_run(job, out, cell.attack, plan.recipe.checkpoint, device, load)


def evaluate_run(
    job: Job,
    out: Path,
    attack: dict[str, Any],
    checkpoint: str,
    device: str,
    load: Callable[[TrainConfig], ImageData],
) -> Path:
    """The file with the evaluation of a run's checkpoint under an attack, which is made if it is not there
    yet.
    """
    file = job.evaluation_file(out, attack, checkpoint)
    if not file.exists():
        logger.info(f"testing {job.name} with {attack['kind']}")
        model = load_checkpoint(_kept(job, out, checkpoint), choose_device(device))
        _write(file, model, load(job.config), job.config, attack, device)
    return file


def _kept(job: Job, out: Path, checkpoint: str) -> Path:
    """The checkpoint's file; results that were stored without it cannot be tested any more."""
    path = job.folder(out) / "checkpoints" / f"{checkpoint}.pt"
    if not path.exists():
        raise InputError(
            f"{path} is not there, so the run cannot be tested with another attack: remove {job.folder(out)}"
            " to train it again"
        )
    return path


def _of_each_class(
    labels: Tensor, classes: int, images_per_class: int, images_seed: int | None = None
) -> Tensor:
    """Sorted indices of so many images of every class: the first or, with a seed, some at random."""
    chosen = []
    for c in range(classes):
        members = torch.nonzero(labels == c).flatten()
        if images_seed is not None:
            noise = torch.Generator().manual_seed(images_seed + c)
            members = members[torch.randperm(len(members), generator=noise)]
        chosen.append(members[:images_per_class])
    return torch.cat(chosen).sort().values


def _write(
    file: Path, model: nn.Module, bundle: ImageData, config: TrainConfig, attack: dict[str, Any], device: str
) -> None:
    where = choose_device(device)
    images = bundle.test
    subset: dict[str, int] = {
        key: attack[key] for key in ("images_per_class", "images_seed") if key in attack
    }
    if subset:
        images = images.subset(_of_each_class(images.labels, len(bundle.classes), **subset))
    source = data.source_of(images, size=bundle.size, device=where)
    params = {key: value for key, value in attack.items() if key not in subset}
    params.setdefault("eps", config.test.eps)
    if params["kind"] == "pgd":
        params.setdefault("steps", config.test.steps)
        params.setdefault("step", 2.5 * params["eps"] / params["steps"])
    made: dict[str, Any] = dict(params)
    if params["kind"] == "autoattack":
        # AutoAttack takes hours at the paper's scale: one that was killed continues from this file.
        made["state"] = str(file.with_suffix(".state"))
    report = evaluation.evaluate(
        model.to(where).eval(),
        source,
        attack=made,
        num_classes=len(bundle.classes),
        class_names=list(bundle.classes),
        batch_size=config.test.batch_size,
        device=where,
    )
    described = {**params, **subset}
    atomic.write_json(file, {**report.to_json(), "attack": described, "dataset": config.data.name})
    file.with_suffix(".state").unlink(missing_ok=True)
