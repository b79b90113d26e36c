"""Writing files so that nobody sees half of one: beside the old file, under a name of its own, synced, then
renamed into its place.

Every file that a command writes goes through `replacing`. What a killed process leaves (`.NAME.????????.tmp`)
the next writer of the same file removes.
"""

from __future__ import annotations

import contextlib
import errno
import glob
import io
import json
import os
import shutil
import stat
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

DISK_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
# What tempfile puts between the file's name and the suffix.
RANDOM = "?" * 8
SUFFIX = ".tmp"


@contextlib.contextmanager
def replacing(path: str | os.PathLike[str]) -> Iterator[IO[bytes]]:
    """A binary file that takes the place of `path` when the block ends, and vanishes when the block fails.

    A symlink stays, and what it points to is replaced. A device or a pipe is no file to replace: it is
    written to directly. A file that is replaced passes its mode on.
    """
    with told_in_full(path):
        if is_special(path):
            with io.BufferedWriter(_Raw(path, "ab")) as out, _reason_of(out.raw):
                yield out
            return
        target = Path(os.path.realpath(path))
        with _draft(target, target.parent) as draft:
            yield draft.file
            draft.complete()
            draft.take_place()
        sync_folder(target.parent)


@contextlib.contextmanager
def replacing_together(folder: Path, names: Sequence[str]) -> Iterator[list[IO[bytes]]]:
    """Files of one folder that take their places in this order, after the last of them is whole; all vanish
    when the block fails.

    A folder that is not there is made at the end, in a folder that is.
    """
    folder = Path(os.path.realpath(folder))
    beside = folder if folder.is_dir() else folder.parent
    with contextlib.ExitStack() as stack:
        targets = [Path(os.path.realpath(folder / name)) for name in names]
        # A link may lead to another disk.
        drafts = [
            stack.enter_context(_draft(target, beside if target.parent == folder else target.parent))
            for target in targets
        ]
        yield [draft.file for draft in drafts]
        made = not folder.is_dir()
        folder.mkdir(exist_ok=True)
        try:
            for draft in drafts:
                draft.complete()
            for draft in drafts:
                draft.take_place()
        except BaseException:
            if made:
                with contextlib.suppress(OSError):
                    folder.rmdir()
            raise
    sync_folder(folder)


@dataclass
class _Draft:
    """A file that is to become `target`. name: where it is now; None once it is in its place."""

    target: Path
    file: IO[bytes]
    name: str | None

    def complete(self) -> None:
        """On the disk, with the mode of the file that it replaces."""
        assert self.name is not None
        self.file.flush()
        os.fsync(self.file.fileno())
        with contextlib.suppress(OSError):
            os.chmod(self.name, stat.S_IMODE(os.stat(self.target).st_mode))

    def take_place(self) -> None:
        """While it is open it is locked, and another writer does not take it for left behind."""
        assert self.name is not None
        os.replace(self.name, self.target)
        self.name = None


@contextlib.contextmanager
def _draft(target: Path, folder: Path) -> Iterator[_Draft]:
    sweep(folder / target.name)
    handle, name = _new_file(folder / target.name)
    with io.BufferedRandom(_Raw(handle, "r+b")) as file, _reason_of(file.raw):
        draft = _Draft(target, file, name)
        try:
            yield draft
        finally:
            if draft.name is not None:
                with contextlib.suppress(OSError):
                    os.unlink(draft.name)


class _Raw(io.FileIO):
    """A file that remembers why writing failed: torch.save does not pass it on, its own words are "unexpected
    pos".
    """

    error: BaseException | None = None

    def write(self, data: Any) -> int:
        try:
            return super().write(data)
        # Ctrl-C as well.
        except BaseException as error:
            self.error = error
            raise


@contextlib.contextmanager
def _reason_of(raw: io.RawIOBase) -> Iterator[None]:
    try:
        yield
    except RuntimeError:
        if isinstance(raw, _Raw) and raw.error is not None:
            raise raw.error from None
        raise


def is_special(path: str | os.PathLike[str]) -> bool:
    """Whether there is something at `path` that cannot be replaced by a file: a device, a pipe, a stream that
    is open.
    """
    try:
        mode = os.stat(path).st_mode
    except (FileNotFoundError, NotADirectoryError):
        return False
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    return not stat.S_ISREG(mode) or os.path.abspath(path).startswith(("/dev/fd/", "/dev/std", "/proc/"))


def _new_file(target: Path) -> tuple[int, str]:
    """A file beside the target, and its name."""
    handle, name = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.", suffix=SUFFIX)
    _lock(handle)
    # mkstemp makes private files; a result should be as readable as any file that the user writes.
    umask = os.umask(0)
    os.umask(umask)
    os.chmod(name, 0o666 & ~umask)
    return handle, name


def draft_name(name: str) -> str:
    """The pattern of the names that the drafts of a file have."""
    return f".{glob.escape(name)}.{RANDOM}{SUFFIX}"


def sweep(target: Path) -> None:
    """Removes what killed processes left of writing `target`.

    What somebody is writing now is locked, and stays.
    """
    for left in target.parent.glob(draft_name(target.name)):
        with contextlib.suppress(OSError), open(left, "rb") as file:
            if _lock(file.fileno()):
                left.unlink()


def _lock(handle: int) -> bool:
    """Whether this process has the file for itself now."""
    try:
        import fcntl

        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (ModuleNotFoundError, OSError):
        return False
    return True


@contextlib.contextmanager
def told_in_full(path: str | os.PathLike[str]) -> Iterator[None]:
    """What the operating system refuses inside names the file, and a full disk says how much is free."""
    try:
        yield
    except OSError as error:
        if error.errno in DISK_FULL:
            free = shutil.disk_usage(Path(os.path.realpath(path)).parent).free / 2**20
            reason = f"{os.strerror(error.errno)}, {free:,.1f} MiB are free"
            raise OSError(error.errno, reason, str(path)) from error
        if error.errno is not None and error.filename is None:
            raise OSError(error.errno, error.strerror, str(path)) from error
        raise


def sync_folder(folder: Path) -> None:
    """Makes the renames in a folder survive a power cut too, on the file systems that offer this."""
    with contextlib.suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def write_bytes(path: str | os.PathLike[str], data: bytes) -> None:
    with replacing(path) as file:
        file.write(data)


def in_utf8(text: str) -> bytes:
    """The text's bytes. Names of files that are not UTF-8 are shown with escapes."""
    return text.encode("utf-8", "backslashreplace")


def write_text(path: str | os.PathLike[str], text: str) -> None:
    write_bytes(path, in_utf8(text))


def write_json(path: str | os.PathLike[str], obj: Any) -> None:
    """JSON with a final newline; NaN is refused, because most readers of JSON would refuse it."""
    write_text(path, json.dumps(obj, indent=2, allow_nan=False) + "\n")
