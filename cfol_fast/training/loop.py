"""The training loop: draw, feed, attack, objective, step, update; at each epoch's end log, validate, keep the best, save.

A run is a function of its configuration. Whatever it needs to continue is in its checkpoint, so a run that was killed at any
moment and is resumed ends with the same weights and the same metrics (on the CPU, with the same thread count).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import closing, nullcontext
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from cfol_fast import methods, processes
from cfol_fast.data import content
from cfol_fast.errors import InputError
from cfol_fast.machine import computing
from cfol_fast.progress import Progress, Stopwatch
from cfol_fast.ranks import Ranks
from cfol_fast.runs import run_folder
from cfol_fast.runs.checkpoints import LAST
from cfol_fast.runs.config import TrainConfig
from cfol_fast.runs.defaults import complete, without_effect
from cfol_fast.runs.metrics_log import Row, read_rows
from cfol_fast.runs.run_folder import Resume
from cfol_fast.runs.run_lock import RunLock
from cfol_fast.training import validation
from cfol_fast.training.callbacks import Callback, Callbacks, Listener, checked
from cfol_fast.training.images import RunImages, load_images
from cfol_fast.training.signals import StopRequest
from cfol_fast.training.starting import RunStart
from cfol_fast.training.tensorboard import TensorBoardLog
from cfol_fast.training.trainer import Trainer
from cfol_fast.training.wandb_log import WandbLog

LOGS: dict[str, Callable[[], Callback]] = {"tensorboard": TensorBoardLog, "wandb": WandbLog}


@dataclass(frozen=True)
class Run:
    """A finished run: its folder and what result.json says."""

    folder: Path
    result: dict[str, Any]


def run_epochs(
    trainer: Trainer, after_first_step: Callable[[], None] | None = None, callbacks: Callbacks | None = None
) -> None:
    """Trains from where the trainer is to the end of its last epoch. The step itself is `Trainer.step`."""
    position, epochs, progress = trainer.position, trainer.epochs, trainer.progress
    trainer.agree_on_choices()
    clock = Stopwatch()
    progress.begin(position.step, trainer.steps, epochs, trainer.config.batch_size)
    if position.step == 0 and trainer.init is not None and trainer.policy.judges_the_start:
        trainer.policy.epoch_end(validation.facts_at_the_start(trainer))
    with closing(trainer.take_steps(trainer.steps - position.step)) as steps:
        while position.epoch < epochs:
            for _ in islice(steps, trainer.steps_left_in_epoch):
                trainer.spend(clock.lap())
                if after_first_step is not None:
                    after_first_step()
                    after_first_step = None
                trainer.agree()
                progress.step(position.step, position.epoch, trainer.reading)
                if callbacks is not None:
                    callbacks.step()
                with trainer.saving_when_stopped():
                    trainer.leave_if_agreed()
                trainer.save_if_due()

            trainer.check_health()
            trainer.sampler.check_ranks()
            if not trainer.ranks.from_first(trainer.store.path(LAST).exists):
                # Rows without a checkpoint mean that a checkpoint was lost.
                trainer.save()
            with trainer.saving_when_stopped():
                rows = [trainer.training_row()]
                if trainer.validation_is_due:
                    rows.append(validation.validate(trainer))
                validation.average_weights(trainer, *rows[1:])
                if len(rows) > 1:
                    trainer.keep_best(rows[1])
                facts = validation.epoch_facts(trainer, *rows)
            if warning := validation.collapse_warning(trainer, *rows):
                progress.say(warning)
            for row in rows:
                trainer.log.append(row)
            progress.row(rows[0], epochs, trainer.images.classes, rows[1] if len(rows) > 1 else None)
            position.seconds += clock.lap()
            trainer.end_epoch(facts)
            trainer.save()


def train(
    config: TrainConfig,
    *,
    resume: Resume = False,
    overwrite: bool = False,
    force: bool = False,
    changed_data: bool = False,
    quiet: bool = False,
    callbacks: Iterable[Callback] = (),
    log: Iterable[str] = (),
    tensorboard: bool = False,
    listeners: Iterable[Callable[[Row], None]] = (),
    patience: float = processes.PATIENCE,
) -> Run:
    """Trains as `config` says, tests the kept checkpoints, and returns the run.

    resume: continue where the run folder stands (a finished run is returned as it is); "auto": or start, if no run is there.
    overwrite: start afresh in an existing run folder; the old run goes when the new one has taken its first step. force: resume although thread count or instructions changed.
    changed_data: resume although the data changed, which result.json then says.
    callbacks: told of the run's start, steps, rows and end. listeners: functions that are called with every row of metrics.jsonl.
    log: names of `LOGS`, which get the rows too; tensorboard=True is the same as its name there.
    Under torchrun all processes call this, and are one run: the first writes, talks and calls back. patience: seconds that one waits
    for another before it takes it for lost.
    """
    told = [
        *checked(callbacks),
        *map(Listener, listeners),
        *logs([*log, "tensorboard"] if tensorboard else log),
    ]
    with processes.joined(config.device, patience) as ranks:
        return _train(
            config,
            resume,
            overwrite,
            (force, changed_data),
            quiet or not ranks.is_first,
            told if ranks.is_first else [],
            ranks,
        )


def _train(
    config: TrainConfig,
    resume: Resume,
    overwrite: bool,
    accepted: tuple[bool, bool],
    quiet: bool,
    told: list[Callback],
    ranks: Ranks,
) -> Run:
    config = settled(config, resume, ranks)
    folder = Path(config.out or "").expanduser()
    progress, stages = Progress(quiet=quiet), methods.get(config.method).stages
    with (
        RunLock(folder) if ranks.is_first else nullcontext() as lock,
        torch.random.fork_rng(devices=[]),
        computing(config.precision, config.deterministic),
        StopRequest() as stop,
    ):
        start = RunStart(folder, lock, config, resume, overwrite, ranks)

        def result_of(
            stage_folder: Path, previous: Tensor | None, stage_before: dict[str, Any] | None
        ) -> dict[str, Any]:
            finished = start.result(stage_folder)
            if finished is not None:
                progress.say(f"{stage_folder} is finished already")
                return finished
            trainer = Trainer(
                config, images_on(ranks, config, not quiet), stage_folder, previous, progress, stop
            )
            try:
                after_first_step = start.enter(trainer, *accepted, stage_before)
                # What the caller asked to be told of is the run itself, not the stages before it.
                return to_result(trainer, after_first_step, told if stage_folder == folder else ())
            finally:
                trainer.leave_group()

        with start.folder_stays():
            accuracies = result = None
            for stage in range(1, stages):
                stage_folder = folder / f"stage-{stage}"
                progress.say(f"stage {stage} of {stages}: {stage_folder}")
                result = result_of(stage_folder, accuracies, result)
                accuracies = ranks.from_first(
                    partial(validation.robust_class_accuracies, stage_folder, result)
                )
            return Run(folder, result_of(folder, accuracies, result))


def settled(config: TrainConfig, resume: Resume, ranks: Ranks) -> TrainConfig:
    """The whole configuration. What was settled when a run was created stays, although there is another device or number of processes."""
    undecided = [
        name
        for name, open_value in (("precision", "auto"), ("shards", None))
        if getattr(config, name) == open_value
    ]
    config = complete(config)
    file = Path(config.out or "").expanduser() / run_folder.CONFIG
    white_is_open = config.data.white is None
    if resume and (undecided or white_is_open):
        stored = ranks.from_first(lambda: run_folder.read_config(file.parent) if file.exists() else None)
        for name in undecided if stored is not None else ():
            setattr(config, name, getattr(stored, name))
        if stored is not None and white_is_open:
            config.data.white = stored.data.white
    device = torch.device(config.device)
    if ranks.size > 1 and device.type == "cuda":
        if device.index:
            raise InputError(
                f"device {device} is one GPU, and there are {ranks.size} processes, each with its own: take --device cuda"
            )
        config.device = f"cuda:{processes.local_rank()}"
    return config


def images_on(ranks: Ranks, config: TrainConfig, progress: bool = False) -> RunImages:
    """The images; the first process of each machine reads them before the others, which find downloads and caches then."""
    if ranks.size == 1:
        return load_images(config, progress)
    images = load_images(config, progress) if processes.local_rank() == 0 else None
    ranks.wait_for_all()
    images = images or load_images(config)
    # A machine may have a copy of its own.
    first, *others = ranks.gather_objects(images.content)
    for rank, theirs in enumerate(others, start=1):
        if first is not None and theirs is not None and (different := content.differences(first, theirs)):
            raise InputError(
                f"the data of process {rank} are not those of process 0 ({content.in_words(different, first, theirs)})"
            )
    return images


def to_result(
    trainer: Trainer, after_first_step: Callable[[], None] | None = None, callbacks: Iterable[Callback] = ()
) -> dict[str, Any]:
    """Trains and tests, from where the trainer is to the result."""
    with Callbacks(trainer, callbacks) as told:
        told.start()
        if trainer.position.step == 0:
            ignored = without_effect(trainer.config)
            for line in [*ignored, *trainer.images.notes, *trainer.sampler.outlook(trainer.draws)]:
                trainer.progress.say(line)
        run_epochs(trainer, after_first_step, told)
        distributions = [row["p"] for row in read_rows(trainer.folder) if row.get("p")]
        average = [] if trainer.average is None else trainer.average.review()
        for line in [*trainer.sampler.review(distributions), *trainer.policy.review(), *average]:
            trainer.progress.say(line)
        with trainer.saving_when_stopped():
            result = validation.final_test(trainer)
        told.end(result)
    return result


def logs(names: Iterable[str]) -> list[Callback]:
    """The logs of these names, each once."""
    chosen = list(dict.fromkeys(names))
    for name in chosen:
        if name not in LOGS:
            raise InputError(f"there is no log {name!r}: choose {' or '.join(LOGS)}")
    return [LOGS[name]() for name in chosen]
