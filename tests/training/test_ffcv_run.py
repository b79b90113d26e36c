"""Runs fed by FFCV: the same weights as from the resident source, and exact resume with batches drawn ahead."""

import json
from dataclasses import asdict

import pytest
import torch

from cfol_fast import data
from cfol_fast.commands import main as cli
from cfol_fast.data import beton
from cfol_fast.data.room import size_text
from cfol_fast.errors import InputError
from cfol_fast.runs.config import TrainConfig
from cfol_fast.runs.defaults import complete
from cfol_fast.runs.identity import identity
from cfol_fast.training.capture import why_no_graph
from cfol_fast.training.images import load_images
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


@pytest.mark.slow
def test_random_resized_crops_from_a_file_train_as_those_of_the_resident_source(file, tmp_path):
    crop = {"data__crop": "random-resized", "data__crop_scale": 0.3}
    tiny.run(tmp_path / "resident", **crop)
    tiny.run(tmp_path / "ffcv", **crop, **ffcv(file, lag=0))
    tiny.assert_same_outcome(tmp_path / "ffcv", tmp_path / "resident")


def test_the_way_that_goes_names_the_one_that_takes_its_place(file, tmp_path):
    notes = load_images(tiny.tiny_config(tmp_path, **ffcv(file, lag=0))).notes
    assert "data.source=ffcv goes with the next version" in notes[-1]
    assert "--dataset beton" in notes[-1]


def test_batches_drawn_ahead_do_not_harm_exact_resume(file, tmp_path, monkeypatch):
    tiny.run(tmp_path / "whole", **ffcv(file, lag=2))
    tiny.run_until(monkeypatch, 2, tmp_path / "stopped", **ffcv(file, lag=2))
    tiny.run(tmp_path / "stopped", resume=True, **ffcv(file, lag=2))
    tiny.assert_same_outcome(tmp_path / "stopped", tmp_path / "whole")


def test_a_file_of_other_images_is_refused(file, tmp_path, monkeypatch):
    monkeypatch.setattr(data, "load", tiny.few_images(per_class=10))
    with pytest.raises(InputError, match="was not written from the training part of fashion-mini"):
        tiny.run(tmp_path / "run", **ffcv(file, lag=0))


@pytest.fixture
def folder(few_images, tmp_path):
    """The few images as a data set of FFCV files."""
    whole, folder = data.load("fashion-mini"), tmp_path / "files"
    folder.mkdir()
    described = {"mean": whole.mean, "std": whole.std, "augment": asdict(whole.augment)}
    for split in ("train", "test"):
        beton.write(
            folder / f"{split}.beton", getattr(whole, split), description={**described, "split": split}
        )
    return folder


def test_a_run_from_files_alone_ends_with_the_weights_of_the_resident_source(folder, tmp_path, monkeypatch):
    # What belongs to the name of a data set; the rest is in the files.
    same = {
        "attack__eps": 0.1,
        "optimizer__lr": 0.05,
        "optimizer__schedule": "one-cycle",
        "attack__step": 0.02,
        "params__eta": 1e-3,
    }
    tiny.run(tmp_path / "resident", **same)
    # Nothing else may be read, and nothing may be put on the device.
    monkeypatch.setattr(data, "load", data.registry.load)
    monkeypatch.setattr(data.beton_set, "ResidentSource", None)
    files = {"data__name": "beton", "data__root": str(folder), "data__lag": 0}
    tiny.run(tmp_path / "files-run", **files, **same)
    (weights, rows, result), (other_weights, other_rows, other) = map(
        tiny.outcome, (tmp_path / "files-run", tmp_path / "resident")
    )
    for name in weights:
        assert all(torch.equal(weights[name][key], other_weights[name][key]) for key in weights[name])
    assert rows == other_rows
    assert result["test"] == other["test"]


def test_a_run_from_files_says_what_it_needs_of_disk_and_memory(folder, tmp_path, monkeypatch):
    monkeypatch.setattr(data, "load", data.registry.load)
    settings = {"data__name": "beton", "data__root": str(folder), "test__batch_size": 500}
    notes = load_images(complete(tiny.tiny_config(tmp_path, **settings))).notes
    on_disk = size_text(sum(path.stat().st_size for path in folder.iterdir()))
    # Four batches of 16 for training, which wait while four of 500 are tested.
    memory = size_text(4 * (16 + 500) * 28 * 28)
    assert f"250 images stay in their files, {on_disk} on the disk; {memory} of memory for batches" in notes


def test_a_run_from_files_is_tested_again_from_its_files(folder, tmp_path, monkeypatch):
    monkeypatch.setattr(data, "load", data.registry.load)
    files = {"data__name": "beton", "data__root": str(folder), "attack__eps": 0.1}
    run = tiny.run(tmp_path / "run", **files)
    written = tmp_path / "again.json"
    assert (
        cli.main(["eval", str(run.folder), "--steps=2", "--device=cpu", f"--json={written}", "--quiet"]) == 0
    )
    assert json.loads(written.read_text())["robust"]["per_class"] == run.result["test"]["robust"]["per_class"]


def test_steps_from_files_are_not_captured():
    config = TrainConfig(device="cuda")
    assert why_no_graph(config) is None
    config.data.name = "beton"
    assert why_no_graph(config) == "FFCV's batches come from the host"


def test_files_in_another_folder_are_another_run(tmp_path):
    config = tiny.tiny_config(tmp_path, data__name="beton", data__root="a")
    other = tiny.tiny_config(tmp_path, data__name="beton", data__root="b")
    assert identity(config) != identity(other)
