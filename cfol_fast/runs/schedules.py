"""The learning rate as a plain function of the step, so that resuming needs nothing but the step's number."""

from __future__ import annotations

import math

from cfol_fast.runs.setting_groups import OptimizerConfig


def milestones(epochs: int) -> tuple[int, ...]:
    """Epochs at which the rate falls, where none are given: the paper's 100 and 150 of 200, in proportion."""
    return (epochs // 2, epochs * 3 // 4)


def learning_rate(config: OptimizerConfig, step: int, steps_per_epoch: int, epochs: int) -> float:
    """The rate of step `step` (from 0)."""
    if config.schedule == "steps":
        epoch = step // steps_per_epoch
        given = milestones(epochs) if config.milestones is None else config.milestones
        return config.lr * config.decay ** sum(epoch >= milestone for milestone in given)
    if config.schedule == "one-cycle":
        # Up from 1/25 of the peak and down to almost nothing, both as half a cosine (Smith & Topin, 2019).
        total = steps_per_epoch * epochs
        top = max(1.0, config.warmup * total)
        if step < top:
            return _cosine(config.lr / 25, config.lr, step / top)
        return _cosine(config.lr, config.lr / 1e5, (step - top) / max(1.0, total - 1 - top))
    if config.schedule == "cosine":
        return _cosine(config.lr, 0.0, step / (steps_per_epoch * epochs))
    return config.lr


def _cosine(start: float, end: float, share: float) -> float:
    return end + (start - end) * 0.5 * (1.0 + math.cos(math.pi * min(1.0, max(0.0, share))))
