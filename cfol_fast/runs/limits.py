"""What every number of a configuration may be: one table, and the check that goes through every field.

The limits are far beyond what is used. What lies outside is a slip (`--eps 8` for 8/255) or an attack on the machine.
"""

from __future__ import annotations

import math
from typing import Any

from cfol_fast.errors import InputError
from cfol_fast.runs.config import TrainConfig, flatten, to_dict
from cfol_fast.user_input import COUNT, SEED, WHITE, Range, check_home_folder, shorten

STEPS = Range(1, 1_000_000_000)
ATTACK_STEPS = Range(1, 100_000)
NUMBERS: dict[str, Range] = {
    "data.imbalance": Range(1, 1e6, whole=False),
    "data.images": Range(1, 1e9),
    "data.size": Range(1, 4096),
    "data.white": WHITE,
    "data.lag": Range(0, 1000),
    "data.crop_scale": Range(0, 1, whole=False, above=True),
    "data.crop_ratio": Range(1, 100, whole=False),
    "optimizer.lr": Range(0, 1e30, whole=False, above=True),
    "optimizer.momentum": Range(0, 0.99999, whole=False),
    "optimizer.weight_decay": Range(0, 1e3, whole=False),
    "optimizer.milestones": Range(0, 1_000_000),
    "optimizer.decay": Range(0, 1, whole=False, above=True),
    "optimizer.warmup": Range(0, 0.999, whole=False),
    "attack.eps": Range(0, 1e4, whole=False),
    "attack.step": Range(0, 1e4, whole=False),
    "attack.steps": ATTACK_STEPS,
    "validation.every": COUNT,
    "validation.steps": ATTACK_STEPS,
    "test.eps": Range(0, 1e4, whole=False),
    "test.step": Range(0, 1e4, whole=False),
    "test.steps": ATTACK_STEPS,
    "test.batch_size": COUNT,
    "ema.decay": Range(0, 0.99999, whole=False),
    "ema.gate": Range(0, 1, whole=False),
    "checkpoint.steps": STEPS,
    "checkpoint.seconds": Range(0, 1e9, whole=False),
    "epochs": COUNT,
    "batch_size": COUNT,
    "shards": COUNT,
    "steps_per_epoch": STEPS,
    "seed": SEED,
    "label_smoothing": Range(0, 0.999, whole=False),
    "awp": Range(0, 1, whole=False),
    "ensemble": Range(0, 10_000),
}
LARGEST_PARAMETER = 1e12
LONGEST_TEXT = 4096


def check_numbers(config: TrainConfig) -> None:
    """Refuses a value outside its limits, by the field's name. Fields left open (None) are not looked at."""
    tree = to_dict(config)
    parameters = tree.pop("params")
    for key, value in flatten(tree).items():
        for item in value if isinstance(value, list) else [value]:
            if key in NUMBERS and item is not None:
                NUMBERS[key].check(item, key)
            elif isinstance(item, str):
                _check_text(item, key)
    for name, value in parameters.items():
        _check_parameter(value, name)
    for part, chosen in (("attack", config.attack), ("test", config.test)):
        check_radius(f"{part}.eps", chosen.eps, f"{part}.step", chosen.step, config.attack.norm)
    milestones = list(config.optimizer.milestones or ())
    if milestones != sorted(milestones):
        raise InputError(f"optimizer.milestones must not fall, got {shorten(milestones)}")
    if config.optimizer.nesterov and config.optimizer.name != "sgd":
        raise InputError(f"optimizer.nesterov belongs to sgd, got optimizer.name={config.optimizer.name}")
    if config.optimizer.nesterov and not config.optimizer.momentum:
        raise InputError("optimizer.nesterov needs a momentum: optimizer.momentum must be above 0, got 0")


def check_radius(eps_name: str, eps: float | None, step_name: str, step: float | None, norm: str) -> None:
    """Refuses a radius larger than any image, and steps that do not move."""
    if norm == "linf" and eps is not None and eps > 1:
        hint = f"; {eps:g}/255 is written as a fraction" if eps <= 255 else ""
        raise InputError(f"{eps_name} must be at most 1 for linf, as pixels lie in 0..1, got {eps:g}{hint}")
    if norm == "linf" and step is not None and step > 1:
        hint = f"; {step:g}/255 is written as a fraction" if step <= 255 else ""
        raise InputError(f"{step_name} must be at most 1 for linf, as pixels lie in 0..1, got {step:g}{hint}")
    if eps and step is not None and not step > 0:
        raise InputError(f"{step_name} must be above 0 where eps is, got {step:g}")


def _check_text(value: str, key: str) -> None:
    if len(value) > LONGEST_TEXT or "\0" in value:
        raise InputError(f"{key} must be a text of at most {LONGEST_TEXT} characters, got {shorten(value)}")
    check_home_folder(value)


def _check_parameter(value: Any, name: str) -> None:
    """A method's parameter: the method itself knows its range, here it must be something that can be stored."""
    for item in value if isinstance(value, list) else [value]:
        if isinstance(item, str):
            _check_text(item, name)
        elif isinstance(item, int | float):
            if not math.isfinite(item) or abs(item) > LARGEST_PARAMETER:
                raise InputError(
                    f"{name} must be a number of at most {LARGEST_PARAMETER:g}, got {shorten(item)}"
                )
        elif item is not None:
            raise InputError(f"{name} must be a number, a word or a list of numbers, got {shorten(value)}")
