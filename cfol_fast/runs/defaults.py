"""Filling in what the user left open: the paper's settings, or those of the embedded images.

`resolved` is the only place that knows which data set takes which settings. With its values a configuration
is complete: the run folder records it, a resumed run is compared with it, and a recipe's run is named by its
hash.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from cfol_fast import attacks, data, methods, models, processes
from cfol_fast.data import part_folders
from cfol_fast.data.groups import is_table
from cfol_fast.errors import InputError
from cfol_fast.machine import choose_device, choose_precision
from cfol_fast.models.zoo import base_and_factor
from cfol_fast.runs.config import settings
from cfol_fast.runs.open_settings import check, parameters
from cfol_fast.runs.optimizers import OPTIMIZERS
from cfol_fast.runs.schedules import milestones
from cfol_fast.runs.spec import Parameters
from cfol_fast.user_input import parse_number


@dataclass(frozen=True)
class Defaults:
    """What belongs to a data set. `step` is the training attack's, as a multiple of eps."""

    epochs: int
    lr: float
    schedule: str
    step: float


# Section 5 and appendix "Experimental setup": SGD 0.1, 200 epochs, divided by ten at 100 and 150, PGD-7 with
# step eps/4.
PAPER = Defaults(epochs=200, lr=0.1, schedule="steps", step=0.25)
BY_DATA_SET = {"fashion-mini": Defaults(epochs=12, lr=0.05, schedule="one-cycle", step=2.5 / 7)}
# Images of the user's own, measured: docs/own-data.md.
OWN = Defaults(epochs=30, lr=0.05, schedule="one-cycle", step=0.25)
# Networks without shortcuts, whose loss stays at ln k with more.
OWN_LR = {"demo-cnn": 0.02, "vgg16": 0.02}


def resolved(given: Mapping[str, Any]) -> dict[str, Any]:
    """Every value of a configuration by its path, from open settings (`open_settings.merged`)."""
    values = {key: given.get(key, chosen.default) for key, chosen in settings().items()}

    def follow(key: str, value: Any) -> None:
        if values[key] is None:
            check(value, settings()[key])
            values[key] = value

    method = methods.get(values["method"])
    # A parameter that the method does not have is refused before the folder is looked at.
    method.params(parameters(given))
    spec = _data_set(values)
    own, defaults = data.is_own(spec.name, values["data.root"]), defaults_of(spec.name, values["data.root"])

    if values["shards"] is None:
        follow("shards", _one_for_each_process(values["batch_size"]))
    values["params"] = Parameters(method.params(parameters(given), spec.name))
    follow("epochs", defaults.epochs)
    follow("model.name", spec.model)
    _follow_published_weights(values)
    lr = OWN_LR.get(base_and_factor(values["model.name"])[0], OWN.lr) if own else defaults.lr
    follow("optimizer.lr", OPTIMIZERS[values["optimizer.name"]].own_rate or lr)
    follow("optimizer.schedule", defaults.schedule)
    if values["optimizer.schedule"] == "steps":
        follow("optimizer.milestones", milestones(values["epochs"]))
    values["data.holdout"] = _holdout(values["data.holdout"], spec.name, values["data.root"])
    rule = values["data.holdout_groups"]
    if rule is not None and is_table(rule):
        values["data.holdout_groups"] = str(_path(rule).resolve())
    follow("data.augment", data.default_augmentation(own))
    follow("attack.kind", method.attack or "none")
    follow("attack.eps", spec.eps)
    kind, eps, norm = values["attack.kind"], values["attack.eps"], values["attack.norm"]
    steps, step = attack_steps(kind, eps, norm, values["attack.random_start"], defaults)
    follow("attack.steps", steps)
    follow("attack.step", step)
    follow("test.eps", eps)
    follow("test.step", evaluation_step(values["test.eps"], values["test.steps"], norm))
    values["device"] = str(choose_device(values["device"]))
    device = torch.device(values["device"])
    values["precision"] = choose_precision(values["precision"], device, values["deterministic"])
    follow("out", f"runs/{spec.name}-{method.name}-seed{values['seed']}")
    return values


def defaults_of(name: str, root: str | None) -> Defaults:
    """Those of a data set; root: the folder that was given with it."""
    return OWN if data.is_own(name, root) else BY_DATA_SET.get(name, PAPER)


def _data_set(values: dict[str, Any]) -> data.DataSpec:
    """The row of the data set; one that nobody named is known by its folder."""
    root, download = values["data.root"], values["data.download"]
    if values["data.name"] == "auto":
        if root is None and download:
            raise InputError("data.download needs the data set's name: give --dataset, such as cifar10")
        values["data.name"] = "fashion-mini" if root is None else data.recognised(root)
    spec = data.spec(values["data.name"])
    options = (values[f"data.{name}"] for name in ("size", "skip_corrupt", "white"))
    data.check_options(spec, root, download, *options)
    data.check_source(spec, values["data.source"], values["data.decode"])
    return spec


def _follow_published_weights(values: dict[str, Any]) -> None:
    if not values["model.pretrained"]:
        return
    published = models.published(values["model.name"])
    if published is None:
        raise InputError(
            f"there are no published weights of {values['model.name']}: --pretrained belongs to timm:NAME"
            " and torchvision:NAME, others take --init FILE"
        )
    if values["data.name"] == "folder" and values["data.size"] is None:
        # Images that have no size of their own get the one that the weights were trained with.
        values["data.size"] = published.image_size


def _one_for_each_process(batch_size: int) -> int:
    """As many shards as there are processes, which must be able to share a batch."""
    count = processes.count()
    if batch_size % count:
        below, above = batch_size // count * count, -(-batch_size // count) * count
        *most, last = [str(n) for n in range(1, batch_size + 1) if batch_size % n == 0]
        raise InputError(
            f"{count} processes cannot take equal parts of batch_size={batch_size}: take --batch-size"
            f" {f'{below} or ' if below else ''}{above}, or start"
            f" {', '.join(most)}{' or ' if most else ''}{last} processes"
        )
    return count


def attack_steps(
    kind: str, eps: float, norm: str, random_start: bool, defaults: Defaults
) -> tuple[int, float]:
    """Number and size of the training attack's steps, where nobody gives them."""
    chosen, step = attacks.KINDS.get(kind, attacks.PGD), defaults.step * eps
    if issubclass(chosen, (attacks.FGSM, attacks.NFGSM)):
        step = float(chosen.step_unless_told(eps, random_start))
    return chosen.steps_unless_told, _within_a_pixel(step, norm)


def single_step(kind: str) -> bool:
    """Whether an attack of this kind takes one step."""
    return attacks.KINDS[kind].single_step if kind in attacks.KINDS else False


def evaluation_step(eps: float, steps: int, norm: str) -> float:
    """The step of an evaluation in so many steps, where nobody says another."""
    return _within_a_pixel(2.5 * eps / steps, norm)


def _within_a_pixel(step: float, norm: str) -> float:
    """In linf a step beyond the whole range of a pixel leads no further, and attacks take it for a slip."""
    return min(step, 1.0) if norm == "linf" else step


SHARE_HELD_OUT = "0.2"


def _holdout(given: str | None, name: str, root: str | None) -> str:
    """The hold-out as config.json has it: a folder by its whole path."""
    if given is None:
        beside_test = name == "folder" and root is not None and part_folders.holdout_folder(_path(root))
        return part_folders.VAL if beside_test else SHARE_HELD_OUT
    return str(_path(given).resolve()) if is_folder(given) and given != part_folders.VAL else given


def _path(text: str) -> Path:
    return Path(text).expanduser()


def is_folder(holdout: str) -> bool:
    """Whether a hold-out is one that the user brings: "val", or a folder by its path."""
    if holdout in ("test", "none", part_folders.VAL):
        return holdout == part_folders.VAL
    # 1/5 is a share.
    return not _is_number(holdout) and (os.sep in holdout or _path(holdout).is_dir())


def _is_number(text: str) -> bool:
    try:
        parse_number(text.removesuffix("%"))
    except InputError:
        return False
    return True


def has_holdout(holdout: str) -> bool:
    """Whether there is one beside the test set."""
    return is_folder(holdout) or holdout_fraction(holdout) is not None


def holdout_fraction(holdout: str) -> float | None:
    """The share held out of the training part; None for "test", "none" and folders."""
    if holdout in ("test", "none") or is_folder(holdout):
        return None
    try:
        fraction = parse_number(holdout.removesuffix("%")) / (100 if holdout.endswith("%") else 1)
    except InputError:
        fraction = 0.0
    if not 0.0 < fraction < 1.0:
        raise InputError(
            f"holdout must be a share between 0 and 1, 'val', a folder, 'test' or 'none', got {holdout!r}"
        )
    return fraction


def holdout_label(holdout: str) -> str:
    """The hold-out as results show it: "20%", "val", a folder, "test" or "none"."""
    fraction = holdout_fraction(holdout)
    return holdout if fraction is None else f"{100 * fraction:g}%"
