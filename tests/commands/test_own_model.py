"""A model of the user's own, from the command line: trained, continued, evaluated, exported; and what a file
alone cannot do.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import torchvision

import cfol_fast as cf
from cfol_fast.commands import main as cli
from cfol_fast.models import libraries
from tests.data import published_files

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


@pytest.fixture
def weights(folder: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, torch.Tensor]:
    """torchvision publishes weights of SqueezeNet for three classes of images of 40 px; a folder DIR has such
    classes, of 24 px.
    """
    published_files.folder(folder / "DIR", side=24)
    state = torchvision.models.squeezenet1_1(num_classes=3).state_dict()
    published = SimpleNamespace(
        meta={"categories": ["ant", "bee", "cat"]},
        transforms=lambda: SimpleNamespace(crop_size=[40], mean=[0.25] * 3, std=[0.5] * 3),
        get_state_dict=lambda **options: state,
    )
    monkeypatch.setattr(libraries, "_torchvision_weights", lambda name: published)
    return state


PUBLISHED = ["--pretrained", "--model=torchvision:squeezenet1_1", "--dataset=folder", "--data=DIR"]


@pytest.mark.slow
def test_published_weights_bring_the_size_and_the_normalisation(weights: dict[str, torch.Tensor]) -> None:
    assert cli.main(["train", "erm", *TINY, "--holdout=none", *PUBLISHED, "--lr=1e-12", "--out", "run"]) == 0
    assert json.loads(Path("run/config.json").read_text())["data"]["size"] == 40
    state = cf.load("run").state_dict()
    assert state["normalize.mean"].flatten().tolist() == [0.25] * 3
    torch.testing.assert_close(state["net.features.0.weight"], weights["features.0.weight"])
    assert json.loads(Path("run/result.json").read_text())["init"]["weights"].startswith(
        "torchvision:squeezenet1_1"
    )


def test_published_weights_are_evaluated_without_a_file(weights: dict[str, torch.Tensor], capsys) -> None:
    assert cli.main(["eval", *PUBLISHED, "--steps=1", "--device=cpu", "--quiet", "--json=e.json"]) == 0
    settings = json.loads(Path("e.json").read_text())["settings"]
    assert settings["checkpoint"] == "torchvision:squeezenet1_1"
    assert settings["mean"] == [0.25] * 3
    assert cli.main(["eval", "run.pt", *PUBLISHED]) == 2
    assert "leave out run.pt" in capsys.readouterr().err


def test_pretrained_is_for_models_with_published_weights(folder: Path, capsys) -> None:
    assert cli.main(["train", "cfol", *TINY, "--pretrained", "--out", "run"]) == 2
    assert "there are no published weights of demo-cnn" in capsys.readouterr().err
    assert cli.main(["eval", "--pretrained", "--dataset", "fashion-mini"]) == 2
    assert "--pretrained needs --model" in capsys.readouterr().err
    assert cli.main(["eval"]) == 2
    assert "Give a run folder or a file" in capsys.readouterr().err
