"""Keeps two processes out of one run folder, and notices when the folder is taken away from a run."""

from __future__ import annotations

import contextlib
import errno
import os
from pathlib import Path

from cfol_fast.errors import InputError, TrainingFailed
from cfol_fast.runs.run_folder import CONFIG, LOCK, unusable

# What network file systems answer when a folder is to be locked: they lock only what is open for writing.
CANNOT_LOCK_FOLDERS = (errno.EBADF, errno.EINVAL, errno.EISDIR, errno.EOPNOTSUPP)


class RunLock:
    """The lock is on the folder itself, so that there is no file to leave behind or to delete; it dies with its process.

    Where folders cannot be locked, a file in it is. Folders that were made for a run that was refused go again.
    """

    def __init__(self, run: Path) -> None:
        self.run = run
        self._made: list[Path] = []
        self._handles: list[int] = []
        self._identity: tuple[int, int] | None = None

    def __enter__(self) -> RunLock:
        try:
            self._make_folders()
            while not self._lock_folder():
                # It was removed between making and locking it.
                self._make_folders()
        except InputError:
            self._leave()
            raise
        except OSError as error:
            self._leave()
            raise unusable(self.run, error) from None
        return self

    def __exit__(self, *_: object) -> None:
        self._leave()

    def check(self) -> None:
        """Fails when the folder or its configuration is gone: what is written then would be no run."""
        if _identity(self.run) != self._identity or not (self.run / CONFIG).exists():
            raise TrainingFailed(
                f"{self.run} was deleted or replaced while the run trained in it: nothing more is saved there"
            )

    def _make_folders(self) -> None:
        missing = [folder for folder in (self.run, *self.run.parents) if not folder.exists()]
        for folder in reversed(missing):
            folder.mkdir(exist_ok=True)
            self._made.append(folder)
        if not missing:
            # Says so where a file is in the way.
            self.run.mkdir(exist_ok=True)

    def _lock_folder(self) -> bool:
        """False when the folder that was locked is not the one of that name any more."""
        try:
            import fcntl
        except ModuleNotFoundError:
            # This system has no advisory locks.
            self._identity = _identity(self.run)
            return True
        locked = self.run
        handle = os.open(locked, os.O_RDONLY)
        self._handles.append(handle)
        self._identity = _identity(handle)
        try:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                if error.errno not in CANNOT_LOCK_FOLDERS:
                    raise
                locked = self.run / LOCK
                handle = os.open(locked, os.O_RDWR | os.O_CREAT, 0o644)
                self._handles.append(handle)
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise InputError(f"another process is training in {self.run}") from None
        except OSError as error:
            raise InputError(
                f"cannot lock {locked} ({error.strerror}): choose an --out on a file system with locks"
            ) from None
        if _identity(locked) == _identity(handle):
            return True
        self._close()
        return False

    def _leave(self) -> None:
        if len(self._handles) > 1 and _identity(self.run / LOCK) == _identity(self._handles[1]):
            # Whoever waits for this file finds that it is not the one of that name any more, and makes another.
            with contextlib.suppress(OSError):
                (self.run / LOCK).unlink()
        for folder in reversed(self._made):
            with contextlib.suppress(OSError):
                folder.rmdir()
        self._made.clear()
        self._close()

    def _close(self) -> None:
        for handle in self._handles:
            os.close(handle)
        self._handles.clear()


def _identity(place: Path | int) -> tuple[int, int] | None:
    try:
        found = os.stat(place)
    except FileNotFoundError:
        return None
    return found.st_dev, found.st_ino
