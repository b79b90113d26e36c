"""The run folder: the names of its files, and what may be started, continued or overwritten there.

A folder is a run's only if its config.json is a configuration of ours. Nothing here touches a file with another name than those
listed here, and a new run does not begin where anything else is.
"""

from __future__ import annotations

import os
from contextlib import suppress
from enum import Enum
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Literal

import torch

from cfol_fast import atomic
from cfol_fast.errors import InputError, one_line
from cfol_fast.models.zoo import TORCHVISION_LAYERS, name_today
from cfol_fast.runs.checkpoints import BEST, FOLDER
from cfol_fast.runs.config import TrainConfig, from_dict, to_dict
from cfol_fast.runs.identity import differences
from cfol_fast.runs.json_files import read_object
from cfol_fast.runs.metrics_log import FILE as METRICS
from cfol_fast.runs.predictions import FILE as PREDICTIONS

CONFIG, RESULT, GALLERY, TENSORBOARD, WANDB, LOCK = (
    "config.json",
    "result.json",
    "gallery.json",
    "tensorboard",
    "wandb.json",
    ".lock",
)
# What class offsets reach, where they were fitted.
OFFSETS = "offsets.json"
STAGE = "stage-[0-9]"
# Every name that a run and its evaluations use; the names in a stage's folder are those of a run.
FILES = (
    CONFIG,
    METRICS,
    RESULT,
    GALLERY,
    PREDICTIONS,
    OFFSETS,
    WANDB,
    LOCK,
    "eval.json",
    "eval-*.json",
    "eval-*.state",
)
CHECKPOINT_FILES = tuple(
    f"{name}.pt" for name in ("last", "previous", "next", *BEST, "ema-last", "ensemble", "offsets")
)
# What no other output may take the place of.
NEEDED = (CONFIG, METRICS, RESULT, GALLERY, PREDICTIONS)
EVENT_FILES = ("events.out.tfevents.*",)
# config.json has them all since version 0.1; somebody else's file of that name has not.
ALWAYS_CONFIGURED = {"method", "data", "model", "attack", "optimizer"}

Resume = bool | Literal["auto"]


class Start(Enum):
    """What a call of `train` does in a folder."""

    NEW, CONTINUE, OVERWRITE = "new", "continue", "overwrite"


def read_config(run: Path) -> TrainConfig:
    """The configuration a run folder was started with."""
    path = run / CONFIG
    if not path.exists():
        raise InputError(f"{run} is not a run folder: it has no {CONFIG}")
    tree = read_object(path)
    if missing := sorted(ALWAYS_CONFIGURED - tree.keys()):
        raise InputError(f"{path} is not the configuration of a run: it has no {missing[0]!r}")
    # A run of before there were shards took its batches whole, also where it is continued by several processes.
    tree.setdefault("shards", 1)
    try:
        config = from_dict(tree)
    except InputError as error:
        raise InputError(f"{path} is not the configuration of a run: {error}") from None
    if config.data.name == "fashion-mini":
        # A run of before took the embedded images whatever folder was given.
        config.data.root = None
    config.model.name = _model_of(run, config.model.name)
    return config


def _model_of(run: Path, name: str | None) -> str | None:
    """The model's name of today, which for some names only the weights of a run tell."""
    if name is None or name_today(name, TORCHVISION_LAYERS) == name:
        return name
    for file in sorted((*run.glob(f"{FOLDER}/*.pt"), *run.glob(f"stage-*/{FOLDER}/*.pt"))):
        # A damaged one is refused by whoever needs its numbers.
        with suppress(Exception):
            state = torch.load(file, map_location="meta", weights_only=True)
            return name_today(name, state["model"])
    return name


def is_run(folder: Path) -> bool:
    """Whether its config.json is a configuration of ours; somebody else's file of that name is not."""
    try:
        read_config(folder)
    except (InputError, OSError):
        return False
    return True


def check_output(option: str, file: Path, coming: Path | None = None) -> None:
    """Refuses to write an evaluation or an export over what a run is continued from and compared by.

    coming: the folder of a run that is about to begin.
    """
    place = file.resolve()

    def holds_run(folder: Path) -> bool:
        return (coming is not None and folder == coming.resolve()) or is_run(folder)

    in_run = place.name in NEEDED and holds_run(place.parent)
    in_checkpoints = place.name in CHECKPOINT_FILES and place.parent.name == FOLDER
    if in_run or (in_checkpoints and holds_run(place.parent.parent)):
        raise InputError(f"{option} {file} belongs to the run: choose another name")


def read_result(run: Path) -> dict[str, Any] | None:
    """result.json, or None while the run is unfinished."""
    path = run / RESULT
    return read_object(path) if path.exists() else None


def check(run: Path, config: TrainConfig, resume: Resume = False, overwrite: bool = False) -> Start:
    """What `config` does in this folder, or why it may not; changes nothing. Call it under the lock.

    resume: True continues a run and asks for one; "auto" continues a run if there is one, and starts it otherwise.
    """
    if resume and overwrite:
        raise InputError("--resume and --overwrite contradict each other")
    try:
        if resume is True or (resume and (run / CONFIG).exists()):
            if not (run / CONFIG).exists():
                raise InputError(f"{run} is not a run folder: it has no {CONFIG}; --resume=auto starts a run")
            check_same(read_config(run), config, run)
            return Start.CONTINUE
        return _check_new(run, overwrite)
    except OSError as error:
        raise unusable(run, error) from None


def _check_new(run: Path, overwrite: bool) -> Start:
    place = run.resolve()
    # Path.home() raises where a user has none, as in a container with any user's number.
    if place in (Path(os.path.expanduser("~")).resolve(), Path(place.anchor)):
        raise InputError(
            f"{place} is no place for a run: name a folder of its own, such as --out {place / 'run'}"
        )
    own, foreign = contents(run)
    # A process that was killed while it wrote the configuration of a new run leaves a part of it: no run yet.
    names = {str(path.relative_to(run)) for path in own if not _is_part_of_config(path)} - {LOCK}
    if names and CONFIG not in names:
        raise InputError(
            f"{run} is not a run folder: it holds {min(names)} and no {CONFIG}; choose another --out"
        )
    if CONFIG in names:
        # Refuses somebody else's file of that name.
        read_config(run)
    elif foreign:
        raise InputError(
            f"{run} is not a run folder: it holds {foreign[0].relative_to(run)}; choose another --out"
        )
    if overwrite:
        return Start.OVERWRITE if CONFIG in names else Start.NEW
    # A run that ended before its first step left only its configuration.
    if foreign or names - {CONFIG}:
        raise InputError(f"{run} exists: --resume continues it, --overwrite starts it afresh")
    return Start.NEW


def contents(run: Path) -> tuple[list[Path], list[Path]]:
    """The files in a run folder with the names of ours, and what else is there. A stage's files count, an empty folder does not."""
    own: list[Path] = []
    foreign: list[Path] = []
    if not run.exists():
        return own, foreign
    for entry in sorted(run.iterdir()):
        if _is_file_of(entry, FILES):
            own.append(entry)
        elif entry.is_dir() and entry.name in (FOLDER, TENSORBOARD):
            names = CHECKPOINT_FILES if entry.name == FOLDER else EVENT_FILES
            for file in sorted(entry.iterdir()):
                (own if _is_file_of(file, names) else foreign).append(file)
        elif entry.is_dir() and fnmatchcase(entry.name, STAGE):
            for known, found in zip((own, foreign), contents(entry), strict=True):
                known += found
        else:
            foreign.append(entry)
    return own, foreign


def _is_file_of(path: Path, names: tuple[str, ...]) -> bool:
    return is_own_name(path.name, names) and (path.is_file() or path.is_symlink())


def is_own_name(name: str, names: tuple[str, ...] = FILES + CHECKPOINT_FILES + EVENT_FILES) -> bool:
    """Whether a run writes a file of this name; what a killed process left of one counts."""
    patterns = (*names, *(f".{known}.{atomic.RANDOM}{atomic.SUFFIX}" for known in names))
    return any(fnmatchcase(name, pattern) for pattern in patterns)


def _is_part_of_config(path: Path) -> bool:
    return fnmatchcase(path.name, f".{CONFIG}.{atomic.RANDOM}{atomic.SUFFIX}")


def begin(run: Path, config: TrainConfig) -> None:
    """Writes the configuration: from now on the folder is this run's."""
    try:
        run.mkdir(exist_ok=True)
        atomic.write_json(run / CONFIG, to_dict(config))
    except (PermissionError, NotADirectoryError, FileExistsError) as error:
        raise unusable(run, error) from None


def check_same(stored: TrainConfig, given: TrainConfig, run: Path) -> None:
    """Refuses to continue a run with settings that make it another one."""
    changed = differences(stored, given)
    if changed:
        raise InputError(f"cannot resume {run} with a changed configuration: {', '.join(changed)}")


def unusable(run: Path, error: OSError) -> InputError:
    """Why nothing can be trained in this folder."""
    if isinstance(error, PermissionError):
        return InputError(f"cannot write to {error.filename or run}: no permission")
    if run.exists() and not run.is_dir():
        return InputError(f"{run} is a file, not a folder")
    return InputError(f"cannot create {run}: {one_line(error)}")
