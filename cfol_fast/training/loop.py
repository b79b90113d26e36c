"""The training loop: draw, feed, attack, objective, step, update; at each epoch's end log, validate, keep the best, save.

A run is a function of its configuration. Whatever it needs to continue is in its checkpoint, so a run that was killed at any
moment and is resumed ends with the same weights and the same metrics (on the CPU, with the same thread count).
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from cfol_fast import methods
from cfol_fast.progress import Progress, Stopwatch
from cfol_fast.runs import run_folder
from cfol_fast.runs.config import TrainConfig
from cfol_fast.runs.defaults import complete
from cfol_fast.runs.json_files import read_object
from cfol_fast.runs.metrics_log import Row
from cfol_fast.training import validation
from cfol_fast.training.images import load_images
from cfol_fast.training.signals import StopRequest
from cfol_fast.training.tensorboard import TensorBoardLog
from cfol_fast.training.trainer import Trainer

Listener = Callable[[Row], None]


@dataclass(frozen=True)
class Run:
    """A finished run: its folder and what result.json says."""

    folder: Path
    result: dict[str, Any]


def run_epochs(trainer: Trainer) -> None:
    """Trains from where the trainer is to the end of its last epoch. The step itself is `Trainer.step`."""
    position, epochs, progress = trainer.position, trainer.epochs, trainer.progress
    clock = Stopwatch()
    progress.begin(position.step, trainer.steps, epochs, trainer.config.batch_size)
    # The sampler draws indices and the source makes them into pixels when the next batch is asked for.
    with closing(trainer.batches.feed(trainer.steps - position.step)) as batches:
        while position.epoch < epochs:
            for batch in islice(batches, trainer.steps_left_in_epoch):
                trainer.step(batch)
                trainer.spend(clock.lap())
                progress.step(position.step, position.epoch, trainer.reading)
                trainer.leave_if_asked()
                if trainer.save_is_due():
                    trainer.save()

            trainer.check_health()
            rows = [trainer.training_row()]
            if trainer.validation_is_due:
                rows.append(validation.validate(trainer))
                trainer.keep_best(rows[1])
            for row in rows:
                trainer.log.append(row)
            progress.row(rows[0], epochs, trainer.images.classes, rows[1] if len(rows) > 1 else None)
            position.seconds += clock.lap()
            trainer.end_epoch()
            trainer.save()


def train(
    config: TrainConfig,
    *,
    resume: bool = False,
    overwrite: bool = False,
    force: bool = False,
    quiet: bool = False,
    tensorboard: bool = False,
    listeners: tuple[Listener, ...] = (),
) -> Run:
    """Trains as `config` says, tests the kept checkpoints, and returns the run.

    resume: continue where the run folder stands (a finished run is returned as it is).
    overwrite: start afresh in an existing run folder. force: resume although thread count or instructions changed.
    listeners: called with every row of metrics.jsonl. tensorboard: also write the rows as events to RUN/tensorboard.
    """
    config = complete(config)
    folder = Path(config.out or "").expanduser()
    progress, stages = Progress(quiet=quiet), methods.get(config.method).stages
    with run_folder.RunLock(folder), torch.random.fork_rng(devices=[]), StopRequest() as stop:

        def result_of(stage_folder: Path, previous: Tensor | None) -> dict[str, Any]:
            finished = run_folder.read_result(stage_folder)
            if finished is not None:
                progress.say(f"{stage_folder} is finished already")
                return finished
            trainer = Trainer(config, load_images(config), stage_folder, previous, progress, stop)
            trainer.restore(force)
            # What the caller asked to be told of is the run itself, not the stages before it.
            return (
                to_result(trainer, listeners, tensorboard) if stage_folder == folder else to_result(trainer)
            )

        run_folder.prepare(folder, config, resume, overwrite)
        accuracies = None
        for stage in range(1, stages):
            stage_folder = folder / f"stage-{stage}"
            run_folder.prepare(stage_folder, config, resume=True, overwrite=False)
            progress.say(f"stage {stage} of {stages}: {stage_folder}")
            result = result_of(stage_folder, accuracies)
            accuracies = validation.robust_class_accuracies(stage_folder, result)
        return Run(folder, result_of(folder, accuracies))


def to_result(
    trainer: Trainer, listeners: tuple[Listener, ...] = (), tensorboard: bool = False
) -> dict[str, Any]:
    """Trains and tests, from where the trainer is to the result."""
    events = None
    if tensorboard:
        folder, step = trainer.folder / "tensorboard", trainer.position.step
        events = TensorBoardLog(folder, trainer.images.classes, resume_step=step)
        listeners += (events,)
    trainer.log.listeners = listeners
    run_epochs(trainer)
    result = validation.final_test(trainer)
    if events is not None:
        events.gallery(read_object(trainer.folder / run_folder.GALLERY), trainer.position.step)
        events.close()
    return result
