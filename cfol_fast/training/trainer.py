"""Trains one run: takes its steps and ends its epochs. `Trainer.fit` is the training loop.

A run is a function of its configuration: whatever it needs to continue is in its checkpoint, so a run that
was killed at any moment and is resumed ends with the same weights and the same metrics (on the CPU, with the
same thread count). `parts.build` makes a trainer from a configuration.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, field

from cfol_fast.policies import EpochFacts
from cfol_fast.progress import Progress, Stopwatch
from cfol_fast.runs.config import TrainConfig
from cfol_fast.runs.schedules import learning_rate
from cfol_fast.training.agreement import Agreement
from cfol_fast.training.batches import TrainingBatch
from cfol_fast.training.callbacks import Callbacks
from cfol_fast.training.evaluations import Evaluations
from cfol_fast.training.position import Length, Position
from cfol_fast.training.rows import training_row
from cfol_fast.training.state import RunState
from cfol_fast.training.step import Step
from cfol_fast.training.validation import Validation

logger = logging.getLogger(__name__)


@dataclass(kw_only=True)
class Trainer:
    """One run, or one stage of it, from where it stands to its last epoch.

    state: what a checkpoint holds; `state.step` is all that the device does. Of many processes each has a
    trainer and goes through the same calls. The first writes; all hold the same weights and sampler.
    """

    config: TrainConfig
    length: Length
    state: RunState
    evaluations: Evaluations
    validation: Validation
    agreement: Agreement
    progress: Progress
    callbacks: Callbacks
    clock: Stopwatch = field(default_factory=Stopwatch)

    @property
    def step(self) -> Step:
        return self.state.step

    @property
    def position(self) -> Position:
        return self.state.position

    def fit(self) -> None:
        """Trains to the end of the last epoch."""
        position, length = self.position, self.length
        self.step.begin()
        self.clock.lap()
        self.progress.begin(position.step, length.steps, length.epochs, length.batch_size)
        self.validation.let_policy_judge_the_start()
        feed = self.state.batches.feed(length.steps - position.step)
        with closing(feed) as batches, self.agreement.saving_when_data_is_lost():
            while position.epoch < length.epochs:
                while self.steps_left_in_epoch:
                    self.take_step(batches)
                    self.state.place.move_in(self.state)
                    self.between_steps()
                self.finish_epoch()

    @property
    def steps_left_in_epoch(self) -> int:
        return (self.position.epoch + 1) * self.length.steps_per_epoch - self.position.step

    def take_step(self, batches: Iterator[TrainingBatch]) -> None:
        """One step with what the host does around it: nothing of that is part of a captured step."""
        number, state = self.position.step, self.state
        if state.captured is None:
            # First of all: where a file of the data is lost, nothing of this step has happened yet.
            batches = iter((next(batches),))
        if state.ensemble is not None:
            state.ensemble.observe(number, state.step.model)
        rate = learning_rate(self.config.optimizer, number, self.length.steps_per_epoch, self.length.epochs)
        state.step.optimizer.set_rate(rate)
        (state.captured or state.step)(batches)
        if state.average is not None:
            state.average.after_step()
        self.position.step += 1

    def between_steps(self) -> None:
        """Shows progress, and saves or stops where some rank was asked to."""
        self.position.spend(self.clock.lap())
        wanted = self.agreement.reach()
        self.progress.step(self.position.step, self.position.epoch, self.agreement.reading)
        self.callbacks.step(self.position.step)
        self.agreement.meet(wanted)

    def finish_epoch(self) -> None:
        """Validates, keeps the best weights, logs, lets the class policy act, and saves."""
        state = self.state
        state.check_health()
        state.step.sampler.check_ranks()
        state.save_if_never()
        with self.agreement.saving_when_stopped():
            row = training_row(state.step, self.position, self.length)
            validated = self.validation.after_epoch()
            facts = self.validation.facts(row, validated)
        rows = [row] if validated is None else [row, validated]
        for each in rows:
            state.log.append(each)
            self.callbacks.row(each, state.step.model)
        for warning in self.validation.warnings(rows):
            logger.warning(warning)
        self.progress.row(row, self.length.epochs, state.images.classes, validated)
        self.position.seconds += self.clock.lap()
        self.end_epoch(facts)
        state.save()

    def end_epoch(self, facts: EpochFacts) -> None:
        if facts.epoch < self.length.epochs:
            # After the last epoch nothing would follow it.
            self.step.policy.epoch_end(facts)
            self.validation.tell_sampler(facts)
        self.position.end_epoch()
        self.step.counts.begin_epoch()
