"""A run keeps the ways in which its layers are computed: its checkpoint holds them, and a resumed run takes
no others.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from cfol_fast.errors import InputError
from cfol_fast.frozen.autotune import FORMAT, Choices, machine, using
from cfol_fast.runs import checkpoints
from tests.training import tiny

UNUSUAL = {
    "forward": "contiguous fused",
    "backward": "contiguous",
    "layout of": "contiguous",
    "linear": "onednn",
    "linear backward": "onednn",
}


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
    for kind in ("backward", "linear"):
        assert any(layer.startswith(kind) for layer in again)
    assert all(chosen.used[layer] == saved[layer] for layer in again)


def test_a_setting_that_names_no_file_leaves_no_run_behind(few_images, tmp_path: Path) -> None:
    with using(Choices("/no/such/file")), pytest.raises(InputError, match="CFOL_CHOICES must be"):
        tiny.run(tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_run_from_before_the_race_goes_on_without_one(stopped: Path) -> None:
    last = stopped / "checkpoints/last.pt"
    state = checkpoints.read(last)
    del state["choices"]
    checkpoints.write(last, state)
    with using(Choices("race")) as chosen:
        tiny.run(stopped, resume=True)
    assert chosen.setting == "fixed"


def test_a_run_resumed_where_another_machines_choices_are_cached_keeps_its_bits(
    few_images, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def weights(run: str) -> torch.Tensor:
        state = torch.load(tmp_path / run / "checkpoints/last.pt", weights_only=True)["model"]
        return torch.cat([value.flatten().double() for value in state.values()])

    # In the l2 norm every rounding of a gradient reaches the weights; signs would hide most of them.
    with using(Choices("fixed")) as other:
        tiny.run(tmp_path / "there", attack__norm="l2")
    cache = tmp_path / "cache.json"
    cache.write_text(json.dumps({"format": FORMAT, "machine": machine(), "choices": other.used}))
    with using(Unusual("fixed")):
        tiny.run(tmp_path / "whole", attack__norm="l2")
        tiny.run_until(monkeypatch, 2, tmp_path / "moved", attack__norm="l2")
    with using(Choices("race", cache)):
        tiny.run(tmp_path / "moved", resume=True, attack__norm="l2")
    assert torch.equal(weights("moved"), weights("whole"))
    assert not torch.equal(weights("there"), weights("whole"))
