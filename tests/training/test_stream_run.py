"""Runs on a folder whose images are decoded while they go on: the resident source's run, exact resume, and a
file that is lost on the way.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
import torch

from cfol_fast import data
from cfol_fast.data.stream import choice
from cfol_fast.data.stream.feed import StreamFeed
from cfol_fast.errors import DataLost
from cfol_fast.runs.identity import identity
from tests.data.stream.image_folders import write
from tests.training import tiny

SETTINGS: dict[str, Any] = {
    "data__name": "folder",
    "data__size": 28,
    "model__name": "preact-resnet18@0.0625",
    "attack__eps": 0.05,
    "attack__steps": 1,
    "attack__step": 0.05,
    "test__steps": 1,
    "batch_size": 4,
    "optimizer__lr": 0.01,
}


@pytest.fixture
def photos(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(data, "load", data.registry.load)
    return write(tmp_path / "photos", per_class=9)


def settings(photos: Path, source: str, **more: Any) -> dict[str, Any]:
    return {**SETTINGS, "data__root": str(photos), "data__source": source, **more}


def test_a_streamed_run_is_the_run_of_the_resident_source(photos, tmp_path, monkeypatch):
    tiny.run(tmp_path / "resident", **settings(photos, "resident"))
    monkeypatch.setattr(data.source_kinds, "ResidentSource", None)
    tiny.run(tmp_path / "stream", **settings(photos, "stream", data__lag=0))
    monkeypatch.setattr(choice, "available_memory", lambda: 1000)
    tiny.run(tmp_path / "auto", **settings(photos, "auto"))
    outcomes = [tiny.outcome(tmp_path / name) for name in ("resident", "stream", "auto")]
    weights, rows, result = outcomes[0]
    for other_weights, other_rows, other_result in outcomes[1:]:
        for name in weights:
            assert all(torch.equal(weights[name][key], other_weights[name][key]) for key in weights[name])
        assert rows == other_rows
        assert result["test"] == other_result["test"]


def test_batches_drawn_ahead_do_not_harm_exact_resume(photos, tmp_path, monkeypatch):
    chosen = settings(photos, "stream", data__lag=2)
    tiny.run(tmp_path / "whole", **chosen)
    tiny.run_until(monkeypatch, 2, tmp_path / "stopped", **chosen)
    tiny.run(tmp_path / "stopped", resume=True, **chosen)
    tiny.assert_same_outcome(tmp_path / "stopped", tmp_path / "whole")


@pytest.mark.parametrize("method", ["cfol", pytest.param("fol", marks=pytest.mark.slow)])
def test_a_lost_file_stops_the_run_which_goes_on_when_it_is_back(photos, tmp_path, monkeypatch, method):
    chosen = settings(photos, "stream", data__lag=1, ensemble=2, method=method)
    tiny.run(tmp_path / "whole", **chosen)
    make_batch, batches, lost = StreamFeed._batch, [], []

    def loses_a_file(self, rows):
        batches.extend([rows] if len(rows) == SETTINGS["batch_size"] else [])
        if len(batches) == 4:
            lost.append(photos / self._index.listing.paths[rows[0]])
            lost[0].rename(tmp_path / "hidden")
        return make_batch(self, rows)

    monkeypatch.setattr(StreamFeed, "_batch", loses_a_file)
    with pytest.raises(DataLost) as error:
        tiny.run(tmp_path / "lost", **chosen)
    monkeypatch.undo()
    monkeypatch.setattr(data, "load", data.registry.load)
    assert str(lost[0]) in str(error.value)
    assert f"stopped at step 3, saved {tmp_path / 'lost/checkpoints/last.pt'}" in str(error.value)
    (tmp_path / "hidden").rename(lost[0])
    tiny.run(tmp_path / "lost", resume=True, **chosen)
    tiny.assert_same_outcome(tmp_path / "lost", tmp_path / "whole")


def test_the_source_and_the_way_of_decoding_are_part_of_a_run(photos, tmp_path):
    def of(**more: Any) -> dict[str, Any]:
        return identity(tiny.tiny_config(tmp_path, **settings(photos, **more)))

    assert of(source="stream", data__decode="scaled")["data.decode"] == "scaled"
    assert "data.decode" not in of(source="stream")
    assert of(source="stream")["data.source"] == "stream"
    assert "data.source" not in of(source="auto")


def test_a_changed_file_of_a_stopped_run_is_noticed_at_the_start(photos, tmp_path, monkeypatch):
    chosen = settings(photos, "stream")
    tiny.run_until(monkeypatch, 2, tmp_path / "run", **chosen)
    time.sleep(0.03)
    (photos / "train/ant/3.bmp").write_bytes((photos / "train/ant/6.ppm").read_bytes())
    with pytest.raises(Exception, match="other data"):
        tiny.run(tmp_path / "run", resume=True, **chosen)
