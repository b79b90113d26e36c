"""Runs fed by FFCV: the same weights as from the resident source, and exact resume with batches drawn
ahead.
"""

import json
from dataclasses import asdict

import pytest
import torch

from cfol_fast import data
from cfol_fast.commands import main as cli
from cfol_fast.data.ffcv import writer
from cfol_fast.data.room import size_text
from cfol_fast.runs.config import TrainConfig
from cfol_fast.runs.identity import identity
from cfol_fast.training.capture import why_no_graph
from cfol_fast.training.images import load_images
from tests.training import tiny

pytestmark = pytest.mark.ffcv


@pytest.fixture
def folder(few_images, tmp_path):
    """The few images as a data set of FFCV files."""
    whole, folder = data.load("fashion-mini"), tmp_path / "files"
    folder.mkdir()
    described = {"mean": whole.mean, "std": whole.std, "augment": asdict(whole.augment)}
    for split in ("train", "test"):
        writer.write(
            folder / f"{split}.beton", getattr(whole, split), description={**described, "split": split}
        )
    return folder


# What belongs to the name of a data set; the rest is in the files.
SAME = {
    "attack__eps": 0.1,
    "optimizer__lr": 0.05,
    "optimizer__schedule": "one-cycle",
    "attack__step": 0.02,
    "params__eta": 1e-3,
    "params__baseline": "none",
    "data__augment": "paper",
}


def from_files(folder, monkeypatch, lag: int) -> dict:
    """Nothing else may be read, and nothing may be put on the device."""
    monkeypatch.setattr(data, "load", data.registry.load)
    monkeypatch.setattr(data.source_kinds, "ResidentSource", None)
    return {"data__name": "beton", "data__root": str(folder), "data__lag": lag, **SAME}


@pytest.mark.parametrize(
    "crop",
    [{}, pytest.param({"data__crop": "random-resized", "data__crop_scale": 0.3}, marks=pytest.mark.slow)],
)
def test_a_run_from_files_ends_with_the_weights_of_the_resident_source(folder, tmp_path, monkeypatch, crop):
    tiny.run(tmp_path / "resident", **SAME, **crop)
    tiny.run(tmp_path / "from-files", **from_files(folder, monkeypatch, lag=0), **crop)
    (weights, rows, result), (other_weights, other_rows, other) = map(
        tiny.outcome, (tmp_path / "from-files", tmp_path / "resident")
    )
    for name in weights:
        assert all(torch.equal(weights[name][key], other_weights[name][key]) for key in weights[name])
    assert rows == other_rows
    assert result["test"] == other["test"]


def test_batches_drawn_ahead_do_not_harm_exact_resume(folder, tmp_path, monkeypatch):
    settings = from_files(folder, monkeypatch, lag=2)
    tiny.run(tmp_path / "whole", **settings)
    tiny.run_until(monkeypatch, 2, tmp_path / "stopped", **settings)
    tiny.run(tmp_path / "stopped", resume=True, **settings)
    tiny.assert_same_outcome(tmp_path / "stopped", tmp_path / "whole")


def test_a_run_from_files_says_what_it_needs_of_disk_and_memory(folder, tmp_path, monkeypatch):
    monkeypatch.setattr(data, "load", data.registry.load)
    settings = {"data__name": "beton", "data__root": str(folder), "test__batch_size": 500}
    notes = load_images(tiny.tiny_config(tmp_path, **settings)).notes
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
    config = TrainConfig(device="cpu").with_settled({"device": "cuda"})
    assert why_no_graph(config) is None
    config = config.with_settled({"data.name": "beton"})
    assert why_no_graph(config) == "FFCV's batches come from the host"


def test_files_in_another_folder_are_another_run(tmp_path):
    config = tiny.tiny_config(tmp_path, data__name="beton", data__root="a")
    other = tiny.tiny_config(tmp_path, data__name="beton", data__root="b")
    assert identity(config) != identity(other)
