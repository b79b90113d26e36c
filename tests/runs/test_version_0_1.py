"""Runs and checkpoints of version 0.1 are loaded, evaluated, reported and resumed.

The files in data_0_1 were written by version 0.1.0: `finished` and `unfinished` are the same run, the second
killed after the first step of its second epoch; `weights.pt` is what `export` wrote.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch

import cfol_fast
from cfol_fast.commands.main import main
from cfol_fast.evaluation.foreign_weights import load_weights
from cfol_fast.runs.checkpoints import read
from cfol_fast.runs.records import load_run

DATA = Path(__file__).with_name("data_0_1")
MODEL = "demo-cnn@0.05"
# Of weights after two steps in another instruction set: measured up to 1e-7, where the two steps move them by
# 0.1.
TOLERANCE = 1e-4


@pytest.fixture
def old(tmp_path) -> Path:
    """A copy, since a run folder gets a lock when it is used."""
    shutil.copytree(DATA, tmp_path / "old")
    return tmp_path / "old"


def pixels() -> torch.Tensor:
    return torch.rand(4, 1, 28, 28, generator=torch.Generator().manual_seed(0))


def test_a_run_a_checkpoint_and_plain_weights_give_the_same_model(old):
    x = pixels()
    expected = cfol_fast.load(old / "finished")(x)
    checkpoint = shutil.copy(old / "finished" / "checkpoints" / "best-average.pt", old / "model.pt")
    assert torch.equal(cfol_fast.load(checkpoint)(x), expected)
    assert torch.equal(load_weights(old / "weights.pt", MODEL, 10, 28, 1)(x), expected)


def test_a_run_and_a_checkpoint_are_evaluated(old):
    checkpoint = shutil.copy(old / "finished" / "checkpoints" / "best-average.pt", old / "model.pt")
    for what in (old / "finished", checkpoint):
        result = old / "evaluation.json"
        options = ["--attack", "none", "--limit", "50", "--json", str(result), "--quiet"]
        assert main(["eval", str(what), *options]) == 0
        assert json.loads(result.read_text())["examples"] == 50


def test_a_finished_and_an_unfinished_run_are_read(old):
    finished, unfinished = load_run(old / "finished"), load_run(old / "unfinished")
    assert (finished.finished, finished.robust is not None, finished.epochs) == (True, True, (2, 2))
    assert (unfinished.finished, unfinished.robust is None, unfinished.epochs) == (False, True, (1, 2))
    assert finished.classes == unfinished.classes


def test_both_are_reported(old):
    page = old / "report.html"
    assert main(["report", str(old / "finished"), str(old / "unfinished"), "--out", str(page)]) == 0
    assert "CFOL-AT" in page.read_text(encoding="utf-8")


@pytest.mark.slow
def test_a_killed_run_is_resumed_and_ends_as_version_0_1_ended_it(old):
    # --force: the machine may have other instructions than the one that wrote the files.
    options = ["--threads", "1", "--force", "--quiet", "--set", "checkpoint.seconds=60"]
    assert main(["train", "--resume", "--out", str(old / "unfinished"), *options]) == 0
    resumed, expected = (
        read(folder / "checkpoints" / "last.pt")["model"]
        for folder in (old / "unfinished", DATA / "finished")
    )
    for name, value in expected.items():
        torch.testing.assert_close(resumed[name], value, rtol=0, atol=TOLERANCE)
    mine, theirs = (
        json.loads((f / "result.json").read_text()) for f in (old / "unfinished", DATA / "finished")
    )
    assert theirs.keys() <= mine.keys()
    assert mine["test"]["robust"].keys() >= theirs["test"]["robust"].keys()


def test_a_finished_run_stays_as_it_is(old):
    before = (old / "finished" / "result.json").read_bytes()
    assert main(["train", "--resume", "--out", str(old / "finished"), "--quiet"]) == 0
    assert (old / "finished" / "result.json").read_bytes() == before
