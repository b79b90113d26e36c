"""safetensors and ONNX: what is written is what the model computes, loaded without this package, and read
back by eval.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import onnxruntime
import pytest
import torch

from cfol_fast.commands import main as cli
from cfol_fast.runs.exporting import export
from cfol_fast.runs.loading import load, read_checkpoint
from tests.runs.stored_models import CLASSES, store

X = torch.rand(3, 3, 32, 32, generator=torch.Generator().manual_seed(0))


def loaded_by(code: Path) -> dict[str, Any]:
    made: dict[str, Any] = {}
    text = code.read_text()
    assert "cfol_fast import" not in text
    assert "import cfol_fast" not in text
    exec(text, made)
    return made


@pytest.mark.parametrize("name", ["timm:mobilenetv3_small_050", "timm:vit_tiny_patch16_224"])
def test_safetensors_are_loaded_without_this_package_and_read_back(name: str, tmp_path: Path) -> None:
    model = store(tmp_path / "checkpoint.pt", name)
    made = export("checkpoint.pt", "weights.safetensors", "safetensors")
    found = loaded_by(made.code)
    assert found["classes"] == CLASSES
    with torch.no_grad():
        assert torch.equal(found["model"](X), model(X))
        assert torch.equal(load(made.file)(X), model(X))
    assert read_checkpoint(made.file).spec.name == name


@pytest.mark.parametrize("name", ["demo-cnn", "timm:vit_tiny_patch16_224"])
def test_onnxruntime_computes_what_the_model_does(name: str, tmp_path: Path) -> None:
    model = store(tmp_path / "checkpoint.pt", name)
    found = loaded_by(export("checkpoint.pt", "weights.onnx", "onnx").code)
    assert found["classes"] == CLASSES
    with torch.no_grad():
        # Another number of images than it was written with.
        torch.testing.assert_close(
            torch.from_numpy(found["model"](X.numpy())), model(X), rtol=1e-3, atol=1e-4
        )


def test_an_onnx_file_says_what_it_is(tmp_path: Path) -> None:
    store(tmp_path / "checkpoint.pt", "demo-cnn")
    export("checkpoint.pt", "weights.onnx", "onnx")
    said = onnxruntime.InferenceSession("weights.onnx").get_modelmeta().custom_metadata_map
    assert said["name"] == "demo-cnn"
    assert json.loads(said["mean"]) == [0.5] * 3
    assert json.loads(said["image_size"]) == 32


def test_eval_reads_safetensors_of_a_run_back(capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--set=steps_per_epoch=1", "--set=batch_size=8", "--set=attack.steps=1", "--set=test.steps=1"]
    options += ["--model=demo-cnn@0.25", "--epochs=1", "--holdout=none", "--device=cpu", "--quiet"]
    assert cli.main(["train", "cfol", *options, "--out", "run"]) == 0
    assert cli.main(["export", "run", "--out", "weights.safetensors"]) == 0
    accuracies = []
    for what in ("run", "weights.safetensors"):
        command = [
            "eval",
            what,
            "--limit=50",
            "--steps=2",
            "--eps=0.1",
            "--device=cpu",
            "--quiet",
            "--json=e.json",
        ]
        assert cli.main(command) == 0
        accuracies.append(json.loads(Path("e.json").read_text())["robust"])
    assert accuracies[0] == accuracies[1]
