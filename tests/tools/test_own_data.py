"""The defaults of a folder of one's own are those that were measured, and the page shows what was
measured.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.data import published_files as files
from tools import own_data

MEASURED = json.loads((own_data.ROOT / "results" / "own-data.json").read_text())
PAGE = (own_data.ROOT / "docs" / "own-data.md").read_text()


def test_the_page_has_the_measured_table() -> None:
    assert own_data.with_table(PAGE, MEASURED["runs"]) == PAGE


def test_no_run_is_in_the_results_twice() -> None:
    settings = [tuple(run[key] for key in own_data.SETTINGS) for run in MEASURED["runs"]]
    assert len(settings) == len(set(settings))


def test_the_plain_command_is_within_two_points_of_the_best_run() -> None:
    gaps = own_data.gaps(MEASURED["runs"])
    assert {name for name, model in gaps if model == own_data.DEMO} == set(own_data.SETS)
    assert max(gaps.values()) <= 0.02


@pytest.mark.parametrize("model", [own_data.DEMO, own_data.RESIDUAL])
def test_the_grid_holds_the_plain_command(model: str) -> None:
    grid = own_data.grid()
    assert all(own_data.plain(name, model) in grid for name in own_data.SETS)


def test_a_sign_gives_three_of_its_frames(tmp_path: Path) -> None:
    raw = tmp_path / "raw"
    for name in (*(f"train/stop/00001_{frame:05d}.png" for frame in range(30)), "test/stop/7.png"):
        files.save(raw / name, 0, 4, 4)
    own_data._part_of("gtsrb", raw, tmp_path / "gtsrb")
    found = sorted(path.name for path in (tmp_path / "gtsrb/train/stop").iterdir())
    assert found == ["00001_00004.png", "00001_00013.png", "00001_00022.png"]
