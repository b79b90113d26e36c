"""Rules between the settings of a complete configuration. Each value's own limits are its setting's."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from cfol_fast import data, methods, processes
from cfol_fast.data.registry import check_white
from cfol_fast.errors import InputError
from cfol_fast.policies.policy import FROM_HOLDOUT
from cfol_fast.runs.config import TrainConfig, by_path, settings
from cfol_fast.runs.defaults import attack_steps, defaults_of, has_holdout, is_folder, single_step
from cfol_fast.runs.optimizers import OPTIMIZERS
from cfol_fast.runs.setting_groups import DataConfig
from cfol_fast.user_input import shorten


def check(config: TrainConfig, given: Mapping[str, Any]) -> None:
    """Refuses settings that contradict each other. given: what the user set, by path."""
    _check_optimizer(config)
    _check_attack(config)
    for key, value, owner in _unused(given, config, USED_WITH):
        raise InputError(f"{key} belongs to {owner}, got {value}: leave it out")
    _check_processes(config)
    _check_start(config)
    _check_holdout(config)


def is_fed(chosen: DataConfig) -> bool:
    """Whether somebody asked for images that are decoded while the run goes on. Where "auto" streams, it
    draws nothing ahead: the run is the one that a larger memory would have given.
    """
    return chosen.name == "beton" or chosen.source == "stream"


# Settings that only some others make use of: the key, whether it is used, and what it belongs to.
Use = tuple[str, Callable[[TrainConfig], bool], str]
USED_WITH: tuple[Use, ...] = (
    ("data.crop_scale", lambda c: c.data.crop == "random-resized", "data.crop=random-resized"),
    ("data.crop_ratio", lambda c: c.data.crop == "random-resized", "data.crop=random-resized"),
    ("data.lag", lambda c: is_fed(c.data), "data.name=beton and to data.source=stream"),
    ("data.decode", lambda c: c.data.source == "stream", "data.source=stream"),
    ("optimizer.milestones", lambda c: c.optimizer.schedule == "steps", "optimizer.schedule=steps"),
    ("optimizer.decay", lambda c: c.optimizer.schedule == "steps", "optimizer.schedule=steps"),
    ("optimizer.warmup", lambda c: c.optimizer.schedule == "one-cycle", "optimizer.schedule=one-cycle"),
    ("ema.per", lambda c: bool(c.ema.decay), "an average: give ema.decay too"),
    ("params.baseline", lambda c: c.params.get("signal") != "holdout", "signal=training"),
    ("params.feedback", lambda c: c.params.get("signal") != "holdout", "signal=training"),
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


def without_effect(config: TrainConfig) -> list[str]:
    """What a run says at its start of settings that it does not look at."""
    chosen = config.attack
    defaults = defaults_of(config.data.name, config.data.root)
    filled = dict(
        zip(
            ("attack.steps", "attack.step"),
            attack_steps(chosen.kind, chosen.eps, chosen.norm, chosen.random_start, defaults),
            strict=True,
        )
    )
    return [
        f"note: {key}={value} has no effect: it belongs to {owner}"
        for key, value, owner in _unused(by_path(config), config, SAID_WITH)
        if value != filled.get(key)
    ]


def _unused(
    given: Mapping[str, Any], config: TrainConfig, uses: tuple[Use, ...]
) -> list[tuple[str, Any, str]]:
    """The settings that somebody made and nothing looks at: key, value, and what it belongs to."""
    defaults = {key: chosen.default for key, chosen in settings().items()}
    return [
        (key, given[key], owner)
        for key, is_used, owner in uses
        if given.get(key) is not None and given[key] != defaults.get(key) and not is_used(config)
    ]


def _check_optimizer(config: TrainConfig) -> None:
    chosen = config.optimizer
    if list(chosen.milestones or ()) != sorted(chosen.milestones or ()):
        raise InputError(f"optimizer.milestones must not fall, got {shorten(list(chosen.milestones or ()))}")
    if chosen.nesterov and not OPTIMIZERS[chosen.name].has_nesterov:
        known = [name for name, kind in OPTIMIZERS.items() if kind.has_nesterov]
        raise InputError(
            f"optimizer.nesterov belongs to {' and '.join(known)}, got optimizer.name={chosen.name}"
        )
    if chosen.nesterov and not chosen.momentum:
        raise InputError("optimizer.nesterov needs a momentum: optimizer.momentum must be above 0, got 0")


def _check_attack(config: TrainConfig) -> None:
    kind = config.attack.kind
    for part, chosen in (("attack", config.attack), ("test", config.test)):
        check_radius(f"{part}.eps", chosen.eps, f"{part}.step", chosen.step, config.attack.norm)
    if single_step(kind) and config.attack.steps != 1:
        raise InputError(
            f"attack.steps must be 1 for {kind}, which takes a single step, got {config.attack.steps}"
        )
    if methods.get(config.method).attack is None and config.attack.kind != "none":
        raise InputError(
            f"{config.method} trains on the images as they are, got attack.kind={config.attack.kind}:"
            " take erm"
        )
    policy = methods.get(config.method).policy
    if "radius" in policy.factors and config.attack.kind == "none":
        raise InputError(
            f"{config.method} scales the attack's radius, got attack.kind=none: take pgd or trades"
        )


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


def _check_processes(config: TrainConfig) -> None:
    shards = config.shards
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


def _check_start(config: TrainConfig) -> None:
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


def _check_holdout(config: TrainConfig) -> None:
    held_out, policy = has_holdout(config.data.holdout), methods.get(config.method).policy
    if is_folder(config.data.holdout) and config.data.name != "folder":
        raise InputError(
            f"--holdout {config.data.holdout} is a folder of images, which belongs to a folder of images, got"
            f" {config.data.name}: give a share of the training images such as 0.2"
        )
    if config.data.holdout_groups is not None and data.spec(config.data.name).files is None:
        raise InputError(
            f"data.holdout_groups names groups by the names of image files, got {config.data.name}:"
            " leave it out"
        )
    if policy.needs & FROM_HOLDOUT and not held_out:
        wanted = " and ".join(need.value for need in policy.needs & FROM_HOLDOUT)
        raise InputError(
            f"{config.method} trains with {wanted}, got --holdout {config.data.holdout}: give a share of the"
            " training images such as 0.2 (the test set would leak into training)"
        )
    if config.params.get("signal") == "holdout" and not held_out:
        raise InputError(
            f"signal=holdout trains with the hold-out's errors, got --holdout {config.data.holdout}: give a"
            " share of the training images such as 0.2 (the test set would leak into training)"
        )
    if config.ema.gate and not config.ema.decay:
        raise InputError(f"ema.gate={config.ema.gate:g} is the gate of an average: give ema.decay too")
    if config.ema.gate and not held_out:
        raise InputError(
            f"ema.gate looks at the hold-out's worst class, got --holdout {config.data.holdout}: give a share"
            " of the training images such as 0.2 (the test set would leak into the average)"
        )
