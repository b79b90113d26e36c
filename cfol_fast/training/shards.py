"""A step whose batch is divided into shards, on one process or on many: BatchNorm and gradients see a shard, the optimiser the batch.

All shards are attacked with the statistics from the step's start. Each shard's passes start from the same running statistics, and
those are averaged over the shards afterwards. Gradients are summed over the shards of a process as they come, and over the processes by
DistributedDataParallel. Where the risk is no mean over the examples (CVaR, FAAL, ...) its weights follow from the terms of all shards:
then the graphs of a process's shards are kept until all terms are there, instead of passing forwards twice. What belongs to a shard
(attack noise, dropout) is drawn from the shard's own numbers, so it does not depend on which process computes it.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from cfol_fast import objectives
from cfol_fast.errors import InputError
from cfol_fast.objectives.objective import Terms
from cfol_fast.ranks import Ranks
from cfol_fast.training import step
from cfol_fast.training.batches import TrainingBatch
from cfol_fast.training.batchnorm import BatchNormStatistics

if TYPE_CHECKING:
    from cfol_fast.training.trainer import Trainer

# A batch with its factors, and the number of its shard.
Shard = tuple[int, objectives.Batch]
# Rehearsals of a pass, for networks that leave a layer out now and then.
REHEARSALS = 8


def check_shards(shards: int, ranks: Ranks) -> None:
    """Refuses processes that cannot take equally many shards. (That they divide the batch was checked with the configuration.)"""
    if shards % ranks.size:
        good = [str(n) for n in range(1, shards + 1) if shards % n == 0]
        raise InputError(
            f"the number of processes must divide shards={shards}, got {ranks.size}: start {' or '.join(good)}, or begin another run with "
            f"--shards {ranks.size}"
        )


class ShardedStep:
    """The step of a trainer whose batch has several shards; this process computes those with the numbers `numbers`."""

    def __init__(self, trainer: Trainer) -> None:
        self.trainer, self.ranks = trainer, trainer.ranks
        self.shards = trainer.config.shards or 1
        count = self.shards // self.ranks.size
        self.numbers = range(self.ranks.rank * count, (self.ranks.rank + 1) * count)
        self.width = trainer.config.batch_size // self.shards
        if not trainer.objective.takes_shards:
            raise InputError(
                f"{type(trainer.objective).__name__} takes whole batches only, got shards={self.shards}: give it `terms` and `risk` "
                "(cfol_fast.objectives.Objective), or take --shards 1"
            )
        self.statistics = BatchNormStatistics(trainer.model)
        self.passes = Passes(trainer, self.statistics)
        self.parallel: DistributedDataParallel | None = None
        if self.ranks.size > 1:
            # BatchNorm's buffers are averaged here; DistributedDataParallel would take those of rank 0.
            with warnings.catch_warnings():
                # The name that takes this one's place is not there in all versions of torch.
                warnings.filterwarnings("ignore", message="`broadcast_buffers` is deprecated")
                self.parallel = DistributedDataParallel(
                    self.passes,
                    broadcast_buffers=False,
                    find_unused_parameters=leaves_weights_out(trainer),
                )

    def __call__(self, batch: TrainingBatch) -> None:
        trainer = self.trainer
        trainer.optimizer.zero_grad(set_to_none=True)
        shards = self._attacked(batch)
        self.statistics.begin()
        if trainer.perturbation is not None:
            trainer.perturbation.perturb_along(lambda weights: self._gradients(shards, weights))
            self.statistics.begin()
        losses, logits = [], []
        pieces = self._pieces(shards)
        for number, piece in enumerate(pieces):
            with self._summing_later() if number < len(pieces) - 1 else nullcontext():
                shares, loss, found = self._shares(piece, self.parallel or self.passes)
                self._backward(shares)
            losses.append(loss)
            logits += found
        self.statistics.average(self.shards, self.ranks)
        step.update_weights(trainer)
        self._report(batch, logits, torch.stack(losses).double().sum())

    def leave_group(self) -> None:
        """Lets go of the process group. A thread of it that met the interpreter's end would abort the process."""
        self.parallel = None

    def _attacked(self, batch: TrainingBatch) -> list[Shard]:
        """The shards of this process with their adversarial images; each has the noise of its slots."""
        trainer, attack = self.trainer, self.trainer.attack
        start, shards = attack.rng.clone(), []
        with step.autocast(trainer):
            for number, x, y in zip(
                self.numbers, batch.x.split(self.width), batch.y.split(self.width), strict=True
            ):
                attack.rng.copy_(start)
                attack.slots = (number * self.width, self.shards * self.width)
                try:
                    x_adv = step.attacked(trainer, x, y)
                finally:
                    attack.slots = None
                shards.append((number, step.with_factors(trainer, x, x_adv, y)))
        return shards

    def _pieces(self, shards: list[Shard]) -> list[list[Shard]]:
        """What one backward pass is for: a shard, or all of them where they must know of each other."""
        return [[shard] for shard in shards] if self.trainer.objective.separable else [shards]

    def _summing_later(self) -> AbstractContextManager[Any]:
        """The gradients of all but the last piece stay in this process until then."""
        return self.parallel.no_sync() if self.parallel is not None else nullcontext()

    def _backward(self, shares: list[Tensor]) -> None:
        """Adds to the gradients, shard by shard where one process has them all: in the same order as on as many processes."""
        if self.parallel is None:
            for share in shares:
                share.backward()
        else:
            # It watches one backward pass. It divides by the number of processes, and these are shares of one loss.
            (torch.stack(shares).sum() * self.ranks.size).backward()

    def _shares(
        self, piece: list[Shard], passes: Callable[[list[Shard]], Any]
    ) -> tuple[list[Tensor], Tensor, list[Tensor]]:
        """(of each shard what to call `backward` on, this process's part of the loss, the logits of each shard)."""
        with step.autocast(self.trainer):
            found = passes(piece)
            logits = [each for _, each in found]
            if not self.trainer.objective.separable:
                return *self._shares_of_all([terms for terms, _ in found], piece), logits
            ((_, batch),), ((terms, _),) = piece, found
            share = self.trainer.objective.risk(terms, batch) / self.shards
        return [share], share.detach(), logits

    def _shares_of_all(self, found: list[Terms], piece: list[Shard]) -> tuple[list[Tensor], Tensor]:
        """The risk of the global batch, of which each example's part is its terms times the risk's gradient with respect to them."""
        mine = [torch.cat(parts).detach() for parts in zip(*found, strict=True)]
        batches = [batch for _, batch in piece]
        names = [name for name in ("y", "weight", "clean", "robust") if getattr(batches[0], name) is not None]
        facts = {name: torch.cat([getattr(batch, name) for batch in batches]) for name in names}
        # One message; in float64 every term, label and factor arrives as it was.
        message = torch.stack([each.to(torch.float64) for each in (*mine, *facts.values())])
        rows = torch.cat(self.ranks.gather(message), dim=1)
        terms = [row.to(own.dtype).requires_grad_() for row, own in zip(rows, mine, strict=False)]
        of_all = {name: row.to(facts[name].dtype) for name, row in zip(names, rows[len(mine) :], strict=True)}
        risk = self.trainer.objective.risk(tuple(terms), objectives.Examples(**of_all))
        gradients = torch.autograd.grad(risk, terms, allow_unused=True, materialize_grads=True)
        parts = [self.ranks.mine(gradient).split(self.width) for gradient in gradients]
        shares = [
            torch.stack([(weights * term).sum() for weights, term in zip(of_shard, own, strict=True)]).sum()
            for of_shard, own in zip(zip(*parts, strict=True), found, strict=True)
        ]
        return shares, risk.detach() / self.ranks.size

    def _gradients(self, shards: list[Shard], weights: Sequence[Tensor]) -> list[Tensor]:
        """The gradients of the global batch's loss, for the perturbation of the weights."""
        total = [torch.zeros_like(weight) for weight in weights]
        for piece in self._pieces(shards):
            for share in self._shares(piece, self.passes)[0]:
                parts = torch.autograd.grad(share, weights, allow_unused=True, materialize_grads=True)
                for sum_of_weight, part in zip(total, parts, strict=True):
                    sum_of_weight += part
        return [self.ranks.sum(gradient) for gradient in total]

    def _report(self, batch: TrainingBatch, logits: list[Tensor], loss: Tensor) -> None:
        trainer = self.trainer
        step.report(trainer, batch.indices, batch.ticket, batch.y, torch.cat(logits), loss, logits)


def leaves_weights_out(trainer: Trainer) -> bool:
    """Whether a pass in training may leave a weight without a gradient: an auxiliary head, LayerDrop.

    DistributedDataParallel waits for the gradients of all weights, unless it is told to look for those that will not come; and it complains
    when it looks for nothing. So the pass is rehearsed on a few images and on copies of the buffers. Every rank does: SyncBatchNorm asks all.
    """
    spec, device, model = trainer.images.spec, trainer.device, trainer.model
    weights = [weight for weight in model.parameters() if weight.requires_grad]
    left_out = False
    with torch.random.fork_rng([device] if device.type == "cuda" else []), torch.enable_grad():
        torch.manual_seed(trainer.config.seed)
        images = torch.rand(2, spec.in_channels, spec.image_size, spec.image_size).to(device)
        batch = step.with_factors(trainer, images, images, torch.zeros(2, dtype=torch.int64, device=device))

        def on_copies(x: Tensor) -> Tensor:
            buffers = {name: buffer.clone() for name, buffer in model.named_buffers()}
            logits: Tensor = torch.func.functional_call(model, buffers, (x,))
            return logits

        for _ in range(REHEARSALS):
            terms, _logits = trainer.objective.terms(on_copies, batch)
            total = torch.stack([term.sum() for term in terms]).sum()
            found = torch.autograd.grad(total, weights, allow_unused=True)
            left_out = left_out or any(gradient is None for gradient in found)
    return bool(trainer.ranks.largest(torch.tensor(int(left_out))))


class Passes(nn.Module):
    """The passes of the objective over shards, as a module: what DistributedDataParallel watches is then one call and one backward pass.

    The model is inside, and stays what it was: its own state_dict has no prefix.
    """

    def __init__(self, trainer: Trainer, statistics: BatchNormStatistics) -> None:
        super().__init__()
        self.model = trainer.model
        # In a tuple, since a compiled model is a module, and would be registered a second time.
        self._call = (trainer.forward,)
        self._trainer, self._statistics = (trainer,), statistics

    def forward(self, shards: list[Shard]) -> list[tuple[Terms, Tensor]]:
        (trainer,) = self._trainer
        found = []
        for number, batch in shards:
            self._statistics.restore()
            # For dropout, which draws from torch's own generators.
            shard = trainer.position.step * (trainer.config.shards or 1) + number
            torch.manual_seed((trainer.config.seed * 1_000_003 + shard) % 2**63)
            found.append(trainer.objective.terms(self._call[0], batch))
            self._statistics.add()
        return found
