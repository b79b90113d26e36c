"""One training step: all that the device does between two batches, and nothing else.

Draw, gather, attack, loss, optimiser, feedback to the sampler. Nothing here reads a value back from the
device, knows of files or of epochs, so the whole step can be captured as a CUDA graph (`capture.py`).
`ShardedStep` (`shards.py`) minimises a batch in several parts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from cfol_fast import attacks, objectives
from cfol_fast.policies import ClassPolicy, Need
from cfol_fast.runs.optimizers import DeviceRate
from cfol_fast.sampling import IndexSampler
from cfol_fast.sampling.feedback import Feedback, error
from cfol_fast.training.batches import TrainingBatch
from cfol_fast.training.batchnorm import StepCount
from cfol_fast.training.epoch_counts import EpochCounts
from cfol_fast.training.weight_perturbation import WeightPerturbation


@dataclass(kw_only=True)
class Step:
    """The parts of a step. Called with an iterator of batches, it trains on the next one.

    forward: the model, or what torch.compile made of it. precision: that of the run; in "bfloat16" the passes
    are under autocast. feedback: what the sampler hears of each example.
    """

    device: torch.device
    model: nn.Module
    forward: Callable[[Tensor], Tensor]
    sampler: IndexSampler
    attack: attacks.Attack
    objective: objectives.Objective
    policy: ClassPolicy
    optimizer: DeviceRate
    counts: EpochCounts
    precision: str = "float32"
    perturbation: WeightPerturbation | None = None
    feedback: Feedback = error

    def __post_init__(self) -> None:
        self.step_count = StepCount(self.model)

    def begin(self) -> None:
        """Before the first step. What many processes agree on, they agree on here (`ShardedStep`)."""

    def end(self) -> None:
        """After the last step. Many processes let go of their group here."""

    def __call__(self, batches: Iterator[TrainingBatch]) -> None:
        # The sampler draws indices, and the source makes them into pixels, when the next batch is asked for.
        batch = next(batches)
        if self.forward is not self.model:
            # What an earlier step's CUDA graphs returned is not needed any more. (The call imports inductor:
            # seconds.)
            torch.compiler.cudagraph_mark_step_begin()
        # Freed first: the last step's gradients would lie beside the activations of this step.
        self.optimizer.zero_grad(set_to_none=True)
        self.step_count.begin()
        logits, loss = self.minimise(batch)
        self.optimizer.step()
        self.step_count.end()
        self.feed_back(batch, logits, loss)

    def minimise(self, batch: TrainingBatch) -> tuple[list[Tensor], Tensor]:
        """Attack, passes and gradients.

        Returns the logits (one tensor for each shard of the batch) and the loss.
        """
        with self.autocast():
            examples = self.with_factors(batch.x, self.attacked(batch.x, batch.y), batch.y)
            if self.perturbation is not None:
                self.perturbation.perturb(lambda: self.objective(self.forward, examples)[0])
            loss, logits = self.objective(self.forward, examples)
        loss.backward()
        if self.perturbation is not None:
            self.perturbation.restore()
        return [logits], loss.detach()

    def attacked(self, x: Tensor, y: Tensor, slots: attacks.Slots | None = None) -> Tensor:
        """The adversarial images; the class policy may scale the radius of each. slots: those of a shard in
        the batch.
        """
        if self.policy.view.radius is None:
            return self.attack(x, y, slots=slots)
        assert isinstance(self.attack, attacks.PGD), "the configuration was checked"
        return self.attack(x, y, **self.policy.radii(y, self.attack.eps, self.attack.step), slots=slots)

    def with_factors(self, x: Tensor, x_adv: Tensor, y: Tensor) -> objectives.Batch:
        """The batch with the factors that the sampler and the class policy ask for."""
        view, weight = self.policy.view, self.sampler.weight(y)
        factor = view.of("weight", y)
        if factor is not None:
            weight = factor if weight is None else factor * weight
        return objectives.Batch(x, x_adv, y, weight, view.of("clean", y), view.of("robust", y))

    def autocast(self) -> AbstractContextManager[Any]:
        if self.precision != "bfloat16":
            return nullcontext()
        return torch.autocast(self.device.type, torch.bfloat16)

    def feed_back(self, batch: TrainingBatch, logits: list[Tensor], loss: Tensor) -> None:
        """Reports to the sampler, the class policy and the counts which examples were wrong; each rank
        reports its own slots.

        logits: shard by shard. A sum over a shard is the same on any process, so the policy observes each
        shard apart.
        """
        y = batch.y
        with torch.no_grad():
            all_logits = logits[0] if len(logits) == 1 else torch.cat(logits)
            wrong = error(all_logits, y)
            heard = wrong if self.feedback is error else self.feedback(all_logits, y)
            self.sampler.observe(batch.indices, y, heard, batch.ticket)
            if Need.TRAINING_CONFUSION in self.policy.needs:
                for labels, part in zip(y.split(len(logits[0])), logits, strict=True):
                    self.policy.observe(labels, part)
            self.counts.add(y, wrong, loss)
