"""A model of the user's own, from the command line: trained, continued, evaluated, exported; and what a file alone cannot do."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

from cfol_fast.commands import main as cli

CODE = """\
from torch import nn

def flat(num_classes, in_channels, image_size):
    return nn.Sequential(nn.Flatten(), nn.Dropout(0.5), nn.Linear(in_channels * image_size**2, num_classes))
"""
NAME = "my_nets:flat"
TINY = ["--set=steps_per_epoch=2", "--set=batch_size=16", "--set=attack.steps=1", "--set=test.steps=1"]
TINY += ["--epochs=1", "--holdout=0.2", "--device=cpu", "--quiet"]
EVAL = ["--limit=20", "--steps=1", "--device=cpu", "--quiet"]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "my_nets.py").write_text(CODE)
    monkeypatch.chdir(tmp_path)
    yield tmp_path
    sys.modules.pop("my_nets", None)


@pytest.mark.slow
def test_it_is_trained_continued_evaluated_and_exported_when_it_is_named(folder: Path, capsys) -> None:
    named = ["--model", NAME]
    assert cli.main(["train", "cfol", *TINY, *named, "--out", "run"]) == 0
    assert cli.main(["train", "--resume", "--out", "run", "--quiet", *named]) == 0
    assert cli.main(["eval", "run", *EVAL, *named]) == 0
    assert cli.main(["export", "run", "--out", "weights.pt", *named]) == 0
    assert "import my_nets" in capsys.readouterr().out
    made: dict = {}
    exec((folder / "weights.pt.load.py").read_text(), made)
    assert made["model"](torch.rand(2, 1, 28, 28)).shape == (2, 10)
    assert cli.main(["offsets", "run", "--rounds=1", "--device=cpu", "--quiet", *named]) == 0

    # Nobody who gets the files has to trust them.
    sys.modules.pop("my_nets")
    for command in (
        ["eval", "run", *EVAL],
        ["eval", "weights.pt", *EVAL],
        ["export", "run", "--out", "other.pt"],
        ["offsets", "run", "--device=cpu"],
        ["train", "--resume", "--out", "run"],
        ["train", "cfol", *TINY, "--init", "run", "--out", "other"],
    ):
        assert cli.main(command) == 2, command
        message = capsys.readouterr().err
        assert f"asks for the code '{NAME}'" in message
        assert len(message.splitlines()) == 1
        assert "my_nets" not in sys.modules


def test_a_configuration_file_cannot_name_code_either(folder: Path, capsys) -> None:
    (folder / "run.toml").write_text(f'method = "cfol"\n[model]\nname = "{NAME}"\n')
    command = ["train", "--config", "run.toml", *TINY, "--out", "run"]
    assert cli.main(command) == 2
    assert "run.toml asks for the code" in capsys.readouterr().err
    assert cli.main([*command, "--model", NAME, "--print-config"]) == 0


@pytest.mark.parametrize(
    ("model", "message"),
    [
        ("torchvision:resnet18", "takes 3 channels, the data set has 1"),
        ("my_nets:none", "no attribute 'none'"),
        ("torchvision:nothing", "has no image classifier 'nothing'"),
    ],
)
def test_a_model_that_does_not_fit_is_refused_before_a_folder_is_made(
    folder: Path, capsys, model: str, message: str
) -> None:
    assert cli.main(["train", "cfol", *TINY, "--model", model, "--out", "run"]) == 2
    assert message in capsys.readouterr().err
    assert not (folder / "run").exists()


def test_pretrained_is_for_models_with_published_weights(folder: Path, capsys) -> None:
    assert cli.main(["train", "cfol", *TINY, "--pretrained", "--out", "run"]) == 2
    assert "there are no published weights of demo-cnn" in capsys.readouterr().err
    assert cli.main(["eval", "--pretrained", "--dataset", "fashion-mini"]) == 2
    assert "--pretrained needs --model" in capsys.readouterr().err
    assert cli.main(["eval"]) == 2
    assert "Give a run folder or a file" in capsys.readouterr().err
