"""Runs fed by FFCV: the same weights as from the resident source, and exact resume with batches drawn ahead."""

import pytest

from cfol_fast import data
from cfol_fast.data import beton
from cfol_fast.errors import InputError
from tests.training import tiny

pytestmark = pytest.mark.ffcv


@pytest.fixture
def file(few_images, tmp_path):
    """The training part of the few images as an FFCV file."""
    path = tmp_path / "train.beton"
    beton.write(path, data.load("fashion-mini").train)
    return path


def ffcv(file, lag: int) -> dict:
    return {"data__source": "ffcv", "data__beton": str(file), "data__lag": lag}


def test_a_run_through_ffcv_ends_with_the_weights_of_the_resident_source(file, tmp_path):
    tiny.run(tmp_path / "resident")
    tiny.run(tmp_path / "ffcv", **ffcv(file, lag=0))
    tiny.assert_same_outcome(tmp_path / "ffcv", tmp_path / "resident")


def test_batches_drawn_ahead_do_not_harm_exact_resume(file, tmp_path, monkeypatch):
    tiny.run(tmp_path / "whole", **ffcv(file, lag=2))
    tiny.run_until(monkeypatch, 2, tmp_path / "stopped", **ffcv(file, lag=2))
    tiny.run(tmp_path / "stopped", resume=True, **ffcv(file, lag=2))
    tiny.assert_same_outcome(tmp_path / "stopped", tmp_path / "whole")


def test_a_file_of_other_images_is_refused(file, tmp_path, monkeypatch):
    monkeypatch.setattr(data, "load", tiny.few_images(per_class=10))
    with pytest.raises(InputError, match="was not written from the training part of fashion-mini"):
        tiny.run(tmp_path / "run", **ffcv(file, lag=0))
