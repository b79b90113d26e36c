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


@pytest.mark.parametrize("size", ["1", ""])
def test_one_process_goes_on(
    size: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("WORLD_SIZE", size)
    assert processes.rank_and_size() == (0, 1)
    assert cli.main(["reproduce", "--list"]) == 0


NO_PLACE = [
    ({"RANK": "5", "WORLD_SIZE": "2"}, "RANK=5 is no number of a process: WORLD_SIZE is 2"),
    ({"RANK": "2", "WORLD_SIZE": "2"}, "RANK=2 is no number of a process: WORLD_SIZE is 2"),
    ({"RANK": "1"}, "RANK=1 is no number of a process: WORLD_SIZE is not set"),
    ({"RANK": "x"}, "RANK must be a whole number of at least 0, as torchrun writes it, got 'x'"),
    ({"RANK": "x", "WORLD_SIZE": "2"}, "RANK must be a whole number"),
    ({"RANK": "-1", "WORLD_SIZE": "2"}, "RANK must be a whole number"),
    ({"RANK": "1.0", "WORLD_SIZE": "2"}, "RANK must be a whole number"),
    ({"RANK": "\u00b2", "WORLD_SIZE": "3"}, "RANK must be a whole number"),
    (
        {"WORLD_SIZE": "many"},
        "WORLD_SIZE must be a whole number of at least 1, as torchrun writes it, got 'many'",
    ),
    ({"WORLD_SIZE": "0"}, "WORLD_SIZE must be a whole number of at least 1"),
    ({"WORLD_SIZE": "-2", "RANK": "0"}, "WORLD_SIZE must be a whole number"),
]


@pytest.mark.parametrize(("variables", "message"), NO_PLACE, ids=lambda one: str(one)[:30])
@pytest.mark.parametrize(
    "words", [["reproduce", "--list"], ["train", "erm", "--out", "run"], ["eval", "run"], ["doctor"]]
)
def test_a_place_that_cannot_be_is_refused_at_once(
    words: list[str],
    variables: dict[str, str],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert cli.main(words) == 2
    said = capsys.readouterr()
    assert said.err.startswith(f"cfol-fast: error: {message}")
    assert (said.err.count("\n"), said.out) == (1, "")
    assert list(tmp_path.iterdir()) == []
    for ask in (processes.rank_and_size, processes.count):
        with pytest.raises(InputError):
            ask()


@pytest.mark.parametrize(
    ("variables", "message"),
    [
        ({"LOCAL_RANK": "x"}, "LOCAL_RANK must be"),
        ({"LOCAL_RANK": "3", "LOCAL_WORLD_SIZE": "2"}, "LOCAL_RANK=3 is no number"),
        ({"LOCAL_WORLD_SIZE": "y"}, "LOCAL_WORLD_SIZE must be"),
    ],
)
def test_a_place_on_the_machine_that_cannot_be_is_refused(
    variables: dict[str, str], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(InputError, match=f"^{message}"):
        processes.local_rank() if "LOCAL_RANK" in variables else processes.local_count()


def test_processes_without_a_number_would_each_be_the_first(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"WORLD_SIZE": "2", "MASTER_ADDR": "a", "MASTER_PORT": "1"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("RANK", raising=False)
    with pytest.raises(InputError, match="RANK is not set"), processes.joined("cpu"):
        pass


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


def test_a_process_that_may_be_alone_speaks_whatever_its_number(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, value in {"WORLD_SIZE": "2", "RANK": "1"}.items():
        monkeypatch.setenv(name, value)
    for name in ("MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.delenv(name, raising=False)
    assert cli.main(["train", "cfol"]) == 2
    assert "not where they meet" in capsys.readouterr().err


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
