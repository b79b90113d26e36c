"""Filling in what the user left open: the paper's settings, or those of the embedded images.

`complete` is the only place that knows which data set takes which settings. What it returns has no open
field: the run folder records it, a resumed run is compared with it, and a recipe's run is named by its hash.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from cfol_fast import attacks, data, methods, models, processes
from cfol_fast.data.registry import check_white
from cfol_fast.errors import InputError
from cfol_fast.machine import choose_device, choose_precision
from cfol_fast.models.zoo import base_and_factor
from cfol_fast.policies.policy import FROM_HOLDOUT
from cfol_fast.runs.config import AttackConfig, TrainConfig, augmentation_word, flatten, to_dict
from cfol_fast.runs.limits import check_choices, check_numbers
from cfol_fast.runs.schedules import milestones
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

# torch's own default; SGD's 0.1 would diverge.
ADAMW_LR = 1e-3


def complete(config: TrainConfig) -> TrainConfig:
    """A copy of `config` with every open field filled in and every value checked."""
    check_numbers(config)
    given, config = config, copy.deepcopy(config)
    method = methods.get(config.method)
    config.method = method.name
    spec = _data_set(config)
    own = data.is_own(spec.name, config.data.root)
    defaults = OWN if own else BY_DATA_SET.get(spec.name, PAPER)

    if config.shards is None:
        config.shards = _one_for_each_process(config.batch_size)
    config.params = method.params(config.params, spec.name)
    config.epochs = _default(config.epochs, defaults.epochs)
    config.model.name = _default(config.model.name, spec.model)
    if config.model.pretrained:
        published = models.published(config.model.name)
        if published is None:
            raise InputError(
                f"there are no published weights of {config.model.name}: --pretrained belongs to timm:NAME"
                " and torchvision:NAME, others take --init FILE"
            )
        if spec.name == "folder":
            # Images that have no size of their own get the one that the weights were trained with.
            config.data.size = _default(config.data.size, published.image_size)
    lr = OWN_LR.get(base_and_factor(config.model.name)[0], OWN.lr) if own else defaults.lr
    config.optimizer.lr = _default(config.optimizer.lr, ADAMW_LR if config.optimizer.name == "adamw" else lr)
    config.optimizer.schedule = _default(config.optimizer.schedule, defaults.schedule)
    config.data.augment = _default(augmentation_word(config.data.augment), data.default_augmentation(own))
    config.attack.kind = _default(config.attack.kind, method.attack or "none")
    config.attack.eps = _default(config.attack.eps, spec.eps)
    _settle_steps(config.attack, defaults)
    config.test.eps = _default(config.test.eps, config.attack.eps)
    config.test.step = _default(config.test.step, evaluation_step(config, max(1, config.test.steps)))
    config.device = str(choose_device(config.device))
    config.precision = choose_precision(config.precision, torch.device(config.device), config.deterministic)
    config.out = _default(config.out, f"runs/{spec.name}-{method.name}-seed{config.seed}")
    _check(config)
    _check_used(given, config)
    if config.optimizer.schedule == "steps":
        config.optimizer.milestones = milestones(config.optimizer, config.epochs)
    return config


def _data_set(config: TrainConfig) -> data.DataSpec:
    """The row of the data set; one that nobody named is known by its folder."""
    chosen = config.data
    if chosen.name == "auto":
        if chosen.root is None and chosen.download:
            raise InputError("data.download needs the data set's name: give --dataset, such as cifar10")
        chosen.name = "fashion-mini" if chosen.root is None else data.recognised(chosen.root)
    spec = data.spec(chosen.name)
    data.check_options(spec, chosen.root, chosen.download, chosen.size, chosen.skip_corrupt, chosen.white)
    return spec


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


def _settle_steps(chosen: AttackConfig, defaults: Defaults) -> None:
    """Number and size of the training attack's steps: those that will be used, or an error where they would
    be ignored.
    """
    eps, kind = chosen.eps or 0.0, attacks.KINDS.get(str(chosen.kind), attacks.PGD)
    own_step = defaults.step * eps
    if issubclass(kind, (attacks.FGSM, attacks.NFGSM)):
        own_step = float(kind.step_unless_told(eps, chosen.random_start))
        if chosen.steps not in (None, 1):
            raise InputError(
                f"attack.steps must be 1 for {chosen.kind}, which takes a single step, got {chosen.steps}"
            )
    chosen.steps = _default(chosen.steps, kind.steps_unless_told)
    chosen.step = _default(chosen.step, _within_a_pixel(own_step, chosen.norm))


def evaluation_step(config: TrainConfig, steps: int) -> float:
    """The step of an evaluation in so many steps, where nobody says another."""
    return _within_a_pixel(2.5 * (config.test.eps or 0.0) / steps, config.attack.norm)


def _within_a_pixel(step: float, norm: str) -> float:
    """In linf a step beyond the whole range of a pixel leads no further, and attacks take it for a slip."""
    return min(step, 1.0) if norm == "linf" else step


def holdout_fraction(holdout: str) -> float | None:
    """The share held out of the training part; None for "test" and "none"."""
    if holdout in ("test", "none"):
        return None
    try:
        fraction = parse_number(holdout.removesuffix("%")) / (100 if holdout.endswith("%") else 1)
    except InputError:
        fraction = 0.0
    if not 0.0 < fraction < 1.0:
        raise InputError(f"holdout must be a share between 0 and 1, 'test' or 'none', got {holdout!r}")
    return fraction


def holdout_label(holdout: str) -> str:
    """The hold-out as results show it: "20%", "test" or "none"."""
    fraction = holdout_fraction(holdout)
    return holdout if fraction is None else f"{100 * fraction:g}%"


def _default(value: Any, default: Any) -> Any:
    return default if value is None else value


# Settings that only some others make use of: the key, whether it is used, and what it belongs to.
Use = tuple[str, Callable[[TrainConfig], bool], str]
USED_WITH: tuple[Use, ...] = (
    ("data.crop_scale", lambda c: c.data.crop == "random-resized", "data.crop=random-resized"),
    ("data.crop_ratio", lambda c: c.data.crop == "random-resized", "data.crop=random-resized"),
    ("data.lag", lambda c: c.data.name == "beton", "data.name=beton"),
    ("optimizer.milestones", lambda c: c.optimizer.schedule == "steps", "optimizer.schedule=steps"),
    ("optimizer.decay", lambda c: c.optimizer.schedule == "steps", "optimizer.schedule=steps"),
    ("optimizer.warmup", lambda c: c.optimizer.schedule == "one-cycle", "optimizer.schedule=one-cycle"),
    ("ema.per", lambda c: bool(c.ema.decay), "an average: give ema.decay too"),
    ("params.C", lambda c: c.params.get("eta") not in ("auto", _own_eta(c)), "eta=theory"),
)
# The same, where one file of settings serves many runs: these are not refused, the run says that they have no
# effect.
SAID_WITH: tuple[Use, ...] = (
    ("attack.steps", lambda c: c.attack.kind != "none", "an attack in training"),
    ("attack.step", lambda c: c.attack.kind != "none", "an attack in training"),
    ("attack.random_start", lambda c: c.attack.kind != "none", "an attack in training"),
    ("data.cache", lambda c: data.spec(c.data.name).files is not None, "folders of image files"),
    ("validation.every", lambda c: c.data.holdout != "none", "a hold-out"),
    ("validation.steps", lambda c: c.data.holdout != "none", "a hold-out"),
)


def _own_eta(config: TrainConfig) -> Any:
    """The method's own step size. Another number may be what became of eta=theory; the sampler knows."""
    return methods.get(config.method).params({}, config.data.name).get("eta")


def without_effect(completed: TrainConfig) -> list[str]:
    """What a run says at its start of settings that it does not look at."""
    own = dataclasses.replace(completed.attack, steps=None, step=None)
    _settle_steps(own, BY_DATA_SET.get(completed.data.name, PAPER))
    filled = {"attack.steps": own.steps, "attack.step": own.step}
    return [
        f"note: {key}={value} has no effect: it belongs to {owner}"
        for key, value, owner in _unused(completed, completed, SAID_WITH)
        if value != filled.get(key)
    ]


def _unused(given: TrainConfig, completed: TrainConfig, uses: tuple[Use, ...]) -> list[tuple[str, Any, str]]:
    """The settings that somebody made and nothing looks at: key, value, and what it belongs to."""
    default, said = flatten(to_dict(TrainConfig())), flatten(to_dict(given))
    return [
        (key, said[key], owner)
        for key, is_used, owner in uses
        if said.get(key) is not None and said[key] != default.get(key) and not is_used(completed)
    ]


def _check_used(given: TrainConfig, completed: TrainConfig) -> None:
    for key, value, owner in _unused(given, completed, USED_WITH):
        raise InputError(f"{key} belongs to {owner}, got {value}: leave it out")


def _check(config: TrainConfig) -> None:
    check_numbers(config)
    check_choices(config)
    shards = config.shards or 1
    if config.batch_size % shards:
        raise InputError(
            f"shards must divide batch_size={config.batch_size}, got {shards}: a batch is divided into equal"
            " parts"
        )
    if config.batchnorm == "sync" and (
        torch.device(config.device).type != "cuda" or processes.count() == 1 or shards != processes.count()
    ):
        raise InputError(
            f"batchnorm=sync needs GPUs and one shard for each of several processes, got {config.device} and"
            f" {shards} shard{'s' * (shards > 1)} on {processes.count()}"
            f" process{'es' * (processes.count() > 1)}: take batchnorm=shard"
        )
    if config.model.pretrained and config.model.init is not None:
        raise InputError(
            f"model.pretrained and model.init={config.model.init} are two starts: give one of --pretrained"
            " and --init"
        )
    if config.model.init_by_position and config.model.init is None:
        raise InputError("--classes-by-position belongs to --init: give the weights to start from")
    if config.model.init_normalize is not None and config.model.init is None:
        raise InputError("model.init_normalize belongs to model.init: give the weights to start from")
    if config.data.content is not None and config.data.name != "folder":
        raise InputError(
            f"data.content is the digest of a folder of images, got data.name={config.data.name}"
        )
    check_white(data.spec(config.data.name), config.data.white)
    if config.data.crop != "own" and config.data.augment == "none":
        raise InputError(f"data.crop={config.data.crop} is an augmentation, got data.augment=none")
    fraction, policy = holdout_fraction(config.data.holdout), methods.get(config.method).policy
    if policy.needs & FROM_HOLDOUT and fraction is None:
        wanted = " and ".join(need.value for need in policy.needs & FROM_HOLDOUT)
        raise InputError(
            f"{config.method} trains with {wanted}, got --holdout {config.data.holdout}: give a share of the"
            " training images such as 0.2 (the test set would leak into training)"
        )
    if config.ema.gate and not config.ema.decay:
        raise InputError(f"ema.gate={config.ema.gate:g} is the gate of an average: give ema.decay too")
    if config.ema.gate and fraction is None:
        raise InputError(
            f"ema.gate looks at the hold-out's worst class, got --holdout {config.data.holdout}: give a share"
            " of the training images such as 0.2 (the test set would leak into the average)"
        )
    if methods.get(config.method).attack is None and config.attack.kind != "none":
        raise InputError(
            f"{config.method} trains on the images as they are, got attack.kind={config.attack.kind}:"
            " take erm"
        )
    if "radius" in policy.factors and config.attack.kind == "none":
        raise InputError(
            f"{config.method} scales the attack's radius, got attack.kind=none: take pgd or trades"
        )
