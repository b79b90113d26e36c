"""Is it the same run?

One rule, for resuming a run, for the names of a recipe's runs and for a report's groups.

Two configurations are the same run when they compute the same: settings that only say where and how a run is
carried out do not count. Rounding is another matter: `machine.check_same_arithmetic` looks at it when a run
is resumed.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cfol_fast.runs.config import TrainConfig, flatten, settings, to_dict
from cfol_fast.runs.open_settings import augmentation_word

# These name a run, so they are part of its settings even at their defaults.
NAMING = ("method", "data.name", "seed")
# Defaults of the time when the runs under results/ were named, where they are others today.
HISTORIC_DEFAULTS = {
    # The number of steps was 7 unless told; now the attack knows its own.
    "attack.steps": 7,
    # Where "auto" finds no TF32 it is this, and so are the runs of version 0.1.
    "precision": "float32",
    # A whole batch at once: what every run was before there were shards.
    "shards": 1,
    # A share was held out of every data set, also where it has a folder for it.
    "data.holdout": "0.2",
    # `data.augment` was true unless told, or false.
    "data.augment": "paper",
    # The bandit knew nothing else.
    "params.baseline": "none",
    "params.feedback": "error",
    "params.signal": "training",
}


def is_incidental(key: str) -> bool:
    """True for a setting that changes where and how a run is carried out, not what it computes."""
    return key in settings() and settings()[key].incidental


def essential_settings(config: Mapping[str, Any]) -> dict[str, Any]:
    """What is computed: the settings of a config.json that are not incidental and not at the configuration's
    own default.

    Fields at their default are left out, so that a field added to the configuration later makes no other run
    of an old one.
    """
    defaults = {key: chosen.default for key, chosen in settings().items()} | HISTORIC_DEFAULTS
    found = {}
    for key, value in flatten(config).items():
        if key == "data.augment":
            word = augmentation_word(value)
            value = False if word == "none" else word
        at_default = key in defaults and defaults[key] == value and key not in NAMING
        if value is None or at_default or is_incidental(key):
            continue
        # Twelve digits: the same number written as 2/255 and as 0.25 * 8/255 is the same setting.
        found[key] = float(f"{value:.12g}") if isinstance(value, float) else value
    return found


def identity(completed: TrainConfig) -> dict[str, Any]:
    """The settings that a recipe finds a run by."""
    found = essential_settings(to_dict(completed))
    root = completed.data.root
    if completed.data.name in ("folder", "beton") and completed.data.content is None and root is not None:
        # A folder of images or of FFCV files has no name of its own but its path, unless its contents are
        # known.
        found["data.root"] = str(Path(root).expanduser().resolve())
    return found


def differences(before: TrainConfig, now: TrainConfig) -> list[str]:
    """The settings that make `now` another run than `before`, each with its two values; empty when they are
    the same run.

    A step size that is given by a word ("auto") is a number as soon as the data is there; until then it
    differs from no number.
    """
    old, new = to_dict(before), to_dict(now)
    old_settings, new_settings = essential_settings(old), essential_settings(new)
    old_values, new_values = flatten(old), flatten(new)
    return [
        f"{key} (was {old_values.get(key)!r}, now {new_values.get(key)!r})"
        for key in sorted(old_settings.keys() | new_settings.keys())
        if old_settings.get(key) != new_settings.get(key)
        and not (key == "params.eta" and isinstance(new_values.get(key), str) and key in old_settings)
    ]
