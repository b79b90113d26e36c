"""Data sets to FFCV files: `cfol-fast data to-ffcv`.

Folders of image files are converted image by image (`FromFiles`): the files are listed once; every core
reads, decodes and encodes; one thread writes what they made, in the order of the list. Only labels, places
and a few images are in memory at a time, and nothing is written beside the files themselves. Any other data
set is read into memory first (`FromMemory`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import IO, Any

import numpy as np
import torch

from cfol_fast import ops
from cfol_fast.data.ffcv.format import JPG, LONGEST_SIDE
from cfol_fast.data.ffcv.install import using_ffcv
from cfol_fast.data.ffcv.writer import Stored, stored_image, write_stored, write_to
from cfol_fast.data.folders import Files
from cfol_fast.data.image_file import (
    JPEG_FORMATS,
    TURNS,
    has_several_pictures,
    open_image,
    orientation,
    pixels_of,
    read_image,
    refuse_unreadable,
    stored_size,
    tried,
    upright_size,
)
from cfol_fast.data.image_sizes import SAMPLES, size_in_headers
from cfol_fast.data.images import ChannelSums, ImageData, ImageSet, thinned
from cfol_fast.data.listing import Listing, several_note, skipped_note
from cfol_fast.data.parallel import map_in_order
from cfol_fast.data.reading import ReadOptions
from cfol_fast.data.registry import (
    MOST_MEASURED,
    NO_TEST_PART,
    DataSpec,
    own_test_part,
    thinned_note,
)
from cfol_fast.data.room import check_disk
from cfol_fast.data.white_of_files import WhitePoint
from cfol_fast.errors import InputError
from cfol_fast.progress import track

MeanAndStd = tuple[tuple[float, ...], tuple[float, ...]]

# Of a JPEG file that is copied.
MOST_BYTES = 1 << 28
JPEG_NAMES = (".jpg", ".jpeg")
# How a file was stored, in the words of the closing note: copied, or encoded for the reason that comes first.
COPIED = "stored as they are"
CMYK, TURNED, MISNAMED, REFUSED, ENCODED = (
    "re-encoded from CMYK",
    "re-encoded upright, as their EXIF data says",
    "re-encoded, as they are no JPEG files in spite of their names",
    "re-encoded, as FFCV's decoder refuses them",
    "resized or from another format",
)


@dataclass(frozen=True)
class Converted:
    """An image file as it goes into the FFCV file. how: one of the words above; sums: over its pixels, where
    they were asked for.

    several: the file holds more pictures.
    """

    stored: Stored
    how: str
    sums: ChannelSums | None = None
    several: bool = False


class Converter:
    """How a file becomes a `Converted`: safe to call from many threads."""

    def __init__(
        self, root: Path, size: int | None, mode: str, quality: int, white: Callable[[], float]
    ) -> None:
        with using_ffcv():
            from ffcv.libffcv import imdecode
        self._decode = imdecode
        self.root, self.size, self.mode, self.quality, self.white = root, size, mode, quality, white

    def __call__(self, path: str, measured: bool = False) -> Converted:
        """Raises what `image_file.UNREADABLE` lists for a file that is not a whole image."""
        with open_image(self.root / path) as image:
            width, height = upright_size(image)
            if self.size is not None:
                width, height = stored_size(width, height, self.size)
            if max(width, height) > LONGEST_SIDE:
                raise ValueError(
                    f"{width}x{height} pixels, FFCV stores at most {LONGEST_SIDE:,} in a row or column"
                )
            how = ENCODED
            if image.format not in JPEG_FORMATS:
                how = MISNAMED if path.lower().endswith(JPEG_NAMES) else ENCODED
            elif image.mode == "CMYK":
                how = CMYK
            elif orientation(image) in TURNS:
                how = TURNED
            elif self.mode == "jpg" and image.size == (width, height):
                data = self._bytes_of(path)
                pixels = self._decoded(data, height, width)
                if pixels is not None:
                    stored = Stored(height, width, JPG, data)
                    return Converted(stored, COPIED, _sums(pixels, measured))
                how = REFUSED
            pixels = pixels_of(image, self.size, self.white)
            several = has_several_pictures(image)
        stored = stored_image(pixels, self.mode, self.quality)
        return Converted(stored, how, _sums(pixels, measured), several)

    def _bytes_of(self, path: str) -> bytes:
        with open(self.root / path, "rb") as file:
            data = file.read(MOST_BYTES + 1)
        if len(data) > MOST_BYTES:
            raise ValueError(f"a JPEG file of more than {MOST_BYTES:,} bytes")
        return data

    def _decoded(self, data: bytes, height: int, width: int) -> np.ndarray | None:
        """By FFCV's own decoder, which training uses; None where it fails: what Pillow forgives it
        may not.
        """
        pixels = np.empty((height, width, 3), np.uint8)
        source = np.frombuffer(data, np.uint8)
        failed = self._decode(source, pixels, height, width, height, width, 0, 0, 1, 1, False, False)
        return None if failed else pixels


def _sums(pixels: np.ndarray, measured: bool) -> ChannelSums | None:
    if not measured:
        return None
    sums = ChannelSums(3)
    sums.add(pixels)
    return sums


@dataclass
class Part:
    """What was written of one part. how: the number of files that were stored in each way."""

    listing: Listing
    how: Counter[str] = field(default_factory=Counter)
    skipped: list[str] = field(default_factory=list)
    several: list[str] = field(default_factory=list)
    sums: ChannelSums = field(default_factory=lambda: ChannelSums(3))

    def notes(self) -> list[str]:
        ways = "; ".join(f"{count:,} {how}" for how, count in self.how.most_common())
        return [
            f"{self.listing.split}: {ways}",
            *skipped_note(self.skipped, self.listing),
            *several_note(self.several, self.listing),
        ]


class FromFiles:
    """The files of a data set, divided into training and test part, on their way to FFCV files."""

    def __init__(
        self,
        spec: DataSpec,
        root: Path | None,
        options: ReadOptions,
        mode: str,
        quality: int,
        imbalance: float | None = None,
        seed: int = 0,
    ) -> None:
        assert spec.files is not None
        self.spec, self.options, self.mode, self.quality = spec, options, mode, quality
        files = spec.files(root, options, size_in_headers)
        self.white = WhitePoint(files.parts, options)
        more: list[str] = []
        if options.skip_corrupt and (files.test is None or imbalance is not None):
            # Who is drawn at random depends on who is there: this part is decoded twice.
            files, more = _readable(files, options, self.white)
        self.parts, self._notes = _divided(files, imbalance, seed)
        self._notes += more
        self.imbalance, self.size = imbalance, files.size
        self.batch_size = files.batch_size
        self._mean_and_std = None if spec.mean is None or spec.std is None else (spec.mean, spec.std)
        # Those of the whole data set, which both files note.
        self._common_notes = list(self._notes)

    def check_room(self, splits: list[str], folder: Path) -> None:
        """Refuses to begin what the disk cannot hold, by the size of a few images of each part."""
        check_disk(
            f"{sum(len(self.parts[split]) for split in splits):,} images",
            sum(self._bytes_of(self.parts[split]) for split in splits),
            folder,
            "choose another --out, a smaller --size, or "
            + ("--mode jpg" if self.mode == "raw" else "a smaller --quality"),
        )

    def _bytes_of(self, listing: Listing) -> int:
        convert = Converter(listing.root, self.size, self.mode, self.quality, self.white)

        paths = listing.paths[:: -(-len(listing) // SAMPLES)]
        found = [
            len(converted.stored.data)
            for converted in map_in_order(tried(convert), paths)
            if not isinstance(converted, Exception)
        ]
        return len(listing) * sum(found) // max(1, len(found))

    def write(self, split: str, out: IO[bytes], path: Path) -> None:
        """The part `split` to the open file `out`, which is to be called `path`."""
        listing = self.parts[split]
        part = Part(listing)

        def describe() -> dict[str, Any]:
            if split == "train" and self._mean_and_std is None:
                self._mean_and_std = part.sums.mean_and_std()
            return self._description(split)

        labelled = self._stored(listing, part)
        write_stored(out, path, labelled, len(listing), describe, self.options.progress)
        self._notes += part.notes()

    @property
    def notes(self) -> list[str]:
        return self._notes + self.white.notes

    def _stored(self, listing: Listing, part: Part) -> Iterator[tuple[int, Stored]]:
        convert = Converter(listing.root, self.size, self.mode, self.quality, self.white)
        every = -(-len(listing) // MOST_MEASURED)

        def one(row: int) -> Converted | Exception:
            return tried(lambda path: convert(path, measured=row % every == 0))(listing.paths[row])

        results = map_in_order(one, range(len(listing)))
        shown = track(results, len(listing), f"writing {listing.split}", self.options.progress)
        for path, label, converted in zip(listing.paths, listing.labels, shown, strict=True):
            if isinstance(converted, Exception):
                refuse_unreadable(listing, path, converted, self.options.skip_corrupt)
                part.skipped.append(path)
                continue
            part.how[converted.how] += 1
            if converted.several:
                part.several.append(path)
            if converted.sums is not None:
                part.sums.join(converted.sums)
            yield label, converted.stored
        if len(part.skipped) == len(listing):
            raise InputError(f"{listing.root}: no image of {listing.split} could be decoded")

    def _description(self, split: str) -> dict[str, Any]:
        white = {} if self.white.value is None else {"white": self.white.value}
        return white | described(
            self.spec.name,
            split,
            self.parts[split].classes,
            self.batch_size,
            self._mean_and_std,
            self.spec.augment(min(self.batch_size)),
            self.spec.eps,
            self.imbalance,
            self._common_notes,
        )


class FromMemory:
    """The parts of a data set that was read into memory as a whole, on their way to FFCV files."""

    def __init__(self, data: ImageData, mode: str, quality: int, imbalance: float | None) -> None:
        self.data, self.mode, self.quality, self.imbalance = data, mode, quality, imbalance
        self.notes = data.notes

    def write(self, split: str, out: IO[bytes], path: Path) -> None:
        """The part `split` to the open file `out`, which is to be called `path`."""
        data = self.data
        images = data.train if split == "train" else data.test
        assert isinstance(images, ImageSet)
        description = described(
            data.name,
            split,
            images.classes,
            data.size,
            (data.mean, data.std),
            data.paper_augment,
            data.eps,
            self.imbalance,
            data.notes,
        )
        write_to(out, path, images, self.mode, self.quality, description, progress=True)


def described(
    name: str,
    split: str,
    classes: list[str],
    size: tuple[int, int],
    mean_and_std: MeanAndStd | None,
    augment: ops.Augment,
    eps: float,
    imbalance: float | None,
    notes: list[str],
) -> dict[str, Any]:
    """What an FFCV file says of its images: `data_set.read` reads it. mean_and_std: None where only the test
    part is written, and nothing was measured.
    """
    measured = zip(("mean", "std"), mean_and_std or (), strict=False)
    return {
        "classes": classes,
        "dataset": name,
        "split": split,
        "size": list(size),
        **{key: list(values) for key, values in measured},
        "augment": asdict(augment),
        "eps": eps,
        "imbalance": imbalance,
        "notes": notes,
    }


def _readable(files: Files, options: ReadOptions, white: WhitePoint) -> tuple[Files, list[str]]:
    """The files without those of the training part that cannot be decoded, as `decoding.decode` leaves them
    out; and the note of them.
    """
    listing = files.train

    def read(path: str) -> None:
        read_image(listing.root / path, files.size, white)

    problems = track(
        map_in_order(tried(read), listing.paths), len(listing), f"checking {listing.split}", options.progress
    )
    kept, skipped = [], []
    for row, error in enumerate(problems):
        if error is None:
            kept.append(row)
        else:
            refuse_unreadable(listing, listing.paths[row], error, options.skip_corrupt)
            skipped.append(listing.paths[row])
    if not kept:
        raise InputError(f"{listing.root}: no image of {listing.split} could be decoded")
    return replace(files, train=listing.subset(kept)), skipped_note(skipped, listing)


def _divided(files: Files, imbalance: float | None, seed: int) -> tuple[dict[str, Listing], list[str]]:
    """Training and test part, as `registry.load` divides images that are in memory."""
    train, test, notes = files.train, files.test, list(files.notes)
    if test is None:
        kept, held = own_test_part(torch.tensor(train.labels), train.classes)
        train, test = train.subset(kept.tolist()), train.subset(held.tolist(), "test")
        notes.append(NO_TEST_PART)
    if imbalance is not None:
        rows = thinned(np.array(train.labels), len(train.classes), imbalance, seed)
        train = train if rows is None else train.subset(rows.tolist())
        notes.append(thinned_note(imbalance, np.bincount(train.labels).tolist()))
    return {"train": train, "test": test}, notes
