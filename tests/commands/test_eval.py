"""`cfol-fast eval` from the outside: files in, table, JSON and CSV out, one line for a mistake."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest
import torch

from cfol_fast import models
from cfol_fast.commands import main as cli


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.manual_seed(0)
    file = tmp_path_factory.mktemp("weights") / "demo.pt"
    torch.save(models.create("demo-cnn", 10, 28, 1, mean=[0.3], std=[0.3]).state_dict(), file)
    return file


def test_it_writes_json_and_csv_and_prints_a_table(
    weights: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out, table = tmp_path / "e.json", tmp_path / "e.csv"
    arguments = [
        "--dataset",
        "fashion-mini",
        "--limit",
        "40",
        "--eps",
        "2/255",
        "--steps",
        "3",
        "--active-set",
    ]
    arguments += ["--attack", "pgd,fgsm", "--json", str(out), "--csv", str(table), "--device", "cpu"]
    status = cli.main(["eval", str(weights), *arguments])
    assert status == 0
    written = json.loads(out.read_text())
    assert written["examples"] == 40
    assert [entry["attack"]["kind"] for entry in written["attacks"]] == ["pgd", "fgsm"]
    assert written["attacks"][0]["attack"]["eps"] == pytest.approx(2 / 255)
    assert written["settings"]["checkpoint"] == str(weights)
    assert written["settings"]["dataset"] == "fashion-mini"
    assert len(list(csv.DictReader(table.open()))) == 10
    shown = capsys.readouterr()
    assert "worst class" in shown.out
    assert "Ankle boot" in shown.out
    assert "80 of 80" in shown.err


def test_a_run_folder_knows_its_data_and_its_radius(tmp_path: Path) -> None:
    run, out = tmp_path / "run", tmp_path / "e.json"
    options = [
        "--epochs",
        "1",
        "--set",
        "steps_per_epoch=2",
        "--set",
        "attack.steps=1",
        "--set",
        "test.steps=1",
    ]
    options += ["--set", "test.eps=0.05", "--holdout", "none", "--device", "cpu", "--quiet"]
    assert cli.main(["train", "erm", "--out", str(run), *options]) == 0
    arguments = ["--limit", "50", "--steps", "1", "--quiet", "--device", "cpu", "--json", str(out)]
    assert cli.main(["eval", str(run), *arguments]) == 0
    written = json.loads(out.read_text())
    assert written["settings"]["checkpoint"] == str(run / "checkpoints" / "last.pt")
    assert written["attacks"][0]["attack"]["eps"] == 0.05
    copied = tmp_path / "copied.pt"
    copied.write_bytes((run / "checkpoints" / "last.pt").read_bytes())
    assert cli.main(["eval", str(copied), *arguments, "--attack", "none"]) == 0
    alone = json.loads(out.read_text())
    assert alone["robust"] is None
    assert alone["clean"] == written["clean"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--dataset", "fashion-mini", "--attack", "pdg"], "'pdg'"),
        (["--dataset", "fashion-mini", "--attack", ","], "--attack needs at least one of pgd"),
        (["--dataset", "fashion-mini", "--steps", "0"], "steps"),
        (["--dataset", "fashion-mini", "--restarts", "0"], "restarts"),
        (["--dataset", "fashion-mini", "--batch-size", "0"], "batch"),
        (["--dataset", "fashion-mini", "--seed", "-1"], "seed"),
        (["--dataset", "fashion-mini", "--eps=-8/255"], "eps"),
        (["--dataset", "fashion-mini", "--eps", "abc"], "'abc' is not a number"),
        (["--dataset", "fashion-mini", "--limit", "0"], "--limit must be at least 1"),
        (["--dataset", "fashion-mini", "--json", "/nowhere/x.json"], "there is no folder /nowhere"),
        (["--dataset", "fashion-mini", "--state", "s.json"], "--state belongs to --attack autoattack"),
        (["--dataset", "fashion-mini", "--model", "resnet18"], "is not a resnet18 with 10 classes"),
        ([], "give --dataset"),
    ],
)
def test_a_mistake_is_one_line_and_status_two(
    weights: Path, arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["eval", str(weights), "--quiet", "--device", "cpu", *arguments]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1


def test_a_file_that_is_not_there_is_said_so(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["eval", "/nowhere/run"]) == 2
    assert "no run folder or checkpoint /nowhere/run" in capsys.readouterr().err
