"""`--log wandb`: the rows of metrics.jsonl as the history of a run at Weights & Biases.

Needs the extra [wandb].
"""

from __future__ import annotations

import os
from typing import Any

from cfol_fast import atomic
from cfol_fast.errors import InputError, one_line
from cfol_fast.runs import run_folder
from cfol_fast.runs.config import to_dict
from cfol_fast.runs.json_files import read_object
from cfol_fast.runs.metrics import METRICS
from cfol_fast.runs.metrics_log import Row
from cfol_fast.training.callbacks import Callback, RunInfo, scalars

PROJECT = "cfol-fast"


class WandbLog(Callback):
    """options: further arguments of `wandb.init`, such as project and mode; wandb's own environment
    (WANDB_MODE, WANDB_DIR, ...) holds too.

    RUN/wandb.json keeps the id, with which a resumed run continues, and how many rows were handed over: no
    row is logged twice.
    """

    def __init__(self, **options: Any) -> None:
        try:
            import wandb
        except ImportError:
            raise InputError("--log wandb needs wandb: pip install wandb") from None
        self._wandb, self.options = wandb, options
        self._run: Any = None
        self._finished = False

    def on_start(self, run: RunInfo) -> None:
        self._classes, self._file = run.classes, run.folder / run_folder.WANDB
        # A run that starts afresh does not look at the file: it may be that of a run which is about to be
        # overwritten.
        known = read_object(self._file) if run.step and self._file.exists() else {}
        self._id, self._logged = known.get("id"), int(known.get("rows", 0))
        self._heard = 0
        options: dict[str, Any] = {
            "project": os.environ.get("WANDB_PROJECT", PROJECT),
            "name": run.folder.name,
            "config": to_dict(run.config),
            # The terminal belongs to the progress display.
            "settings": self._wandb.Settings(console="off"),
        }
        try:
            self._run = self._wandb.init(id=self._id, resume="allow", **{**options, **self.options})
        except self._wandb.errors.UsageError as error:
            raise InputError(
                f"wandb: {one_line(error)}; log in with `wandb login`, or set WANDB_MODE=offline"
            ) from None
        self._id = self._run.id
        # Each row is an entry of its own, and the charts are drawn over our steps.
        self._run.define_metric("*", step_metric="step")
        for row in run.rows:
            self.on_row(row)

    def on_row(self, row: Row) -> None:
        self._heard += 1
        if self._heard <= self._logged:
            return
        atomic.write_json(self._file, {"id": self._id, "rows": self._heard})
        self._run.log({"step": row["step"], "epoch": row["epoch"], **scalars(row, self._classes)})

    def on_end(self, result: dict[str, Any]) -> None:
        self._run.summary.update(
            {
                f"test {kind}/{name}": result["test"][kind][name]
                for kind in ("clean", "robust")
                for name in METRICS
            }
        )
        self._finished = True

    def on_close(self) -> None:
        if self._run is not None:
            self._run.finish(exit_code=0 if self._finished else 1)
