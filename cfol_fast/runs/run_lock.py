"""Keeps two processes out of one run folder, sets an old run aside, and notices when the folder is taken away
from a run.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import shutil
import time
from pathlib import Path

import filelock

from cfol_fast.errors import InputError, TrainingFailed
from cfol_fast.runs.run_folder import CONFIG, LOCK, check_can_be_set_aside, free_old_name, unusable

# How often a folder is made and locked that another process, which was refused, removes again.
ATTEMPTS, PAUSE = 20, 0.01


class RunLock:
    """The lock is the system's own on RUN/.lock, so that it ends with its process; the file itself says
    nothing, and stays.

    Folders that were made for a run that was refused go again.
    """

    def __init__(self, run: Path) -> None:
        self.run = run
        self._made: list[Path] = []
        self._lock: filelock.BaseFileLock | None = None
        self._identity: tuple[int, int] | None = None

    def __enter__(self) -> RunLock:
        try:
            self._take()
        except OSError as error:
            self._leave()
            raise unusable(self.run, error) from None
        except BaseException:
            self._leave()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._leave()

    def check(self) -> None:
        """Fails when the folder or its configuration is gone: what is written then would be no run."""
        if _identity(self.run) != self._identity or not (self.run / CONFIG).exists():
            raise TrainingFailed(
                f"{self.run} was deleted or replaced while the run trained in it: nothing more is saved there"
            )

    def set_aside(self) -> Path:
        """Renames the run that is in the folder, and begins an empty folder in its place.

        Returns the old run's new name.
        """
        check_can_be_set_aside(self.run)
        aside, old = free_old_name(self.run), self._lock
        try:
            os.rename(self.run, aside)
        except OSError as error:
            command = f"mv {shlex.quote(str(self.run))} {shlex.quote(str(aside))}"
            raise InputError(
                f"cannot rename {self.run} to {aside} ({error.strerror}). Type: {command}"
            ) from None
        self._lock = None
        try:
            # Exclusive: whoever made a folder here in the meantime has it.
            self.run.mkdir()
            self._take()
        except (InputError, OSError):
            self._lock = old
            raise InputError(
                f"another process is training in {self.run}; the run that was there is {aside} now"
            ) from None
        if old is not None:
            old.release()
        return aside

    def put_back(self, aside: Path) -> None:
        """Undoes `set_aside` for a run that could not begin. Only what this process wrote is removed."""
        with contextlib.suppress(OSError):
            if _identity(self.run) == self._identity:
                shutil.rmtree(self.run)
                os.rename(aside, self.run)
                self._identity = _identity(self.run)

    def _take(self) -> None:
        for _ in range(ATTEMPTS):
            # A process that was refused may remove the folders that it made while we are between these lines.
            with contextlib.suppress(FileNotFoundError):
                self._make_folders()
                self._identity = _identity(self.run)
                if self._lock_file() and _identity(self.run) == self._identity:
                    return
            self._release()
            time.sleep(PAUSE)
        raise InputError(f"{self.run} is removed again and again by another process; choose another --out")

    def _make_folders(self) -> None:
        missing = [folder for folder in (self.run, *self.run.parents) if not folder.exists()]
        for folder in reversed(missing):
            # Two processes may find that it is missing; the one that makes it is the one that may remove it.
            with contextlib.suppress(FileExistsError):
                folder.mkdir()
                self._made.append(folder)
        # Says so where a file is in the way.
        self.run.mkdir(exist_ok=True)

    def _lock_file(self) -> bool:
        """False when the file was removed before it was locked."""
        file = self.run / LOCK
        self._lock = filelock.FileLock(file, thread_local=False)
        try:
            self._lock.acquire(blocking=False)
        except filelock.Timeout:
            if file.exists():
                raise InputError(f"another process is training in {self.run}") from None
            return False
        except (FileNotFoundError, PermissionError):
            raise
        except (OSError, NotImplementedError) as error:
            reason = getattr(error, "strerror", None) or "it has no locks"
            raise self._no_locks(reason) from None
        if isinstance(self._lock, filelock.SoftFileLock):
            # Its file would outlive a process that is killed, and keep the run locked for good.
            self._release()
            raise self._no_locks("it has no locks")
        return True

    def _no_locks(self, reason: str) -> InputError:
        return InputError(
            f"cannot lock {self.run / LOCK} ({reason}): on this file system two processes could train in one"
            " run. Choose an --out on a file system with locks"
        )

    def _leave(self) -> None:
        if (
            self._lock is not None
            and self._lock.is_locked
            and self._made
            and not (self.run / CONFIG).exists()
        ):
            # While it is locked: whoever waits for this file finds that it is no longer the one of that name.
            with contextlib.suppress(OSError):
                (self.run / LOCK).unlink()
        for folder in reversed(self._made):
            with contextlib.suppress(OSError):
                folder.rmdir()
        self._made.clear()
        self._release()

    def _release(self) -> None:
        if self._lock is not None:
            self._lock.release()
        self._lock = None


def _identity(place: Path) -> tuple[int, int] | None:
    try:
        found = os.stat(place)
    except FileNotFoundError:
        return None
    return found.st_dev, found.st_ino
