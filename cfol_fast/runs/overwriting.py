"""`--overwrite`: the old run is set aside, the new one is written, and only when that stands the old one is removed.

A file is set aside under another name in its own folder, so that a checkpoints folder that is a link to another disk is no
special case. config.json goes last and comes back last. So a killed process leaves one of these, which `settle` tells apart:
config.json was not set aside yet, or is coming back: the old run comes back. The new run has a configuration but no checkpoint: it
goes and the old run comes back. The new run has both: what is left of the old run goes.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from cfol_fast.runs.checkpoints import FOLDER
from cfol_fast.runs.run_folder import CONFIG, LOCK, STAGE, TENSORBOARD, contents, is_own_name
from cfol_fast.runs.run_lock import RunLock

ASIDE = ".replaced-"


@contextlib.contextmanager
def overwritten(run: Path) -> Iterator[None]:
    """The old run is out of the way inside; it comes back when the block fails, and goes when the new run stands at its end."""
    try:
        for path in _own_files(run):
            os.replace(path, _aside(path))
        yield
    finally:
        settle(run)


def recover(run: Path) -> None:
    """Settles an overwriting that was killed, for a reader that comes before the run's own start."""
    if run.is_dir() and _set_aside(run):
        with RunLock(run):
            settle(run)


def settle(run: Path) -> None:
    """Ends an overwriting, whole or killed at any moment, with the old run or the new one. Call it under the lock."""
    old = _set_aside(run)
    if not old:
        return
    if _aside(run / CONFIG) in old and (run / CONFIG).exists():
        if _stands(run):
            for path in old:
                path.unlink(missing_ok=True)
            _remove_empty_folders(run)
            return
        for path in _own_files(run):
            path.unlink(missing_ok=True)
    for path in old:
        os.replace(path, path.with_name(path.name.removeprefix(ASIDE)))


def _aside(path: Path) -> Path:
    return path.with_name(ASIDE + path.name)


def _folders(run: Path) -> list[Path]:
    """Every folder in which a run has files, the run's own last."""
    runs = [*sorted(run.glob(STAGE)), run]
    found = [place / name for place in runs for name in (FOLDER, TENSORBOARD)]
    return [folder for folder in (*found, *runs) if folder.is_dir()]


def _own_files(run: Path) -> list[Path]:
    own = [path for path in contents(run)[0] if path != run / LOCK]
    return sorted(own, key=lambda path: path == run / CONFIG)


def _set_aside(run: Path) -> list[Path]:
    found = [path for folder in _folders(run) for path in folder.glob(f"{ASIDE}*")]
    found = [path for path in found if is_own_name(path.name.removeprefix(ASIDE))]
    return sorted(found, key=lambda path: path == _aside(run / CONFIG))


def _stands(run: Path) -> bool:
    """Whether the new run can be continued: it has a checkpoint."""
    places = [*run.glob(STAGE), run]
    return any((place / FOLDER / f"{name}.pt").exists() for place in places for name in ("last", "previous"))


def _remove_empty_folders(run: Path) -> None:
    for folder in _folders(run):
        if folder != run and not folder.is_symlink():
            with contextlib.suppress(OSError):
                folder.rmdir()
