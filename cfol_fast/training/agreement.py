"""What is asked of a run between two steps: to save, to stop, to show figures. What one rank is asked, all
ranks do after the same step.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import torch

from cfol_fast.errors import DataLost, Stopped
from cfol_fast.progress import Progress, Reading
from cfol_fast.runs.checkpoints import LAST
from cfol_fast.training.position import Length
from cfol_fast.training.rows import reading, training_row
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


class Agreement:
    """Looks at this process's signals, clock and live line, and exchanges them with the other ranks."""

    def __init__(self, state: RunState, length: Length, stop: StopRequest, progress: Progress) -> None:
        self.state, self.length, self.stop, self.progress = state, length, stop, progress
        self.ranks, self.position = state.ranks, state.position
        # Of many ranks: what they last read together.
        self._reading: Reading | None = None

    def reach(self) -> Wanted:
        """After a step: what any rank wants, in one message.

        A signal that comes while the ranks talk waits for the next step.
        """
        every = self.state.config.checkpoint
        by_steps = every.steps is not None and self.position.step % every.steps == 0
        due = by_steps or (every.seconds is not None and self.state.since_save.seconds >= every.seconds)
        asked = self.stop.take_save()
        if self.ranks.size == 1:
            return Wanted(self.stop.signal_number, due, asked)
        known = [self.stop.signal_number or 0, due, asked, self.progress.wants_reading()]
        agreed, due, asked, bar = self.ranks.largest(torch.tensor(known)).tolist()
        if bar:
            self._reading = self._read()
        return Wanted(agreed or None, bool(due), bool(asked))

    def meet(self, wanted: Wanted) -> None:
        """Saves, or raises `Stopped` after it saved."""
        with self.saving_when_stopped():
            if wanted.signal_number is not None:
                raise Stopped(wanted.signal_number, f"asked to stop at step {self.position.step}")
        if wanted.save_asked:
            self._save_as_asked()
        elif wanted.save_due:
            self.state.save()

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

    @contextmanager
    def saving_when_stopped(self) -> Iterator[None]:
        """Saves, once, when the run is stopped inside: on many ranks all of them are."""
        try:
            yield
        except Stopped as stopped:
            path = self._save()
            self.progress.clear()
            message = f"stopped at step {self.position.step}, saved {path}; --resume continues"
            raise Stopped(stopped.signal_number, message) from None

    @contextmanager
    def saving_when_data_is_lost(self) -> Iterator[None]:
        """Saves when an image file went away or broke. One of many ranks cannot: the others are in the middle
        of the step.
        """
        try:
            yield
        except DataLost as error:
            last = self.state.store.path(LAST)
            if self.ranks.size == 1:
                last = self._save()
            saved = f"saved {last}" if self.ranks.size == 1 else f"the last checkpoint is {last}"
            self.progress.clear()
            raise DataLost(f"{error}; stopped at step {self.position.step}, {saved}") from error

    def reading(self) -> Reading | None:
        """What the live line shows; reads from the device or, of many ranks, is what they last read
        together.
        """
        return self._read() if self.ranks.size == 1 else self._reading

    def _read(self) -> Reading:
        row = training_row(self.state.step, self.position, self.length)
        return reading(row, self.state.images.classes)

    def _save_as_asked(self) -> None:
        path = self._save()
        logger.info(f"SIGUSR1: {path} holds step {self.position.step}; the run goes on")

    def _save(self) -> Path:
        """During the final test nothing is saved: the last epoch is on the disk, and the model holds the
        weights under test.
        """
        unfinished = self.position.epoch < self.length.epochs
        return self.state.save() if unfinished else self.state.store.path(LAST)
