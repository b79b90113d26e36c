"""The class that a model took each test image for, clean and attacked, in the order of the images.

From them runs are compared image by image, and every figure of a result can be computed again. A list of
classes is text: base64 of zlib of one byte (two, from 256 classes on) for each image. The run folder's file
has one for the true labels and two for each checkpoint; result.json has the file's SHA-256.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from cfol_fast import atomic
from cfol_fast.errors import InputError
from cfol_fast.runs.accuracy import Accuracy
from cfol_fast.runs.json_files import read_object

FILE = "predictions.json"
FORMAT = 1
KINDS = ("clean", "robust")
SHAPE = {"format!": int, "images!": int, "labels!": str, "checkpoints!": {str: {"clean": str, "robust": str}}}


def pack(classes: Any) -> str:
    """classes: (N,) whole numbers from 0 to 65,535, as a list, an array or a tensor on the CPU."""
    values = np.asarray(classes)
    if values.size and not 0 <= values.min() <= values.max() < 2**16:
        raise InputError(f"a class is a number from 0 to 65,535, got {values.min()} to {values.max()}")
    width = np.uint8 if not values.size or values.max() < 256 else np.dtype("<u2")
    return base64.b64encode(zlib.compress(values.astype(width).tobytes(), 9)).decode()


def unpack(text: str, images: int, where: str) -> np.ndarray:
    """(N,) int64: what `pack` made a text of."""
    try:
        packed = base64.b64decode(text, validate=True)
        # Never more than two bytes an image, whatever the file says.
        raw = zlib.decompressobj().decompress(packed, 2 * images + 1)
    except (binascii.Error, zlib.error, ValueError) as error:
        raise InputError(f"{where} is not a packed list of classes: {error}") from None
    if images and len(raw) not in (images, 2 * images):
        raise InputError(f"{where} holds {len(raw)} bytes for {images} images")
    return np.frombuffer(raw, np.uint8 if len(raw) == images else np.dtype("<u2")).astype(np.int64)


def write(folder: Path, labels: Any, checkpoints: Mapping[str, Mapping[str, Any]]) -> dict[str, str]:
    """Writes a run's file and returns what result.json says of it. checkpoints: by name, {"clean": (N,),
    "robust": (N,)}.
    """
    packed = {name: {kind: pack(found[kind]) for kind in KINDS} for name, found in checkpoints.items()}
    tree = {"format": FORMAT, "images": len(labels), "labels": pack(labels), "checkpoints": packed}
    text = json.dumps(tree) + "\n"
    atomic.write_text(folder / FILE, text)
    return {"file": FILE, "sha256": hashlib.sha256(text.encode()).hexdigest()}


def read(
    folder: Path, result: Mapping[str, Any]
) -> tuple[np.ndarray, dict[str, dict[str, np.ndarray]]] | None:
    """The labels, and the predictions of each checkpoint; None for a run of an older version, which kept
    none.
    """
    said = result.get("predictions")
    if not isinstance(said, Mapping):
        return None
    path = folder / FILE
    if not path.exists() or hashlib.sha256(path.read_bytes()).hexdigest() != said.get("sha256"):
        raise InputError(f"{path} is missing or not the file that {folder / 'result.json'} was written with")
    return unpack_tree(read_object(path, SHAPE), str(path))


def unpack_tree(tree: Mapping[str, Any], where: str) -> tuple[np.ndarray, dict[str, dict[str, np.ndarray]]]:
    images = tree["images"]
    found = {
        name: {kind: unpack(text, images, f"{where}: {name}.{kind}") for kind, text in kept.items()}
        for name, kept in tree["checkpoints"].items()
    }
    return unpack(tree["labels"], images, f"{where}: labels"), found


def right_images(folder: Path, kind: str = "robust") -> tuple[list[int], list[bool]] | None:
    """The labels, and which images the tested checkpoint of a run is right about; None where it kept no
    predictions.
    """
    if not (folder / FILE).is_file():
        return None
    labels, kept = unpack_tree(read_object(folder / FILE, SHAPE), str(folder / FILE))
    found = kept.get("best-average") or kept.get("last") or {}
    return (labels.tolist(), (labels == found[kind]).tolist()) if kind in found else None


def accuracy(labels: np.ndarray, predicted: np.ndarray, classes: Sequence[str]) -> Accuracy:
    """The figures again, from the images."""
    k = len(classes)
    if len(labels) and max(labels.max(), predicted.max()) >= k:
        raise InputError(f"a prediction is for class {max(labels.max(), predicted.max())}, there are {k}")
    confusion = np.bincount(labels * k + predicted, minlength=k * k).reshape(k, k)
    return Accuracy.from_confusion(list(classes), confusion.tolist())
