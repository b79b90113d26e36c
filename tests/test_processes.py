"""Several processes of one job never do one run several times: what is not made for them says so."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from cfol_fast import processes
from cfol_fast.commands import main as cli
from cfol_fast.errors import InputError
from cfol_fast.training import TrainConfig, train

pytestmark = pytest.mark.slow

TINY = ["train", "cfol", "--epochs=1", "--model=demo-cnn@0.25", "--set=steps_per_epoch=1"]
COMMANDS = [TINY, ["demo"], ["reproduce", "--list"]]


@pytest.mark.parametrize("words", COMMANDS, ids=lambda words: words[0])
def test_the_first_of_several_processes_says_why_it_stops(
    words: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("WORLD_SIZE", "4")
    monkeypatch.setenv("RANK", "0")
    assert cli.main(words) == 2
    said = capsys.readouterr().err
    assert said.startswith(
        f"cfol-fast: error: cfol-fast {words[0]} runs in one process so far, and 4 were started"
    )
    assert said.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("words", COMMANDS, ids=lambda words: words[0])
def test_the_others_stop_without_a_word(
    words: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("WORLD_SIZE", "4")
    monkeypatch.setenv("RANK", "3")
    assert cli.main(words) == 2
    assert capsys.readouterr() == ("", "")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("size", ["1", "", "many"])
def test_one_process_goes_on(
    size: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("WORLD_SIZE", size)
    assert processes.rank_and_size() == (0, 1)
    assert cli.main(["reproduce", "--list"]) == 0


def test_training_refuses_under_a_process_group(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.distributed, "get_rank", lambda: 1)
    monkeypatch.setattr(torch.distributed, "get_world_size", lambda: 2)
    with pytest.raises(InputError, match="training runs in one process so far, and 2 were started"):
        train(TrainConfig(method="cfol", out=str(tmp_path / "run")))
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_torchrun_gets_one_sentence_and_no_run(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    done = subprocess.run(
        [*command, "-m", "cfol_fast", *TINY, f"--out={tmp_path / 'run'}"],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode != 0
    assert done.stderr.count("cfol-fast: error:") == 1
    assert not (tmp_path / "run").exists()
