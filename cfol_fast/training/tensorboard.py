"""`--log tensorboard`: the rows of metrics.jsonl as TensorBoard's scalars, and the worst class's images.

Needs the extra [tensorboard].
"""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

import torch

from cfol_fast.errors import InputError
from cfol_fast.runs import run_folder
from cfol_fast.runs.json_files import read_object
from cfol_fast.runs.metrics_log import Row
from cfol_fast.training.callbacks import Callback, RunInfo, scalars


class TensorBoardLog(Callback):
    """Writes events into `folder`, by default RUN/tensorboard.

    When a run continues, events that were written after its checkpoint are hidden: their rows come again.
    Where there are no events yet, the rows so far are written first.
    """

    def __init__(self, folder: Path | str | None = None) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError:
            raise InputError("TensorBoard events need tensorboard: pip install tensorboard") from None
        self.folder, self._new_writer = folder, SummaryWriter
        self._writer: Any = None

    def on_start(self, run: RunInfo) -> None:
        self._run = run
        self._place = Path(self.folder or run.folder / run_folder.TENSORBOARD)
        if run.rows and not any(self._place.glob("events.*")):
            for row in run.rows:
                self.on_row(row)

    @property
    def writer(self) -> Any:
        """Opened with the first event: a run that ends before it leaves no file."""
        if self._writer is None:
            run = self._run
            # Of a resumed run: the first step whose rows are not in metrics.jsonl.
            purge = (run.rows[-1]["step"] + 1 if run.rows else 0) if run.step else None
            self._writer = self._new_writer(str(self._place), purge_step=purge)
        return self._writer

    def on_row(self, row: Row) -> None:
        for tag, value in scalars(row, self._run.classes).items():
            self.writer.add_scalar(tag, value, row["step"])
        self.writer.flush()

    def on_end(self, result: dict[str, Any]) -> None:
        """The clean and the adversarial images of the worst class, from gallery.json."""
        gallery = read_object(self._run.folder / run_folder.GALLERY)
        shape = (-1, *(int(size) for size in gallery["shape"]))
        for kind in ("clean", "adversarial"):
            pixels = b"".join(base64.b64decode(example[kind]) for example in gallery["examples"])
            if pixels:
                images = torch.frombuffer(bytearray(pixels), dtype=torch.uint8).reshape(shape)
                tag, step = f"{gallery['class']}/{kind}", self._run.steps
                self.writer.add_images(tag, images, step, dataformats="NHWC")

    def on_close(self) -> None:
        if self._writer is not None:
            self._writer.close()
