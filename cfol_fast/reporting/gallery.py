"""The gallery of the worst class: clean image, perturbation made visible, adversarial image, and what the
model took it for.
"""

from __future__ import annotations

import base64
import binascii
import io
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from PIL import Image

from cfol_fast.errors import InputError
from cfol_fast.runs.records import Run


@dataclass(frozen=True)
class Example:
    """pictures: clean, perturbation and adversarial, as data: addresses. gain: what the perturbation was
    multiplied with.
    """

    index: int
    pictures: tuple[str, str, str]
    gain: float
    predicted: str
    confidence: float | None
    clean_predicted: str


@dataclass(frozen=True)
class Gallery:
    class_name: str
    examples: list[Example]


def load(run: Run) -> Gallery | None:
    """The run's gallery, decoded; None when it has none."""
    data = run.gallery
    if data is None or not data.get("examples"):
        return None
    where = run.path / "gallery.json"
    shape = data.get("shape")
    if not (isinstance(shape, list) and len(shape) == 3 and all(isinstance(n, int) and n > 0 for n in shape)):
        raise InputError(f"{where}: shape must be [height, width, channels], got {shape!r}")
    examples = []
    for number, entry in enumerate(data["examples"]):
        clean = _bytes(entry, "clean", shape, f"{where}: examples[{number}]")
        attacked = _bytes(entry, "adversarial", shape, f"{where}: examples[{number}]")
        shown, gain = perturbation(clean, attacked)
        confidence = entry.get("confidence")
        examples.append(
            Example(
                int(entry.get("index", number)),
                (_address(clean, shape), _address(shown, shape), _address(attacked, shape)),
                gain,
                str(entry.get("predicted", "?")),
                float(confidence) if isinstance(confidence, (int, float)) else None,
                str(entry.get("clean_predicted", "?")),
            )
        )
    return Gallery(str(data.get("class", "?")), examples)


def perturbation(clean: bytes, attacked: bytes) -> tuple[bytes, float]:
    """The difference on a grey ground, stretched so that its largest value is black or white; and the
    stretch.
    """
    differences = [b - a for a, b in zip(clean, attacked, strict=True)]
    largest = max((abs(value) for value in differences), default=0)
    gain = 127 / largest if largest else 1.0
    return bytes(min(255, max(0, round(128 + gain * value))) for value in differences), gain


def _bytes(entry: Any, key: str, shape: Sequence[int], where: str) -> bytes:
    try:
        data = base64.b64decode(entry[key], validate=True)
    except (KeyError, TypeError):
        raise InputError(f"{where} has no {key!r}") from None
    except binascii.Error as problem:
        raise InputError(f"{where}.{key} is not base64: {problem}") from None
    size = shape[0] * shape[1] * shape[2]
    if len(data) != size:
        raise InputError(f"{where}.{key} has {len(data)} bytes, but the shape {list(shape)} needs {size}")
    return data


def _address(pixels: bytes, shape: Sequence[int]) -> str:
    """Raw (height, width, 1 or 3) pixels as the data: address of a PNG."""
    height, width, channels = shape
    if channels not in (1, 3):
        raise InputError(f"gallery images must have 1 or 3 channels, got {channels}")
    buffer = io.BytesIO()
    Image.frombytes("L" if channels == 1 else "RGB", (width, height), pixels).save(buffer, "PNG")
    return "data:image/png;base64," + base64.b64encode(buffer.getvalue()).decode("ascii")
