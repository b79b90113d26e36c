"""One run from its configuration to its result: its folder, its stages, its processes, its logs.

The training loop is `Trainer.fit`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from cfol_fast import methods, processes
from cfol_fast.data import content
from cfol_fast.errors import InputError
from cfol_fast.machine import computing
from cfol_fast.progress import Progress, printed, silenced, tell
from cfol_fast.ranks import Ranks
from cfol_fast.runs import run_folder
from cfol_fast.runs.config import TrainConfig, by_path
from cfol_fast.runs.data_facts import settled as with_facts
from cfol_fast.runs.metrics_log import read_rows
from cfol_fast.runs.rules import without_effect
from cfol_fast.runs.run_folder import Resume
from cfol_fast.runs.run_lock import RunLock
from cfol_fast.training import one_class
from cfol_fast.training.callbacks import Callback, RunInfo, checked
from cfol_fast.training.final_test import final_test, robust_class_accuracies
from cfol_fast.training.images import RunImages, load_images
from cfol_fast.training.keywords import configured
from cfol_fast.training.parts import build
from cfol_fast.training.signals import StopRequest
from cfol_fast.training.starting import Asked, RunStart
from cfol_fast.training.tensorboard import TensorBoardLog
from cfol_fast.training.trainer import Trainer
from cfol_fast.training.wandb_log import WandbLog

logger = logging.getLogger(__name__)

LOGS: dict[str, Callable[[], Callback]] = {"tensorboard": TensorBoardLog, "wandb": WandbLog}


@dataclass(frozen=True)
class Run:
    """A finished run: its folder and what result.json says."""

    folder: Path
    result: dict[str, Any]


def train(
    config: TrainConfig | Mapping[str, Any] | str | None = None,
    *,
    resume: Resume = False,
    overwrite: bool = False,
    force: bool = False,
    changed_data: bool = False,
    quiet: bool = False,
    callbacks: Iterable[Callback] = (),
    log: Iterable[str] = (),
    patience: float = processes.PATIENCE,
    **settings: Any,
) -> Run:
    """Trains with the settings of `config`, tests the kept checkpoints, and returns the run.

    Under torchrun all processes call this function and form one run. The first process writes the files,
    prints and calls the callbacks.

    Args:
        config: a TrainConfig, or the name of a method: train("cfol", data="DIR", model="resnet18").
        resume: True continues from the last checkpoint in the run folder; a finished run is returned
            unchanged. "auto" also starts a run if there is none.
        overwrite: start over in an existing run folder. The old folder is renamed to RUN.old-1 after the
            first step of the new run.
        force: resume although the thread count or the instruction set changed.
        changed_data: resume although the data changed. result.json records the change.
        quiet: print nothing. The logger "cfol_fast" still gets all messages.
        callbacks: objects that are called at the run's start, steps, rows and end.
        log: names of `LOGS`, which are callbacks too.
        patience: seconds to wait for another process before it is considered lost.
        settings: fields of the configuration to change, by path, last name or group. `data` is the name of
            a data set or a folder, `model` the name of a network.
    """
    config = configured(config, settings)
    called = [*checked(callbacks), *logs(log)]
    asked = Asked(resume, overwrite, force, changed_data)
    # The command line has joined the group already; a program of its own has not.
    with processes.joined(config.device, patience) as ranks:
        if not ranks.is_first:
            quiet, called = True, []
        with silenced() if not ranks.is_first else printed(quiet) as shown:
            progress = Progress(quiet=not shown)
            return _train(config, asked, quiet, called, ranks, progress)


def _train(
    config: TrainConfig,
    asked: Asked,
    quiet: bool,
    callbacks: list[Callback],
    ranks: Ranks,
    progress: Progress,
) -> Run:
    """The stages of the run one after the other, the last of which is the run itself."""
    config = on_this_process(as_begun(config, ranks) if asked.resume else config, ranks)
    folder = Path(config.out).expanduser()
    stages = methods.get(config.method).stages
    with (
        RunLock(folder) if ranks.is_first else nullcontext() as lock,
        torch.random.fork_rng(devices=[]),
        computing(config.precision, config.deterministic),
        StopRequest(says_so=not progress.quiet) as stop,
    ):
        start = RunStart(folder, lock, config, asked, ranks)

        def result_of(
            stage_folder: Path, previous: Tensor | None, stage_before: dict[str, Any] | None
        ) -> dict[str, Any]:
            finished = start.result(stage_folder)
            if finished is not None:
                logger.info(f"{stage_folder} is finished already")
                return finished
            # Later stages take what the first one's data said.
            trainer = build(
                start.config,
                images_on(ranks, start.config, not quiet),
                stage_folder,
                previous,
                progress,
                stop,
                # Callbacks are those of the run itself, not of the stages before it.
                callbacks if stage_folder == folder else (),
                start,
            )
            try:
                start.enter(trainer.state, stage_before)
                return to_result(trainer)
            finally:
                trainer.step.end()

        with start.folder_stays():
            accuracies = result = None
            for stage in range(1, stages):
                stage_folder = folder / f"stage-{stage}"
                logger.info(f"stage {stage} of {stages}: {stage_folder}")
                result = result_of(stage_folder, accuracies, result)
                accuracies = ranks.from_first(partial(robust_class_accuracies, stage_folder, result))
            return Run(folder, result_of(folder, accuracies, result))


def as_begun(config: TrainConfig, ranks: Ranks) -> TrainConfig:
    """What was settled when a run was created, and the user does not give, stays, although there is another
    device or number of processes.
    """
    given, folder = config.given, Path(config.out).expanduser()
    unsaid = [key for key in ("precision", "shards", "data.white") if given.get(key, "auto") == "auto"]

    def stored() -> dict[str, Any]:
        if not unsaid or not (folder / run_folder.CONFIG).exists():
            return {}
        values = by_path(run_folder.read_config(folder))
        return {key: values[key] for key in unsaid}

    return config.with_settled(ranks.from_first(stored))


def on_this_process(config: TrainConfig, ranks: Ranks) -> TrainConfig:
    """Of several processes each has a GPU of its own."""
    device = torch.device(config.device)
    if ranks.size == 1 or device.type != "cuda":
        return config
    if device.index:
        raise InputError(
            f"device {device} is one GPU, and there are {ranks.size} processes, each with its own: take"
            " --device cuda"
        )
    return config.with_settled({"device": f"cuda:{processes.local_rank()}"})


def images_on(ranks: Ranks, config: TrainConfig, progress: bool = False) -> RunImages:
    """The images; the first process of each machine reads them before the others, which find downloads and
    caches then.
    """
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
                f"the data of process {rank} are not those of process 0 "
                f"({content.in_words(different, first, theirs)})"
            )
    return images


def to_result(trainer: Trainer) -> dict[str, Any]:
    """Trains and tests, from where the trainer is to the result."""
    state = trainer.state
    images, sampler, policy, average = state.images, state.step.sampler, state.step.policy, state.average
    with trainer.callbacks as callbacks:
        callbacks.start(run_info(trainer))
        if state.position.step == 0:
            ignored = without_effect(trainer.config)
            for line in [*ignored, *images.notes, *sampler.outlook(trainer.length.draws)]:
                tell(logger, line)
        trainer.fit()
        known = (state.folder, images.labels, trainer.config.optimizer)
        if state.ranks.is_first and (warning := one_class.warning_at_the_end(*known)):
            logger.warning(warning)
        distributions = [row["p"] for row in read_rows(state.folder) if row.get("p")]
        averaged = [] if average is None else average.review()
        for line in [*sampler.review(distributions), *policy.review(), *averaged]:
            tell(logger, line)
        with trainer.agreement.saving_when_stopped():
            result = final_test(state, trainer.evaluations)
        callbacks.end(result)
    return result


def run_info(trainer: Trainer) -> RunInfo:
    state = trainer.state
    step = state.position.step
    return RunInfo(
        state.folder,
        with_facts(trainer.config, state.facts),
        state.images.classes,
        state.step.model,
        step,
        trainer.length.steps,
        read_rows(state.folder) if step else [],
    )


def logs(names: Iterable[str]) -> list[Callback]:
    """The logs of these names, each once."""
    chosen = list(dict.fromkeys(names))
    for name in chosen:
        if name not in LOGS:
            raise InputError(f"there is no log {name!r}: choose {' or '.join(LOGS)}")
    return [LOGS[name]() for name in chosen]
