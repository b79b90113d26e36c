"""`--augment`: what is done to training images, by word, for published data sets and for a user's own."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import pytest
import torch

from cfol_fast import data, ops
from cfol_fast.commands import main as cli
from cfol_fast.data.ffcv import writer
from cfol_fast.data.registry import SPECS, paper_augment
from cfol_fast.errors import InputError
from cfol_fast.runs.config import TrainConfig
from cfol_fast.training.images import RunImages, load_images
from tests.data import published_files as files
from tests.training.tiny import by_path

OWN = {"folder", "beton"}


def completed(**settings: object) -> TrainConfig:
    return TrainConfig(by_path(settings), method="erm", device="cpu")


def images(folder: Path, name: str = "folder", **settings: object) -> RunImages:
    return load_images(completed(data__name=name, data__root=str(folder), **settings))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    files.folder(tmp_path / "in", side=32)
    return tmp_path / "in"


@pytest.mark.parametrize("name", SPECS)
def test_only_images_of_ones_own_leave_the_paper(name: str) -> None:
    assert completed(data__name=name).data.augment == ("crop" if name in OWN else "paper")


def test_a_folder_is_not_mirrored_unless_told(folder: Path) -> None:
    assert images(folder).train.augment == data.load("folder", folder).augment == ops.Augment(pad=2)
    assert images(folder, data__augment="crop-flip").train.augment == ops.Augment(pad=2, flip=True)
    assert images(folder, data__augment="none").train.augment is None
    for word in ("paper", "true"):
        assert images(folder, data__augment=word).train.augment == paper_augment(32)


@pytest.mark.parametrize(
    ("word", "said"),
    [
        ("none", "none"),
        ("crop", "crop (crop with padding 2, no flip)"),
        ("crop-flip", "crop-flip (crop with padding 2, flip)"),
        (
            "paper",
            "paper (crop with padding 4, flip, brightness by 25%, contrast by 25%, saturation by 25%, "
            "rotation by up to 2 degrees)",
        ),
    ],
)
def test_a_run_says_its_augmentation_when_it_starts(folder: Path, word: str, said: str) -> None:
    found = images(folder, data__augment=word)
    assert f"augmentation: {said}" in found.notes
    assert found.augmentation == said


def test_a_program_that_gives_the_older_switch_is_understood(folder: Path) -> None:
    config = completed(data__name="folder", data__root=str(folder))
    for value, augment in ((False, None), (True, paper_augment(32)), (None, ops.Augment(pad=2))):
        assert load_images(config.replace(data={"augment": value})).train.augment == augment


def test_random_resized_windows_take_the_words_flip_alone(folder: Path) -> None:
    own = images(folder, data__crop="random-resized")
    assert own.train.augment == ops.Augment(crop=False, scale=0.08)
    assert own.augmentation == "crop (random-resized crop of 8% to 100% of the area, no flip)"
    mirrored = images(folder, data__crop="random-resized", data__augment="crop-flip")
    assert mirrored.train.augment == ops.Augment(crop=False, flip=True, scale=0.08)
    with pytest.raises(InputError, match=r"data\.crop=random-resized is an augmentation"):
        completed(data__crop="random-resized", data__augment="none")


def test_an_unknown_word_names_the_words() -> None:
    with pytest.raises(
        InputError, match=r"data\.augment must be one of none, crop, crop-flip, paper, got 'flip'"
    ):
        completed(data__augment="flip")


def test_the_embedded_images_are_mirrored_and_not_cropped_as_ever() -> None:
    assert load_images(completed()).train.augment == ops.Augment(crop=False, flip=True)
    assert load_images(completed(data__augment="crop")).train.augment == ops.Augment(pad=2)


def test_a_registered_data_set_keeps_its_own_augmentation(monkeypatch: pytest.MonkeyPatch) -> None:
    own = ops.Augment(pad=3, brightness=0.5)
    row = data.DataSpec("mine", "mine", SPECS["fashion-mini"].read, None, (0.5,), (0.5,), lambda side: own)
    monkeypatch.setitem(SPECS, "mine", row)
    assert data.load("mine").augment == own
    assert load_images(completed(data__name="mine")).train.augment == own


@pytest.mark.ffcv
@pytest.mark.parametrize(
    ("description", "word", "augment"),
    [
        ({"dataset": "folder", "augment": asdict(paper_augment(28))}, "crop", ops.Augment(pad=2)),
        ({"dataset": "cifar10", "augment": asdict(paper_augment(28))}, "paper", paper_augment(28)),
        ({"augment": {"pad": 1}}, "paper", ops.Augment(pad=1)),
        ({}, "crop", ops.Augment(pad=2)),
    ],
)
def test_ffcv_files_are_augmented_as_what_they_were_written_from(
    tmp_path: Path, description: dict, word: str, augment: ops.Augment
) -> None:
    mini = data.load("fashion-mini")
    part = mini.test.subset(torch.arange(400))
    for name in ("train", "test"):
        described = {"mean": [0.5], "std": [0.5], **description}
        writer.write(tmp_path / f"{name}.beton", part, description=described)
    assert completed(data__name="beton", data__root=str(tmp_path)).data.augment == word
    assert data.load("beton", tmp_path).augment == augment
    assert images(tmp_path, "beton").train.augment == augment
    assert images(tmp_path, "beton", data__augment="none").train.augment is None


@pytest.mark.ffcv
def test_files_written_from_a_folder_know_the_papers_augmentation(folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    arguments = ("--dataset", "folder", "--data", str(folder), "--split", "all", "--mode", "raw")
    assert cli.main(["data", "to-ffcv", *arguments, "--out", str(out)]) == 0
    assert images(out, "beton").train.augment == images(folder).train.augment
    assert images(out, "beton", data__augment="paper").train.augment == paper_augment(32)


@pytest.mark.slow
def test_the_option_reaches_config_and_result(folder: Path, tmp_path: Path) -> None:
    run = ("train", "erm", "--dataset", "folder", "--data", str(folder), "--model", "demo-cnn", "--quiet")
    few = ("--epochs", "1", "--device", "cpu", "--set", "attack.steps=1", "--set", "test.steps=1")
    out = tmp_path / "run"
    assert cli.main([*run, *few, "--augment", "crop-flip", "--out", str(out)]) == 0
    assert json.loads((out / "config.json").read_text())["data"]["augment"] == "crop-flip"
    said = json.loads((out / "result.json").read_text())["augmentation"]
    assert said == "crop-flip (crop with padding 2, flip)"
