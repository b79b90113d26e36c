"""TensorBoard events are the rows of metrics.jsonl: read back with TensorBoard's own reader."""

from __future__ import annotations

import json
import sys
from contextlib import closing

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from cfol_fast.errors import InputError
from cfol_fast.training.tensorboard import TensorBoardLog
from tests.reporting.synthetic_runs import FASHION, make_run


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return make_run(tmp_path_factory.mktemp("tensorboard") / "run")


def rows(run, kind):
    return [
        row
        for line in (run / "metrics.jsonl").read_text().splitlines()
        if (row := json.loads(line))["kind"] == kind
    ]


def read(folder):
    events = EventAccumulator(str(folder))
    events.Reload()
    return events


def scalars(events, tag):
    return [(event.step, event.value) for event in events.Scalars(tag)]


def test_losses_rates_class_errors_and_p_can_be_read_back(run, tmp_path):
    with closing(TensorBoardLog(tmp_path, FASHION)) as log:
        for row in rows(run, "train"):
            log.train(row)
    events = read(tmp_path)
    expected = rows(run, "train")
    for tag, key in (
        ("train/loss", "loss"),
        ("train/robust error", "robust_error"),
        ("train/learning rate", "lr"),
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
    with closing(TensorBoardLog(tmp_path, FASHION)) as log:
        for row in rows(run, "validation"):
            log.validation(row)
    events = read(tmp_path)
    last = rows(run, "validation")[-1]
    for metric in ("average", "tail", "worst"):
        assert scalars(events, f"holdout robust/{metric}")[-1] == (
            last["step"],
            pytest.approx(last["robust"][metric]),
        )
        assert scalars(events, f"holdout clean/{metric}")[-1] == (
            last["step"],
            pytest.approx(last["clean"][metric]),
        )
    assert scalars(events, "class robust accuracy, holdout/Bag")[-1][1] == pytest.approx(
        last["robust"]["per_class"]["Bag"]
    )


def test_what_a_method_does_not_have_is_left_out(tmp_path):
    with closing(TensorBoardLog(tmp_path)) as log:
        log.train({"step": 1, "loss": 0.5, "class_error": [0.25, None], "p": None, "robust_error": None})
    assert sorted(read(tmp_path).Tags()["scalars"]) == ["class robust accuracy, train/0", "train/loss"]


def test_the_gallery_can_be_read_back(run, tmp_path):
    gallery = json.loads((run / "gallery.json").read_text())
    with closing(TensorBoardLog(tmp_path)) as log:
        log.gallery(gallery, 2)
    events = read(tmp_path)
    assert sorted(events.Tags()["images"]) == ["Shirt/adversarial", "Shirt/clean"]
    (row_of_images,) = events.Images("Shirt/clean")
    height, width, _ = gallery["shape"]
    assert (row_of_images.step, row_of_images.height) == (2, height)
    assert row_of_images.width == width * len(gallery["examples"])


def test_events_after_the_step_a_run_continues_from_are_hidden(run, tmp_path):
    written = rows(run, "train")
    with closing(TensorBoardLog(tmp_path, FASHION)) as log:
        for row in written[:6]:
            log.train(row)
    with closing(TensorBoardLog(tmp_path, FASHION, resume_step=written[3]["step"])) as log:
        for row in written[3:]:
            log.train(row)
    steps = [step for step, _ in scalars(read(tmp_path), "train/loss")]
    assert steps == [row["step"] for row in written]


def test_without_tensorboard_the_package_is_named(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    with pytest.raises(InputError, match=r"pip install tensorboard"):
        TensorBoardLog(tmp_path)
