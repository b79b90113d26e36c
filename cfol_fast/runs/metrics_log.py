"""`metrics.jsonl`: one JSON object per line, appended at the log points and cut back to the checkpoint on
resuming.
"""

from __future__ import annotations

import json
import math
import os
from pathlib import Path
from typing import Any

from cfol_fast import atomic
from cfol_fast.errors import InputError
from cfol_fast.runs.json_files import read_lines

Row = dict[str, Any]
FILE = "metrics.jsonl"
# What a row may hold; its accuracies are checked where they are read.
ROW_SHAPE = {
    "kind": str,
    "epoch": int,
    "step": int,
    "lr": float,
    "loss": float,
    "robust_error": float,
    "class_error": [(float, None)],
    "p": [(float, None)],
    "images_per_second": float,
    "seconds": float,
    "split": str,
}


class MetricsLog:
    """The file that gets the rows.

    `size` is stored in the checkpoint. Rows written after the checkpoint are cut off when a run continues
    from it: the continued run writes them again, the same. writes: False where another rank writes them.
    """

    def __init__(self, run: Path, writes: bool = True) -> None:
        self.path, self.writes = run / FILE, writes

    def append(self, row: Row) -> None:
        if not self.writes:
            return
        line = json.dumps(_finite(row), allow_nan=False) + "\n"
        # As a whole: a row that is torn takes no row with it that a checkpoint counts on, and is on the disk
        # before one does.
        before = self.path.read_bytes() if self.path.exists() else b""
        atomic.write_bytes(self.path, before + line.encode())

    @property
    def size(self) -> int:
        return self.path.stat().st_size if self.path.exists() else 0

    def misfit(self, size: int) -> str | None:
        """Why the file does not hold the rows of a checkpoint that was written when it had this size; None
        where it does.
        """
        if self.size < size:
            return (
                f"{self.path} is shorter ({self.size} bytes) than its checkpoint says ({size}); rows have"
                " been removed"
            )
        if size:
            with open(self.path, "rb") as file:
                file.seek(size - 1)
                if file.read(1) != b"\n":
                    return (
                        f"{self.path} has no end of a row at byte {size}, where its checkpoint says; rows"
                        " have been changed"
                    )
        return None

    def cut(self, size: int) -> None:
        if not self.writes:
            return
        if problem := self.misfit(size):
            raise InputError(problem)
        if self.size > size:
            os.truncate(self.path, size)


def read_rows(run: Path) -> list[Row]:
    """The rows of a run; a last line that was being written when the run was killed is left out."""
    path = run / FILE
    return read_lines(path, ROW_SHAPE) if path.exists() else []


def _finite(value: Any) -> Any:
    """JSON has no NaN: a class that was not seen has no error, which is null."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(item) for item in value]
    return value
