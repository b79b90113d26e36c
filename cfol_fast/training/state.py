"""What a checkpoint holds of a run: everything that it needs to continue exactly, and its best weights for
the test.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import nn

from cfol_fast import ops, theory
from cfol_fast.errors import InputError, TrainingFailed
from cfol_fast.frozen import adopt_proof, choices, proof_outcome
from cfol_fast.machine import arithmetic, check_same_arithmetic
from cfol_fast.progress import Stopwatch
from cfol_fast.ranks import Ranks
from cfol_fast.runs.checkpoint_contents import Checkpoint, Continuation
from cfol_fast.runs.checkpoints import BEST_AVERAGE, BEST_WORST, EMA, LAST, CheckpointStore
from cfol_fast.runs.config import TrainConfig
from cfol_fast.runs.data_facts import DataFacts
from cfol_fast.runs.json_files import made_from
from cfol_fast.runs.metrics import SELECTION
from cfol_fast.runs.metrics_log import MetricsLog, Row
from cfol_fast.training.averages import WeightAverage
from cfol_fast.training.batches import TrainingBatches
from cfol_fast.training.capture import CapturedStep
from cfol_fast.training.epoch_counts import NEVER
from cfol_fast.training.holdout import judged
from cfol_fast.training.images import RunImages
from cfol_fast.training.one_class import lower_rate
from cfol_fast.training.position import Position
from cfol_fast.training.same_data import Before, data_change
from cfol_fast.training.step import Step

logger = logging.getLogger(__name__)


class Place:
    """A run's folder, as the training loop sees it. This one is nobody's: a trainer without a run has it."""

    def check(self) -> None:
        """Fails when the folder is not the run's any more."""

    def move_in(self, state: RunState) -> None:
        """After every step: makes the folder the run's, where an old run is still in it."""


@dataclass(kw_only=True)
class RunState:
    """The parts of a run that have a state, and the folder that keeps it.

    average, ensemble: of the weights, where the run keeps them. init: what the result says of the weights
    that the run starts from.
    """

    config: TrainConfig
    images: RunImages
    facts: DataFacts
    position: Position
    step: Step
    captured: CapturedStep | None
    batches: TrainingBatches
    average: WeightAverage | None
    ensemble: theory.IterateReservoir | None
    init: dict[str, Any] | None
    folder: Path
    store: CheckpointStore
    log: MetricsLog
    ranks: Ranks
    place: Place
    # For result.json: where the run went on with other data, and what differed.
    changed_data: list[dict[str, Any]] = field(default_factory=list)
    since_save: Stopwatch = field(default_factory=Stopwatch)

    def check_health(self) -> None:
        """Looks at the folder and at the flags that the steps raised on the device; called before anything is
        logged or saved.
        """
        self.place.check()
        last = self.store.path(LAST)
        good = f"the last good checkpoint is {last}" if last.exists() else "there is no checkpoint yet"
        step = self.step
        parts = (step.sampler, step.attack, step.counts, self.images.train)
        seen = (int(step.counts.first_bad), [int(part.fault) for part in parts])
        of_ranks = self.ranks.gather_objects(seen)
        first_bad = min(first for first, _ in of_ranks)
        if first_bad != NEVER:
            raise TrainingFailed(
                f"the loss is not finite since step {first_bad}; {good}. Try a lower learning rate, "
                f"--lr {lower_rate(self.config.optimizer):g} (now {self.config.optimizer.lr:g})"
            )
        for flags in (flags for _, faults in of_ranks for flags in faults if flags):
            raise TrainingFailed(f"{'; '.join(ops.fault_messages(flags))}; {good}")

    def keep_best(self, validated: Row) -> None:
        """Both early-stopping rules of the paper: the best robust accuracy on average over the classes, and
        in the worst class (of equal ones in the tail, then on average).

        The weights' moving average is kept by its own accuracies.
        """
        kept = [("", validated, self.step.model)]
        if self.average is not None and "ema" in validated:
            kept.append((EMA, validated["ema"], self.average.model))
        epoch, best = self.position.epoch + 1, self.position.best
        for prefix, found, model in kept:
            accuracies = judged(self.config, found)
            for rule, order in (
                (BEST_AVERAGE, [accuracies["class_average"]]),
                (BEST_WORST, [accuracies[key] for key in SELECTION]),
            ):
                name = prefix + rule
                if name not in best or is_better(order, best[name]):
                    value, *then = order
                    best[name] = {"epoch": epoch, "value": value, **({"then": then} if then else {})}
                    whole = self.checkpoint(epoch, model, validation=found)
                    self.store.save_best(name, whole.to_state())

    def save(self) -> Path:
        """Writes the checkpoint `last`, unless a flag says that the state is bad.

        No rank goes on before it is written.
        """
        self.check_health()
        self.since_save.lap()
        whole = self.whole()
        return self.ranks.from_first(lambda: self.store.save_last(whole.to_state()))

    def save_if_never(self) -> None:
        """Before the first rows are logged: rows without a checkpoint mean that a checkpoint was lost."""
        if not self.ranks.from_first(self.store.path(LAST).exists):
            self.save()

    def checkpoint(self, epoch: int, model: nn.Module | None = None, **more: Any) -> Checkpoint:
        """The model, or its average, as a checkpoint: enough to use it."""
        return Checkpoint(
            model=(self.step.model if model is None else model).state_dict(),
            spec=self.images.spec,
            classes=self.images.classes,
            dataset=self.config.data.name,
            method=self.config.method,
            seed=self.config.seed,
            epoch=epoch,
            # Who starts from these weights counts the epochs before them too.
            init=self.init,
            **more,
        )

    def whole(self) -> Checkpoint:
        """The model, and all that the run needs to continue exactly; asked for by every rank at once."""
        return self.checkpoint(self.position.epoch, run=self.continuation())

    def continuation(self) -> Continuation:
        """All that a run needs to continue exactly, besides the model."""
        device = self.step.device
        return Continuation(
            **{name: part.state_dict() for name, part in self.parts().items()},
            ensemble=None if self.ensemble is None else self.ensemble.state_dict(),
            metrics_size=self.log.size,
            data=self.images.content,
            changed_data=self.changed_data,
            arithmetic=arithmetic(device, self.config.compile, self.config.deterministic),
            choices=choices().chosen,
            # Of the attack's fast network: a proof that failed must not be made again by chance.
            proof=proof_outcome(self.step.model),
            # Dropout draws from torch's own generators, where a model has it.
            torch_rng=torch.get_rng_state(),
            cuda_rng=torch.cuda.get_rng_state(device) if device.type == "cuda" else None,
        )

    def parts(self) -> dict[str, Any]:
        """The parts with a state of their own, by their keys in a checkpoint."""
        step = self.step
        return {
            "position": self.position,
            # Without a class policy a checkpoint is what it was before there were policies.
            **({"policy": step.policy} if step.policy.factors else {}),
            **({} if self.average is None else {"ema": self.average}),
            "optimizer": step.optimizer,
            "sampler": step.sampler,
            "attack": step.attack,
            "source": self.images.train,
            "queue": self.batches,
            "step": step.counts,
        }

    def load(self, stored: Checkpoint) -> None:
        """Continues where a checkpoint of the same configuration stands."""
        before = stored.run
        assert before is not None
        self.step.model.load_state_dict(stored.model)
        adopt_proof(self.step.model, before.proof)
        for name, part in self.parts().items():
            part.load_state_dict(getattr(before, name))
        if self.ensemble is not None:
            assert before.ensemble is not None, "the configuration is that of the checkpoint"
            self.ensemble.load_state_dict(before.ensemble)
        torch.set_rng_state(before.torch_rng.cpu())
        device = self.step.device
        if before.cuda_rng is not None and device.type == "cuda":
            torch.cuda.set_rng_state(before.cuda_rng.cpu(), device)
        self.step.counts.number.fill_(self.position.step)
        if self.captured is not None:
            self.captured.forget()

    def restore(self, force: bool = False, changed_data: bool = False) -> bool:
        """Continues from the newest whole checkpoint; False for a run that was killed before its first one,
        which stays at its start.

        force: also where thread count or instructions changed, which a run that is to end bit for bit the
        same does not allow.
        changed_data: also with other data.
        """
        if self.ranks.is_first:
            self.store.sweep()
        device = self.step.device
        # The first rank reads for all: the others may be on machines that do not see its disk.
        on = device if self.ranks.size == 1 else torch.device("cpu")
        found = self.ranks.from_first(lambda: self._newest(on))
        if found is None:
            logger.info(f"{self.folder} has no checkpoint yet: starting at step 0")
            return False
        state, name, complaint = found
        if complaint is not None:
            logger.info(f"{complaint}; using {name} instead")
        path = self.store.path(name)
        with made_from(path):
            stored = Checkpoint.of(state, path, self.images.spec.name)
            before = stored.run
            if before is None:
                raise InputError(f"{path} holds a model alone, and no run to continue")
            self.check_data(Before.of_checkpoint(stored), changed_data)
            here = arithmetic(device, self.config.compile, self.config.deterministic)
            for change in check_same_arithmetic(before.arithmetic, here, force):
                logger.info(
                    f"continuing although {change}: the result will not be bit for bit that of an"
                    " uninterrupted run"
                )
            if device.type == "cpu":
                choices().pin(before.choices)
            self.load(stored)
            self.log.cut(before.metrics_size)
        logger.info(f"continuing at step {self.position.step}")
        return True

    def check_data(self, before: Before, accept: bool) -> None:
        """Refuses to go on with other data than a checkpoint, or the result of the stage before, is of; or
        notes the difference.
        """
        # The first rank has the digests.
        change, refusal = self.ranks.from_first(lambda: data_change(self.images, before, self.folder, accept))
        if refusal is not None:
            raise InputError(refusal)
        self.changed_data = list(before.changed_data)
        if change is not None:
            self.changed_data.append({"step": before.step, "differences": change})
            logger.info(f"continuing with changed data: {change}")
        elif before.data is None:
            logger.info(
                "the checkpoint has no digests of its data (version 0.2 or older): they were not compared"
            )

    def _newest(self, device: torch.device) -> tuple[dict[str, Any], str, str | None] | None:
        found = self.store.newest(device, lambda state: self.log.misfit(state.get("metrics_size", 0)))
        if found is None and self.log.size:
            raise InputError(
                f"{self.log.path} has rows, but there is no checkpoint in {self.store.folder} to continue"
                " from: put it back, or start afresh with --overwrite"
            )
        return found


def is_better(order: Sequence[float], kept: Mapping[str, Any]) -> bool:
    """Whether figures, the most important first, are above those of the kept weights.

    A run of before there was a second figure is compared by the first alone.
    """
    before = [kept["value"], *kept.get("then", [])]
    return list(order[: len(before)]) > before
