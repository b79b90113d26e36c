"""The files of a data set's part, and how they are named in messages."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np


@dataclass(frozen=True)
class Listing:
    """Image files with their labels. paths are relative to root, in the order of the data set. ignored: other
    files among them.

    folders: all that were looked into. sizes: int64 (n,), bytes of each file, -1 where there is none; None
    where nobody looked.
    """

    root: Path
    split: str
    paths: list[str]
    labels: list[int]
    classes: list[str]
    ignored: list[str] = field(default_factory=list)
    folders: list[str] = field(default_factory=list)
    sizes: np.ndarray | None = None

    def __len__(self) -> int:
        return len(self.paths)

    def subset(self, rows: Sequence[int], split: str | None = None) -> Listing:
        paths, labels = [self.paths[row] for row in rows], [self.labels[row] for row in rows]
        sizes = None if self.sizes is None else self.sizes[list(rows)]
        return Listing(self.root, split or self.split, paths, labels, self.classes, sizes=sizes)


def skipped_note(skipped: list[str], listing: Listing) -> list[str]:
    what = f"images cannot be decoded and were left out: {_named(skipped)}"
    return [f"{listing.split}: {len(skipped)} of {len(listing.paths)} {what}"] if skipped else []


def several_note(several: list[str], listing: Listing) -> list[str]:
    what = f"files hold several pictures, of which the first was taken: {_named(several)}"
    return [f"{listing.split}: {len(several)} of {len(listing.paths)} {what}"] if several else []


def ignored_note(listing: Listing) -> list[str]:
    what = "files are not used, as they have no name of an image or lie outside of the classes"
    ignored = listing.ignored
    return [f"{listing.split}: {len(ignored):,} {what}: {_named(ignored)}"] if ignored else []


def _named(paths: list[str]) -> str:
    return ", ".join(map(shown, paths[:3])) + (" ..." if paths[3:] else "")


def shown(path: str) -> str:
    """A name on one line, whatever bytes it has."""
    text = os.fsencode(path).decode("utf-8", "backslashreplace")
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)
