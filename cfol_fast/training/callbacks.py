"""What a run tells the outside: a `Callback` hears of its start, its steps, its rows, its validations and its
end.

`metrics.jsonl` stays the truth: a row is on the disk before anybody hears of it, and a resumed run tells only
the rows that are not in the file yet. A callback cannot lose a run: its errors are reported, and it draws its
random numbers apart.
"""

from __future__ import annotations

import logging
import traceback
import warnings
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from cfol_fast.errors import InputError, Stopped, TrainingFailed, one_line
from cfol_fast.frozen import evaluation_mode
from cfol_fast.progress import is_heard
from cfol_fast.runs.config import TrainConfig
from cfol_fast.runs.metrics import METRICS
from cfol_fast.runs.metrics_log import Row

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class RunInfo:
    """The run that a callback hears of. step: where it begins, 0 unless it is resumed; rows: those that
    metrics.jsonl holds then.
    """

    folder: Path
    config: TrainConfig
    classes: list[str]
    model: nn.Module
    step: int
    steps: int
    rows: list[Row]


class Callback:
    """Hears of a run: override what you need, and pass it to `train(config, callbacks=[...])`.

    Of several ranks only the first calls it.

    What it raises does not end the run: the error is said, the callback is closed and not called again. Only
    three kinds of error go
    through: `InputError` in on_start, before the first step, and `TrainingFailed` and `Stopped`, which end
    the run on purpose.
    """

    def on_start(self, run: RunInfo) -> None:
        """Before the first step.

        An old run that --overwrite replaces is still in `run.folder`, until the first step is done.
        """

    def on_step(self, step: int) -> None:
        """`step` steps are done.

        Nothing was read from the device for it; a callback that reads from it makes the run wait.
        """

    def on_row(self, row: Row) -> None:
        """A row of metrics.jsonl, of kind "train" or "validation"; each is told once, also when the run was
        resumed.
        """

    def on_validation(self, row: Row, model: nn.Module) -> None:
        """After the row of a validation, with the model in evaluation mode and without gradients."""

    def on_end(self, result: dict[str, Any]) -> None:
        """The run is finished; `result` is what result.json says."""

    def on_close(self) -> None:
        """The last call: after the end, and also when the run stops, fails, or the callback failed."""


class Callbacks:
    """The callbacks of one run, called in their order; as a context it closes them."""

    def __init__(self, callbacks: Iterable[Callback], device: torch.device) -> None:
        self._called = list(callbacks)
        self._devices = [device] if device.type == "cuda" else []

    def __enter__(self) -> Callbacks:
        return self

    def __exit__(self, *_: object) -> None:
        self._call("on_close")

    def start(self, run: RunInfo) -> None:
        self._call("on_start", run)

    def step(self, step: int) -> None:
        called = [one for one in self._called if type(one).on_step is not Callback.on_step]
        if called:
            self._call("on_step", step, to=called)

    def row(self, row: Row, model: nn.Module) -> None:
        self._call("on_row", row)
        if row["kind"] == "validation" and self._called:
            with evaluation_mode(model), torch.no_grad():
                self._call("on_validation", row, model)

    def end(self, result: dict[str, Any]) -> None:
        self._call("on_end", result)

    def _call(self, event: str, *what: Any, to: list[Callback] | None = None) -> None:
        for callback in list(self._called if to is None else to):
            try:
                # What it draws must not change the dropout of the next step.
                with torch.random.fork_rng(devices=self._devices):
                    getattr(callback, event)(*what)
            except (Stopped, TrainingFailed):
                raise
            except Exception as error:
                if event == "on_start" and isinstance(error, InputError):
                    raise
                self._drop(callback, event, error)

    def _drop(self, callback: Callback, event: str, error: Exception) -> None:
        self._called.remove(callback)
        place = traceback.extract_tb(error.__traceback__)[-1]
        message = (
            f"{type(callback).__name__}.{event} failed: {type(error).__name__}: {one_line(error)} "
            f"({place.filename}:{place.lineno}); it is not called again, and the run goes on"
        )
        if is_heard():
            logger.warning(message)
        else:
            warnings.warn(message, RuntimeWarning, stacklevel=2)
        with suppress(Exception):
            callback.on_close()


def checked(callbacks: Iterable[Callback]) -> list[Callback]:
    """As a list, unless one is something else."""
    callbacks = list(callbacks)
    for callback in callbacks:
        if not isinstance(callback, Callback):
            raise TypeError(
                f"a callback must be a cfol_fast.training.Callback, got {type(callback).__name__}: "
                "put a function of a row into a subclass as on_row"
            )
    return callbacks


def scalars(row: Row, classes: list[str]) -> dict[str, float]:
    """A row as named numbers, for a log that wants those. What a method does not have is left out."""
    found = dict(_of_training(row, classes) if row["kind"] == "train" else _of_validation(row))
    return {tag: float(value) for tag, value in found.items() if value is not None}


def _of_training(row: Row, classes: list[str]) -> Iterable[tuple[str, float | None]]:
    for key in ("loss", "robust_error", "lr", "images_per_second"):
        name = {"lr": "learning rate"}.get(key, key.replace("_", " "))
        yield f"train/{name}", row.get(key)
    for name, error in zip(classes, row.get("class_error") or [], strict=False):
        yield f"class robust accuracy, train/{_tag(name)}", None if error is None else 1 - error
    for name, share in zip(classes, row.get("p") or [], strict=False):
        yield f"class distribution p/{_tag(name)}", share


def _of_validation(row: Row) -> Iterable[tuple[str, float | None]]:
    split = row.get("split", "holdout")
    for kind in ("clean", "robust"):
        values = row.get(kind) or {}
        for metric in METRICS:
            yield f"{split} {kind}/{metric}", values.get(metric)
        for name, accuracy in (values.get("per_class") or {}).items():
            yield f"class {kind} accuracy, {split}/{_tag(name)}", accuracy
    if row.get("ema"):
        # The average of the weights, where a run keeps one.
        yield from _of_validation({"split": f"{split} ema", **row["ema"]})


def _tag(name: str) -> str:
    """A slash would open another level in the tree of tags."""
    return name.replace("/", "-")
