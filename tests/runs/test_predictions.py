"""The predicted class of every image survives being written, small and checked."""

import json

import numpy as np
import pytest

from cfol_fast.errors import InputError
from cfol_fast.runs import predictions


@pytest.mark.parametrize("classes", [[], [0], [3, 1, 2, 9], [255] * 7, [256, 0, 65535]])
def test_a_packed_list_is_read_as_it_was(classes):
    assert predictions.unpack(predictions.pack(classes), len(classes), "x").tolist() == classes


def test_ten_thousand_predictions_of_ten_classes_take_less_than_8_kb():
    classes = np.random.default_rng(0).integers(0, 10, 10_000)
    assert len(predictions.pack(classes)) < 8000


@pytest.mark.parametrize("text", ["%%%", "AAAA", predictions.pack([1, 2]), predictions.pack([0] * 100)])
def test_what_is_not_a_list_of_so_many_classes_is_refused(text):
    with pytest.raises(InputError, match="a run's file"):
        predictions.unpack(text, 5, "a run's file")


def test_a_runs_file_gives_the_figures_again(tmp_path):
    labels, clean, robust = [0, 0, 1, 1], [0, 0, 1, 0], [0, 1, 0, 0]
    said = predictions.write(tmp_path, np.array(labels), {"last": {"clean": clean, "robust": robust}})
    true, kept = predictions.read(tmp_path, {"predictions": said})
    found = predictions.accuracy(true, kept["last"]["robust"], ["a", "b"])
    assert found.per_class == {"a": 0.5, "b": 0.0}
    assert found.confusion == [[1, 1], [2, 0]]


def test_a_changed_file_is_refused(tmp_path):
    said = predictions.write(tmp_path, np.array([0, 1]), {"last": {"clean": [0, 1], "robust": [0, 0]}})
    path = tmp_path / predictions.FILE
    tree = json.loads(path.read_text())
    tree["checkpoints"]["last"]["robust"] = predictions.pack([0, 1])
    path.write_text(json.dumps(tree))
    with pytest.raises(InputError, match="not the file"):
        predictions.read(tmp_path, {"predictions": said})


def test_a_prediction_beyond_the_classes_is_refused():
    with pytest.raises(InputError, match="class 2, there are 2"):
        predictions.accuracy(np.array([0, 1]), np.array([0, 2]), ["a", "b"])


def test_a_run_of_an_older_version_has_none(tmp_path):
    assert predictions.read(tmp_path, {}) is None
