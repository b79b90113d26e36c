"""An exponential moving average of the weights (`ema`), beside training, which it does not change.

It is a network of its own, so that it is validated, kept and tested like the trained one. With a gate and
once per epoch it is FAWA (Wei et al., CVPR 2023): weights of an epoch whose worst hold-out class is below the
gate stay out.
"""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor, nn

from cfol_fast.runs.setting_groups import EmaConfig


class WeightAverage:
    """After t updates with the weights theta_1 .. theta_t, `model` holds sum_s d^(t-s) theta_s / sum_s
    d^(t-s), d the decay.

    So the average begins with the first weights that it is given, and not with random ones, which a short run
    would not forget. BatchNorm's statistics are averaged like weights. Its counters are no weights: they are
    the trained network's.
    updates: t. is_open: whether the weights may be taken; a gate is closed until a validation reaches it.
    epoch: the last one that ended.
    """

    def __init__(self, trained: nn.Module, chosen: EmaConfig) -> None:
        self.chosen = chosen
        self.model = copy.deepcopy(trained).eval().requires_grad_(False)
        self.updates = self.epoch = 0
        self.is_open = chosen.gate == 0
        # Tensors that two layers share are listed once: averaged twice, they would run ahead.
        pairs = list(zip(_tensors(self.model), _tensors(trained), strict=True))
        self._floats = [pair for pair in pairs if pair[0].is_floating_point()]
        self._counters = [pair for pair in pairs if not pair[0].is_floating_point()]

    def after_step(self) -> None:
        """On the device, without reading anything back."""
        if self.chosen.per == "step" and self.is_open:
            self._update()

    def after_epoch(self, epoch: int, worst: float | None) -> None:
        """worst: the accuracy of the hold-out's worst class, None in an epoch without validation.

        A run that is stopped while an epoch ends does so again when it is resumed: its weights are not taken
        twice.
        """
        if epoch == self.epoch:
            return
        self.epoch = epoch
        if worst is not None:
            self.is_open = worst >= self.chosen.gate
        known = worst is not None or self.chosen.gate == 0
        if self.chosen.per == "epoch" and self.is_open and known:
            self._update()

    @torch.no_grad()
    def _update(self) -> None:
        self.updates += 1
        decay = self.chosen.decay
        # (1 - d) / (1 - d^t) is the newest weights' share of the sum above; that of the first is 1.
        newest = (1 - decay) / (1 - decay**self.updates)
        averages, weights = (list(side) for side in zip(*self._floats, strict=True))
        torch._foreach_lerp_(averages, weights, newest)
        for average, counter in self._counters:
            average.copy_(counter)

    def review(self) -> list[str]:
        """What a user should be told at the end of a run."""
        if self.updates:
            return []
        return [
            "no average of the weights was kept: the hold-out's worst class never reached"
            f" ema.gate={self.chosen.gate:g}"
        ]

    def state_dict(self) -> dict[str, Any]:
        counted = {"updates": self.updates, "epoch": self.epoch, "is_open": self.is_open}
        return {"model": self.model.state_dict(), **counted}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.model.load_state_dict(state["model"])
        self.updates, self.epoch = int(state["updates"]), int(state["epoch"])
        self.is_open = bool(state["is_open"])


def _tensors(model: nn.Module) -> list[Tensor]:
    return [*model.parameters(), *model.buffers()]
