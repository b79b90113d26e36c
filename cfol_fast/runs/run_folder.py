"""The run folder: what may be started, continued or overwritten there, and where its files are."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

from cfol_fast import atomic
from cfol_fast.errors import InputError
from cfol_fast.runs.checkpoints import FOLDER
from cfol_fast.runs.config import TrainConfig, from_dict, to_dict
from cfol_fast.runs.identity import differences
from cfol_fast.runs.json_files import read_object
from cfol_fast.runs.metrics_log import FILE as METRICS

CONFIG, RESULT, GALLERY, STAGE = "config.json", "result.json", "gallery.json", "stage-1"


def read_config(run: Path) -> TrainConfig:
    """The configuration a run folder was started with."""
    if not (run / CONFIG).exists():
        raise InputError(f"{run} is not a run folder: it has no {CONFIG}")
    return from_dict(read_object(run / CONFIG))


def read_result(run: Path) -> dict[str, Any] | None:
    """result.json, or None while the run is unfinished."""
    path = run / RESULT
    return read_object(path) if path.exists() else None


def prepare(run: Path, config: TrainConfig, resume: bool, overwrite: bool) -> None:
    """Makes the folder ready for `config`, or refuses; afterwards config.json is there and fits. Call it under the lock."""
    try:
        run.mkdir(parents=True, exist_ok=True)
        if overwrite and not _untouched(run):
            clear(run)
        elif resume and (run / CONFIG).exists():
            check_same(read_config(run), config, run)
            return
        elif not _untouched(run):
            raise InputError(f"{run} exists: --resume continues it, --overwrite starts it afresh")
        atomic.write_json(run / CONFIG, to_dict(config))
    except OSError as error:
        raise _unusable(run, error) from None


def clear(run: Path) -> None:
    """Removes the run's own files and nothing else; a folder that is no run folder is refused."""
    if not (run / CONFIG).exists():
        raise InputError(
            f"{run} is not a run folder (no {CONFIG}): it is not overwritten; choose another --out"
        )
    for name in (RESULT, GALLERY, METRICS):
        (run / name).unlink(missing_ok=True)
    for name in (FOLDER, STAGE):
        shutil.rmtree(run / name, ignore_errors=True)
    (run / CONFIG).unlink(missing_ok=True)


def check_same(stored: TrainConfig, given: TrainConfig, run: Path) -> None:
    """Refuses to continue a run with settings that make it another one."""
    changed = differences(stored, given)
    if changed:
        raise InputError(f"cannot resume {run} with a changed configuration: {', '.join(changed)}")


def _untouched(run: Path) -> bool:
    """True when nothing was trained here: the folder is new, or its run ended before the first step, for example on bad data."""
    return all(entry.name.startswith(".") or entry.name == CONFIG for entry in run.iterdir())


def _unusable(run: Path, error: OSError) -> InputError:
    if isinstance(error, PermissionError):
        return InputError(f"cannot write to {error.filename or run}: no permission")
    if run.exists() and not run.is_dir():
        return InputError(f"{run} is a file, not a folder")
    return InputError(f"cannot create {run}: {error.strerror or error}")


class RunLock:
    """Keeps two processes out of one run folder. The lock dies with its process, also with kill -9."""

    def __init__(self, run: Path) -> None:
        self.run = run
        self._handle: int | None = None

    def __enter__(self) -> RunLock:
        try:
            import fcntl
        except ModuleNotFoundError:
            # This system has no advisory locks.
            return self
        try:
            self.run.mkdir(parents=True, exist_ok=True)
            self._handle = os.open(self.run / ".lock", os.O_RDWR | os.O_CREAT, 0o644)
        except OSError as error:
            raise _unusable(self.run, error) from None
        try:
            fcntl.flock(self._handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(self._handle)
            self._handle = None
            raise InputError(f"another process is training in {self.run}") from None
        return self

    def __exit__(self, *_: object) -> None:
        if self._handle is not None:
            os.close(self._handle)
            self._handle = None
