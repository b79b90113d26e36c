"""`cfol-fast eval` from the outside: files in, table, JSON and CSV out, one line for a mistake."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

from cfol_fast import models
from cfol_fast.commands import main as cli


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


@pytest.mark.slow
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


@pytest.fixture(scope="module")
def plain_weights(weights: Path) -> Path:
    """The same network without its first layer, as others publish theirs."""
    state = torch.load(weights, weights_only=True)
    file = weights.with_name("plain.pt")
    torch.save(
        {name.removeprefix("net."): value for name, value in state.items() if name.startswith("net.")}, file
    )
    return file


def accuracy(file: Path, tmp_path: Path, *options: str) -> dict[str, Any]:
    out = tmp_path / "e.json"
    arguments = [
        "--dataset",
        "fashion-mini",
        "--attack",
        "none",
        "--quiet",
        "--device",
        "cpu",
        "--json",
        str(out),
    ]
    assert cli.main(["eval", str(file), *arguments, *options]) == 0
    return json.loads(out.read_text())


@pytest.mark.slow
def test_weights_of_others_are_normalised_as_they_were_trained(
    weights: Path, plain_weights: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    whole = accuracy(weights, tmp_path, "--limit", "300")
    given = accuracy(plain_weights, tmp_path, "--limit", "300", "--mean", "0.3", "--std", "0.3")
    assert given["correct"] == whole["correct"]
    assert given["settings"]["mean"] == whole["settings"]["mean"] == pytest.approx([0.3])
    named = accuracy(plain_weights, tmp_path, "--limit", "10", "--normalize", "dataset")
    assert named["settings"]["std"] == pytest.approx([0.3530])
    assert accuracy(plain_weights, tmp_path, "--limit", "10", "--normalize", "none")["settings"]["std"] == [
        1.0
    ]
    capsys.readouterr()
    assert cli.main(["eval", str(plain_weights), "--dataset", "fashion-mini", "--quiet"]) == 2
    error = capsys.readouterr().err
    assert "--normalize imagenet|dataset|none" in error
    assert error.count("\n") == 1


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--mean", "0.3"], "--mean and --std belong together"),
        (["--mean", "0.3", "--std", "0.3", "--normalize", "none"], "give one of them"),
        (["--mean", "72.9", "--std", "90"], "--mean is for pixels from 0 to 1"),
        (["--mean", "0.3", "--std", "0"], "--std is for pixels from 0 to 1"),
        (["--mean", "0.3,0.3,0.3", "--std", "0.3,0.3,0.3"], "--mean has 3 numbers, the images have 1"),
        (["--normalize", "imagenet"], "has 3 channels, the images have 1"),
    ],
)
def test_a_normalisation_that_cannot_be_is_refused(
    plain_weights: Path, options: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["eval", str(plain_weights), "--dataset", "fashion-mini", "--quiet", *options]) == 2
    assert message in capsys.readouterr().err


def test_a_part_of_the_test_set_has_every_class(tmp_path: Path) -> None:
    from cfol_fast import data

    images = data.load("fashion-mini").test
    for index in range(0, len(images), 50):
        for part in ("train", "test"):
            name = images.classes[int(images.labels[index])].replace("/", "-")
            file = tmp_path / part / name / f"{index}.png"
            file.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(images.image(index).squeeze(2).numpy()).save(file)
    weights, out = tmp_path / "w.pt", tmp_path / "e.json"
    torch.save(models.create("demo-cnn", 10, 28, 3, mean=[0.3] * 3, std=[0.3] * 3).state_dict(), weights)
    # The images of a folder come in the order of its classes.
    arguments = [
        "--dataset",
        "folder",
        "--data",
        str(tmp_path),
        "--attack",
        "none",
        "--quiet",
        "--device",
        "cpu",
    ]
    assert cli.main(["eval", str(weights), *arguments, "--limit", "10", "--json", str(out)]) == 0
    assert list(json.loads(out.read_text())["clean"]["count"].values()) == [1] * 10


@pytest.mark.slow
def test_without_images_of_every_class_there_is_no_worst_class(
    weights: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["--dataset", "fashion-mini", "--attack", "none", "--limit", "7", "--device", "cpu"]
    assert cli.main(["eval", str(weights), *arguments]) == 0
    shown = capsys.readouterr().out
    assert "no worst class: 3 of 10 classes have no images" in shown
    assert "20 % tail" not in shown


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
        (["--dataset", "fashion-mini", "--eps", "abc"], "--eps must be a number"),
        (["--dataset", "fashion-mini", "--limit", "0"], "--limit must be at least 1"),
        (["--dataset", "fashion-mini", "--json", "/nowhere/x.json"], "there is no folder /nowhere"),
        (["--dataset", "fashion-mini", "--json", "."], "--json . is a folder: give the name of a file"),
        (["--dataset", "fashion-mini", "--csv", "/"], "--csv / is a folder: give the name of a file"),
        (["--dataset", "fashion-mini", "--state", "s.json"], "--state belongs to --attack autoattack"),
        (
            ["--dataset", "fashion-mini", "--attack", "fgsm", "--step", "0.01"],
            "--step belongs to --attack pgd or",
        ),
        (
            ["--dataset", "fashion-mini", "--attack", "fgsm", "--steps", "50"],
            "--steps belongs to --attack pgd or",
        ),
        (["--dataset", "fashion-mini", "--attack", "fgsm", "--restarts", "3"], "--restarts belongs to"),
        (
            ["--dataset", "fashion-mini", "--attack", "trades,fgsm", "--loss", "cw"],
            "--loss belongs to --attack pgd,",
        ),
        (["--dataset", "fashion-mini", "--attack", "autoattack", "--steps", "50"], "got --attack autoattack"),
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


def test_a_mistake_in_the_options_is_found_before_anything_is_read(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from cfol_fast.commands import eval as command

    monkeypatch.setattr(command, "_subject", lambda args: pytest.fail("it began"))
    for options in (["--sanity", "--attack", "fgsm"], ["--json", "."], ["--attack", "pdg"]):
        assert cli.main(["eval", "run", *options]) == 2
        assert capsys.readouterr().err.count("\n") == 1


def test_somebody_elses_config_beside_somebody_elses_weights_does_not_matter(
    weights: Path, tmp_path: Path
) -> None:
    theirs = tmp_path / "theirs" / "checkpoints" / "w.pt"
    theirs.parent.mkdir(parents=True)
    theirs.write_bytes(weights.read_bytes())
    (tmp_path / "theirs" / "config.json").write_text('{"model_type": "resnet"}')
    arguments = [
        "--dataset",
        "fashion-mini",
        "--attack",
        "none",
        "--limit",
        "10",
        "--quiet",
        "--device",
        "cpu",
    ]
    assert cli.main(["eval", str(theirs), *arguments]) == 0


def test_a_file_that_is_not_there_is_said_so(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["eval", "/nowhere/run"]) == 2
    assert "no run folder or checkpoint /nowhere/run" in capsys.readouterr().err


def test_the_command_names_the_checkpoint_and_the_data_too(capsys, weights):
    words = ["eval", str(weights), "--dataset", "fashion-mini"]
    assert cli.main([*words, "--limit", "20", "--attack", "fgsm", "--device", "cpu"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert f"checkpoint: {weights}" in lines
    assert "data: fashion-mini, 20 images" in lines
    assert "attack: fgsm, linf radius 0.1, 1 step of 0.125" in lines
