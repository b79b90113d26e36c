"""A run keeps the ways in which its layers are computed: its checkpoint holds them, and a resumed run takes no others."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from cfol_fast.attacks.choices import Choices, using
from cfol_fast.runs import checkpoints
from tests.training import tiny

UNUSUAL = {"forward": "contiguous fused", "backward": "contiguous", "layout of": "contiguous"}


class Unusual(Choices):
    """The winners of some other machine."""

    def choose(self, layer, names, run, others=()):
        self.used[layer] = UNUSUAL[layer.partition(",")[0].removesuffix(" with relu")]
        return self.used[layer]


@pytest.fixture
def stopped(few_images, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    with using(Unusual("fixed")):
        tiny.run_until(monkeypatch, 2, tmp_path / "run")
    return tmp_path / "run"


def test_a_resumed_run_keeps_its_choices(stopped: Path) -> None:
    saved = torch.load(stopped / "checkpoints/last.pt", weights_only=True)["choices"]
    assert {way for layer, way in saved.items() if "3x3" in layer} == {"contiguous fused", "contiguous"}
    with using(Choices("fixed")) as chosen:
        tiny.run(stopped, resume=True)
    again = saved.keys() & chosen.used.keys()
    assert any(layer.startswith("backward") for layer in again)
    assert all(chosen.used[layer] == saved[layer] for layer in again)


def test_a_run_from_before_the_race_goes_on_without_one(stopped: Path) -> None:
    last = stopped / "checkpoints/last.pt"
    state = checkpoints.read(last)
    del state["choices"]
    checkpoints.write(last, state)
    with using(Choices("race")) as chosen:
        tiny.run(stopped, resume=True)
    assert chosen.setting == "fixed"
