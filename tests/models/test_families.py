"""One family for each name: `resnet18`, 34, 50, ... are ours, for small images; torchvision's have its
prefix.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
import torchvision
from torch import nn

from cfol_fast import models
from cfol_fast.commands import main as cli
from cfol_fast.errors import InputError
from cfol_fast.evaluation.foreign_weights import load_weights
from cfol_fast.models.standalone import python_code
from cfol_fast.models.summary import in_words
from cfol_fast.runs import checkpoints
from cfol_fast.runs.loading import load

# Of the usual CIFAR code with ten classes.
PUBLISHED = {
    "resnet18": 11.174,
    "resnet34": 21.282,
    "resnet50": 23.521,
    "resnet101": 42.513,
    "resnet152": 58.157,
}


def first_convolution(model: nn.Module) -> nn.Conv2d:
    return next(module for module in model.modules() if isinstance(module, nn.Conv2d))


@pytest.mark.parametrize("name", PUBLISHED)
def test_every_resnet_is_of_one_family(name: str) -> None:
    model = models.create_without_numbers(name, 10, 32, 3)
    assert sum(one.numel() for one in model.parameters()) / 1e6 == pytest.approx(PUBLISHED[name], abs=1e-3)
    assert first_convolution(model).kernel_size == (3, 3)
    assert {key for key in model.state_dict() if "linear" in key} == {"net.linear.weight", "net.linear.bias"}
    assert models.library_name(name) is None
    assert f"ResNet({'BasicBlock' if name in ('resnet18', 'resnet34') else 'Bottleneck'}, " in python_code(
        models.ModelSpec(name, 10, 32, 3, (0.5,) * 3, (0.5,) * 3)
    )


@pytest.mark.parametrize(
    "name",
    [
        name
        for name in torchvision.models.list_models(module=torchvision.models)
        if name[:3] in ("res", "vgg")
    ],
)
def test_no_bare_name_of_a_family_of_ours_is_torchvisions(name: str) -> None:
    if name.startswith("resnext"):
        assert models.library_name(name) == f"torchvision:{name}"
        return
    assert models.library_name(name) is None
    if name not in (*PUBLISHED, "vgg16", "vgg16_bn"):
        with pytest.raises(InputError, match=f"torchvision:{name} "):
            models.create_without_numbers(name, 10, 32, 3)
        return
    made = models.create_without_numbers(name, 10, 32, 3).state_dict()
    assert {"net.fc.weight", "net.classifier.6.weight"}.isdisjoint(made)


def test_a_new_checkpoint_of_ours_stays_ours(tmp_path: Path) -> None:
    model = models.create("resnet34@0.125", 3, 32)
    spec = models.ModelSpec("resnet34@0.125", 3, 32, 3, (0.0,) * 3, (1.0,) * 3).to_dict()
    state = {
        "format": 1,
        "spec": spec,
        "classes": list("abc"),
        "dataset": "folder",
        "method": "erm",
        "seed": 0,
    }
    checkpoints.write(tmp_path / "new.pt", {**state, "epoch": 1, "model": model.state_dict()})
    x = torch.rand(2, 3, 32, 32)
    with torch.no_grad():
        assert torch.equal(load(tmp_path / "new.pt")(x), model.eval()(x))


def test_weights_of_torchvisions_namesake_are_refused_with_its_name(tmp_path: Path) -> None:
    options = {"num_classes": 3, "mean": [0.0] * 3, "std": [1.0] * 3}
    torch.save(torchvision.models.resnet34(num_classes=3).state_dict(), tmp_path / "torchvision.pt")
    torch.save(models.create("resnet34", 3).get_submodule("net").state_dict(), tmp_path / "cifar.pt")
    with pytest.raises(InputError, match=r"torchvision's network of that name is torchvision:resnet34"):
        load_weights(tmp_path / "torchvision.pt", "resnet34", **options)
    found = load_weights(tmp_path / "torchvision.pt", "torchvision:resnet34", **options)
    assert first_convolution(found).kernel_size == (7, 7)
    assert first_convolution(load_weights(tmp_path / "cifar.pt", **options)).kernel_size == (3, 3)


@pytest.mark.parametrize(
    ("name", "size", "said"),
    [
        ("resnet18", 32, "resnet18: 11,173,962 parameters; stem 3x3, 32 px become 32"),
        ("resnet34", 32, "resnet34: 21,282,122 parameters; stem 3x3, 32 px become 32"),
        (
            "torchvision:resnet34",
            32,
            "stem 7x7 with stride 2 and pooling, 32 px become 8 (made for larger images",
        ),
        ("torchvision:resnet34", 224, "stem 7x7 with stride 2 and pooling, 224 px become 56"),
        ("demo-cnn", 28, "stem 3x3, 28 px become 28"),
        ("torchvision:mobilenet_v2", 32, "stem 3x3 with stride 2, 32 px become 16"),
    ],
)
def test_a_network_says_its_size_and_its_stem(name: str, size: int, said: str) -> None:
    line = in_words(models.create_without_numbers(name, 10, size, 3), name, size)
    assert said in line
    assert ("larger" in line) == ("larger" in said)


def test_a_network_without_convolutions_says_so() -> None:
    assert (
        in_words(nn.Sequential(nn.Flatten(), nn.Linear(4, 2)), "mine", 2)
        == "mine: 10 parameters, no convolution"
    )


def test_pretrained_weights_of_a_bare_name_are_refused_with_the_word(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert cli.main(["train", "erm", "--model", "resnet34", "--pretrained", "--print-config"]) == 2
    assert "torchvision:NAME" in capsys.readouterr().err
    assert (
        cli.main(["train", "erm", "--model", "torchvision:resnet34", "--pretrained", "--print-config"]) == 0
    )
    assert json.loads(capsys.readouterr().out)["model"]["name"] == "torchvision:resnet34"
