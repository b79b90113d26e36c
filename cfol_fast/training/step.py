"""What one training step computes: attack, objective, optimiser, and back to the sampler which examples were wrong; all on the device.

`take` is the step of a whole batch in one pass. A batch in several shards, on one process or many, goes through `shards.py`, which uses
the same pieces.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from cfol_fast import attacks, objectives
from cfol_fast.policies import Need
from cfol_fast.training.batches import Ticket, TrainingBatch

if TYPE_CHECKING:
    from cfol_fast.training.trainer import Trainer


def take(trainer: Trainer, batch: TrainingBatch) -> None:
    """The step of a batch that is there already."""
    indices, ticket, x, y = batch
    perturbation = trainer.perturbation
    # The last step's gradients would lie beside the maps of this one's passes.
    trainer.optimizer.zero_grad(set_to_none=True)
    with autocast(trainer):
        x_adv = attacked(trainer, x, y)
        weighted = with_factors(trainer, x, x_adv, y)
        if perturbation is not None:
            perturbation.perturb(lambda: trainer.objective(trainer.forward, weighted)[0])
        loss, logits = trainer.objective(trainer.forward, weighted)
    loss.backward()
    update_weights(trainer)
    report(trainer, indices, ticket, y, logits, loss.detach())


def attacked(trainer: Trainer, x: Tensor, y: Tensor) -> Tensor:
    """The adversarial images; the class policy may scale the radius of each."""
    if trainer.policy.view.radius is None:
        return trainer.attack(x, y)
    attack = trainer.attack
    assert isinstance(attack, attacks.PGD), "the configuration was checked"
    return attack(x, y, **trainer.policy.radii(y, attack.eps, attack.step))


def with_factors(trainer: Trainer, x: Tensor, x_adv: Tensor, y: Tensor) -> objectives.Batch:
    """The batch with the factors that the sampler and the class policy ask for."""
    view, weight = trainer.policy.view, trainer.sampler.weight(y)
    factor = view.of("weight", y)
    if factor is not None:
        weight = factor if weight is None else factor * weight
    return objectives.Batch(x, x_adv, y, weight, view.of("clean", y), view.of("robust", y))


def autocast(trainer: Trainer) -> AbstractContextManager[Any]:
    if trainer.config.precision != "bfloat16":
        return nullcontext()
    return torch.autocast(trainer.device.type, torch.bfloat16)


def update_weights(trainer: Trainer) -> None:
    """Moves the weights along the gradients, which are those of the whole batch by now."""
    if trainer.perturbation is not None:
        trainer.perturbation.restore()
    trainer.optimizer.step()


def report(
    trainer: Trainer,
    indices: Tensor,
    ticket: Ticket,
    y: Tensor,
    logits: Tensor,
    loss: Tensor,
    shards: Sequence[Tensor] = (),
) -> None:
    """Tells the sampler, the class policy and the counts how the batch went; of many ranks each tells of its own slots.

    shards: the logits once more, shard by shard, where there are several: a sum over a shard is the same on any process.
    """
    with torch.no_grad():
        wrong = (logits.argmax(dim=1) != y).float()
        trainer.sampler.observe(indices, y, wrong, ticket)
        if Need.TRAINING_CONFUSION in trainer.policy.needs:
            parts = shards or (logits,)
            for labels, part in zip(y.split(len(parts[0])), parts, strict=True):
                trainer.policy.observe(labels, part)
        trainer.counts.add(y, wrong, loss)
