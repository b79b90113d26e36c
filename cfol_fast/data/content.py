"""What a data set holds, as digests: a run goes on with the data it began with, and copies of training images
are noticed.

Of images in memory every pixel counts; of images that stay in files, and of very large parts, the bytes of
1,024. Names are relative to the data set's folder and times do not count, so a copied folder has the same
digests. A run's name holds none of this but `content_of`.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from cfol_fast.data.folders import list_parts
from cfol_fast.data.image_file import check_is_file
from cfol_fast.data.images import MOST_READ, ImageData, Images, ImageSet
from cfol_fast.data.listing import Listing, shown
from cfol_fast.errors import InputError, one_line

SAMPLED = 1024
# Files whose images are all looked at; of more, which would take minutes, a sample.
MOST_DECODED = 50_000
# Keys of a record that are also what differs, in words.
COUNT, CLASSES = "number of images", "class names"


@dataclass(frozen=True)
class PartContent:
    """record: the digests, for JSON and checkpoints. images: uint64 (n,), a digest of each image; whole: of
    all images, in their order.
    """

    record: dict[str, Any]
    images: np.ndarray
    whole: bool


def content_of(root: str | Path | None) -> str:
    """The digest that names a folder of images, `data.content`: of every image file, its bytes and its name
    below the folder.
    """
    whole = hashlib.sha256()
    root, parts = list_parts(root)
    for path in [path for part in parts for path in part.paths]:
        try:
            check_is_file(root / path)
        except OSError as error:
            raise InputError(f"{shown(str(root / path))} cannot be read ({one_line(error)})") from error
        whole.update(os.fsencode(path) + b"\0" + hashlib.sha256((root / path).read_bytes()).digest())
    return whole.hexdigest()


def check_content(root: str | Path | None, expected: str) -> None:
    """Refuses a folder whose images are not those of this digest."""
    found = content_of(root)
    if found != expected:
        raise InputError(
            f"{root} holds other images than the run is of: data.content is {expected[:12]}, that of the"
            f" folder {found[:12]}"
        )


def describe(found: ImageData) -> dict[str, PartContent]:
    """The parts as they are trained and tested with; a hold-out only where the user brings one."""
    parts = {"train": found.train, "test": found.test, "holdout": found.holdout}
    described = {
        name: describe_part(part, found.files.get(name)) for name, part in parts.items() if part is not None
    }
    if found.groups is not None:
        # Whoever changes a table of groups changes what is trained on.
        described["train"].record["any groups"] = _digest(found.groups.numpy().astype("<i8"))
    return described


def describe_part(part: Images, files: Listing | None = None) -> PartContent:
    """files: that the part was decoded from."""
    labels = part.labels.cpu().numpy().astype("<i8")
    sizes, whole = _sizes(part, files), _is_whole(part, files)
    rows = range(len(part)) if whole else _sample(part, files)
    images = _digests(part, rows)
    record: dict[str, Any] = {
        COUNT: len(part),
        CLASSES: list(part.classes),
        "labels": _digest(labels),
        "any labels": _digest(np.sort(labels)),
        "pixels": _digest(images),
        "any pixels": _digest(np.sort(images)),
        "labelled": _digest(np.sort(_pairs(images, labels[rows]))),
        "sizes": _digest(sizes),
        "any sizes": _digest(np.sort(sizes)),
    }
    if files is not None:
        names = list(map(os.fsencode, files.paths))
        record |= {"names": _digest(*names), "any names": _digest(*sorted(names))}
    return PartContent(record, images, whole)


def _is_whole(part: Images, files: Listing | None) -> bool:
    """Whether every image is looked at. Of images from files this depends on their number alone, so that it
    is the same for images in memory and for those that are decoded while a run goes on.
    """
    if files is not None:
        return len(files) <= MOST_DECODED
    if isinstance(part, ImageSet):
        return part.nbytes <= MOST_READ
    return part.described_whole


def _sample(part: Images, files: Listing | None) -> list[int]:
    """The images whose names have the smallest digests: of a part and of its copy, which has the same names,
    the same ones.
    """
    if files is not None and len(files) == len(part):
        # Below the part's own folder.
        names = (os.fsencode(path.partition(os.sep)[2]) for path in files.paths)
    else:
        sizes = np.zeros(len(part), "<i8") if files is not None else _sizes(part, None)
        places = zip(sizes.tolist(), part.labels.tolist(), strict=True)
        names = (f"{number} {size} {label}".encode() for number, (size, label) in enumerate(places))
    return np.sort(np.argsort(_joined(map(_short, names)), kind="stable")[:SAMPLED]).tolist()


def _sizes(part: Images, files: Listing | None) -> np.ndarray:
    """int64: the bytes of each file or, where there are none, of each image."""
    if files is not None and files.sizes is not None:
        return files.sizes.astype("<i8")
    if files is not None:
        return np.fromiter((_size_of(files.root / path) for path in files.paths), "<i8", len(files))
    if not isinstance(part, ImageSet):
        return part.described_sizes().astype("<i8")
    if part.table is None:
        return np.full(len(part), int(np.prod(part.images.shape[1:])), "<i8")
    return (part.table[:, 1] * part.table[:, 2] * part.channels).numpy().astype("<i8")


def _size_of(path: Path) -> int:
    try:
        return os.stat(path).st_size
    # A link to nothing, where such images are left out.
    except OSError:
        return -1


def _digests(part: Images, rows: Sequence[int]) -> np.ndarray:
    """uint64 (n,): of the pixels and the shape of each image in memory, or of its bytes in an FFCV file."""
    if not isinstance(part, ImageSet):
        stored = part
        return stored.remembered("digests", lambda: _joined(map(_of_one, stored.described(rows))), rows)
    if part.table is None and part.images.is_contiguous() and part.images.numel():
        # Not image by image as below, which takes three times as long.
        shape = hashlib.sha256(str(tuple(part.images.shape[1:])).encode())
        pixels = part.images.numpy().reshape(-1).data
        size = part.images[0].numel()
        return _joined(_short(pixels[row * size : row * size + size], shape) for row in rows)
    return _joined(_of_one(part.image(row)) for row in rows)


def _of_one(image: bytes | Tensor) -> bytes:
    """The digest of an image's pixels and shape, or of its stored bytes."""
    if isinstance(image, bytes):
        return _short(image)
    shape = hashlib.sha256(str(tuple(image.shape)).encode())
    return _short(image.contiguous().numpy().reshape(-1).data, shape)


def _short(data: bytes | memoryview, begun: Any = None) -> bytes:
    digest = hashlib.sha256() if begun is None else begun.copy()
    digest.update(data)
    return bytes(digest.digest()[:8])


def _joined(digests: Iterable[bytes]) -> np.ndarray:
    return np.frombuffer(b"".join(digests), "<u8")


def _pairs(images: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """uint64 (n,): of each image with its label."""
    return images ^ (labels.astype("<u8") + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)


def _digest(*values: Any) -> str:
    """Of an array, or of texts, of which none can run into the next."""
    whole = hashlib.sha256()
    for value in values:
        data = value if isinstance(value, bytes) else np.ascontiguousarray(value).tobytes()
        whole.update(len(data).to_bytes(8, "little") + data)
    return whole.hexdigest()[:32]


# ---------------------------------------------------------------- two data sets


def records(parts: Mapping[str, PartContent]) -> dict[str, dict[str, Any]]:
    return {name: part.record for name, part in parts.items()}


def differences(before: Mapping[str, Any], now: Mapping[str, Any]) -> dict[str, list[str]]:
    """For each part that both `records` have and that is not the same: what differs.

    Empty where the data are the same.
    """
    found = {name: _kinds(before[name], now[name]) for name in before if name in now}
    return {name: kinds for name, kinds in found.items() if kinds}


def _kinds(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    if before == now:
        return []

    def differ(key: str) -> bool:
        return before.get(key) != now.get(key)

    found = [kind for kind in (COUNT, CLASSES) if differ(kind)]
    found += [kind for kind in ("names", "labels", "sizes", "pixels", "groups") if differ(f"any {kind}")]
    if "labels" not in found and "pixels" not in found and differ("labelled"):
        # The same images with each other's labels.
        found.append("labels")
    if not {"sizes", "names"} & set(found) and differ("sizes") and not differ("names"):
        found.append("sizes")
    return found or ["order"]


def in_words(different: Mapping[str, list[str]], before: Mapping[str, Any], now: Mapping[str, Any]) -> str:
    """Which parts differ in what; of counts and class names, both."""

    def told(part: str, kind: str) -> str:
        if kind not in (COUNT, CLASSES):
            return kind
        values = [_text((side.get(part) or {}).get(kind)) for side in (before, now)]
        return f"{kind} (was {values[0]}, now {values[1]})"

    return "; ".join(
        f"{part}: {', '.join(told(part, kind) for kind in kinds)}" for part, kinds in different.items()
    )


def _text(value: Any) -> str:
    return ", ".join(map(str, value)) if isinstance(value, list) else f"{value}"


def copies(
    part: PartContent, of: PartContent, rows: np.ndarray | None = None, of_rows: np.ndarray | None = None
) -> tuple[int, int]:
    """How many images of a part are among those of another, and how many were looked at. rows: of the parts,
    where they are whole.
    """
    mine = part.images if rows is None else part.images[rows]
    theirs = of.images if of_rows is None else of.images[of_rows]
    return int(np.isin(mine, theirs).sum()), len(mine)


def copies_note(part: str, count: int, of: int) -> str:
    return (
        f"{count:,} of {of:,} images of the {part} are copies of training images: its accuracies are too high"
    )


def copied_test_images(found: ImageData) -> list[str]:
    """What to say where images of a test part are in the training part beside it, too."""
    if "test" not in found.files:
        return []
    parts = describe(found)
    count, of = copies(parts["test"], parts["train"])
    return [copies_note("test set", count, of)] if count else []
