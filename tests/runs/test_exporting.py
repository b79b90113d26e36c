"""Weights for use without this package. ONNX is tested in tests/integrations."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from cfol_fast import models
from cfol_fast.errors import InputError
from cfol_fast.runs import checkpoints
from cfol_fast.runs.exporting import export, format_of
from cfol_fast.runs.loading import load, read_checkpoint
from tests.runs.stored_models import CLASSES, store

SMALL = ["resnet18@0.125", "resnet50@0.0625", "preact-resnet18@0.125", "wrn-10-1", "vgg16@0.125", "demo-cnn"]
X = torch.rand(2, 3, 32, 32, generator=torch.Generator().manual_seed(0))


def loaded_by(code: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What the code beside an export leaves, run in its folder where this package cannot be imported."""
    monkeypatch.chdir(code.parent)
    for name in [name for name in sys.modules if name.partition(".")[0] == "cfol_fast"]:
        monkeypatch.setitem(sys.modules, name, None)
    made: dict[str, Any] = {"__name__": "loaded"}
    exec(compile(code.read_text(), code.name, "exec"), made)
    return made


@pytest.mark.parametrize("name", [*SMALL, "torchvision:squeezenet1_1"])
@pytest.mark.slow
def test_the_code_beside_an_export_loads_it_without_this_package(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = store(tmp_path / "checkpoint.pt", name)
    made = export(tmp_path / "checkpoint.pt", tmp_path / "weights.pt")
    assert made.code == tmp_path / "weights.pt.load.py"
    with monkeypatch.context() as patch:
        found = loaded_by(made.code, patch)
    assert found["classes"] == CLASSES
    assert not found["model"].training
    with torch.no_grad():
        assert torch.equal(found["model"](X), model(X))


def test_safetensors_are_loaded_without_this_package_and_read_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = store(tmp_path / "checkpoint.pt", "demo-cnn")
    made = export(tmp_path / "checkpoint.pt", tmp_path / "weights.safetensors", "safetensors")
    assert read_checkpoint(made.file).spec.name == "demo-cnn"
    with torch.no_grad():
        assert torch.equal(load(made.file)(X), model(X))
        with monkeypatch.context() as patch:
            found = loaded_by(made.code, patch)
        assert torch.equal(found["model"](X), model(X))
    assert found["classes"] == CLASSES


def test_a_safetensors_file_is_trusted_no_more_than_a_checkpoint(tmp_path: Path) -> None:
    from cfol_fast.runs import safetensors_files

    store(tmp_path / "checkpoint.pt", "demo-cnn")
    state = checkpoints.read(tmp_path / "checkpoint.pt")
    weights, file = state.pop("model"), tmp_path / "w.safetensors"
    for change, message in (
        ({"spec": {**state["spec"], "name": "os:system"}}, "asks for the code 'os:system'"),
        (
            {"spec": {**state["spec"], "num_classes": 4}},
            "its weights are not those of demo-cnn with 4 classes",
        ),
        ({"classes": ["cat"]}, "must name its 3 classes"),
        ({"format": 99}, "has the format 99"),
    ):
        file.write_bytes(safetensors_files.serialized(weights, {**state, **change}))
        with pytest.raises(InputError, match=message):
            load(file)
    file.write_bytes(file.read_bytes()[:-10])
    with pytest.raises(InputError, match="is damaged or no safetensors file"):
        load(file)


def test_a_registered_model_is_imported_from_where_it_was_registered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(models.zoo, "OURS", dict(models.zoo.OURS))
    monkeypatch.setattr(models.zoo, "REGISTERED", {})
    models.register("flat")(flat)
    store(tmp_path / "checkpoint.pt", "flat")
    code = export(tmp_path / "checkpoint.pt", tmp_path / "weights.pt").code
    assert code is not None
    assert f"{__name__}.flat(3, 3, 32)" in code.read_text()


def flat(num_classes: int, in_channels: int, image_size: int) -> torch.nn.Module:
    return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(in_channels * image_size**2, num_classes))


def test_every_network_of_ours_can_be_written_as_code() -> None:
    from cfol_fast.models import standalone

    assert {*standalone.OURS, "wrn-34-10"} == set(models.names())


def test_an_export_is_a_checkpoint_without_what_training_needs(tmp_path: Path) -> None:
    model = store(tmp_path / "checkpoint.pt", "demo-cnn", optimizer={"momentum": torch.ones(1000)})
    file = export(tmp_path / "checkpoint.pt", tmp_path / "weights.pt").file
    state = read_checkpoint(file)
    assert "optimizer" not in checkpoints.read(file)
    assert state.dataset == "folder"
    with torch.no_grad():
        assert torch.equal(load(file)(X), model(X))


def test_an_export_says_the_normalisation_that_its_weights_have(tmp_path: Path) -> None:
    """A run that began with weights of others took over theirs."""
    model = store(tmp_path / "checkpoint.pt", "demo-cnn")
    state = {**checkpoints.read(tmp_path / "checkpoint.pt"), "model": model.state_dict()}
    state["model"]["normalize.mean"] = torch.full((1, 3, 1, 1), 0.125)
    checkpoints.write(tmp_path / "other.pt", state)
    file = export(tmp_path / "other.pt", tmp_path / "weights.pt").file
    assert read_checkpoint(file).spec.mean == (0.125,) * 3


def test_the_name_says_the_format(tmp_path: Path) -> None:
    assert format_of(Path("a.pt")) == format_of(Path("a.pth")) == "torch"
    assert format_of(Path("a.safetensors")) == "safetensors"
    assert format_of(Path("a.bin"), "onnx") == "onnx"
    with pytest.raises(InputError, match=r"a\.bin does not say its format: .* --to torch\|safetensors\|onnx"):
        format_of(Path("a.bin"))


def test_what_cannot_be_written_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store(tmp_path / "checkpoint.pt", "demo-cnn")
    with pytest.raises(InputError, match="cannot write"):
        export(tmp_path / "checkpoint.pt", tmp_path / "nowhere" / "weights.pt")
    for to, package in (("onnx", "onnxscript"), ("safetensors", "safetensors")):
        monkeypatch.setitem(sys.modules, package, None)
        with pytest.raises(InputError, match=f"pip install .*{package}"):
            export(tmp_path / "checkpoint.pt", tmp_path / "weights", to)
    assert not (tmp_path / "weights").exists()
