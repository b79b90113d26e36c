"""TensorBoard events during training: the rows of metrics.jsonl as scalars, and images.

The trainer hands over the very rows it writes to metrics.jsonl, so that the two cannot disagree. Needs the extra [tensorboard].
"""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import torch

from cfol_fast.errors import InputError
from cfol_fast.runs.accuracy import METRICS
from cfol_fast.runs.metrics_log import Row


class TensorBoardLog:
    """Writes events into `folder`; called with a row it is a listener of the trainer.

    classes: the names of the per-class scalars; without them classes have numbers.
    resume_step: events at or after it, left by a run that was killed, are hidden when the run continues from there.
    """

    def __init__(
        self, folder: Path | str, classes: Sequence[str] | None = None, resume_step: int | None = None
    ) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError:
            raise InputError("TensorBoard events need tensorboard: pip install tensorboard") from None
        self.classes = [str(name) for name in classes] if classes is not None else None
        self._open = lambda: SummaryWriter(str(folder), purge_step=resume_step)

    @cached_property
    def _writer(self) -> Any:
        """Opened with the first event: a run that ends before it leaves no file."""
        return self._open()

    def __call__(self, row: Row) -> None:
        """A row of metrics.jsonl, on the disk at once."""
        (self.train if row["kind"] == "train" else self.validation)(row)
        self._writer.flush()

    def _class(self, number: int) -> str:
        # A slash would open another level in TensorBoard's tree of tags.
        return self.classes[number].replace("/", "-") if self.classes else str(number)

    def _add(self, tag: str, value: Any, step: int) -> None:
        if value is not None:
            self._writer.add_scalar(tag, float(value), step)

    def train(self, row: Mapping[str, Any]) -> None:
        """A row of kind "train": loss, robust error, learning rate, speed, and per class the error and p."""
        step = int(row["step"])
        for key, tag in (
            ("loss", "loss"),
            ("robust_error", "robust error"),
            ("lr", "learning rate"),
            ("images_per_second", "images per second"),
        ):
            self._add(f"train/{tag}", row.get(key), step)
        for number, error in enumerate(row.get("class_error") or []):
            if error is not None:
                self._add(f"class robust accuracy, train/{self._class(number)}", 1 - float(error), step)
        for number, share in enumerate(row.get("p") or []):
            self._add(f"class distribution p/{self._class(number)}", share, step)

    def validation(self, row: Mapping[str, Any]) -> None:
        """A row of kind "validation": average, tail and worst class, clean and robust, and the accuracies per class."""
        step = int(row["step"])
        split = str(row.get("split", "holdout"))
        for kind in ("clean", "robust"):
            values = row.get(kind)
            if not values:
                continue
            for metric in METRICS:
                self._add(f"{split} {kind}/{metric}", values.get(metric), step)
            for name, accuracy in (values.get("per_class") or {}).items():
                self._add(f"class {kind} accuracy, {split}/{str(name).replace('/', '-')}", accuracy, step)

    def gallery(self, gallery: Mapping[str, Any], step: int) -> None:
        """A gallery as in gallery.json: the clean and the adversarial images of the worst class."""
        shape = (-1, *(int(size) for size in gallery["shape"]))
        for kind in ("clean", "adversarial"):
            pixels = b"".join(base64.b64decode(example[kind]) for example in gallery["examples"])
            if pixels:
                images = torch.frombuffer(bytearray(pixels), dtype=torch.uint8).reshape(shape)
                self._writer.add_images(f"{gallery['class']}/{kind}", images, step, dataformats="NHWC")

    def close(self) -> None:
        if "_writer" in vars(self):
            self._writer.close()
