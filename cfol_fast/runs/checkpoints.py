"""Checkpoints that survive being killed: written under a temporary name, synced, renamed; the previous one is kept.

A checkpoint is a plain `torch.save` file. Its zip container has a checksum for every record, which is verified before
anything is read, so that a truncated or damaged file is recognised and the previous one is used.
"""

from __future__ import annotations

import os
import pickle
import zipfile
from pathlib import Path
from typing import Any

import torch

from cfol_fast import atomic
from cfol_fast.errors import InputError

FOLDER = "checkpoints"
LAST, PREVIOUS, BEST_AVERAGE, BEST_WORST = "last", "previous", "best-average", "best-worst"
# The members' weights, where a run keeps them.
ENSEMBLE = "ensemble"


class DamagedCheckpoint(InputError):
    """The file is not a whole checkpoint."""


def read(path: Path, device: torch.device | str = "cpu") -> dict[str, Any]:
    """The checkpoint's contents; `DamagedCheckpoint` when a byte of it is missing or wrong."""
    try:
        with zipfile.ZipFile(path) as container:
            broken = container.testzip()
        if broken is not None:
            raise DamagedCheckpoint(f"checkpoint {path} is damaged (record {broken})")
        state = torch.load(path, map_location=device, weights_only=True)
    except (zipfile.BadZipFile, EOFError, NotImplementedError, RuntimeError, pickle.UnpicklingError) as error:
        raise DamagedCheckpoint(f"checkpoint {path} is damaged or not a checkpoint ({error})") from None
    if not isinstance(state, dict):
        raise DamagedCheckpoint(f"{path} holds {type(state).__name__}, not a checkpoint")
    return state


class CheckpointStore:
    """The checkpoints of one run folder."""

    def __init__(self, run: Path) -> None:
        self.folder = run / FOLDER

    def path(self, name: str) -> Path:
        return self.folder / f"{name}.pt"

    def save_last(self, state: dict[str, Any]) -> Path:
        """Writes `last` and keeps the one before as `previous`: at every moment one of the two is whole."""
        self.folder.mkdir(parents=True, exist_ok=True)
        fresh, last = self.path("next"), self.path(LAST)
        atomic.save_torch(fresh, state)
        if last.exists():
            os.replace(last, self.path(PREVIOUS))
        os.replace(fresh, last)
        atomic.sync_folder(self.folder)
        return last

    def save_best(self, name: str, state: dict[str, Any]) -> Path:
        self.folder.mkdir(parents=True, exist_ok=True)
        atomic.save_torch(self.path(name), state)
        return self.path(name)

    def newest(self, device: torch.device | str = "cpu") -> tuple[dict[str, Any], str, str | None] | None:
        """The newest whole checkpoint as (state, its name, what was wrong with a newer one); None if there is none.

        Files that are all damaged are an error: starting afresh without a word would throw the run away.
        """
        problem: str | None = None
        for name in (LAST, PREVIOUS):
            if not self.path(name).exists():
                continue
            try:
                return read(self.path(name), device), name, problem
            except DamagedCheckpoint as error:
                problem = str(error)
        if problem is not None:
            raise InputError(
                f"{problem}, and there is no whole checkpoint before it; --overwrite starts afresh"
            )
        return None

    def sweep(self) -> None:
        """Removes what a killed process was in the middle of writing."""
        for left in (*self.folder.glob(".*.tmp"), self.path("next")):
            left.unlink(missing_ok=True)
