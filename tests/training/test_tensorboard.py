"""TensorBoard events are the rows of metrics.jsonl: read back with TensorBoard's own reader."""

from __future__ import annotations

import json
import shutil
import sys
from contextlib import contextmanager
from pathlib import Path

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.summary.writer import event_file_writer
from torch import nn

from cfol_fast.errors import InputError
from cfol_fast.runs.config import TrainConfig
from cfol_fast.training.callbacks import RunInfo
from cfol_fast.training.tensorboard import TensorBoardLog
from tests.reporting.synthetic_runs import FASHION, make_run


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return make_run(tmp_path_factory.mktemp("tensorboard") / "run")


@pytest.fixture(autouse=True)
def _files_are_read_in_the_order_they_were_written(monkeypatch):
    """Their names end in a number, and of one second's files that with a 10 would come before that
    with a 9.
    """
    monkeypatch.setattr(event_file_writer, "_global_uid", event_file_writer.AtomicCounter(0))


def rows(run, kind=None):
    found = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [row for row in found if kind in (None, row["kind"])]


@contextmanager
def log_of(run: Path, rows_before=(), step=0):
    """The log of a run that begins, or that continues after the rows so far."""
    log = TensorBoardLog()
    log.on_start(RunInfo(run, TrainConfig(), FASHION, nn.Identity(), step, 100, list(rows_before)))
    try:
        yield log
    finally:
        log.on_close()


def read(run):
    events = EventAccumulator(str(run / "tensorboard"))
    events.Reload()
    return events


def scalars(events, tag):
    return [(event.step, event.value) for event in events.Scalars(tag)]


def test_losses_rates_class_errors_and_p_can_be_read_back(run, tmp_path):
    with log_of(tmp_path) as log:
        for row in rows(run):
            log.on_row(row)
    events = read(tmp_path)
    expected = rows(run, "train")
    for tag, key in (
        ("train/loss", "loss"),
        ("train/robust error", "robust_error"),
        ("train/learning rate", "lr"),
        ("train/images per second", "images_per_second"),
    ):
        assert scalars(events, tag) == [(row["step"], pytest.approx(row[key])) for row in expected]
    shirt = FASHION.index("Shirt")
    assert scalars(events, "class distribution p/Shirt") == [
        (row["step"], pytest.approx(row["p"][shirt])) for row in expected
    ]
    assert scalars(events, "class robust accuracy, train/Shirt")[-1][1] == pytest.approx(
        1 - expected[-1]["class_error"][shirt]
    )
    assert "class distribution p/T-shirt-top" in events.Tags()["scalars"]


def test_validations_can_be_read_back(run, tmp_path):
    with log_of(tmp_path) as log:
        for row in rows(run):
            log.on_row(row)
    events = read(tmp_path)
    last = rows(run, "validation")[-1]
    for metric in ("average", "tail", "worst"):
        for kind in ("clean", "robust"):
            assert scalars(events, f"holdout {kind}/{metric}")[-1] == (
                last["step"],
                pytest.approx(last[kind][metric]),
            )
    assert scalars(events, "class robust accuracy, holdout/Bag")[-1][1] == pytest.approx(
        last["robust"]["per_class"]["Bag"]
    )


def test_what_a_method_does_not_have_is_left_out(tmp_path):
    with log_of(tmp_path) as log:
        row = {"kind": "train", "step": 1, "loss": 0.5, "class_error": [0.25, None], "p": None}
        log.on_row(row)
    assert sorted(read(tmp_path).Tags()["scalars"]) == [
        "class robust accuracy, train/T-shirt-top",
        "train/loss",
    ]


def test_the_gallery_can_be_read_back(run, tmp_path):
    shutil.copy(run / "gallery.json", tmp_path)
    with log_of(tmp_path) as log:
        log.on_end({})
    events = read(tmp_path)
    assert sorted(events.Tags()["images"]) == ["Shirt/adversarial", "Shirt/clean"]
    (row_of_images,) = events.Images("Shirt/clean")
    gallery = json.loads((run / "gallery.json").read_text())
    height, width, _ = gallery["shape"]
    assert (row_of_images.step, row_of_images.height) == (100, height)
    assert row_of_images.width == width * len(gallery["examples"])


@pytest.mark.parametrize("kept", [0, 3, 6], ids=lambda kept: f"{kept}-rows-kept")
def test_a_run_that_continues_shows_every_row_once(run, tmp_path, kept):
    """Six rows were written when the run was killed; `kept` of them are in metrics.jsonl when it goes on."""
    written = rows(run, "train")
    with log_of(tmp_path) as log:
        for row in written[:6]:
            log.on_row(row)
    with log_of(tmp_path, written[:kept], step=max(1, kept)) as log:
        for row in written[kept:]:
            log.on_row(row)
    steps = [step for step, _ in scalars(read(tmp_path), "train/loss")]
    assert steps == [row["step"] for row in written]


def test_a_log_that_a_resumed_run_begins_has_the_rows_before_too(run, tmp_path):
    written = rows(run, "train")
    with log_of(tmp_path, written[:4], step=4) as log:
        for row in written[4:]:
            log.on_row(row)
    steps = [step for step, _ in scalars(read(tmp_path), "train/loss")]
    assert steps == [row["step"] for row in written]


def test_a_run_that_ends_before_its_first_row_leaves_no_file(tmp_path):
    with log_of(tmp_path):
        pass
    assert list(tmp_path.iterdir()) == []


def test_without_tensorboard_the_package_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    with pytest.raises(InputError, match=r"pip install tensorboard"):
        TensorBoardLog()
