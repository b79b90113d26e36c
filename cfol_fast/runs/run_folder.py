"""The run folder: the names of its files, and what may be started, continued or set aside there.

A folder is a run's only if its config.json is a configuration of ours. A new run does not begin where
anything else is, and an old
run is never deleted: `--overwrite` renames it to RUN.old-1, RUN.old-2, ...
"""

from __future__ import annotations

import itertools
import os
import re
import shlex
from enum import Enum
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Literal

from cfol_fast import atomic
from cfol_fast.errors import InputError, one_line
from cfol_fast.runs.checkpoints import BEST, FOLDER
from cfol_fast.runs.config import TrainConfig, to_dict
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
# The checkpoints that no other output may take the place of, and the files.
CHECKPOINT_FILES = tuple(
    f"{name}.pt" for name in ("last", "previous", "next", *BEST, "ema-last", "ensemble", "offsets")
)
NEEDED = (CONFIG, METRICS, RESULT, GALLERY, PREDICTIONS)
# What --overwrite appends to the name of the folder.
OLD = ".old-"
# config.json has them all since version 0.1; somebody else's file of that name has not.
ALWAYS_CONFIGURED = {"method", "data", "model", "attack", "optimizer"}

Resume = bool | Literal["auto"]


class Start(Enum):
    """What a call of `train` does in a folder."""

    NEW, CONTINUE, OVERWRITE = "new", "continue", "overwrite"


# Settings of `data` in the runs of version 0.2, and what they were unless somebody asked for FFCV's own way.
GONE = {"source": "resident", "beton": None}


def read_config(run: Path) -> TrainConfig:
    """The configuration a run folder was started with."""
    path = run / CONFIG
    if not path.exists():
        raise InputError(f"{run} is not a run folder: it has no {CONFIG}")
    tree = read_object(path)
    if missing := sorted(ALWAYS_CONFIGURED - tree.keys()):
        raise InputError(f"{path} is not the configuration of a run: it has no {missing[0]!r}")
    if "shards" not in tree and ALWAYS_CONFIGURED | {"ensemble"} <= tree.keys():
        raise InputError(
            f"{path} is the configuration of a run of version 0.1, which is no longer read: train it again"
        )
    data = tree.get("data")
    for key, usual in GONE.items():
        # Of today's runs "source" is a setting again.
        if isinstance(data, dict) and key in data and "decode" not in data:
            if data[key] != usual:
                raise InputError(
                    f"{path} has data.{key}={data[key]!r}, a setting of version 0.2 that is gone: start a new"
                    " run, with --init its weights"
                )
            del data[key]
    try:
        return TrainConfig.recorded(tree)
    except InputError as error:
        raise InputError(f"{path} is not the configuration of a run: {error}") from None


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

    resume: True continues a run and asks for one; "auto" continues a run if there is one, and starts it
    otherwise.
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
    names = holds(run)
    if CONFIG in names:
        # Refuses somebody else's file of that name.
        read_config(run)
    elif names:
        raise InputError(
            f"{run} is not a run folder: it holds {names[0]} and no {CONFIG}; choose another --out"
        )
    if overwrite and names:
        check_can_be_set_aside(run)
        return Start.OVERWRITE
    # A run that ended before its first step left only its configuration.
    if names not in ([], [CONFIG]):
        raise InputError(f"{run} exists: --resume continues it, --overwrite renames it and starts afresh")
    return Start.NEW


def holds(folder: Path) -> list[str]:
    """What is in the folder, sorted.

    An empty folder does not count, nor what a start that was killed leaves: it is no run yet.
    """
    if not folder.exists():
        return []
    found = []
    for entry in sorted(folder.iterdir()):
        left = entry.name == LOCK or fnmatchcase(entry.name, atomic.draft_name(CONFIG))
        if not left and not (entry.is_dir() and not any(entry.iterdir())):
            found.append(entry.name)
    return found


def check_can_be_set_aside(run: Path) -> None:
    """Refuses what cannot be renamed, with the command that does the same."""
    place, real = Path(os.path.abspath(run)), run.resolve()
    old = shlex.quote(str(free_old_name(real)))
    inside = shlex.quote(str(real))
    if os.path.ismount(real):
        kind, command = "mount point", f"cp -a {inside} {old} && find {inside} -mindepth 1 -delete"
    elif place.is_symlink():
        kind, command = "link", f"mv {inside} {old} && mkdir {inside}"
    elif not os.access(real.parent, os.W_OK):
        kind, command = (
            f"folder of {real.parent}, where you may not write",
            f"cp -a {inside} ELSEWHERE && find {inside} -mindepth 1 -delete",
        )
    elif Path.cwd().is_relative_to(real):
        kind, command = "current folder", f"cd {shlex.quote(str(real.parent))}"
    else:
        return
    raise InputError(f"{run} is a {kind}, which --overwrite does not rename. Type: {command}")


def free_old_name(run: Path) -> Path:
    """RUN.old-1, or the first such name that is free."""
    place = Path(os.path.abspath(run))
    numbers = itertools.count(1)
    return next(old for n in numbers if not os.path.lexists(old := place.with_name(f"{place.name}{OLD}{n}")))


def is_old(path: Path) -> bool:
    """Whether the folder, or one above it in the path, was set aside by --overwrite.

    Collectors pass over it unless it is named.
    """
    return any(re.fullmatch(rf".+{re.escape(OLD)}\d+", place.name) for place in (path, *path.parents))


def size_in_words(folder: Path) -> str:
    """How much the files of a folder take, for a person who may want to delete it."""
    size = sum(path.lstat().st_size for path in folder.rglob("*") if path.is_file() and not path.is_symlink())
    return f"{size / 2**20:,.1f} MiB"


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
