"""What the end of an epoch looks at: the hold-out's accuracies, the average of the weights, the weights to
keep, and what the class policy may use of all this.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch

from cfol_fast.policies import EpochFacts
from cfol_fast.runs.metrics_log import Row
from cfol_fast.training import one_class
from cfol_fast.training.holdout import HoldOut, collapse_warning, judged
from cfol_fast.training.position import Length
from cfol_fast.training.rows import class_errors
from cfol_fast.training.state import RunState


@dataclass(frozen=True)
class Validation:
    """holdout: None with --holdout none."""

    state: RunState
    length: Length
    holdout: HoldOut | None

    def after_epoch(self) -> Row | None:
        """The hold-out's row of metrics.jsonl, where a validation is due.

        Adds the epoch's weights to their average, where the run keeps one, and keeps the weights that are the
        best so far.
        """
        state = self.state
        epoch = state.position.epoch + 1
        due = epoch % state.config.validation.every == 0 or epoch == self.length.epochs
        row = self.holdout.row(state.step.model, state.position) if due and self.holdout is not None else None
        if state.average is not None:
            state.average.after_epoch(epoch, None if row is None else judged(state.config, row)["worst"])
            if row is not None and self.holdout is not None and state.average.updates:
                found = self.holdout.accuracies(state.average.model, "validation of the average")
                row["ema"] = {"updates": state.average.updates, **found}
        if row is not None:
            state.keep_best(row)
        return row

    def facts(self, training: Row, validated: Row | None) -> EpochFacts:
        """What the class policy may use of an epoch."""
        return self._facts(training["epoch"], class_errors(training), validated)

    def tell_sampler(self, facts: EpochFacts) -> None:
        """The hold-out's errors, for a sampler that learns from them, of all draws since the last."""
        sampler, config = self.state.step.sampler, self.state.config
        robust, clean = facts.holdout_robust, facts.holdout_clean
        if not sampler.hears_holdout or robust is None or clean is None:
            return
        accuracy = clean if config.attack.kind == "none" else robust
        draws = config.validation.every * self.length.steps_per_epoch * self.length.batch_size
        sampler.hear(1 - accuracy, draws)

    def let_policy_judge_the_start(self) -> None:
        """Some policies act on the weights that a run starts from, before anything is trained."""
        state = self.state
        if state.position.step == 0 and state.init is not None and state.step.policy.judges_the_start:
            assert self.holdout is not None, "the configuration was checked"
            untrained = torch.full((len(state.images.classes),), torch.nan, dtype=torch.float64)
            row = self.holdout.row(state.step.model, state.position)
            state.step.policy.epoch_end(self._facts(0, untrained, row))

    def warnings(self, rows: Sequence[Row]) -> Iterator[str]:
        """What a user should know of the epoch whose rows were just logged."""
        state = self.state
        if warning := collapse_warning(state.config, *rows):
            yield warning
        # The first rank alone has all rows.
        known = (state.folder, rows, state.images.labels, state.config.optimizer)
        if state.ranks.is_first and (warning := one_class.warning_of_epoch(*known)):
            yield warning

    def _facts(self, epoch: int, errors: torch.Tensor, validated: Row | None) -> EpochFacts:
        if validated is None or self.holdout is None:
            return EpochFacts(epoch, errors)
        return self.holdout.epoch_facts(epoch, errors, validated, self.state.step)
