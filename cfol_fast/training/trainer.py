"""The trainer: the parts of a run, one training step, and what a checkpoint holds of it.

Nothing in `Trainer.step` reads a value back from the device. What the log needs is counted there (`EpochCounts`) and read at the log
points: at the end of an epoch, before a checkpoint is saved, and when a live progress bar is drawn.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from cfol_fast import attacks, methods, ops, processes, theory
from cfol_fast.attacks.choices import choices
from cfol_fast.data import content
from cfol_fast.errors import InputError, Stopped, TrainingFailed
from cfol_fast.machine import arithmetic, bfloat16_trouble, check_same_arithmetic, precision_in_words
from cfol_fast.models.summary import in_words
from cfol_fast.policies import EpochFacts
from cfol_fast.progress import Progress, Reading, Stopwatch
from cfol_fast.runs.checkpoints import BEST_AVERAGE, BEST_WORST, EMA, FORMAT, LAST, CheckpointStore
from cfol_fast.runs.config import TrainConfig
from cfol_fast.runs.json_files import made_from
from cfol_fast.runs.metrics_log import MetricsLog, Row
from cfol_fast.runs.schedules import learning_rate
from cfol_fast.training import step
from cfol_fast.training.averages import WeightAverage
from cfol_fast.training.batches import Batches, TrainingBatch
from cfol_fast.training.batchnorm import StepCount
from cfol_fast.training.building import compiled, new_model, training_attack
from cfol_fast.training.capture import StepGraph, why_no_graph
from cfol_fast.training.epoch_counts import NEVER, EpochCounts
from cfol_fast.training.images import RunImages
from cfol_fast.training.initial_weights import start_from
from cfol_fast.training.optimizer import OPTIMIZERS
from cfol_fast.training.shards import ShardedStep, check_shards
from cfol_fast.training.signals import StopRequest
from cfol_fast.training.weight_perturbation import WeightPerturbation


@dataclass
class Position:
    """How far a run is. The names of the fields are keys of the checkpoint.

    step: steps that are done. epoch: epochs that are finished, validated and logged.
    seconds: over all parts of a run that was interrupted. epoch_seconds: of training, without validation, in this epoch.
    best: for each early-stopping rule the checkpoint's name and its {"epoch", "value"}.
    """

    step: int = 0
    epoch: int = 0
    seconds: float = 0.0
    epoch_seconds: float = 0.0
    best: dict[str, dict[str, float]] = field(default_factory=dict)


class Trainer:
    """One run, or one stage of it, on its device and seeded.

    previous: (k,) robust accuracies of the classes after the stage before. ranks: this process's place among those of the run; all of
    them make a trainer and go through the same calls. The first writes, and every rank holds the same weights and the same sampler.
    """

    def __init__(
        self,
        config: TrainConfig,
        images: RunImages,
        folder: Path | None = None,
        previous: Tensor | None = None,
        progress: Progress | None = None,
        stop: StopRequest | None = None,
    ) -> None:
        self.config, self.images, self.ranks = config, images, processes.ranks()
        self.device = torch.device(config.device)
        check_shards(config.shards or 1, self.ranks)
        if config.precision == "bfloat16" and (trouble := bfloat16_trouble(self.device)):
            raise InputError(trouble)
        if self.device.type == "cpu":
            choices().check()
        if config.graph and (reason := why_no_graph(config)):
            raise InputError(f"--graph on is not possible: {reason}; use --graph off")
        method, k = methods.get(config.method), len(images.classes)
        self.epochs = config.epochs or 0
        self.steps_per_epoch = config.steps_per_epoch or max(1, round(len(images.labels) / config.batch_size))
        self.steps = self.steps_per_epoch * self.epochs
        self.draws = self.steps * config.batch_size

        self.model = new_model(images.spec, config, self.device)
        # What the result says of the weights that the run starts from.
        self.init = start_from(self.model, config.model, images.spec, images.classes)
        self.average = WeightAverage(self.model, config.ema) if config.ema.decay else None
        self.step_count = StepCount(self.model)
        self.forward: Callable[[Tensor], Tensor] = (
            compiled(self.model, self.device) if config.compile else self.model
        )
        self.sampler = method.sampler(
            images.labels, k, config.params, config.seed, self.device, previous, self.draws
        )
        if isinstance(config.params.get("eta"), str):
            # What "auto" and "theory" stand for is known with the data: config.json gets the number, which a resumed run is compared with.
            config.params["eta"] = getattr(self.sampler, "eta", None)
        # So is the white point: a resumed run and an evaluation on other images take the same.
        config.data.white = config.data.white if images.white is None else images.white
        # The run says itself what its step size can reach.
        self.sampler.unsaid = None
        self.sampler.ranks = self.ranks
        self.batches = Batches(self.sampler, images.train, config.batch_size)
        self.attack = training_attack(self.model, config)
        # They come from our own sources, so that no batch has to be looked at.
        self.attack.trusts_images = True
        self.objective = method.objective(config.params, k)
        self.objective.label_smoothing = config.label_smoothing
        self.perturbation = WeightPerturbation(self.model, config.awp) if config.awp else None
        self.policy = method.class_policy(config.params, k, self.epochs, self.device)
        self.policy.ranks, self.policy.in_shards = self.ranks, (config.shards or 1) > 1
        self.optimizer = OPTIMIZERS[config.optimizer.name](self.model, config.optimizer, self.device)
        self.counts = EpochCounts(k, self.device, self.ranks)
        self.ensemble = theory.IterateReservoir(config.ensemble, config.seed) if config.ensemble else None

        self.graph = StepGraph(self) if config.graph else None
        self.position = Position()
        # For result.json: where the run went on with other data, and what differed.
        self.changed_data: list[dict[str, Any]] = []
        # Several shards; None for a batch that is one.
        self.sharded = ShardedStep(self) if (config.shards or 1) > 1 else None

        self.folder = folder or Path(config.out or "")
        self.store, self.log = CheckpointStore(self.folder), MetricsLog(self.folder)
        self.store.writes = self.log.writes = self.ranks.is_first
        self.progress = progress or Progress(quiet=True)
        self.progress.say(f"{self.device}: {precision_in_words(config.precision, self.device)}")
        self.progress.say(in_words(self.model, images.spec.name, images.spec.image_size))
        self.stop = stop or StopRequest()
        self.since_save = Stopwatch()
        self._save_is_due = self._save_is_asked = False
        self._reading: Reading | None = None
        # Fails when the folder is not the run's any more.
        self.check_folder: Callable[[], None] = lambda: None

    def agree_on_choices(self) -> None:
        """Before the first step of many ranks: they take the same ways to compute the attack's layers, those of the first rank."""
        attack = self.attack
        if self.ranks.size == 1 or self.device.type != "cpu" or not isinstance(attack, attacks.PGD):
            return
        spec, width = self.images.spec, self.config.batch_size // (self.config.shards or 1)
        images = torch.rand(
            (width, spec.in_channels, spec.image_size, spec.image_size), generator=torch.Generator()
        )
        choices().share(self.ranks, lambda: attack.rehearse(images))

    def take_steps(self, count: int) -> Generator[None]:
        """Takes `count` steps, one whenever it is asked to go on. One loop at a time; close it when leaving early."""
        if self.graph is not None:
            for _ in range(count):
                self._prepare_step()
                self.graph()
                self._finish_step()
                yield
            return
        # The sampler draws indices and the source makes them into pixels when the next batch is asked for.
        with closing(self.batches.feed(count)) as batches:
            for batch in batches:
                self.step(batch)
                yield

    def step(self, batch: TrainingBatch) -> None:
        """One step with a batch that is there already."""
        self._prepare_step()
        if self.config.compile:
            # What an earlier step's CUDA graphs returned is not needed any more. (The call imports inductor: seconds.)
            torch.compiler.cudagraph_mark_step_begin()
        self.compute(batch)
        self._finish_step()

    def _prepare_step(self) -> None:
        """What the host does before a step: nothing here is part of a captured step."""
        number = self.position.step
        if self.ensemble is not None:
            self.ensemble.observe(number, self.model)
        self.optimizer.set_rate(
            learning_rate(self.config.optimizer, number, self.steps_per_epoch, self.epochs)
        )

    def _finish_step(self) -> None:
        """What the host does after a step: nothing here is part of a captured step either."""
        if self.average is not None:
            self.average.after_step()
        self.position.step += 1

    def compute(self, batch: TrainingBatch) -> None:
        """What the device does in a step."""
        self.step_count.begin()
        if self.sharded is None:
            step.take(self, batch)
        else:
            self.sharded(batch)
        self.step_count.end()

    # ---------------------------------------------------------------- between the steps

    @property
    def steps_left_in_epoch(self) -> int:
        return (self.position.epoch + 1) * self.steps_per_epoch - self.position.step

    def spend(self, seconds: float) -> None:
        """Counts time that went into training steps."""
        self.position.seconds += seconds
        self.position.epoch_seconds += seconds

    def agree(self) -> None:
        """After a step the ranks agree on what only some of them know: a signal to stop, a clock that says save, a bar to draw."""
        every = self.config.checkpoint
        by_steps = every.steps is not None and self.position.step % every.steps == 0
        due = by_steps or (every.seconds is not None and self.since_save.seconds >= every.seconds)
        asked, bar = self.stop.take_save(), False
        if self.ranks.size > 1:
            known = [self.stop.signal_number or 0, due, asked, self.progress.wants_reading()]
            agreed, due, asked, bar = self.ranks.largest(torch.tensor(known)).tolist()
            self.stop.agreed = agreed or None
        self._save_is_due, self._save_is_asked = bool(due), bool(asked)
        if bar:
            self._reading = self._read()

    def leave_if_agreed(self) -> None:
        """Raises `Stopped` once the ranks agreed to stop: on all of them, after the same step. A signal that came since waits."""
        number = self.stop.signal_number if self.ranks.size == 1 else self.stop.agreed
        if number is not None:
            raise Stopped(number, f"asked to stop at step {self.position.step}")

    def heed_signals(self) -> None:
        """Between the batches of an evaluation: saves if a rank was asked to, raises `Stopped` if this process was asked to stop.

        Before the first step there is nothing to save, and an old run may still be in the folder: the request waits for that step.
        """
        asked = torch.tensor(int(self.position.step > 0 and self.stop.take_save()))
        if self.ranks.largest(asked).item():
            self._save_as_asked()
        if self.stop.requested:
            raise Stopped(self.stop.signal_number or 0, f"asked to stop at step {self.position.step}")

    def leave_group(self) -> None:
        """No more steps: the process group's threads, which end with the last thing that holds the group, are let go."""
        if self.sharded is not None:
            self.sharded.leave_group()

    @contextmanager
    def saving_when_stopped(self) -> Iterator[None]:
        """Saves, once, when the run is stopped inside: on many ranks all of them are.

        During the final test nothing is saved: the last epoch is on the disk, and the model holds the weights under test.
        """
        try:
            yield
        except Stopped as stopped:
            path = self.save() if self.position.epoch < self.epochs else self.store.path(LAST)
            self.progress.clear()
            message = f"stopped at step {self.position.step}, saved {path}; --resume continues"
            raise Stopped(stopped.signal_number, message) from None

    def save_if_due(self) -> None:
        """Saves where the ranks agreed to."""
        if self._save_is_asked:
            self._save_as_asked()
        elif self._save_is_due:
            self.save()

    def _save_as_asked(self) -> None:
        # In the final test the last epoch is on the disk, and the model holds the weights under test.
        path = self.save() if self.position.epoch < self.epochs else self.store.path(LAST)
        self.progress.say(f"SIGUSR1: {path} holds step {self.position.step}; the run goes on")

    def check_health(self) -> None:
        """Looks at the folder and at the flags that the steps raised on the device; called before anything is logged or saved."""
        self.check_folder()
        last = self.store.path(LAST)
        good = f"the last good checkpoint is {last}" if last.exists() else "there is no checkpoint yet"
        parts = (self.sampler, self.attack, self.counts, self.images.train)
        seen = (int(self.counts.first_bad), [int(part.fault) for part in parts])
        of_ranks = self.ranks.gather_objects(seen)
        first_bad = min(first for first, _ in of_ranks)
        if first_bad != NEVER:
            raise TrainingFailed(
                f"the loss is not finite since step {first_bad}; {good}. Try a lower learning rate"
            )
        for flags in (flags for _, faults in of_ranks for flags in faults if flags):
            raise TrainingFailed(f"{'; '.join(ops.fault_messages(flags))}; {good}")

    def reading(self) -> Reading | None:
        """What the live bar shows; reads from the device or, of many ranks, is what they last read together."""
        return self._read() if self.ranks.size == 1 else self._reading

    def _read(self) -> Reading:
        row = self.training_row()
        errors = [error or 0.0 for error in row["class_error"]]
        worst = max(range(len(errors)), key=errors.__getitem__)
        p = None if row["p"] is None else row["p"][worst]
        return Reading(row["robust_error"], self.images.classes[worst], p)

    # ---------------------------------------------------------------- at the end of an epoch

    def training_row(self) -> Row:
        """The epoch's row of metrics.jsonl; reads from the device."""
        tally, loss_sum = self.counts.over_ranks()
        counts, errors = ops.read_tally(tally)
        images, p, position = int(counts.sum()), self.sampler.p, self.position
        return {
            "kind": "train",
            "epoch": position.epoch + 1,
            "step": position.step,
            "lr": self.optimizer.rate,
            "loss": float(loss_sum) / self.steps_per_epoch,
            "robust_error": float(errors.sum()) / max(1, images),
            "class_error": [
                e / n if n else None for e, n in zip(errors.tolist(), counts.tolist(), strict=True)
            ],
            "p": None if p is None else p.tolist(),
            **{f"class_{name}": getattr(self.policy.view, name).tolist() for name in self.policy.factors},
            "images_per_second": images / position.epoch_seconds if position.epoch_seconds > 0 else 0.0,
            "seconds": position.seconds,
        }

    @property
    def validation_is_due(self) -> bool:
        epoch = self.position.epoch + 1
        due = epoch % self.config.validation.every == 0 or epoch == self.epochs
        return due and self.images.validation is not None

    def keep_best(self, validation: Row) -> None:
        """Both early-stopping rules of the paper: the best robust accuracy on average over the classes, and in the worst class.

        The weights' moving average is kept by its own accuracies.
        """
        kept = [("", validation, self.model)]
        if self.average is not None and "ema" in validation:
            kept.append((EMA, validation["ema"], self.average.model))
        epoch, best = self.position.epoch + 1, self.position.best
        for prefix, found, model in kept:
            judged = self.judged(found)
            for rule, value in ((BEST_AVERAGE, judged["class_average"]), (BEST_WORST, judged["worst"])):
                name = prefix + rule
                if name not in best or value > best[name]["value"]:
                    best[name] = {"epoch": epoch, "value": value}
                    self.store.save_best(name, {**self.weights(epoch, model), "validation": found})

    def judged(self, found: Row) -> Row:
        """The accuracies by which weights are judged: the robust ones.

        Training without an attack is judged by its clean accuracies. Its robust accuracies fall while it learns: a network that
        has learned nothing answers alike for every image, attacked or not, so they would choose the first epoch.
        """
        accuracies: Row = found["clean" if self.config.attack.kind == "none" else "robust"]
        return accuracies

    def end_epoch(self, facts: EpochFacts) -> None:
        if facts.epoch < self.epochs:
            # After the last epoch nothing would follow it.
            self.policy.epoch_end(facts)
        self.position.epoch += 1
        self.position.epoch_seconds = 0.0
        self.counts.begin_epoch()

    # ---------------------------------------------------------------- checkpoints

    def save(self) -> Path:
        """Writes the checkpoint `last`, unless a flag says that the state is bad. No rank goes on before it is written."""
        self.check_health()
        self.since_save.lap()
        state = self.state_dict()
        return self.ranks.from_first(lambda: self.store.save_last(state))

    def weights(self, epoch: int, model: nn.Module | None = None) -> dict[str, Any]:
        """The part of a checkpoint that is enough to use the model, or that of the average."""
        return {
            "format": FORMAT,
            "model": (self.model if model is None else model).state_dict(),
            "spec": self.images.spec.to_dict(),
            "classes": self.images.classes,
            "dataset": self.config.data.name,
            "method": self.config.method,
            "seed": self.config.seed,
            "epoch": epoch,
            # Who starts from these weights counts the epochs before them too.
            **({} if self.init is None else {"init": self.init}),
        }

    def state_dict(self) -> dict[str, Any]:
        """All that a run needs to continue exactly, and all that `load` needs to rebuild its model."""
        return {
            **self.weights(self.position.epoch),
            "position": asdict(self.position),
            **{name: part.state_dict() for name, part in self._stateful().items()},
            "ensemble": None if self.ensemble is None else self.ensemble.state_dict(),
            "metrics_size": self.log.size,
            "data": self.images.content,
            "changed_data": self.changed_data,
            "arithmetic": arithmetic(self.device, self.config.compile, self.config.deterministic),
            "choices": choices().chosen,
            # Dropout draws from torch's own generators, where a model has it.
            "torch_rng": torch.get_rng_state(),
            "cuda_rng": torch.cuda.get_rng_state(self.device) if self.device.type == "cuda" else None,
        }

    def _stateful(self) -> dict[str, Any]:
        """The parts with a state of their own, by their keys in a checkpoint."""
        # Without a class policy a checkpoint is what it was before there were policies.
        policy = {"policy": self.policy} if self.policy.factors else {}
        average = {} if self.average is None else {"ema": self.average}
        return {
            **policy,
            **average,
            "optimizer": self.optimizer,
            "sampler": self.sampler,
            "attack": self.attack,
            "source": self.images.train,
            "queue": self.batches,
            "step": self.counts,
        }

    def restore(self, force: bool = False, changed_data: bool = False) -> bool:
        """Continues from the newest whole checkpoint; False for a run that was killed before its first one, which stays at its start.

        force: also where thread count or instructions changed, which a run that is to end bit for bit the same does not allow.
        changed_data: also with other data.
        """
        if self.ranks.is_first:
            self.store.sweep()
        # The first rank reads for all: the others may be on machines that do not see its disk.
        on = self.device if self.ranks.size == 1 else torch.device("cpu")
        found = self.ranks.from_first(lambda: self._newest(on))
        if found is None:
            self.progress.say(f"{self.folder} has no checkpoint yet: starting at step 0")
            return False
        state, name, complaint = found
        if complaint is not None:
            self.progress.say(f"{complaint}; using {name} instead")
        with made_from(self.store.path(name)):
            self.check_data(state, changed_data)
            for change in check_same_arithmetic(
                state["arithmetic"],
                arithmetic(self.device, self.config.compile, self.config.deterministic),
                force,
            ):
                self.progress.say(
                    f"continuing although {change}: the result will not be bit for bit that of an uninterrupted run"
                )
            if self.device.type == "cpu":
                choices().pin(state.get("choices"))
            self.load_state_dict(state)
            self.log.cut(state["metrics_size"])
        self.progress.say(f"continuing at step {self.position.step}")
        return True

    def check_data(self, before: dict[str, Any], accept: bool) -> None:
        """Refuses to go on with other data than a checkpoint, or the result of the stage before, is of; or notes the difference.

        accept: note it. Another number of training images or classes, or another size, is refused all the same.
        """
        step = int(before["position"]["step"]) if "position" in before else 0
        # The first rank has the digests.
        change, refusal = self.ranks.from_first(lambda: self._data_change(before, accept))
        if refusal is not None:
            raise InputError(refusal)
        self.changed_data = list(before.get("changed_data") or [])
        if change is not None:
            self.changed_data.append({"step": step, "differences": change})
            self.progress.say(f"continuing with changed data: {change}")
        elif before.get("data") is None:
            self.progress.say(
                "the checkpoint has no digests of its data (version 0.2 or older): they were not compared"
            )

    def _data_change(self, before: dict[str, Any], accept: bool) -> tuple[str | None, str | None]:
        """What differs, and why the run cannot go on with it."""
        now = self.images.content or {}
        # Older checkpoints have the names of the classes alone.
        then = before.get("data") or {"train": {content.CLASSES: before["classes"]}}
        if before.get("data") is None:
            now = {"train": {content.CLASSES: self.images.classes}}
        different = content.differences(then, now)
        if not different:
            return None, None
        change = content.in_words(different, then, now)
        refusal = f"cannot resume {self.folder} with other data ({change})"
        kinds = different.get("train", [])
        classes = [len(part["train"][content.CLASSES]) for part in (then, now)]
        if content.COUNT in kinds or classes[0] != classes[1] or self._other_shape(before):
            return (
                change,
                f"{refusal}. Give it the data it began with, or start a new run: --init takes its weights",
            )
        if not accept:
            return change, f"{refusal}. Give it the data it began with, or add --changed-data"
        return change, None

    def _other_shape(self, before: dict[str, Any]) -> bool:
        """Whether the images have another size or other channels than those of the checkpoint."""
        then, now = before.get("spec") or {}, self.images.spec
        return any(
            then.get(name, getattr(now, name)) != getattr(now, name) for name in ("image_size", "in_channels")
        )

    def _newest(self, device: torch.device) -> tuple[dict[str, Any], str, str | None] | None:
        found = self.store.newest(device, lambda state: self.log.misfit(state.get("metrics_size", 0)))
        if found is None and self.log.size:
            raise InputError(
                f"{self.log.path} has rows, but there is no checkpoint in {self.store.folder} to continue from: put it back, "
                "or start afresh with --overwrite"
            )
        return found

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.model.load_state_dict(state["model"])
        for name, part in self._stateful().items():
            part.load_state_dict(state[name])
        if self.ensemble is not None:
            self.ensemble.load_state_dict(state["ensemble"])
        torch.set_rng_state(state["torch_rng"].cpu())
        if state["cuda_rng"] is not None and self.device.type == "cuda":
            torch.cuda.set_rng_state(state["cuda_rng"].cpu(), self.device)
        for key, value in state["position"].items():
            setattr(self.position, key, value)
        self.counts.number.fill_(self.position.step)
        if self.graph is not None:
            self.graph.forget()
