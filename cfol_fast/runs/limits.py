"""What a value of a configuration may be: one check of every setting, by what its field says."""

from __future__ import annotations

import math
from typing import Any

from cfol_fast.errors import InputError
from cfol_fast.runs.config import TrainConfig, flatten, settings, to_dict
from cfol_fast.user_input import check_home_folder, shorten

LARGEST_PARAMETER = 1e12
LONGEST_TEXT = 4096


def check_numbers(config: TrainConfig) -> None:
    """Refuses a value outside its limits, by the field's name. Fields left open (None) are not looked at."""
    tree = to_dict(config)
    parameters = tree.pop("params")
    for key, value in flatten(tree).items():
        limits = settings()[key].limits
        for item in value if isinstance(value, list) else [value]:
            if limits is not None and item is not None:
                limits.check(item, key)
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


def check_choices(config: TrainConfig) -> None:
    """Refuses a word that a setting of several words does not have."""
    values = flatten(to_dict(config))
    for key, chosen in settings().items():
        word = values.get(key)
        if word is not None and chosen.words and word not in chosen.words:
            raise InputError(f"{key} must be one of {', '.join(chosen.words)}, got {word!r}")


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
    """A method's parameter: the method knows its range, here it must be something that can be stored."""
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
