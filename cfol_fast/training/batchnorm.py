"""What a step leaves in BatchNorm's buffers: statistics averaged over its shards, and one more batch counted,
however often it passed.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from cfol_fast.ranks import Ranks


class StepCount:
    """Keeps `num_batches_tracked` counting steps: TRADES passes twice in one, and shards do.

    A layer that is not in use, or in evaluation mode, counts nothing. Where momentum is None the count
    decides the weight of a pass in the running mean, and stays as torch counts it.
    """

    def __init__(self, model: nn.Module) -> None:
        self._counts = [
            layer.num_batches_tracked.data
            for layer in _layers(model)
            if layer.num_batches_tracked is not None and layer.momentum is not None
        ]
        self._most = [count.clone() for count in self._counts]

    def begin(self) -> None:
        if self._counts:
            torch._foreach_copy_(self._most, self._counts)
            torch._foreach_add_(self._most, 1)

    def end(self) -> None:
        if self._counts:
            torch._foreach_clamp_max_(self._counts, self._most)


class BatchNormStatistics:
    """The running statistics of a model's BatchNorm layers over the shards of a step."""

    def __init__(self, model: nn.Module) -> None:
        layers = _layers(model)
        running = [t for layer in layers for t in (layer.running_mean, layer.running_var) if t is not None]
        counts = [t for layer in layers if (t := layer.num_batches_tracked) is not None]
        # `data` has a version counter of its own: autograd sees the buffers as BatchNorm itself leaves them,
        # changed behind its back.
        self._running = [t.data for t in running]
        # The counts are not averaged: every shard leaves the same.
        self._all = self._running + [t.data for t in counts]
        self._start = [t.clone() for t in self._all]
        self._sums: Tensor | None = None

    def begin(self) -> None:
        """A step, or a pass over all shards, begins with the statistics as they are."""
        self._put(self._start, self._all)
        self._sums = None

    def restore(self) -> None:
        """A shard begins where the step began."""
        self._put(self._all, self._start)

    def add(self) -> None:
        """A shard is done."""
        if self._running:
            found = torch.cat([t.flatten().to(torch.float64) for t in self._running])
            self._sums = found if self._sums is None else self._sums + found

    def average(self, shards: int, ranks: Ranks) -> None:
        """All shards are done."""
        if self._sums is None:
            return
        parts = (ranks.sum(self._sums) / shards).split([t.numel() for t in self._running])
        for running, part in zip(self._running, parts, strict=True):
            running.copy_(part.view_as(running))

    @staticmethod
    def _put(into: list[Tensor], values: list[Tensor]) -> None:
        if into:
            torch._foreach_copy_(into, values)


def _layers(model: nn.Module) -> list[nn.modules.batchnorm._BatchNorm]:
    return [layer for layer in model.modules() if isinstance(layer, nn.modules.batchnorm._BatchNorm)]
