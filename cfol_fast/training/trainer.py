"""Trains one run: takes its steps, ends its epochs, saves and restores its state.

`Trainer.fit` is the training loop. A run is a function of its configuration: whatever it needs to continue is
in its checkpoint, so a run that was killed at any moment and is resumed ends with the same weights and the
same metrics (on the CPU, with the same thread count).
`parts.build` makes a trainer from a configuration.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from typing import NamedTuple

import torch

from cfol_fast import attacks, ops
from cfol_fast.attacks.choices import choices
from cfol_fast.errors import Stopped
from cfol_fast.policies import EpochFacts
from cfol_fast.progress import Progress, Reading, Stopwatch
from cfol_fast.ranks import Ranks
from cfol_fast.runs.checkpoints import LAST
from cfol_fast.runs.config import TrainConfig
from cfol_fast.runs.metrics_log import Row
from cfol_fast.runs.schedules import learning_rate
from cfol_fast.training import one_class
from cfol_fast.training.batches import TrainingBatch
from cfol_fast.training.callbacks import Callbacks
from cfol_fast.training.evaluations import Evaluations
from cfol_fast.training.holdout import HoldOut, collapse_warning, judged
from cfol_fast.training.images import RunImages
from cfol_fast.training.position import Length
from cfol_fast.training.shards import ShardedStep
from cfol_fast.training.signals import StopRequest
from cfol_fast.training.state import RunState

logger = logging.getLogger(__name__)


class Wanted(NamedTuple):
    """What the ranks agreed on after a step: a signal to stop, a checkpoint that is due, one that SIGUSR1
    asked for.
    """

    signal_number: int | None
    save_due: bool
    save_asked: bool


@dataclass(kw_only=True)
class Trainer:
    """One run, or one stage of it, from where it stands to its last epoch.

    `state.step` is all that the device does; `state` is what a checkpoint holds. holdout: None with --holdout
    none. Of many processes each has a trainer and goes through the same calls. The first writes; all hold the
    same weights and sampler.
    """

    config: TrainConfig
    images: RunImages
    length: Length
    state: RunState
    evaluations: Evaluations
    holdout: HoldOut | None
    ranks: Ranks
    progress: Progress
    stop: StopRequest
    callbacks: Callbacks
    clock: Stopwatch = field(default_factory=Stopwatch)
    _reading: Reading | None = None

    def __post_init__(self) -> None:
        self.step, self.position, self.average = self.state.step, self.state.position, self.state.average

    # ---------------------------------------------------------------- the training loop

    def fit(self, after_first_step: Callable[[], None] | None = None) -> None:
        """Trains to the end of the last epoch."""
        position, length = self.position, self.length
        self.agree_on_choices()
        self.clock.lap()
        self.progress.begin(position.step, length.steps, length.epochs, length.batch_size)
        if position.step == 0 and self.state.init is not None and self.step.policy.judges_the_start:
            self.step.policy.epoch_end(self.facts_at_the_start())
        with closing(self.state.batches.feed(length.steps - position.step)) as batches:
            while position.epoch < length.epochs:
                while self.steps_left_in_epoch:
                    self.take_step(batches)
                    if after_first_step is not None:
                        after_first_step()
                        after_first_step = None
                    self.between_steps()
                self.finish_epoch()

    def take_step(self, batches: Iterator[TrainingBatch]) -> None:
        """One step with what the host does around it: nothing of that is part of a captured step."""
        number = self.position.step
        if self.state.ensemble is not None:
            self.state.ensemble.observe(number, self.step.model)
        rate = learning_rate(self.config.optimizer, number, self.length.steps_per_epoch, self.length.epochs)
        self.step.optimizer.set_rate(rate)
        (self.state.captured or self.step)(batches)
        if self.average is not None:
            self.average.after_step()
        self.position.step += 1

    def between_steps(self) -> None:
        """What some rank wants all ranks do, after the same step: one message."""
        seconds = self.clock.lap()
        self.position.seconds += seconds
        self.position.epoch_seconds += seconds
        wanted = self.agree()
        self.progress.step(self.position.step, self.position.epoch, self.reading)
        self.callbacks.step(self.position.step)
        with self.saving_when_stopped():
            if wanted.signal_number is not None:
                raise Stopped(wanted.signal_number, f"asked to stop at step {self.position.step}")
        if wanted.save_asked:
            self._save_as_asked()
        elif wanted.save_due:
            self.state.save()

    def finish_epoch(self) -> None:
        """Validates, keeps the best weights, logs, lets the class policy act, and saves."""
        self.state.check_health()
        self.step.sampler.check_ranks()
        if not self.ranks.from_first(self.state.store.path(LAST).exists):
            # Rows without a checkpoint mean that a checkpoint was lost.
            self.state.save()
        with self.saving_when_stopped():
            row = self.training_row()
            validated = self.validate() if self.validation_is_due else None
            self.average_weights(validated)
            if validated is not None:
                self.state.keep_best(validated)
            facts = self.epoch_facts(row["epoch"], class_errors(row), validated)
        if warning := collapse_warning(self.config, row, validated):
            logger.warning(warning)
        rows = [each for each in (row, validated) if each is not None]
        for each in rows:
            self.state.log.append(each)
            self.callbacks.row(each, self.step.model)
        # The first rank alone has all rows, and speaks.
        known = (self.state.folder, rows, self.images.labels, self.config.optimizer)
        if self.ranks.is_first and (warning := one_class.warning_of_epoch(*known)):
            logger.warning(warning)
        self.progress.row(row, self.length.epochs, self.images.classes, validated)
        self.position.seconds += self.clock.lap()
        self.end_epoch(facts)
        self.state.save()

    def end_epoch(self, facts: EpochFacts) -> None:
        if facts.epoch < self.length.epochs:
            # After the last epoch nothing would follow it.
            self.step.policy.epoch_end(facts)
        self.position.epoch += 1
        self.position.epoch_seconds = 0.0
        self.step.counts.begin_epoch()

    # ---------------------------------------------------------------- between the steps

    @property
    def steps_left_in_epoch(self) -> int:
        return (self.position.epoch + 1) * self.length.steps_per_epoch - self.position.step

    def agree_on_choices(self) -> None:
        """Before the first step of many ranks: they take the same ways to compute the attack's layers, those
        of the first rank.
        """
        attack = self.step.attack
        if self.ranks.size == 1 or self.step.device.type != "cpu" or not isinstance(attack, attacks.PGD):
            return
        spec, width = self.images.spec, self.config.batch_size // (self.config.shards or 1)
        images = torch.rand(
            (width, spec.in_channels, spec.image_size, spec.image_size), generator=torch.Generator()
        )
        choices().share(self.ranks, lambda: attack.rehearse(images))

    def agree(self) -> Wanted:
        """What any rank wants, after the same step.

        A signal that comes while the ranks talk waits for the next step.
        """
        every = self.config.checkpoint
        by_steps = every.steps is not None and self.position.step % every.steps == 0
        due = by_steps or (every.seconds is not None and self.state.since_save.seconds >= every.seconds)
        asked = self.stop.take_save()
        if self.ranks.size == 1:
            return Wanted(self.stop.signal_number, due, asked)
        known = [self.stop.signal_number or 0, due, asked, self.progress.wants_reading()]
        agreed, due, asked, bar = self.ranks.largest(torch.tensor(known)).tolist()
        self.stop.agreed = agreed or None
        if bar:
            self._reading = self._read()
        return Wanted(self.stop.agreed, bool(due), bool(asked))

    def heed_signals(self) -> None:
        """Between the batches of an evaluation: saves if a rank was asked to, raises `Stopped` if this
        process was asked to stop.

        Before the first step there is nothing to save, and an old run may still be in the folder: the request
        waits for that step.
        """
        asked = torch.tensor(int(self.position.step > 0 and self.stop.take_save()))
        if self.ranks.largest(asked).item():
            self._save_as_asked()
        if self.stop.requested:
            raise Stopped(self.stop.signal_number or 0, f"asked to stop at step {self.position.step}")

    def _save_as_asked(self) -> None:
        # In the final test the last epoch is on the disk, and the model holds the weights under test.
        unfinished = self.position.epoch < self.length.epochs
        path = self.state.save() if unfinished else self.state.store.path(LAST)
        logger.info(f"SIGUSR1: {path} holds step {self.position.step}; the run goes on")

    @contextmanager
    def saving_when_stopped(self) -> Iterator[None]:
        """Saves, once, when the run is stopped inside: on many ranks all of them are.

        During the final test nothing is saved: the last epoch is on the disk, and the model holds the weights
        under test.
        """
        try:
            yield
        except Stopped as stopped:
            path = (
                self.state.save() if self.position.epoch < self.length.epochs else self.state.store.path(LAST)
            )
            self.progress.clear()
            message = f"stopped at step {self.position.step}, saved {path}; --resume continues"
            raise Stopped(stopped.signal_number, message) from None

    def reading(self) -> Reading | None:
        """What the live bar shows; reads from the device or, of many ranks, is what they last read
        together.
        """
        return self._read() if self.ranks.size == 1 else self._reading

    def _read(self) -> Reading:
        row = self.training_row()
        errors = [error or 0.0 for error in row["class_error"]]
        worst = max(range(len(errors)), key=errors.__getitem__)
        p = None if row["p"] is None else row["p"][worst]
        return Reading(row["robust_error"], self.images.classes[worst], p)

    def leave_group(self) -> None:
        """No more steps: the process group's threads, which end with the last thing that holds the group, are
        let go.
        """
        if isinstance(self.step, ShardedStep):
            self.step.leave_group()

    # ---------------------------------------------------------------- at the end of an epoch

    def training_row(self) -> Row:
        """The epoch's row of metrics.jsonl; reads from the device."""
        step, position = self.step, self.position
        tally, loss_sum = step.counts.over_ranks()
        counts, errors = ops.read_tally(tally)
        images, p = int(counts.sum()), step.sampler.p
        return {
            "kind": "train",
            "epoch": position.epoch + 1,
            "step": position.step,
            "lr": step.optimizer.rate,
            "loss": float(loss_sum) / self.length.steps_per_epoch,
            "robust_error": float(errors.sum()) / max(1, images),
            "class_error": [
                e / n if n else None for e, n in zip(errors.tolist(), counts.tolist(), strict=True)
            ],
            "p": None if p is None else p.tolist(),
            **{f"class_{name}": getattr(step.policy.view, name).tolist() for name in step.policy.factors},
            "images_per_second": images / position.epoch_seconds if position.epoch_seconds > 0 else 0.0,
            "seconds": position.seconds,
        }

    @property
    def validation_is_due(self) -> bool:
        epoch = self.position.epoch + 1
        due = epoch % self.config.validation.every == 0 or epoch == self.length.epochs
        return due and self.holdout is not None

    def validate(self) -> Row:
        """The hold-out's row of metrics.jsonl."""
        assert self.holdout is not None
        return self.holdout.row(self.step.model, self.position)

    def average_weights(self, validated: Row | None) -> None:
        """Adds an epoch's weights to their moving average, where a run keeps one, and its accuracies to the
        epoch's validation.
        """
        average = self.average
        if average is None:
            return
        worst = None if validated is None else judged(self.config, validated)["worst"]
        average.after_epoch(self.position.epoch + 1, worst)
        if validated is not None and average.updates:
            assert self.holdout is not None
            found = self.holdout.accuracies(average.model, "validation of the average")
            validated["ema"] = {"updates": average.updates, **found}

    def epoch_facts(self, epoch: int, errors: torch.Tensor, validated: Row | None) -> EpochFacts:
        """What the class policy may use. errors: (k,) of the training images."""
        if validated is None:
            return EpochFacts(epoch, errors)
        assert self.holdout is not None
        return self.holdout.epoch_facts(epoch, errors, validated, self.step)

    def facts_at_the_start(self) -> EpochFacts:
        """What the class policy may use of the weights that a run starts from: nothing was trained yet."""
        untrained = torch.full((len(self.images.classes),), torch.nan, dtype=torch.float64)
        return self.epoch_facts(0, untrained, self.validate())


def class_errors(row: Row) -> torch.Tensor:
    """(k,) float64 of a training row; NaN for a class without images."""
    errors = row["class_error"]
    return torch.tensor([torch.nan if e is None else e for e in errors], dtype=torch.float64)
