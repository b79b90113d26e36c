"""Builds a trainer and its parts from a configuration. Every part is complete when it is made."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from cfol_fast import methods, processes, theory
from cfol_fast.errors import InputError
from cfol_fast.frozen import choices
from cfol_fast.machine import bfloat16_trouble, precision_in_words
from cfol_fast.models.summary import in_words
from cfol_fast.progress import Progress
from cfol_fast.runs.checkpoints import CheckpointStore
from cfol_fast.runs.config import TrainConfig
from cfol_fast.runs.data_facts import DataFacts
from cfol_fast.runs.metrics_log import MetricsLog
from cfol_fast.runs.optimizers import OPTIMIZERS
from cfol_fast.sampling import feedback
from cfol_fast.training.agreement import Agreement
from cfol_fast.training.averages import WeightAverage
from cfol_fast.training.batches import TrainingBatches
from cfol_fast.training.building import compiled, new_model, training_attack
from cfol_fast.training.callbacks import Callback, Callbacks
from cfol_fast.training.capture import CapturedStep, why_no_graph
from cfol_fast.training.epoch_counts import EpochCounts
from cfol_fast.training.evaluations import Evaluations
from cfol_fast.training.freezing import freeze
from cfol_fast.training.holdout import HoldOut
from cfol_fast.training.images import RunImages
from cfol_fast.training.initial_weights import start_from
from cfol_fast.training.position import Length, Position
from cfol_fast.training.shards import ShardedStep, check_shards
from cfol_fast.training.signals import StopRequest
from cfol_fast.training.state import Place, RunState
from cfol_fast.training.step import Step
from cfol_fast.training.trainer import Trainer
from cfol_fast.training.validation import Validation
from cfol_fast.training.weight_perturbation import WeightPerturbation

logger = logging.getLogger(__name__)


def build(
    config: TrainConfig,
    images: RunImages,
    folder: Path | None = None,
    previous: Tensor | None = None,
    progress: Progress | None = None,
    stop: StopRequest | None = None,
    callbacks: Iterable[Callback] = (),
    place: Place | None = None,
) -> Trainer:
    """The trainer of a run, or of one stage of it, on its device and seeded.

    previous: (k,) robust accuracies of the classes after the stage before.
    """
    ranks, device = processes.ranks(), torch.device(config.device)
    check(config, device)
    check_shards(config.shards, ranks)
    progress, stop, position = progress or Progress(quiet=True), stop or StopRequest(), Position()
    per_epoch = config.steps_per_epoch or max(1, round(len(images.labels) / config.batch_size))
    length = Length(config.epochs, per_epoch, config.batch_size)

    model = new_model(images.spec, config, device)
    init = start_from(model, config.model, images.spec, images.classes)
    if config.model.freeze is not None:
        logger.info(freeze(model, config.model.freeze))
    average = WeightAverage(model, config.ema) if config.ema.decay else None
    step = new_step(config, images, length, position, model, device, previous)
    batches = TrainingBatches(step.sampler, images.train, config.batch_size)
    folder = folder or Path(config.out)
    state = RunState(
        config=config,
        images=images,
        facts=DataFacts(
            classes=tuple(images.classes),
            content=images.content,
            eta=getattr(step.sampler, "eta", None),
            white=images.white,
        ),
        position=position,
        step=step,
        captured=CapturedStep(step, batches) if config.graph else None,
        batches=batches,
        average=average,
        ensemble=theory.IterateReservoir(config.ensemble, config.seed) if config.ensemble else None,
        init=init,
        folder=folder,
        store=CheckpointStore(folder, writes=ranks.is_first),
        log=MetricsLog(folder, writes=ranks.is_first),
        ranks=ranks,
        place=place or Place(),
    )
    agreement = Agreement(state, length, stop, progress)
    evaluations = Evaluations(config, images, device, ranks, progress, agreement.heed_signals)
    holdout = (
        None
        if images.validation is None
        else HoldOut(evaluations, images.validation, images.validation_split)
    )
    logger.info(f"{device}: {precision_in_words(config.precision, device)}")
    logger.info(in_words(model, images.spec.name, images.spec.image_size))
    return Trainer(
        config=config,
        length=length,
        state=state,
        evaluations=evaluations,
        validation=Validation(state, length, holdout),
        agreement=agreement,
        progress=progress,
        callbacks=Callbacks(callbacks, device),
    )


def check(config: TrainConfig, device: torch.device) -> None:
    """Refuses what this machine cannot do, before anything is built."""
    if config.precision == "bfloat16" and (trouble := bfloat16_trouble(device)):
        raise InputError(trouble)
    if device.type == "cpu":
        choices().check()
    if config.graph and (reason := why_no_graph(config)):
        raise InputError(f"--graph on is not possible: {reason}; use --graph off")


def new_step(
    config: TrainConfig,
    images: RunImages,
    length: Length,
    position: Position,
    model: torch.nn.Module,
    device: torch.device,
    previous: Tensor | None,
) -> Step:
    """The step of a batch in one part, or of one in several shards."""
    method, k, ranks, shards = (
        methods.get(config.method),
        len(images.classes),
        processes.ranks(),
        config.shards,
    )
    sampler = method.sampler(
        images.labels, k, config.params, config.seed, device, previous, length.draws, ranks
    )
    attack = training_attack(model, config, in_step=True)
    parts: dict[str, Any] = {
        "device": device,
        "model": model,
        "forward": compiled(model, device) if config.compile else model,
        "sampler": sampler,
        "attack": attack,
        "objective": method.objective(config.params, k, config.label_smoothing),
        "perturbation": WeightPerturbation(model, config.awp) if config.awp else None,
        "policy": method.class_policy(config.params, k, length.epochs, device, ranks, shards > 1),
        "optimizer": OPTIMIZERS[config.optimizer.name](model, config.optimizer, device),
        "counts": EpochCounts(k, device, ranks),
        "precision": config.precision,
        "feedback": feedback(config.params.get("feedback", "error")),
    }
    if shards == 1:
        return Step(**parts)
    spec = images.spec
    return ShardedStep(
        **parts,
        ranks=ranks,
        shards=shards,
        batch_size=config.batch_size,
        image_shape=(spec.in_channels, spec.image_size, spec.image_size),
        position=position,
        seed=config.seed,
    )
