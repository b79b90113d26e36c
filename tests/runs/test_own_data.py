"""What a folder of one's own is trained with: every network of ours learns with its default learning rate."""

from __future__ import annotations

import functools
import json
import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from cfol_fast import models
from cfol_fast.runs.config import TrainConfig
from cfol_fast.training import train
from tests.training.tiny import by_path

CLASSES = 8
# Small ones of the same family, which learn in 60 steps: an eighth of the width, and fewer layers of the same
# blocks. Of demo-cnn itself. (resnet101@0.125 is at 1.39 after 120 steps.)
SMALL = {
    "demo-cnn": "demo-cnn",
    "wrn-34-10": "wrn-16-1",
    "resnet101": "resnet50@0.125",
    "resnet152": "resnet50@0.125",
}


def config(**settings: object) -> TrainConfig:
    return TrainConfig(by_path(settings), method="erm", device="cpu")


@pytest.fixture(scope="module")
def gratings(tmp_path_factory: pytest.TempPathFactory) -> Callable[[int], Path]:
    """Folders of images by their side: the class is the direction of a grating of random phase and colour, in
    noise.
    """

    @functools.cache
    def written(side: int) -> Path:
        root, rng = tmp_path_factory.mktemp("gratings"), np.random.default_rng(0)
        down, right = np.mgrid[:side, :side] / side
        for part, count in (("train", 40), ("test", 4)):
            for c in range(CLASSES):
                folder = root / part / f"direction {c}"
                folder.mkdir(parents=True)
                angle = math.pi * c / CLASSES
                for i in range(count):
                    phase = 6 * math.pi * (math.cos(angle) * right + math.sin(angle) * down)
                    wave = 48 * np.sin(phase + rng.uniform(0, 7))[..., None]
                    pixels = rng.uniform(64, 192, 3) + wave + rng.normal(0, 24, (side, side, 3))
                    Image.fromarray(pixels.clip(0, 255).astype(np.uint8)).save(folder / f"{i}.png")
        return root

    return written


def last_loss(folder: Path, out: Path, **settings: object) -> float:
    few = {"epochs": 6, "batch_size": 32, "validation__every": 6, "attack__steps": 2, "test__steps": 1}
    train(config(data__name="folder", data__root=str(folder), out=str(out), **few, **settings), quiet=True)
    rows = map(json.loads, (out / "metrics.jsonl").read_text().splitlines())
    return [row["loss"] for row in rows if row["kind"] == "train"][-1]


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted({SMALL.get(name, f"{name}@0.125") for name in models.names()}))
def test_every_network_of_ours_learns_with_the_default_rate_of_a_folder(
    gratings: Callable[[int], Path], tmp_path: Path, name: str
) -> None:
    """Below ln k, the loss of a network that answers every class alike."""
    # The rate that demo-cnn takes depends on the side, that of networks with a pool over the whole map does
    # not.
    folder = gratings(32 if name == "demo-cnn" else 16)
    loss = last_loss(folder, tmp_path / "run", model__name=name)
    assert loss < 0.9 * math.log(CLASSES)


@pytest.mark.slow
def test_the_papers_rate_would_not_do_for_the_smallest_network(
    gratings: Callable[[int], Path], tmp_path: Path
) -> None:
    """So that the test above can fail."""
    loss = last_loss(gratings(32), tmp_path / "run", model__name="demo-cnn", optimizer__lr=0.1)
    assert loss > 0.9 * math.log(CLASSES)


@pytest.mark.parametrize(
    ("name", "rate"),
    [
        ("demo-cnn", 0.02),
        ("demo-cnn@0.5", 0.02),
        ("vgg16", 0.02),
        ("vgg16-bn", 0.02),
        ("resnet18", 0.05),
        ("wrn-16-4", 0.05),
        ("timm:resnet18", 0.05),
    ],
)
def test_the_default_rate_belongs_to_network_and_data(name: str, rate: float) -> None:
    for data in ("folder", "beton"):
        found = config(data__name=data, model__name=name)
        assert (found.optimizer.lr, found.epochs, found.optimizer.schedule) == (rate, 30, "one-cycle")
    published = config(data__name="cifar10", model__name=name)
    assert (published.optimizer.lr, published.epochs, published.optimizer.schedule) == (0.1, 200, "steps")
    assert config(data__name="fashion-mini", model__name=name).optimizer.lr == 0.05
    adamw = config(data__name="folder", model__name=name, optimizer__name="adamw")
    assert adamw.optimizer.lr == 1e-3
