"""A data set of image files that stay in their folder: labels are in memory, pixels are decoded when they are
asked for.

`StreamSet` has the surface of `ImageSet` that dividing and describing a data set needs. Its pixels are those
that the resident source would have, bit for bit, and so are its digests.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from cfol_fast.data import decoders, white_point
from cfol_fast.data.decoders import Decoder
from cfol_fast.data.decoding import cache_folder
from cfol_fast.data.folders import Files, ListFiles, list_classes, unused_white_note
from cfol_fast.data.image_file import (
    UNREADABLE,
    open_image,
    read_image,
    refuse_unreadable,
    stored_size,
    tried,
    upright_size,
)
from cfol_fast.data.image_sizes import decoded_bytes
from cfol_fast.data.images import MOST_READ, check_rows
from cfol_fast.data.listing import Listing, skipped_note
from cfol_fast.data.parallel import map_in_order
from cfol_fast.data.reading import ReadOptions, TrainAndTest
from cfol_fast.data.stream.index import Index, index_of, kept_index, kept_size, lost
from cfol_fast.data.white_of_files import WhitePoint
from cfol_fast.errors import InputError
from cfol_fast.progress import track

# Files by whose names an image may have more than 8 bits.
MAYBE_DEEP = (".png", ".ppm", ".pgm", ".tif", ".tiff")


class StreamSet:
    """The images of `index` at `rows`: (n,) int64; None: all of them.

    common: (height, width) where all images have it as they are decoded.
    """

    channels = 3

    def __init__(
        self, index: Index, decoder: Decoder, common: tuple[int, int] | None, rows: Tensor | None = None
    ) -> None:
        self.index, self.decoder, self.rows, self._common = index, decoder, rows, common
        # What is measured of the data set and compared with other runs does not depend on the way.
        self._whole = Decoder(decoder.size, decoder.white)
        labels = torch.tensor(index.listing.labels, dtype=torch.int64)
        self.labels = labels if rows is None else labels[rows]
        self.classes: list[str] = list(index.listing.classes)

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def size(self) -> tuple[int, int] | None:
        """(height, width) when all images have it, else None."""
        return self._common

    def subset(self, indices: Tensor | Sequence[int] | np.ndarray) -> StreamSet:
        rows = check_rows(indices, len(self))
        return StreamSet(
            self.index, self.decoder, self._common, rows if self.rows is None else self.rows[rows]
        )

    def class_counts(self) -> Tensor:
        """int64 (k,): images of each class."""
        return torch.bincount(self.labels, minlength=len(self.classes))

    def _row(self, index: int) -> int:
        return int(index) if self.rows is None else int(self.rows[index])

    def image(self, index: int) -> Tensor:
        """Image `index`: uint8 (H, W, 3), decoded whole from its file."""
        return torch.from_numpy(decoded(self.index, self._row(index), self._whole))

    def stored_sizes(self) -> np.ndarray:
        """int64 (n,): the bytes of each file."""
        sizes = self.index.stamps[:, 1]
        return sizes if self.rows is None else sizes[self.rows.numpy()]

    def bytes_on_disk(self) -> int:
        """Of the images' files."""
        return int(self.stored_sizes().clip(0).sum())

    def described_sizes(self) -> np.ndarray:
        """int64 (n,): the bytes of each image as it is decoded, by its header."""

        def size(index: int) -> int:
            with open_image(listing.root / listing.paths[self._row(index)]) as image:
                width, height = upright_size(image)
            if short_side is not None:
                width, height = stored_size(width, height, short_side)
            return 3 * width * height

        listing, short_side, rows = self.index.listing, self.decoder.size, range(len(self))
        return self.remembered("sizes", lambda: np.fromiter(map_in_order(size, rows), np.int64), rows)

    @property
    def described_whole(self) -> bool:
        """As for images in memory, see `images.MOST_READ`."""
        return int(self.described_sizes().sum()) <= MOST_READ

    def described(self, indices: Iterable[int]) -> Iterator[Tensor]:
        """The pixels of these images: what digests are made of."""
        return map_in_order(self.image, indices)

    def remembered(self, what: str, compute: Callable[[], np.ndarray], indices: Iterable[int]) -> np.ndarray:
        rows = [self._row(index) for index in indices]
        name = f"{what}-{zlib.crc32(np.array(rows, np.int64).tobytes()):08x}"
        return self.index.remembered(name, compute, rows, self.decoder.size)

    def average_bytes(self) -> float:
        """Of an image as it is decoded, by the headers of a few."""
        return decoded_bytes(self.index.listing, self.decoder.size) / max(1, len(self.index))


def decoded(index: Index, row: int, decoder: Decoder) -> np.ndarray:
    """uint8 (h, w, 3); an error names the file."""
    try:
        return decoder(index.read(row))
    except InputError:
        # Not of this image, but of the whole data set.
        raise
    except UNREADABLE as error:
        raise lost(index, row, error) from error


def listed(list_files: ListFiles, root: Path | None, options: ReadOptions) -> tuple[Files, dict[str, Index]]:
    """The files of a data set, and an index of each part by the name of its split. The lists are kept in the
    cache's folder."""
    indexes: dict[str, Index] = {}

    def lister(root: Path, split: str) -> Listing:
        indexes[split] = kept_index(root, split, cache_folder(root, options.cache), list_classes)
        return indexes[split].listing

    def index_for(part: Listing, cache: Path | None) -> Index:
        if part.split not in indexes:
            indexes[part.split] = index_of(part, cache)
        return indexes[part.split]

    def size_of(listing: Listing, progress: bool, cache: Path | None) -> tuple[int, int] | None:
        return kept_size(index_for(listing, cache), progress)

    files = list_files(root, options, size_of, lister)
    cache = cache_folder(files.train.root, options.cache)
    for part in files.parts:
        index_for(part, cache)
    return files, indexes


def streamed(files: Files, indexes: dict[str, Index], options: ReadOptions) -> TrainAndTest:
    """The parts as they are decoded while a run goes on."""
    notes, found = list(files.notes), {}
    white = WhitePoint(files.parts, options, cache_folder(files.train.root, options.cache))
    decoder = Decoder(files.size, white, options.decode)
    if any(_has_deep(indexes[part.split], options.progress) for part in files.parts):
        white()
    for name, part in files.by_name.items():
        index = indexes[part.split]
        rows = None
        if options.skip_corrupt:
            rows, more = _readable(index, files.size, white, options.progress)
            notes += more
        common = files.batch_size if files.size is None else None
        found[name] = StreamSet(index, decoder, common, rows)
    notes += white.notes + unused_white_note(options, white)
    notes.append(f"images are decoded by {decoders.description()}, {options.decode}")
    listings = {
        name: replace(part, sizes=indexes[part.split].stamps[:, 1]) for name, part in files.by_name.items()
    }
    return TrainAndTest(
        found["train"],
        found.get("test"),
        files.batch_size,
        notes,
        white=white.value,
        files=listings,
        holdout=found.get("holdout"),
    )


def _has_deep(index: Index, progress: bool) -> bool:
    """Whether an image has more than 8 bits, by the headers of files whose names allow it."""
    listing = index.listing
    paths = [path for path in listing.paths if path.lower().endswith(MAYBE_DEEP)]
    if not paths:
        return False

    def deep(path: str) -> bool:
        with open_image(listing.root / path) as image:
            return white_point.is_deep(image)

    def compute() -> np.ndarray:
        seen = track(map_in_order(tried(deep), paths), len(paths), f"headers of {listing.split}", progress)
        return np.array([any(answer is True for answer in seen)], np.int64)

    return bool(index.remembered("deep", compute)[0])


def _readable(
    index: Index, size: int | None, white: WhitePoint, progress: bool
) -> tuple[Tensor | None, list[str]]:
    """The rows of the files that can be decoded, None for all; and the note of the others."""
    listing = index.listing

    def compute() -> np.ndarray:
        def read(path: str) -> None:
            read_image(listing.root / path, size, white)

        problems = track(
            map_in_order(tried(read), listing.paths), len(listing), f"checking {listing.split}", progress
        )
        kept = []
        for row, error in enumerate(problems):
            if error is None:
                kept.append(row)
            else:
                refuse_unreadable(listing, listing.paths[row], error, skip_corrupt=True)
        return np.array(kept, np.int64)

    rows = index.remembered("readable", compute, size)
    if not len(rows):
        raise InputError(f"{listing.root}: no image of {listing.split} could be decoded")
    if len(rows) == len(listing):
        return None, []
    good = set(rows.tolist())
    skipped = [path for row, path in enumerate(listing.paths) if row not in good]
    return torch.from_numpy(rows), skipped_note(skipped, listing)
