"""What a user may not know of a folder of images: `cfol-fast data check`."""

from __future__ import annotations

import hashlib
import os
import re
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path

import numpy as np

from cfol_fast.data import near_duplicates
from cfol_fast.data.folders import list_classes, list_parts
from cfol_fast.data.image_file import UNREADABLE, open_image, pixels_of, upright_size
from cfol_fast.data.listing import Listing
from cfol_fast.data.parallel import map_in_order
from cfol_fast.data.part_folders import holdout_folder
from cfol_fast.data.reading import ReadOptions
from cfol_fast.data.white_of_files import WhitePoint
from cfol_fast.errors import one_line
from cfol_fast.progress import track

# The end of a name that numbers the images of a group.
NUMBER = re.compile(r"[-_ .]?\d+$")


@dataclass(frozen=True)
class Seen:
    """One image file. error: why it cannot be read; the rest is then empty."""

    error: str = ""
    mode: str = ""
    size: tuple[int, int] = (0, 0)
    digest: bytes = b""
    thumbnail: np.ndarray | None = None


@dataclass(frozen=True)
class Pairs:
    """Pairs of image files that are the same, or look it. one, other: names of parts."""

    one: str
    other: str
    exact: list[tuple[str, str]]
    near: list[tuple[str, str]]


@dataclass(frozen=True)
class Part:
    """listing: of all files; seen: of each."""

    listing: Listing
    seen: list[Seen]

    @property
    def whole(self) -> list[int]:
        """The rows of files that can be read."""
        return [row for row, one in enumerate(self.seen) if not one.error]

    @property
    def thumbnails(self) -> np.ndarray:
        side = near_duplicates.SIDE
        found = [one.thumbnail for one in self.seen if one.thumbnail is not None]
        return np.stack(found) if found else np.zeros((0, side, side), np.uint8)


@dataclass(frozen=True)
class Findings:
    """mirrored: (class, other class, number of images of the first whose mirror image looks like one of the
    other).
    """

    parts: list[Part]
    pairs: list[Pairs]
    mirrored: list[tuple[str, str, int]]

    @property
    def shared(self) -> bool:
        """Whether two parts have images in common."""
        return any(each.one != each.other and (each.exact or each.near) for each in self.pairs)


def check(root: str | Path | None, progress: bool = False) -> Findings:
    folder, listings = list_parts(root)
    if (name := holdout_folder(folder)) is not None:
        listings.append(list_classes(folder, name))
    white = WhitePoint(listings, ReadOptions(progress=progress))
    parts = [Part(listing, _look(listing, white, progress)) for listing in listings]
    pairs = [_pairs(part, part) for part in parts]
    pairs += [_pairs(one, other) for one, other in combinations(parts, 2)]
    return Findings(parts, pairs, _mirrored(parts[0]))


def _look(listing: Listing, white: WhitePoint, progress: bool) -> list[Seen]:
    def look(path: str) -> Seen:
        try:
            with open_image(listing.root / path) as image:
                mode, size = image.mode, upright_size(image)
                pixels = pixels_of(image, None, white)
        except UNREADABLE as error:
            return Seen(error=one_line(error) or type(error).__name__)
        digest = hashlib.sha256(str(pixels.shape).encode() + pixels.tobytes()).digest()
        return Seen("", mode, size, digest, near_duplicates.thumbnail(pixels))

    seen = map_in_order(look, listing.paths)
    return list(track(seen, len(listing), f"checking {listing.split}", progress))


def _pairs(one: Part, other: Part) -> Pairs:
    """An exact copy is not counted as a near one too."""
    within = one is other
    rows, columns = one.whole, other.whole
    places = defaultdict(list)
    for column in columns:
        places[other.seen[column].digest].append(column)
    exact = {
        (row, column) for row in rows for column in places[one.seen[row].digest] if not within or row < column
    }
    found = near_duplicates.pairs(one.thumbnails, None if within else other.thumbnails)
    near = {(rows[a], columns[b]) for a, b in found.tolist()} - exact

    def named(pairs: set[tuple[int, int]]) -> list[tuple[str, str]]:
        return [(one.listing.paths[a], other.listing.paths[b]) for a, b in sorted(pairs)]

    return Pairs(one.listing.split, other.listing.split, named(exact), named(near))


def _mirrored(part: Part) -> list[tuple[str, str, int]]:
    thumbnails, rows, listing = part.thumbnails, part.whole, part.listing
    counted: dict[tuple[int, int], set[int]] = defaultdict(set)
    for a, b in near_duplicates.pairs(thumbnails[:, :, ::-1], thumbnails).tolist():
        mine, theirs = listing.labels[rows[a]], listing.labels[rows[b]]
        if mine != theirs:
            counted[mine, theirs].add(a)
    ranked = sorted(counted.items(), key=lambda item: -len(item[1]))
    return [(listing.classes[a], listing.classes[b], len(images)) for (a, b), images in ranked]


def name_groups(paths: Sequence[str]) -> Counter[str]:
    """Images by what is left of their path without its last number, where that makes groups: more than one in
    a class, and two images in most of them.
    """
    stems = [os.path.splitext(path)[0] for path in paths]
    found = Counter(NUMBER.sub("", stem) for stem in stems)
    per_class = Counter(os.path.dirname(prefix) for prefix in found)
    several = sum(count > 1 for count in found.values())
    grouped = len(found) > len(per_class) and 2 * several > len(found)
    return found if grouped else Counter()
