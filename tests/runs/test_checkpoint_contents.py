"""`Checkpoint`: what a file holds becomes fields, and fields become the file again."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import torch

from cfol_fast import data
from cfol_fast.errors import InputError
from cfol_fast.models import ModelSpec
from cfol_fast.runs.checkpoint_contents import Checkpoint, Continuation
from tests.runs.test_checkpoints import SPEC
from tests.training import tiny

FILE = Path("c.pt")


def model(**fields: Any) -> Checkpoint:
    spec = ModelSpec.from_dict(SPEC)
    weights = spec.create().state_dict()
    return Checkpoint(model=weights, spec=spec, classes=[str(c) for c in range(10)], **fields)


def test_a_model_alone_has_nothing_of_a_run() -> None:
    state = model(method="cfol", epoch=3).to_state()
    assert set(state) == {"format", "model", "spec", "classes", "method", "epoch"}
    again = Checkpoint.of(state, FILE)
    assert (again.method, again.epoch, again.seed, again.run) == ("cfol", 3, None, None)
    assert again.spec == ModelSpec.from_dict(SPEC)


def test_a_runs_checkpoint_has_a_field_for_each_of_its_parts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(data, "load", tiny.few_images())
    for method in ("cfol", "dafa"):
        trainer = tiny.new_trainer(tmp_path, method, ema__decay=0.9, ensemble=2)
        state = trainer.state.whole().to_state()
        own, run = ({field.name for field in dataclasses.fields(kind)} for kind in (Checkpoint, Continuation))
        assert not own & run
        assert state.keys() <= {"format"} | own | run
        assert trainer.state.parts().keys() <= state.keys()
        again = Checkpoint.of(state, FILE)
        assert again.run is not None
        assert again.run.position == trainer.position.state_dict()
        assert again.to_state().keys() == state.keys()


@pytest.mark.parametrize(
    "name", [field.name for field in dataclasses.fields(Continuation) if field.default is dataclasses.MISSING]
)
def test_a_run_that_cannot_be_continued_says_what_its_checkpoint_lacks(name: str) -> None:
    needed = {field.name: {} for field in dataclasses.fields(Continuation)}
    run = Continuation(**{**needed, "metrics_size": 0, "torch_rng": torch.zeros(1)})  # type: ignore[arg-type]
    state = model(run=run).to_state()
    del state[name]
    if name == "position":
        # Without its place in a run it is a model.
        assert Checkpoint.of(state, FILE).run is None
        return
    with pytest.raises(
        InputError, match=f"c.pt cannot be continued from .* it has no {name}. Use the version"
    ):
        Checkpoint.of(state, FILE)


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"epoch": "3"}, "its epoch must be int, got '3'"),
        ({"epoch": True}, "its epoch must be int, got True"),
        ({"init": []}, "its init must be dict"),
        ({"classes": ["a"]}, "it must name its 10 classes"),
        ({"model": {}}, "its weights are not those of"),
    ],
)
def test_what_a_field_cannot_be_is_refused(changed: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError, match=said):
        Checkpoint.of({**model().to_state(), **changed}, FILE)
