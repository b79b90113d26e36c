"""Runs fed by FFCV: the same weights as from the resident source, and exact resume with batches drawn ahead."""

import signal

import pytest

from cfol_fast.data import beton
from cfol_fast.errors import InputError, Stopped
from cfol_fast.training import loop, parts
from tests.training import tiny
from tests.training.tiny import stop_after

pytestmark = pytest.mark.xdist_group("ffcv")


@pytest.fixture
def file(few_images, tmp_path):
    """The training part of the few images as an FFCV file."""
    path = tmp_path / "train.beton"
    beton.write(path, parts.data.load("fashion-mini").train)
    return path


def config(out, file, lag: int):
    return tiny.tiny_config(out, data__source="ffcv", data__beton=str(file), data__lag=lag)


def test_a_run_through_ffcv_ends_with_the_weights_of_the_resident_source(file, tmp_path):
    loop.train(tiny.tiny_config(tmp_path / "resident"), quiet=True)
    loop.train(config(tmp_path / "ffcv", file, lag=0), quiet=True)
    tiny.assert_same_outcome(tmp_path / "ffcv", tmp_path / "resident")


def test_batches_drawn_ahead_do_not_harm_exact_resume(file, tmp_path, monkeypatch):
    loop.train(config(tmp_path / "whole", file, lag=2), quiet=True)
    with monkeypatch.context() as patch:
        stop_after(patch, 2, signal.SIGTERM)
        with pytest.raises(Stopped):
            loop.train(config(tmp_path / "stopped", file, lag=2), quiet=True)
    loop.train(config(tmp_path / "stopped", file, lag=2), resume=True, quiet=True)
    tiny.assert_same_outcome(tmp_path / "stopped", tmp_path / "whole")


def test_a_file_of_other_images_is_refused(file, tmp_path, monkeypatch):
    monkeypatch.setattr(parts, "data", tiny.FewImages(tiny.few_images(per_class=10)))
    with pytest.raises(InputError, match="was not written from the training part of fashion-mini"):
        loop.train(config(tmp_path / "run", file, lag=0), quiet=True)
