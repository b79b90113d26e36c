"""docs/many-gpus.md is true: what it shows without a GPU runs, and an evaluation on two processes writes what
one does.
"""

from __future__ import annotations

import os
import shlex
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from cfol_fast.commands import main as cli
from tests import test_docs
from tests.data import published_files

pytestmark = pytest.mark.slow

PAGE = "many-gpus.md"
LAUNCHER = [sys.executable, "-m", "torch.distributed.run"]
TRAIN = [option for option in test_docs.SHORT if not option.startswith("--model")] + ["--model=demo-cnn@0.25"]
# Nobody reaches the figure: the status is that of one that was missed.
EVAL = ["--limit=40", "--batch-size=16", "--steps=2", "--eps=0,0.05,0.1", "--require=worst>=0.99"]


def test_its_two_commands_run_and_the_figures_are_those_of_one_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    train, evaluation = (words[1:] for words in test_docs.commands(PAGE) if words[0] == "torchrun")
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    subprocess.run([*LAUNCHER, *train, *TRAIN], check=True, env=environment)
    done = subprocess.run(
        [*LAUNCHER, *evaluation, *EVAL], env=environment, capture_output=True, text=True, check=False
    )
    assert cli.main(["eval", "runs/two", "--device=cpu", "--json=one.json", *EVAL]) == done.returncode == 1
    alone = capsys.readouterr()
    assert (tmp_path / "two.json").read_bytes() == (tmp_path / "one.json").read_bytes()
    assert done.stdout == alone.out
    for said in ("not met: robust worst", "testing: 80 of 80"):
        assert done.stderr.count(said) == alone.err.count(said) == 1


@pytest.mark.ffcv
def test_its_conversion_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    published_files.folder(tmp_path / "DIR", ("train", "val"), side=32)
    (words,) = (words for words in test_docs.commands(PAGE) if words[0] == "cfol-fast")
    assert cli.main(words[1:]) == 0
    assert {path.name for path in (tmp_path / "imagenet-224").iterdir()} == {"train.beton", "test.beton"}


def test_its_program_runs(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]
    place = {"RANK": 0, "WORLD_SIZE": 1, "MASTER_ADDR": "localhost", "MASTER_PORT": port}
    for name, value in place.items():
        monkeypatch.setenv(name, str(value))
    (code,) = (text for language, text in test_docs.blocks(PAGE) if language == "python")
    exec(compile(code, PAGE, "exec"), {})
    assert "worst class" in capsys.readouterr().out


def test_the_commands_for_gpus_are_understood() -> None:
    """Those that no test runs have only options that exist."""
    text = (test_docs.DOCS / PAGE).read_text().replace("\\\n", " ")
    found = [
        shlex.split(line.split("-m cfol_fast ")[1]) for line in text.splitlines() if "-m cfol_fast" in line
    ]
    assert len(found) > 5
    for command, *options in found:
        parser = cli.OneLineParser(prog=command)
        __import__(cli.COMMANDS[command][0], fromlist=["run"]).add_arguments(parser)
        parser.parse_args(options)
