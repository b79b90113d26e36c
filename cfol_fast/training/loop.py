"""The training loop: draw, feed, attack, objective, step, update; at each epoch's end log, validate, save.

A run is a function of its configuration. Whatever it needs to continue is in its checkpoint, so a run that was killed at any
moment and is resumed ends with the same weights and the same metrics (on the CPU, with the same thread count).
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from cfol_fast import methods, ops
from cfol_fast.errors import Stopped, TrainingFailed
from cfol_fast.machine import arithmetic, check_same_arithmetic
from cfol_fast.progress import Progress, Reading, Stopwatch
from cfol_fast.runs import run_folder
from cfol_fast.runs.checkpoints import BEST_AVERAGE, BEST_WORST, LAST, CheckpointStore
from cfol_fast.runs.config import TrainConfig
from cfol_fast.runs.defaults import complete
from cfol_fast.runs.metrics import MetricsLog, Row
from cfol_fast.runs.schedules import learning_rate
from cfol_fast.training import validation
from cfol_fast.training.parts import Parts, build
from cfol_fast.training.signals import StopRequest
from cfol_fast.training.step import NEVER
from cfol_fast.training.tensorboard import EventWriter

FORMAT = 1
Listener = Callable[[Row], None]


@dataclass(frozen=True)
class Run:
    """A finished run: its folder and what result.json says."""

    folder: Path
    result: dict[str, Any]


@dataclass
class Position:
    """How far a run is, beside its tensors."""

    step: int = 0
    epoch: int = 0  # epochs that are finished, validated and logged
    seconds: float = 0.0  # spent so far, over all parts of the run
    epoch_seconds: float = 0.0  # of training in the current epoch
    best: dict[str, dict[str, float]] = field(default_factory=dict)  # checkpoint name -> {"epoch", "value"}


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
    show = Progress(quiet=quiet)
    with run_folder.RunLock(folder), torch.random.fork_rng(devices=[]), StopRequest() as stop:
        run_folder.prepare(folder, config, resume, overwrite)
        previous = None
        for stage in range(1, methods.get(config.method).stages):
            inner = folder / f"stage-{stage}"
            run_folder.prepare(inner, config, resume=True, overwrite=False)
            show.say(f"stage {stage} of {methods.get(config.method).stages}: {inner}")
            stage_result = train_stage(config, inner, previous, force, show, stop)
            previous = validation.robust_class_accuracies(inner, stage_result)
        result = train_stage(config, folder, previous, force, show, stop, tensorboard, listeners)
    return Run(folder, result)


def train_stage(
    config: TrainConfig,
    folder: Path,
    previous: Tensor | None,
    force: bool,
    show: Progress,
    stop: StopRequest,
    tensorboard: bool = False,
    listeners: tuple[Listener, ...] = (),
) -> dict[str, Any]:
    """One run from its start, or from its last checkpoint, to its result."""
    finished = run_folder.read_result(folder)
    if finished is not None:
        show.say(f"{folder} is finished already")
        return finished

    parts = build(config, previous)
    step, queue, splits = parts.step, parts.queue, parts.splits
    store, log, at = CheckpointStore(folder), MetricsLog(folder, listeners), Position()
    facts = arithmetic(step.device)
    epochs, per_epoch = config.epochs or 0, parts.steps_per_epoch
    restore(store, log, parts, at, facts, force, show)
    events = EventWriter(folder, splits.classes, at.step) if tensorboard else None
    log.listeners += () if events is None else (events,)
    watch, since_save = Stopwatch(), Stopwatch()

    def save() -> Path:
        check_health(parts, store)
        since_save.lap()
        return store.save_last(snapshot(config, parts, at, log, facts))

    def interrupt(note: str = "") -> None:
        """Called within the evaluations too. In the final test the last epoch is saved, and the model is another's."""
        if stop.requested:
            path = save() if at.epoch < epochs else store.path(LAST)
            show.clear()
            raise Stopped(
                stop.signal_number or 0, f"stopped at step {at.step}, saved {path}; --resume continues"
            )
        show.busy(note)

    show.begin(at.step, per_epoch * epochs, epochs, config.batch_size)
    with closing(splits.source.feed(queue.draw, per_epoch * epochs - at.step)) as batches:
        while at.epoch < epochs:
            while at.step < (at.epoch + 1) * per_epoch:
                _, x, y = next(batches)
                idx, ticket = queue.take()
                if parts.reservoir is not None:
                    parts.reservoir.observe(at.step, parts.model)
                step(at.step, learning_rate(config.optimizer, at.step, per_epoch, epochs), idx, x, y, ticket)
                at.step += 1

                lap = watch.lap()
                at.seconds, at.epoch_seconds = at.seconds + lap, at.epoch_seconds + lap
                show.step(at.step, at.epoch, lambda: reading(parts))
                if stop.requested:
                    interrupt()
                if save_is_due(config, at.step, since_save.seconds):
                    save()

            check_health(parts, store)
            rows = [training_row(parts, at)]
            due = (at.epoch + 1) % config.validation.every == 0 or at.epoch + 1 == epochs
            if splits.validation is not None and due:
                rows.append(validation.validate(config, parts, at.epoch + 1, at.step, interrupt))
                keep_best(config, parts, at, store, rows[-1])
            for row in rows:
                log.append(row)
            show.row(rows[0], epochs, splits.classes, rows[1] if len(rows) > 1 else None)
            at.epoch, at.epoch_seconds, at.seconds = at.epoch + 1, 0.0, at.seconds + watch.lap()
            step.begin_epoch()
            save()
    result = validation.final_test(config, parts, folder, store, at.best, at.seconds, interrupt, show)
    if events is not None:
        events.finish(folder / run_folder.GALLERY, at.step)
    return result


def snapshot(
    config: TrainConfig, parts: Parts, at: Position, log: MetricsLog, facts: dict[str, Any]
) -> dict[str, Any]:
    """All that a run needs to continue exactly, and all that `load` needs to rebuild its model."""
    step = parts.step
    return {
        **weights(config, parts, at.epoch),
        "position": asdict(at),
        "optimizer": step.optimizer.state_dict(),
        "sampler": step.sampler.state_dict(),
        "attack": step.attack.state_dict(),
        "source": parts.splits.source.state_dict(),
        "queue": parts.queue.state_dict(),
        "step": step.state_dict(),
        "ensemble": None if parts.reservoir is None else parts.reservoir.state_dict(),
        "metrics_size": log.size,
        "arithmetic": facts,
        "torch_rng": torch.get_rng_state(),  # dropout, where a model has it
        "cuda_rng": torch.cuda.get_rng_state(step.device) if step.device.type == "cuda" else None,
    }


def weights(config: TrainConfig, parts: Parts, epoch: int) -> dict[str, Any]:
    """The part of a checkpoint that is enough to use the model."""
    return {
        "format": FORMAT,
        "model": parts.model.state_dict(),
        "spec": parts.splits.spec.to_dict(),
        "classes": parts.splits.classes,
        "dataset": config.data.name,
        "method": config.method,
        "seed": config.seed,
        "epoch": epoch,
    }


def restore(
    store: CheckpointStore,
    log: MetricsLog,
    parts: Parts,
    at: Position,
    facts: dict[str, Any],
    force: bool,
    show: Progress,
) -> None:
    """Puts a fresh run where its newest whole checkpoint is; without one it stays at its start."""
    store.sweep()
    found = store.newest(parts.step.device)
    if found is None:
        log.cut(0)
        return
    state, name, complaint = found
    if complaint is not None:
        show.say(f"{complaint}; using {name} instead")
    for change in check_same_arithmetic(state["arithmetic"], facts, force):
        show.say(
            f"continuing although {change}: the result will not be bit for bit that of an uninterrupted run"
        )
    log.cut(state["metrics_size"])
    step = parts.step
    parts.model.load_state_dict(state["model"])
    step.optimizer.load_state_dict(state["optimizer"])
    step.sampler.load_state_dict(state["sampler"])
    step.attack.load_state_dict(state["attack"])
    parts.splits.source.load_state_dict(state["source"])
    parts.queue.load_state_dict(state["queue"])
    step.load_state_dict(state["step"])
    if parts.reservoir is not None:
        parts.reservoir.load_state_dict(state["ensemble"])
    torch.set_rng_state(state["torch_rng"].cpu())
    if state["cuda_rng"] is not None and step.device.type == "cuda":
        torch.cuda.set_rng_state(state["cuda_rng"].cpu(), step.device)
    for key, value in state["position"].items():
        setattr(at, key, value)
    show.say(f"continuing at step {at.step}")


def save_is_due(config: TrainConfig, step: int, seconds_since: float) -> bool:
    every = config.checkpoint
    by_steps = every.steps is not None and step % every.steps == 0
    return by_steps or (every.seconds is not None and seconds_since >= every.seconds)


def check_health(parts: Parts, store: CheckpointStore) -> None:
    """A log point: reads the flags that the steps raised on the device, before anything is saved."""
    last = store.path(LAST)
    good = f"the last good checkpoint is {last}" if last.exists() else "there is no checkpoint yet"
    bad = int(parts.step.first_bad)
    if bad != NEVER:
        raise TrainingFailed(f"the loss is not finite since step {bad}; {good}. Try a lower learning rate")
    for owner in (parts.step.sampler, parts.step.attack, parts.step, parts.splits.source):
        fault = getattr(owner, "fault", None)
        if fault is not None and int(fault):
            raise TrainingFailed(f"{'; '.join(ops.fault_messages(int(fault)))}; {good}")


def reading(parts: Parts) -> Reading:
    """What the live bar shows; reads from the device."""
    counts, errors = ops.read_tally(parts.step.tally)
    rates = (errors / counts.clamp(min=1)).tolist()
    worst = max(range(len(rates)), key=rates.__getitem__)
    p = parts.step.sampler.p
    total = max(1, int(counts.sum()))
    return Reading(
        float(errors.sum()) / total, parts.splits.classes[worst], None if p is None else float(p[worst])
    )


def training_row(parts: Parts, at: Position) -> Row:
    """The epoch's row of metrics.jsonl; reads from the device."""
    counts, errors = ops.read_tally(parts.step.tally)
    images = int(counts.sum())
    p = parts.step.sampler.p
    return {
        "kind": "train",
        "epoch": at.epoch + 1,
        "step": at.step,
        "lr": parts.step.optimizer.param_groups[0]["lr"],
        "loss": float(parts.step.loss_sum) / parts.steps_per_epoch,
        "robust_error": float(errors.sum()) / max(1, images),
        "class_error": [e / n if n else None for e, n in zip(errors.tolist(), counts.tolist(), strict=True)],
        "p": None if p is None else p.tolist(),
        "images_per_second": images / at.epoch_seconds if at.epoch_seconds > 0 else 0.0,
        "seconds": at.seconds,
    }


def keep_best(config: TrainConfig, parts: Parts, at: Position, store: CheckpointStore, row: Row) -> None:
    """Both early-stopping rules of the paper: the best average robust accuracy, and the best worst class.

    Training without an attack is stopped by the clean accuracies: what little robustness there is, is greatest at the start.
    """
    judged = row["clean" if config.attack.kind == "none" else "robust"]
    for name, value in ((BEST_AVERAGE, judged["average"]), (BEST_WORST, judged["worst"])):
        if name not in at.best or value > at.best[name]["value"]:
            at.best[name] = {"epoch": at.epoch + 1, "value": value}
            store.save_best(name, {**weights(config, parts, at.epoch + 1), "validation": row})
