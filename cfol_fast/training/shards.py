"""A step whose batch is divided into shards, on one process or on many: BatchNorm and gradients see a shard,
the optimiser the batch.

All shards are attacked with the statistics from the step's start. Each shard's passes start from the same
running statistics, and those are averaged over the shards afterwards. Gradients are summed over the shards of
a process as they come, and over the processes by DistributedDataParallel. Where the risk is no mean over the
examples (CVaR, FAAL, ...) its weights follow from the terms of all shards: then the graphs of a process's
shards are kept until all terms are there, instead of passing forwards twice. What belongs to a shard (attack
noise, dropout) is drawn from the shard's own numbers, so it does not depend on which process computes it.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from cfol_fast import attacks, objectives
from cfol_fast.errors import InputError
from cfol_fast.frozen import agree, choices, paused
from cfol_fast.objectives.objective import Terms
from cfol_fast.ranks import Ranks
from cfol_fast.training.batches import TrainingBatch
from cfol_fast.training.batchnorm import BatchNormStatistics
from cfol_fast.training.position import Position
from cfol_fast.training.step import Step

# A batch with its factors, and the number of its shard.
Shard = tuple[int, objectives.Batch]
# Rehearsals of a pass, for networks that leave a layer out now and then.
REHEARSALS = 8


def check_shards(shards: int, ranks: Ranks) -> None:
    """Refuses processes that cannot take equally many shards.

    (That they divide the batch was checked with the configuration.)
    """
    if shards % ranks.size:
        good = [str(n) for n in range(1, shards + 1) if shards % n == 0]
        raise InputError(
            f"the number of processes must divide shards={shards}, got {ranks.size}: start"
            f" {' or '.join(good)}, or begin another run with --shards {ranks.size}"
        )


@dataclass(kw_only=True)
class ShardedStep(Step):
    """A step whose batch has `shards` parts; this process computes those with the numbers `numbers`.

    batch_size: of all ranks together. image_shape: (C, H, W), for a rehearsal of the passes. position: the
    step at hand and `seed` decide what a shard's dropout draws.
    """

    ranks: Ranks
    shards: int
    batch_size: int
    image_shape: tuple[int, int, int]
    position: Position
    seed: int

    def __post_init__(self) -> None:
        super().__post_init__()
        count = self.shards // self.ranks.size
        self.numbers = range(self.ranks.rank * count, (self.ranks.rank + 1) * count)
        self.width = self.batch_size // self.shards
        if not self.objective.takes_shards:
            raise InputError(
                f"{type(self.objective).__name__} takes whole batches only, got shards={self.shards}: give it"
                " `terms` and `risk` (cfol_fast.objectives.Objective), or take --shards 1"
            )
        self.statistics = BatchNormStatistics(self.model)
        self.passes = Passes(self.model, self._terms)
        self.parallel: DistributedDataParallel | None = None
        if self.ranks.size > 1:
            # BatchNorm's buffers are averaged here; DistributedDataParallel would take those of rank 0.
            with warnings.catch_warnings():
                # The name that takes this one's place is not there in all versions of torch.
                warnings.filterwarnings("ignore", message="`broadcast_buffers` is deprecated")
                self.parallel = DistributedDataParallel(
                    self.passes, broadcast_buffers=False, find_unused_parameters=self._leaves_weights_out()
                )

    def minimise(self, batch: TrainingBatch) -> tuple[list[Tensor], Tensor]:
        shards = self._attacked_shards(batch)
        self.statistics.begin()
        if self.perturbation is not None:
            self.perturbation.perturb_along(lambda weights: self._gradients(shards, weights))
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
        if self.perturbation is not None:
            self.perturbation.restore()
        return logits, torch.stack(losses).double().sum()

    def begin(self) -> None:
        """All ranks compute the attack's layers in the ways that the first one chooses."""
        attack = self.attack
        if self.ranks.size > 1 and self.device.type == "cpu" and isinstance(attack, attacks.PGD):
            images = torch.rand((self.width, *self.image_shape), generator=torch.Generator())
            choices().share(self.ranks, lambda: attack.rehearse(images))

    def end(self) -> None:
        """Lets go of the process group: a thread of it that met the interpreter's end would abort the
        process.
        """
        self.parallel = None

    def _attacked_shards(self, batch: TrainingBatch) -> list[Shard]:
        """The shards of this process with their adversarial images; each has the noise of its slots."""
        attack = self.attack
        start, shards = attack.state_dict(), []
        if isinstance(attack, attacks.PGD) and attack.fast:
            agree(self.model, batch.x[: self.width], self.ranks, self.position.step + 1)
        with self.autocast(), paused():
            for number, x, y in zip(
                self.numbers, batch.x.split(self.width), batch.y.split(self.width), strict=True
            ):
                attack.load_state_dict(start)
                x_adv = self.attacked(x, y, slots=(number * self.width, self.shards * self.width))
                shards.append((number, self.with_factors(x, x_adv, y)))
        return shards

    def _terms(self, number: int, batch: objectives.Batch) -> tuple[Terms, Tensor]:
        """The objective's terms and logits of one shard, which begins with the statistics of the step's
        start.
        """
        self.statistics.restore()
        # For dropout, which draws from torch's own generators.
        shard = self.position.step * self.shards + number
        torch.manual_seed((self.seed * 1_000_003 + shard) % 2**63)
        found = self.objective.terms(self.forward, batch)
        self.statistics.add()
        return found

    def _pieces(self, shards: list[Shard]) -> list[list[Shard]]:
        """What one backward pass is for: a shard, or all of them where they must know of each other."""
        return [[shard] for shard in shards] if self.objective.separable else [shards]

    def _summing_later(self) -> AbstractContextManager[Any]:
        """The gradients of all but the last piece stay in this process until then."""
        return self.parallel.no_sync() if self.parallel is not None else nullcontext()

    def _backward(self, shares: list[Tensor]) -> None:
        """Adds to the gradients, shard by shard where one process has them all: in the same order as on as
        many processes.
        """
        if self.parallel is None:
            for share in shares:
                share.backward()
        else:
            # It watches one backward pass. It divides by the number of processes, and these are shares of one
            # loss.
            (torch.stack(shares).sum() * self.ranks.size).backward()

    def _shares(
        self, piece: list[Shard], passes: Callable[[list[Shard]], Any]
    ) -> tuple[list[Tensor], Tensor, list[Tensor]]:
        """(of each shard what to call `backward` on, this process's part of the loss, the logits of each
        shard).
        """
        with self.autocast():
            found = passes(piece)
            logits = [each for _, each in found]
            if not self.objective.separable:
                return *self._shares_of_all([terms for terms, _ in found], piece), logits
            ((_, batch),), ((terms, _),) = piece, found
            share = self.objective.risk(terms, batch) / self.shards
        return [share], share.detach(), logits

    def _shares_of_all(self, found: list[Terms], piece: list[Shard]) -> tuple[list[Tensor], Tensor]:
        """The risk of the global batch, of which each example's part is its terms times the risk's gradient
        with respect to them.
        """
        mine = [torch.cat(parts).detach() for parts in zip(*found, strict=True)]
        batches = [batch for _, batch in piece]
        names = [name for name in ("y", "weight", "clean", "robust") if getattr(batches[0], name) is not None]
        facts = {name: torch.cat([getattr(batch, name) for batch in batches]) for name in names}
        # One message; in float64 every term, label and factor arrives as it was.
        message = torch.stack([each.to(torch.float64) for each in (*mine, *facts.values())])
        rows = torch.cat(self.ranks.gather(message), dim=1)
        terms = [row.to(own.dtype).requires_grad_() for row, own in zip(rows, mine, strict=False)]
        of_all = {name: row.to(facts[name].dtype) for name, row in zip(names, rows[len(mine) :], strict=True)}
        risk = self.objective.risk(tuple(terms), objectives.Examples(**of_all))
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

    def _leaves_weights_out(self) -> bool:
        """Whether a pass in training may leave a weight without a gradient: an auxiliary head, LayerDrop.

        DistributedDataParallel waits for the gradients of all weights, unless it is told to look for those
        that will not come; and it complains when it looks for nothing. So the pass is rehearsed on a few
        images and on copies of the buffers. Every rank does: SyncBatchNorm asks all.
        """
        device, model = self.device, self.model
        weights = [weight for weight in model.parameters() if weight.requires_grad]
        left_out = False
        with torch.random.fork_rng([device] if device.type == "cuda" else []), torch.enable_grad():
            torch.manual_seed(self.seed)
            images = torch.rand(2, *self.image_shape).to(device)
            batch = self.with_factors(images, images, torch.zeros(2, dtype=torch.int64, device=device))

            def on_copies(x: Tensor) -> Tensor:
                buffers = {name: buffer.clone() for name, buffer in model.named_buffers()}
                logits: Tensor = torch.func.functional_call(model, buffers, (x,))
                return logits

            for _ in range(REHEARSALS):
                terms, _logits = self.objective.terms(on_copies, batch)
                total = torch.stack([term.sum() for term in terms]).sum()
                found = torch.autograd.grad(total, weights, allow_unused=True)
                left_out = left_out or any(gradient is None for gradient in found)
        return bool(self.ranks.largest(torch.tensor(int(left_out))))


class Passes(nn.Module):
    """The objective's terms of shards, as a module: what DistributedDataParallel watches is then one call and
    one backward pass.

    The model is inside for its parameters; its own state_dict has no prefix. terms: computes those of one
    shard.
    """

    def __init__(
        self, model: nn.Module, terms: Callable[[int, objectives.Batch], tuple[Terms, Tensor]]
    ) -> None:
        super().__init__()
        self.model, self._terms = model, terms

    def forward(self, shards: list[Shard]) -> list[tuple[Terms, Tensor]]:
        return [self._terms(number, batch) for number, batch in shards]
