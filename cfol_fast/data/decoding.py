"""Image files to pixels, once: decoded in parallel, cached beside the data, mapped into memory from then on.

The cache is one file of bytes and one JSON file that says what is in it. It is used again only when the
names, inodes, sizes and times of all image files, the decoders and the white point are the same as when it
was made, and its bytes have the checksum they had then, so changed data cannot be mistaken for the old.
`data.cache` puts it elsewhere, or switches it off.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import stat
import tempfile
import threading
import time
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import IO, Any, TypeVar

import numpy as np
import PIL
import torch
from PIL import Image, ImageFile, features

from cfol_fast import atomic
from cfol_fast.data import white_point
from cfol_fast.data.images import ImageSet
from cfol_fast.data.parallel import map_in_order
from cfol_fast.data.reading import ReadOptions
from cfol_fast.data.room import check_disk
from cfol_fast.errors import InputError, one_line
from cfol_fast.memory import is_out_of_memory
from cfol_fast.progress import track

R = TypeVar("R")

CACHE_FOLDER = ".cfol_fast_cache"
FORMAT = 3
# All that is ever tried on a file, whatever its name says. Of Pillow's other formats one starts Ghostscript.
FORMATS = ("JPEG", "PNG", "BMP", "PPM", "TIFF", "WEBP", "GIF")
# A file may hold several pictures of these; an MPO file's others are for cameras.
SEVERAL_PICTURES = ("GIF", "PNG", "WEBP", "TIFF")
# A file that changes twice within this many nanoseconds may have the same time both times.
TICK = 20_000_000
# Files of which some bytes are looked at too: a mounted image of a disk has the times of its making.
BYTES_OF_FILES, BYTES_LOOKED_AT = 64, 1 << 14
CHUNK = 1 << 24
# What Pillow raises for a file that is not a whole image.
UNREADABLE = (OSError, SyntaxError, ValueError, Image.DecompressionBombError)
# The short side that images of different sizes are stored with when none is asked for: Imagenette's.
MIXED_SIZE = 160
# What makes an image upright, by EXIF's number for how it lies; from 5 on it lies on its side.
TURNS = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
SIDEWAYS = (5, 6, 7, 8)
# Images that are looked at to know about how much room all of them will take.
SAMPLES = 64
# Of one image, in its file and as it is stored: 200 MB. A file of a few bytes may claim to have billions.
MOST_PIXELS = 1 << 26


@dataclass(frozen=True)
class Listing:
    """Image files with their labels. paths are relative to root, in the order of the data set. ignored: other
    files among them.
    """

    root: Path
    split: str
    paths: list[str]
    labels: list[int]
    classes: list[str]
    ignored: list[str] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.paths)

    def subset(self, rows: Sequence[int], split: str | None = None) -> Listing:
        paths, labels = [self.paths[row] for row in rows], [self.labels[row] for row in rows]
        return Listing(self.root, split or self.split, paths, labels, self.classes)


class WhitePoint:
    """What is white in the images of a data set that have more than 8 bits: found when the first of them is
    met, as most data sets have none.
    """

    def __init__(self, parts: Sequence[Listing], options: ReadOptions, cache: Path | None = None) -> None:
        self.parts, self.options, self.cache = parts, options, cache
        self.value: float | None = None
        self.notes: list[str] = []
        self._lock = threading.Lock()
        self._doubt: InputError | None = None

    def __call__(self) -> float:
        with self._lock:
            if self._doubt is not None:
                # The other images that were being decoded ask too.
                raise self._doubt
            if self.value is None:
                try:
                    self.value = self._found()
                except InputError as error:
                    self._doubt = error
                    raise
            return self.value

    def _found(self) -> float:
        levels, where, given = self._levels(), str(self.parts[0].root), self.options.white
        if given is None:
            white = white_point.decided(levels, where)
        else:
            white = given
            white_point.checked_against(levels, white, where)
        self.notes.append(white_point.note(levels, white, given is not None))
        return white

    def _levels(self) -> white_point.Levels:
        fingerprint = [fingerprint_of(part, None, False) for part in self.parts]
        known = None if self.cache is None else self.cache / "white.json"
        if known is not None:
            with contextlib.suppress(OSError, ValueError, KeyError, TypeError, RecursionError):
                cached = json.loads(known.read_text())
                if cached["fingerprint"] == fingerprint:
                    whole, fractional = (
                        [float(top) for top in cached[kind]] for kind in ("whole", "fractional")
                    )
                    return white_point.Levels(whole, fractional)
        levels = white_point.Levels()
        for part in self.parts:

            def found(path: str, part: Listing = part) -> white_point.Deep | None:
                with open_image(part.root / path) as image:
                    return white_point.deep(image)

            seen = map_in_order(tried(found), part.paths)
            for deep in track(seen, len(part), f"white point of {part.split}", self.options.progress):
                # What cannot be read is refused, or left out, where the pixels are wanted.
                if isinstance(deep, white_point.Deep) and deep.white is None:
                    levels.add(deep)
        if known is not None:
            with contextlib.suppress(OSError):
                known.parent.mkdir(exist_ok=True)
                contents = {
                    "fingerprint": fingerprint,
                    "whole": levels.whole,
                    "fractional": levels.fractional,
                }
                atomic.write_json(known, contents)
        return levels


def tried(function: Callable[[str], R]) -> Callable[[str], R | Exception]:
    """The function with the exception of a file that is not a whole image as its result."""

    def result(path: str) -> R | Exception:
        try:
            return function(path)
        except InputError:
            # Not of this image, but of the whole data set.
            raise
        except UNREADABLE as error:
            if is_out_of_memory(error):
                # The file may be whole.
                raise
            return error

    return result


def cache_folder(root: Path, where: str) -> Path | None:
    """Where the decoded images of `root` are kept by the setting data.cache: None for "off", or where nothing
    can be written.
    """
    if where == "off":
        return None
    if where == "auto":
        folder = root / CACHE_FOLDER
    else:
        given = Path(where).expanduser()
        if not where or not given.is_dir():
            raise InputError(
                f"data.cache={where}: there is no such folder. Make it, or take data.cache=auto or"
                " data.cache=off."
            )
        name = hashlib.sha256(os.fsencode(os.path.realpath(root))).hexdigest()[:16]
        folder = given / f"{CACHE_FOLDER.removeprefix('.')}-{name}"
    try:
        folder.mkdir(exist_ok=True)
        if os.access(folder, os.W_OK):
            return folder
    except OSError:
        pass
    if where != "auto":
        raise InputError(
            f"data.cache={where}: the folder cannot be written. Choose another, or data.cache=off."
        )
    return None


def decode(
    listing: Listing, options: ReadOptions, size: int | None, folder: Path | None, white: WhitePoint
) -> tuple[ImageSet, list[str]]:
    """The images of `listing` as RGB, with the notes to pass on.

    size: resize so that the short side has this many pixels (no change where it has already); None keeps
    sizes.
    folder: of the cache; None: they are decoded again each time.
    """
    if folder is None:
        with tempfile.TemporaryDirectory() as temporary:
            return _decode_into(Path(temporary), listing, options, size, "", white)
    fingerprint = fingerprint_of(listing, size, options.skip_corrupt)
    return _cached(folder, listing, size, fingerprint, white) or _decode_into(
        folder, listing, options, size, fingerprint, white
    )


def fingerprint_of(listing: Listing, size: int | None, skip_corrupt: bool) -> str:
    """Changes with any name, inode, size or time of the files, the labels, or the way of decoding."""
    start, (digest, newest) = time.time_ns(), _states(listing, size, skip_corrupt)
    if 0 <= start - newest < TICK:
        # A change after this look could not be told from the one before it.
        time.sleep(TICK / 1e9)
        digest, _ = _states(listing, size, skip_corrupt)
    return digest


def _states(listing: Listing, size: int | None, skip_corrupt: bool) -> tuple[str, int]:
    """The digest, and when the file that changed last did so."""
    way = [FORMAT, size, skip_corrupt, listing.classes, decoders()]
    digest, newest = hashlib.sha256(json.dumps(way).encode()), 0
    every = -(-len(listing) // BYTES_OF_FILES)
    for row, (path, label) in enumerate(zip(listing.paths, listing.labels, strict=True)):
        try:
            status = os.stat(listing.root / path)
            # No program can set the time of the last change of an inode: `mv`, `tar` and `rsync -t` bring the
            # other one along.
            state = f"{status.st_ino}\0{status.st_size}\0{status.st_mtime_ns}\0{status.st_ctime_ns}"
            newest = max(newest, status.st_mtime_ns, status.st_ctime_ns)
            if row % every == 0 and stat.S_ISREG(status.st_mode):
                with open(listing.root / path, "rb") as file:
                    state += f"\0{zlib.crc32(file.read(BYTES_LOOKED_AT))}"
        except PermissionError:
            raise
        except OSError:
            # A link to nothing or to itself; whether that is an error is decided when it is to be read.
            state = "missing"
        digest.update(os.fsencode(path) + f"\0{label}\0{state}\n".encode())
    return digest.hexdigest(), newest


@lru_cache
def decoders() -> list[str | None]:
    """The versions of what turns files into pixels."""
    return [PIL.__version__, *(features.version(name) for name in ("jpg", "zlib", "libtiff", "webp"))]


def common_size(
    listing: Listing, progress: bool = False, folder: Path | None = None
) -> tuple[int, int] | None:
    """(h, w) if all images have it, from the files' headers alone; images that cannot be opened do not count.

    folder: of the cache, where there is one.
    """
    if folder is None:
        return size_in_headers(listing, progress)
    known = folder / f"{listing.split}-size.json"
    fingerprint = fingerprint_of(listing, None, False)
    with contextlib.suppress(
        OSError, ValueError, KeyError, TypeError, OverflowError, RecursionError, IndexError
    ):
        cached = json.loads(known.read_text())
        if cached["fingerprint"] == fingerprint:
            return None if cached["size"] is None else (int(cached["size"][0]), int(cached["size"][1]))

    size = size_in_headers(listing, progress)
    # Where nothing can be written, the headers are read again next time.
    with contextlib.suppress(OSError):
        atomic.write_json(known, {"fingerprint": fingerprint, "size": size})
    return size


def size_in_headers(
    listing: Listing, progress: bool = False, folder: Path | None = None
) -> tuple[int, int] | None:
    """`common_size` without its cache. It ends at the first image of another size."""

    def header(path: str) -> tuple[int, int] | None:
        try:
            with open_image(listing.root / path) as image:
                width, height = upright_size(image)
                return height, width
        except UNREADABLE:
            return None

    common = None
    with contextlib.closing(map_in_order(header, listing.paths)) as headers:
        for size in track(headers, len(listing), f"sizes of {listing.split}", progress):
            if size is not None and size != (common := common or size):
                return None
    return common


def read_image(path: Path, size: int | None, white: Callable[[], float]) -> np.ndarray:
    """uint8 (h, w, 3), upright; raises OSError or ValueError when the file is not a whole image.

    white: asked for the white point of the data set where the image has more than 8 bits.
    """
    with open_image(path) as file:
        return pixels_of(file, size, white)


def pixels_of(file: ImageFile.ImageFile, size: int | None, white: Callable[[], float]) -> np.ndarray:
    """The same of an open image."""
    image: Image.Image = file
    turn = TURNS.get(orientation(file))
    width, height = upright_size(image)
    if size is not None:
        width, height = stored_size(width, height, size)
    if width * height > MOST_PIXELS:
        raise ValueError(f"{width}x{height} pixels in memory, at most {MOST_PIXELS:,} are decoded")
    deep = white_point.deep(file)
    if deep is not None:
        image = deep.picture(white() if deep.white is None else deep.white)
    if turn is not None:
        image = image.transpose(turn)
    if image.mode == "La":
        image = image.convert("LA")
    elif image.mode == "P" and "transparency" in image.info:
        # The same colours; from a palette Pillow warns of what becomes of the transparency.
        image = image.convert("RGBA")
    image = image.convert("RGB")
    if image.size != (width, height):
        image = image.resize((width, height), Image.Resampling.BILINEAR)
    return np.array(image)


def has_several_pictures(image: Image.Image) -> bool:
    """An animation, or pages: the first picture is taken."""
    # Looking for a second one fails in many ways; the first may be whole.
    with contextlib.suppress(Exception):
        return image.format in SEVERAL_PICTURES and bool(getattr(image, "is_animated", False))
    return False


def stored_size(width: int, height: int, size: int) -> tuple[int, int]:
    """(width, height) of an image that is stored with a short side of `size` pixels."""
    scale = size / min(width, height)
    return max(size, round(width * scale)), max(size, round(height * scale))


def orientation(image: Image.Image) -> int:
    """How a camera was held, as EXIF says: 1 is upright. Pillow turns a TIFF itself."""
    # A PNG may have it after the pixels, and Pillow would decode them all to find out.
    if "exif" in image.info:
        # Pillow raises all kinds of exceptions for damaged EXIF data, which says nothing about the pixels.
        with contextlib.suppress(Exception):
            found = image.getexif().get(0x0112)
            return found if found in TURNS else 1
    return 1


def upright_size(image: Image.Image) -> tuple[int, int]:
    """(width, height) of the picture as it is to be seen."""
    width, height = image.size
    return (height, width) if orientation(image) in SIDEWAYS else (width, height)


def check_is_file(path: Path) -> os.stat_result:
    """Refuses a pipe, which would be waited for, and a device, which may have no end."""
    status = os.stat(path)
    if not stat.S_ISREG(status.st_mode):
        raise OSError("it is not a file")
    return status


def open_image(path: Path) -> ImageFile.ImageFile:
    """Its header; nothing is decoded yet. An image too large is refused."""
    if not check_is_file(path).st_size:
        raise OSError("the file is empty")
    try:
        image = Image.open(path, formats=FORMATS)
    except Image.DecompressionBombError:
        raise ValueError(f"too many pixels, at most {MOST_PIXELS:,} are decoded") from None
    except Image.UnidentifiedImageError:
        raise ValueError(f"its content is none of {', '.join(FORMATS)}") from None
    if image.width * image.height > MOST_PIXELS or min(image.size) < 1:
        image.close()
        raise ValueError(f"{image.width}x{image.height} pixels, at most {MOST_PIXELS:,} are decoded")
    return image


def _decode_into(
    folder: Path,
    listing: Listing,
    options: ReadOptions,
    size: int | None,
    fingerprint: str,
    white: WhitePoint,
) -> tuple[ImageSet, list[str]]:
    """Decodes and caches.

    Both files appear only when complete; the JSON file comes last and makes the cache valid.
    """
    check_disk(
        f"the {len(listing):,} images of {listing.split}, decoded,",
        _decoded_bytes(listing, size),
        folder,
        "`cfol-fast data to-ffcv --mode jpg --split all --out FILES` keeps them as JPEG and decodes none to"
        " the disk; train with `--dataset beton --data FILES`",
    )
    stem = _stem(listing, size)
    try:
        with atomic.replacing(folder / f"{stem}.bytes") as out:
            contents = _write_pixels(out, listing, options, size, white)
            out.flush()
            # By the open file: another run may put its own in this place at any time.
            found = _image_set(out, contents, listing.classes)
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            raise InputError(
                f"{folder}: the disk is full, the decoded images do not fit: nothing was left there. Keep"
                " them on another with data.cache=FOLDER."
            ) from error
        raise
    contents |= {"format": FORMAT, "fingerprint": fingerprint}
    atomic.write_json(folder / f"{stem}.json", contents)
    return found, _notes(contents, listing)


def _stem(listing: Listing, size: int | None) -> str:
    return f"{listing.split}-{size or 'own'}px"


def _decoded_bytes(listing: Listing, size: int | None) -> int:
    """About as many as all images have, by the headers of a few."""
    found = []
    for path in listing.paths[:: -(-len(listing) // SAMPLES)]:
        with contextlib.suppress(*UNREADABLE), open_image(listing.root / path) as image:
            width, height = upright_size(image)
            width, height = (width, height) if size is None else stored_size(width, height, size)
            found.append(3 * width * height)
    return len(listing) * sum(found) // max(1, len(found))


def _write_pixels(
    out: IO[bytes], listing: Listing, options: ReadOptions, size: int | None, white: WhitePoint
) -> dict[str, Any]:
    sizes: list[tuple[int, int]] = []
    labels: list[int] = []
    skipped: list[str] = []
    several: list[str] = []
    used: list[float] = []
    checksum = 0

    def white_here() -> float:
        used.append(white())
        return used[0]

    def decoded(path: str) -> tuple[np.ndarray, bool]:
        with open_image(listing.root / path) as file:
            return pixels_of(file, size, white_here), has_several_pictures(file)

    results = track(
        map_in_order(tried(decoded), listing.paths),
        len(listing.paths),
        f"decoding {listing.split}",
        options.progress,
    )
    for path, label, result in zip(listing.paths, listing.labels, results, strict=True):
        if isinstance(result, Exception):
            refuse_unreadable(listing, path, result, options.skip_corrupt)
            skipped.append(path)
            continue
        pixels, more = result
        content = pixels.tobytes()
        out.write(content)
        checksum = zlib.crc32(content, checksum)
        sizes.append((pixels.shape[0], pixels.shape[1]))
        labels.append(label)
        if more:
            several.append(path)
    if not labels:
        raise InputError(f"{listing.root}: no image of {listing.split} could be decoded")
    same = len(set(sizes)) == 1
    return {
        "sizes": sizes[:1] if same else sizes,
        "count": len(labels),
        "labels": labels,
        "skipped": skipped,
        "several": several,
        "white": used[0] if used else None,
        "checksum": checksum,
    }


def refuse_unreadable(listing: Listing, path: str, error: Exception, skip_corrupt: bool) -> None:
    """Raises an error that names the file, unless such files are to be left out."""
    if not skip_corrupt or isinstance(error, PermissionError):
        raise InputError(
            f"{shown(str(listing.root / path))} cannot be decoded ({one_line(error)}): repair or remove it,"
            " or leave out such images with --skip-corrupt (in training: --set data.skip_corrupt=true)"
        ) from error


def _cached(
    folder: Path, listing: Listing, size: int | None, fingerprint: str, white: WhitePoint
) -> tuple[ImageSet, list[str]] | None:
    """What was decoded before; None where it is not there, or of other images, or not whole."""
    stem = _stem(listing, size)
    try:
        contents = json.loads((folder / f"{stem}.json").read_text())
        if contents["format"] != FORMAT or contents["fingerprint"] != fingerprint:
            return None
        if len(contents["labels"]) != contents["count"] or not isinstance(contents["skipped"], list):
            return None
        with open(folder / f"{stem}.bytes", "rb") as file:
            if os.fstat(file.fileno()).st_size != _table(contents)[1]:
                return None
            found = _image_set(file, contents, listing.classes)
        if _checksum(found.images) != contents["checksum"]:
            return None
    # Somebody may have edited it; it is made again.
    except (OSError, ValueError, KeyError, TypeError, OverflowError, RecursionError, IndexError, MemoryError):
        return None
    if contents["white"] is not None and contents["white"] != white():
        return None
    return found, _notes(contents, listing)


def _checksum(images: torch.Tensor) -> int:
    whole, checksum = images.flatten().numpy(), 0
    for start in range(0, len(whole), CHUNK):
        checksum = zlib.crc32(whole[start : start + CHUNK].data, checksum)
    return checksum


def _table(contents: dict[str, Any]) -> tuple[np.ndarray, int]:
    """int64 (N, 3) of (byte offset, height, width), and the bytes of all images together."""
    sizes = np.array(contents["sizes"], dtype=np.int64).reshape(-1, 2)
    sizes = np.broadcast_to(sizes, (contents["count"], 2))
    ends = np.cumsum(sizes[:, 0] * sizes[:, 1] * 3)
    return np.column_stack([np.concatenate([[0], ends[:-1]]), sizes]), int(ends[-1])


def _image_set(file: IO[bytes], contents: dict[str, Any], classes: Sequence[str]) -> ImageSet:
    table, count = _table(contents)
    # Copy-on-write: the pages come from the file when touched, so the data may be larger than the memory.
    pixels = torch.from_numpy(np.memmap(file, np.uint8, "c", shape=(count,)))
    labels = torch.tensor(contents["labels"], dtype=torch.int64)
    if len(contents["sizes"]) == 1:
        height, width = contents["sizes"][0]
        return ImageSet(pixels.view(-1, height, width, 3), labels, list(classes))
    return ImageSet(pixels, labels, list(classes), torch.from_numpy(table), 3)


def _notes(contents: dict[str, Any], listing: Listing) -> list[str]:
    return [*skipped_note(contents["skipped"], listing), *several_note(contents["several"], listing)]


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
