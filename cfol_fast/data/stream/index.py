"""The files of a part with their labels, sizes and times, kept beside the data, so that a million of them are
listed in seconds.

The kept list is used again only when every folder that was looked into has the inode and the times that it
had: a file that came, went or was renamed changes its folder. A file that was written anew in its place does
not, so each file is compared with the list whenever it is read (`Index.read`).
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import stat
import time
import zipfile
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from cfol_fast import atomic
from cfol_fast.data.file_states import TICK, decoders
from cfol_fast.data.image_sizes import size_in_headers
from cfol_fast.data.listing import Listing, shown
from cfol_fast.errors import DataLost, one_line

FORMAT = 1
# Fewer files are listed in a second. Some file systems keep no times of folders, and there the list would not
# be made anew: so it is kept only where that saves minutes.
KEPT_FROM = 100_000
# What numpy and zipfile raise for a file that is not what was written.
DAMAGED = (OSError, ValueError, KeyError, TypeError, EOFError, RecursionError, zipfile.BadZipFile)


@dataclass(frozen=True)
class Index:
    """listing: the files; its `sizes` are their bytes. stamps: int64 (n, 3), inode, size and time of each
    file; -1 where a link leads nowhere. cache: the folder where what is known of the files is kept; None:
    nowhere.
    """

    listing: Listing
    stamps: np.ndarray
    cache: Path | None = None
    _known: dict[str, Any] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.stamps)

    @cached_property
    def digest(self) -> str:
        """Changes with any name, label, inode, size or time of the files."""
        whole = hashlib.sha256(json.dumps([FORMAT, self.listing.classes]).encode())
        whole.update("\0".join(self.listing.paths).encode(errors="surrogateescape"))
        whole.update(np.array(self.listing.labels, "<i8").tobytes())
        whole.update(np.ascontiguousarray(self.stamps, "<i8").tobytes())
        return whole.hexdigest()

    def read(self, row: int) -> bytearray:
        """The bytes of a file; raises OSError where it is not the file that was listed."""
        # Nobody may ever write to a pipe: opened so, it is not waited for.
        flags = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC
        path = os.path.join(self.listing.root, self.listing.paths[row])
        with open(os.open(path, flags), "rb") as file:
            status = os.fstat(file.fileno())
            if not stat.S_ISREG(status.st_mode):
                raise OSError("it is not a file")
            if not np.array_equal(self.stamps[row], _stamp(status)):
                self.forget()
                raise OSError("it has changed since the files were listed")
            data = bytearray(status.st_size)
            if file.readinto(data) != len(data):
                raise OSError("it ends before its size")
        if not data:
            raise OSError("the file is empty")
        return data

    def named(self, row: int) -> str:
        return shown(str(self.listing.root / self.listing.paths[row]))

    def remembered(self, what: str, compute: Callable[[], np.ndarray], *of: Any) -> np.ndarray:
        """`compute()`, an int64 or uint64 array, kept with the list for as long as the files, the decoders
        and `of` are the same.
        """
        key = hashlib.sha256(json.dumps([self.digest, decoders(), *of]).encode()).hexdigest()
        if self.cache is None:
            return compute()
        path = self.cache / f"{self.listing.split}-{what}.npz"
        with contextlib.suppress(*DAMAGED), np.load(path, allow_pickle=False) as kept:
            if str(kept["key"]) == key:
                return kept["found"]
        found = compute()
        _save(path, key=np.array(key), found=found)
        return found

    def forget(self) -> None:
        """The list is made anew next time."""
        if self.cache is not None:
            with contextlib.suppress(OSError):
                _list_file(self.cache, self.listing.split).unlink()


def index_of(listing: Listing, cache: Path | None = None) -> Index:
    """Looks at every file of the list."""
    stamps = np.empty((len(listing), 3), np.int64)
    root = os.path.join(listing.root, "")
    for row, path in enumerate(listing.paths):
        try:
            stamps[row] = _stamp(os.stat(root + path))
        except PermissionError:
            raise
        # A link to nothing or to itself; whether that is an error is decided when it is to be read.
        except OSError:
            stamps[row] = -1
    return Index(replace(listing, sizes=stamps[:, 1]), stamps, cache)


def kept_index(
    root: Path, split: str, cache: Path | None, list_files: Callable[[Path, str], Listing]
) -> Index:
    """The list that was kept in `cache`, or a new one by `list_files`."""
    found = None if cache is None else _load(root, split, cache)
    if found is not None:
        return found
    start = time.time_ns()
    index = index_of(list_files(root, split), cache)
    if cache is None or len(index) < KEPT_FROM:
        return index
    folders = _folder_stamps(index.listing.folders)
    # A folder that changed just now may change again within the same tick of the clock.
    if folders is not None and int(folders[:, 1:].max()) < start - TICK:
        listing = index.listing
        _save(
            _list_file(cache, split),
            about=_text(json.dumps([FORMAT, split, os.path.realpath(root), listing.classes])),
            paths=_text("\0".join(listing.paths)),
            ignored=_text("\0".join(listing.ignored)),
            folders=_text("\0".join(listing.folders)),
            labels=np.array(listing.labels, np.int32),
            stamps=index.stamps,
            folder_stamps=folders,
        )
    return index


def _load(root: Path, split: str, cache: Path) -> Index | None:
    with contextlib.suppress(*DAMAGED), np.load(_list_file(cache, split), allow_pickle=False) as kept:
        number, of, where, classes = json.loads(_untext(kept["about"]))
        folders, paths, ignored = (_split(kept[name]) for name in ("folders", "paths", "ignored"))
        labels, stamps = kept["labels"].tolist(), kept["stamps"]
        if (number, of, where) != (FORMAT, split, os.path.realpath(root)):
            return None
        if len(labels) != len(paths) or stamps.shape != (len(paths), 3):
            return None
        now = _folder_stamps(folders)
        if now is None or not np.array_equal(now, kept["folder_stamps"]):
            return None
        listing = Listing(root, split, paths, labels, classes, ignored, folders, stamps[:, 1])
        return Index(listing, stamps, cache)
    return None


def kept_size(index: Index, progress: bool) -> tuple[int, int] | None:
    """`decoding.common_size`, by the index."""

    def compute() -> np.ndarray:
        size = size_in_headers(index.listing, progress)
        return np.array((0, 0) if size is None else size, np.int64)

    height, width = index.remembered("headers", compute).tolist()
    return (height, width) if height else None


def lost(index: Index, row: int, error: Exception) -> DataLost:
    """What to say of a file that could not be read or decoded in the middle of a run."""
    return DataLost(
        f"{index.named(row)} cannot be read any more ({one_line(error)}): put the file back and resume the"
        " run, or begin a new one without it (--set data.skip_corrupt=true)"
    )


def _stamp(status: os.stat_result) -> tuple[int, int, int]:
    return status.st_ino, status.st_size, status.st_mtime_ns


def _folder_stamps(folders: list[str]) -> np.ndarray | None:
    """int64 (n, 3): inode and the two times of each folder; None where one is gone."""
    found = np.empty((len(folders), 3), np.int64)
    for row, folder in enumerate(folders):
        try:
            status = os.stat(folder)
        except OSError:
            return None
        found[row] = status.st_ino, status.st_mtime_ns, status.st_ctime_ns
    return found


def _list_file(cache: Path, split: str) -> Path:
    return cache / f"{split}-files.npz"


def _save(path: Path, **arrays: np.ndarray) -> None:
    # Where nothing can be written, the files are looked at again next time.
    with contextlib.suppress(OSError), atomic.replacing(path) as out:
        np.savez(out, **arrays)  # type: ignore[arg-type]


def _text(text: str) -> np.ndarray:
    return np.frombuffer(os.fsencode(text), np.uint8)


def _untext(data: np.ndarray) -> str:
    return os.fsdecode(data.tobytes())


def _split(data: np.ndarray) -> list[str]:
    return _untext(data).split("\0") if len(data) else []
