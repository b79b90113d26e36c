"""Checkpoints that survive being killed: written under a temporary name, synced, renamed; the previous one is
kept.

A checkpoint is a plain `torch.save` file whose zip comment holds a SHA-256 of everything else. The digest is
checked before torch reads a byte, so that whatever is missing or changed is recognised and the previous one
is used.
"""

from __future__ import annotations

import hashlib
import math
import os
import stat
import struct
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any, cast

import torch

from cfol_fast import atomic
from cfol_fast.errors import InputError, one_line
from cfol_fast.out_of_memory import is_out_of_memory

FOLDER = "checkpoints"
LAST, PREVIOUS, BEST_AVERAGE, BEST_WORST = "last", "previous", "best-average", "best-worst"
# What is kept of the weights' moving average has the name of what is kept of the weights, after this.
EMA = "ema-"
BEST = (BEST_AVERAGE, BEST_WORST, EMA + BEST_AVERAGE, EMA + BEST_WORST)
# The members' weights, where a run keeps them.
ENSEMBLE = "ensemble"
# The layout of what a checkpoint holds: stored in it, and checked when it is read.
FORMAT = 1

# A zip file ends with a record of 22 bytes, the last two of which are the length of the comment that follows.
# Torch leaves none.
END_MARK, END_SIZE, NO_COMMENT = b"PK\5\6", 22, b"\0\0"
COMMENT = b"cfol_fast sha256 %s"
COMMENT_SIZE = len(COMMENT % (b"0" * 64))
SEAL_SIZE = len(NO_COMMENT) + COMMENT_SIZE
BLOCK = 1 << 20


class DamagedCheckpoint(InputError):
    """The file is not a whole checkpoint."""


def write(path: Path, state: dict[str, Any]) -> None:
    """Tensors and plain values, sealed with a digest; `torch.load(..., weights_only=True)` reads the file as
    any other.
    """
    with atomic.replacing(path) as file:
        hashing = _Hashing(file)
        torch.save(state, cast(IO[bytes], hashing))
        file.write(_seal(hashing.digest.hexdigest()))


class _Hashing:
    """A file to torch, which writes it from front to end. The last bytes are held back: the seal takes their
    place, and a pipe cannot go back.
    """

    def __init__(self, file: IO[bytes]) -> None:
        self.file, self.digest, self.held = file, hashlib.sha256(), b""

    def write(self, data: Any) -> int:
        self.digest.update(data)
        written = memoryview(data).cast("B")
        if len(written) < len(NO_COMMENT):
            written = memoryview(self.held + written)
        else:
            self.file.write(self.held)
        self.file.write(written[: -len(NO_COMMENT)])
        self.held = bytes(written[-len(NO_COMMENT) :])
        return len(memoryview(data).cast("B"))

    def flush(self) -> None:
        self.file.flush()


def _seal(digest: str) -> bytes:
    return struct.pack("<H", COMMENT_SIZE) + COMMENT % digest.encode()


def read(path: Path, device: torch.device | str = "cpu") -> dict[str, Any]:
    """The checkpoint's contents; `DamagedCheckpoint` when a byte of it is missing or wrong."""
    state = read_state(path, device)
    check_contents(state, path)
    return state


def read_state(path: Path, device: torch.device | str = "cpu") -> dict[str, Any]:
    """What `write` wrote, whatever it is the state of."""
    try:
        # A pipe of that name would wait forever.
        if not stat.S_ISREG(path.stat().st_mode):
            raise DamagedCheckpoint(f"checkpoint {path} is not a file")
        with open(path, "rb") as file:
            _check_seal(file, path)
            file.seek(0)
            state = torch.load(file, map_location=device, weights_only=True)
    except (InputError, FileNotFoundError, PermissionError):
        raise
    # Torch raises all kinds of exceptions for bytes that it did not write.
    except Exception as error:
        if is_out_of_memory(error):
            raise
        reason = one_line(error)[:200]
        raise DamagedCheckpoint(f"checkpoint {path} is damaged or not a checkpoint ({reason})") from None
    if not isinstance(state, dict):
        raise DamagedCheckpoint(f"{path} holds {type(state).__name__}, not a checkpoint")
    return state


def check_own_digest(path: Path) -> None:
    """Refuses a file that ends with a digest of ours which does not fit; files of others have none."""
    with open(path, "rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - COMMENT_SIZE))
        if file.read().startswith(COMMENT % b""):
            _check_seal(file, path)


def _check_seal(file: IO[bytes], path: Path) -> None:
    size = file.seek(0, os.SEEK_END)
    file.seek(max(0, size - END_SIZE))
    end = file.read()
    if end.startswith(END_MARK) and end.endswith(NO_COMMENT) and len(end) == END_SIZE:
        raise InputError(
            f"{path} has no digest: it is of version 0.1, which is no longer read, or no checkpoint of"
            " cfol_fast. Train again, or give plain weights ({name: tensor}) to eval or --init."
        )
    if size < SEAL_SIZE:
        raise DamagedCheckpoint(f"checkpoint {path} is damaged or not a checkpoint ({size} bytes)")
    digest, left = hashlib.sha256(), size - SEAL_SIZE
    file.seek(0)
    while left:
        block = file.read(min(left, BLOCK))
        if not block:
            raise DamagedCheckpoint(f"checkpoint {path} is damaged (it became shorter while it was read)")
        digest.update(block)
        left -= len(block)
    # The digest is of the file as torch wrote it.
    digest.update(NO_COMMENT)
    if file.read() != _seal(digest.hexdigest()):
        raise DamagedCheckpoint(f"checkpoint {path} is damaged or not a checkpoint (its digest does not fit)")


def check_contents(state: dict[str, Any], path: Path) -> None:
    """Refuses what another version wrote, and a position that no run can have: its names become the names of
    files.
    """
    if "format" not in state:
        raise InputError(f"{path} is not a checkpoint of cfol_fast (it says no format)")
    found = state["format"]
    if type(found) is not int or found != FORMAT:
        raise InputError(f"{path} has the format {found!r}, this version of cfol_fast reads {FORMAT}")
    position = state.get("position")
    if position is None:
        return
    if not _is_count(state.get("metrics_size", 0)):
        raise InputError(
            f"{path}: the size of the metrics must be a number of bytes, got {state['metrics_size']!r:.50}"
        )
    best = position.get("best") if isinstance(position, dict) else None
    if not isinstance(best, dict) or not all(_is_count(position.get(key)) for key in ("epoch", "step")):
        raise InputError(f"{path}: its position in the run is not one: {repr(position)[:100]}")
    for name, kept in best.items():
        if name not in BEST:
            raise InputError(f"{path}: {name!r} is no checkpoint of a run, only {', '.join(BEST)}")
        kept = kept if isinstance(kept, dict) else {}
        then = kept.get("then", [])
        figures = [kept.get("value"), *(then if isinstance(then, list) else [None])]
        if not _is_count(kept.get("epoch")) or not all(map(_is_finite, figures)):
            raise InputError(f"{path}: {name} has no epoch and value: {repr(kept)[:100]}")


def _is_finite(value: Any) -> bool:
    return isinstance(value, float | int) and math.isfinite(value)


def _is_count(value: Any) -> bool:
    return type(value) is int and 0 <= value < 2**63


class CheckpointStore:
    """The checkpoints of one run folder. writes: False where another rank writes them."""

    def __init__(self, run: Path, writes: bool = True) -> None:
        self.folder, self.writes = run / FOLDER, writes
        self.last_is_damaged = False

    def path(self, name: str) -> Path:
        return self.folder / f"{name}.pt"

    def save_last(self, state: dict[str, Any]) -> Path:
        """Writes `last` and keeps the one before as `previous`: at every moment one of the two is whole."""
        if not self.writes:
            return self.path(LAST)
        self.folder.mkdir(exist_ok=True)
        fresh, last = self.path("next"), self.path(LAST)
        write(fresh, state)
        if last.exists() and not self.last_is_damaged:
            os.replace(last, self.path(PREVIOUS))
        os.replace(fresh, last)
        self.last_is_damaged = False
        atomic.sync_folder(self.folder)
        return last

    def save_best(self, name: str, state: dict[str, Any]) -> Path:
        if not self.writes:
            return self.path(name)
        self.folder.mkdir(exist_ok=True)
        write(self.path(name), state)
        return self.path(name)

    def newest(
        self,
        device: torch.device | str = "cpu",
        misfit: Callable[[dict[str, Any]], str | None] = lambda state: None,
    ) -> tuple[dict[str, Any], str, str | None] | None:
        """The newest whole checkpoint as (state, its name, what was wrong with a newer one); None if there is
        none.

        misfit: what of the run's other files a checkpoint does not fit, such as metrics that lost rows.
        Where none is whole and fits, that is an error: starting afresh without a word would throw the run
        away.
        """
        problem: str | None = None
        for name in (LAST, PREVIOUS):
            if not self.path(name).exists():
                continue
            try:
                state = read(self.path(name), device)
                reason = misfit(state)
            except DamagedCheckpoint as error:
                reason = str(error)
            if reason is None:
                return state, name, problem
            problem = problem or reason
            self.last_is_damaged = True
        if problem is not None:
            raise InputError(
                f"{problem}, and there is no whole checkpoint that fits before it; --overwrite starts afresh"
            )
        return None

    def sweep(self) -> None:
        """Removes what a killed process was in the middle of writing."""
        self.path("next").unlink(missing_ok=True)
        for name in ("next", *BEST, EMA + LAST, ENSEMBLE):
            atomic.sweep(self.path(name))
