"""Weights of torchvision, timm's and torchvision's scripts, and Lightning: what is recognised, what has to be
named, what is refused.
"""

from __future__ import annotations

import argparse
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
import torchvision
from torch import Tensor, nn

from cfol_fast import models
from cfol_fast.errors import InputError
from cfol_fast.evaluation.foreign_weights import classes_of, load_weights, read_weights

PLAIN: dict[str, Any] = {"mean": [0.0] * 3, "std": [1.0] * 3}
X = torch.rand(2, 3, 32, 32, generator=torch.Generator().manual_seed(0))


def shufflenet(classes: int = 10) -> nn.Module:
    torch.manual_seed(0)
    return torchvision.models.shufflenet_v2_x0_5(num_classes=classes).eval()


def saved(content: Any, folder: Path) -> Path:
    torch.save(content, folder / "weights.pt")
    return folder / "weights.pt"


def check(model: nn.Module, expected: nn.Module) -> None:
    with torch.no_grad():
        torch.testing.assert_close(model(X), expected(X))


NAME = "torchvision:shufflenet_v2_x0_5"


def test_a_librarys_network_has_to_be_named(tmp_path: Path) -> None:
    """timm's resnetaa50 has the layers of torchvision's resnet50 and computes something else."""
    expected = shufflenet()
    file = saved(expected.state_dict(), tmp_path)
    with pytest.raises(InputError, match=r"fits none of ours .*: name it with --model \(timm:NAME"):
        load_weights(file, **PLAIN)
    with warnings.catch_warnings(action="error"):
        check(load_weights(file, NAME, **PLAIN), expected)


@pytest.mark.parametrize("name", ["squeezenet1_1", "convnext_tiny", "swin_t", "vgg11", "mobilenet_v3_small"])
@pytest.mark.parametrize("order", [list, sorted])
def test_the_classes_are_those_of_the_head_whatever_it_is_and_wherever_the_file_has_it(
    name: str, order
) -> None:
    """SqueezeNet's is a convolution. safetensors files are in the order of the alphabet: ConvNeXt's is not
    the last there.
    """
    with torch.device("meta"):
        state = torchvision.models.get_model(name, num_classes=7).state_dict()
    assert classes_of({f"model.{layer}": state[layer] for layer in order(state)}) == 7


@pytest.mark.slow
def test_without_a_word_they_get_the_librarys_normalisation_and_a_note(tmp_path: Path) -> None:
    file = saved(shufflenet().state_dict(), tmp_path)
    with pytest.warns(UserWarning, match=r"taking torchvision:shufflenet_v2_x0_5's own, mean \[0\.485,"):
        model = load_weights(file, NAME)
    assert model.get_submodule("normalize").std.flatten().tolist() == pytest.approx([0.229, 0.224, 0.225])


@pytest.mark.slow
def test_a_training_scripts_arguments_are_no_reason_to_refuse_its_weights(tmp_path: Path) -> None:
    """torchvision's and timm's scripts store them beside the weights, as an argparse.Namespace."""
    expected = shufflenet()
    content = {"model": expected.state_dict(), "args": argparse.Namespace(lr=0.1), "epoch": 90}
    check(load_weights(saved(content, tmp_path), NAME, **PLAIN), expected)


def lightning(weights: dict[str, Tensor], prefix: str) -> dict[str, Any]:
    state = {prefix + name: value for name, value in weights.items()} | {"criterion.weight": torch.ones(10)}
    return {"epoch": 3, "global_step": 12, "pytorch-lightning_version": "2.6.6", "state_dict": state}


@pytest.mark.parametrize("prefix", ["model.", "net.", "module.", "model._orig_mod."])
@pytest.mark.slow
def test_lightnings_layout_is_read(tmp_path: Path, prefix: str) -> None:
    expected = shufflenet()
    file = saved(lightning(dict(expected.state_dict()), prefix), tmp_path)
    check(load_weights(file, NAME, **PLAIN), expected)


@pytest.mark.parametrize("average", ["state_dict_ema", "model_ema", "ema"])
def test_averaged_weights_are_taken_when_they_are_asked_for(tmp_path: Path, average: str) -> None:
    weights = {"fc.weight": torch.zeros(2, 3)}
    file = saved({"state_dict": weights, average: {"fc.weight": torch.ones(2, 3)}}, tmp_path)
    assert float(read_weights(file).tensors["fc.weight"].mean()) == 0
    assert float(read_weights(file, ema=True).tensors["fc.weight"].mean()) == 1
    assert float(read_weights(saved({average: weights}, tmp_path)).tensors["fc.weight"].mean()) == 0
    with pytest.raises(InputError, match="holds no averaged weights: leave out --ema"):
        read_weights(saved({"state_dict": weights}, tmp_path), ema=True)


def test_averaged_weights_may_stand_under_a_prefix_of_their_own(tmp_path: Path) -> None:
    plain, average = models.create("demo-cnn", 10).eval(), models.create("demo-cnn", 10).eval()
    state = {f"model.{name}": value for name, value in plain.get_submodule("net").state_dict().items()}
    state |= {
        f"ema.module.{name}": value for name, value in average.get_submodule("net").state_dict().items()
    }
    file = saved({"state_dict": state}, tmp_path)
    check(load_weights(file, "demo-cnn", **PLAIN), plain)
    check(load_weights(file, "demo-cnn", **PLAIN, ema=True), average)


def test_the_model_that_timms_script_names_is_taken(tmp_path: Path) -> None:
    file = saved({"arch": "no_such_model", "state_dict": shufflenet().state_dict()}, tmp_path)
    with pytest.raises(
        InputError, match=r"timm:no_such_model needs the package timm|timm has no model 'no_such_model'"
    ):
        load_weights(file, **PLAIN)


@pytest.mark.slow
def test_weights_for_other_classes_than_the_data_sets_are_refused(tmp_path: Path) -> None:
    file = saved(shufflenet(1000).state_dict(), tmp_path)
    with pytest.raises(
        InputError, match=r"not a torchvision:shufflenet_v2_x0_5 with 10 classes: .*\(1000, 1024\)"
    ):
        load_weights(file, NAME, num_classes=10, **PLAIN)


def test_a_whole_module_is_refused_with_how_to_convert_it(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"holds Python objects .* s\.state_dict\(\) if hasattr"):
        read_weights(saved(nn.Linear(2, 2), tmp_path))


@pytest.mark.filterwarnings("ignore:`torch.jit:FutureWarning")
def test_files_of_other_kinds_are_refused_by_what_they_are(tmp_path: Path) -> None:
    (tmp_path / "model.onnx").write_bytes(b"\x08\x08\x12\x07pytorch")
    with pytest.raises(InputError, match="an ONNX file holds a graph"):
        read_weights(tmp_path / "model.onnx")
    torch.jit.save(torch.jit.script(nn.Linear(2, 2)), str(tmp_path / "script.pt"))
    with pytest.raises(InputError, match=r"TorchScript archive.*torch\.jit\.load\(FILE\)\.state_dict\(\)"):
        read_weights(tmp_path / "script.pt")
    header = b'{"w":'
    (tmp_path / "cut.safetensors").write_bytes(len(header).to_bytes(8, "little") + header)
    with pytest.raises(
        InputError, match=r"cut\.safetensors is (damaged|a safetensors file, and reading it needs)"
    ):
        read_weights(tmp_path / "cut.safetensors")
