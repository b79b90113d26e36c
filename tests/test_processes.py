"""Several processes of one job never do one run several times: what is not made for them says so."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from cfol_fast import processes
from cfol_fast.commands import main as cli
from cfol_fast.errors import InputError

pytestmark = pytest.mark.slow

COMMANDS = [
    ["demo"],
    ["reproduce", "--list"],
    ["offsets", "run"],
    ["data", "to-ffcv", "--dataset", "fashion-mini", "--split", "all", "--out", "files"],
]


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


def test_of_a_wrong_option_the_first_process_speaks(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    for rank, lines in (("0", 1), ("1", 0)):
        monkeypatch.setenv("RANK", rank)
        assert cli.main(["train", "cfol", "--patience=0"]) == 2
        assert capsys.readouterr().err.count("\n") == lines


def test_what_a_rank_says_of_another_is_a_sentence() -> None:
    for said, expected in (
        (
            "[gloo/transport/tcp/buffer.cc:81] Timed out waiting 1800000ms for recv operation to complete",
            "another rank did not answer within 5 s",
        ),
        (
            "[gloo/transport/tcp/pair.cc:534] Connection closed by peer [127.0.0.1]:1234",
            "another process of the run is gone",
        ),
    ):
        with pytest.raises(processes.RankLost, match=expected), processes.told_in_words(5):
            raise RuntimeError(said)
    for said in ("mat1 and mat2 shapes cannot be multiplied", "CUDA error: the launch timed out"):
        with pytest.raises(RuntimeError, match=f"^{said}$"), processes.told_in_words(5):
            raise RuntimeError(said)


def test_a_number_of_processes_without_a_place_to_meet_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "4")
    monkeypatch.delenv("MASTER_ADDR", raising=False)
    with (
        pytest.raises(InputError, match="WORLD_SIZE=4 says that there are 4 processes"),
        processes.joined("cpu"),
    ):
        pass


def test_a_process_without_a_gpu_of_its_own_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {
        "WORLD_SIZE": "2",
        "RANK": "1",
        "LOCAL_RANK": "1",
        "MASTER_ADDR": "a",
        "MASTER_PORT": "1",
    }.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr("cfol_fast.machine.why_no_cuda", lambda: None)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    with (
        pytest.raises(
            InputError, match="this machine has 1: start at most 1 here, got at least 2, or take --device cpu"
        ),
        processes.joined("cuda"),
    ):
        pass
