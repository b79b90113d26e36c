"""Weights of others: the layouts they come in, and what is said about a file that does not fit."""

from __future__ import annotations

import collections
from importlib import resources
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from cfol_fast import models
from cfol_fast.errors import InputError
from cfol_fast.evaluation.foreign_weights import load_weights, normalisation, read_weights
from tests.attacks.small_models import awaken

MEAN, STD = [0.4914, 0.4822, 0.4465], [0.2471, 0.2435, 0.2616]
X = torch.rand(4, 3, 32, 32, generator=torch.Generator().manual_seed(0))


def weights_of(name: str) -> tuple[nn.Module, dict[str, Tensor]]:
    torch.manual_seed(0)
    model = awaken(models.create(name, 10, mean=MEAN, std=STD))
    return model, dict(model.get_submodule("net").state_dict())


def check(model: nn.Module, expected: nn.Module) -> None:
    assert not model.training
    with torch.no_grad():
        torch.testing.assert_close(model(X), expected(X))


@pytest.mark.slow
def test_madrys_layout_brings_its_normalisation(tmp_path: Path) -> None:
    expected, weights = weights_of("resnet50@0.0625")
    state: dict[str, Tensor] = {}
    for where in ("module.", "module.attacker."):  # everything is there twice
        state[f"{where}{'normalizer' if where == 'module.' else 'normalize'}.new_mean"] = torch.tensor(
            MEAN
        ).view(3, 1, 1)
        state[f"{where}normalizer.new_std"] = torch.tensor(STD).view(3, 1, 1)
        state |= {f"{where}model.{name}": value for name, value in weights.items()}
    file = tmp_path / "cifar_linf_8.pt"
    torch.save({"model": state, "epoch": 150, "schedule": None}, file)
    check(load_weights(file, "resnet50@0.0625", 10), expected)


def test_the_trades_layout_has_a_block_that_is_never_used(tmp_path: Path) -> None:
    expected, weights = weights_of("wrn-10-1")
    expected.get_submodule("normalize").load_state_dict(
        {"mean": torch.zeros(1, 3, 1, 1), "std": torch.ones(1, 3, 1, 1)}
    )
    state = {f"module.{name}": value for name, value in weights.items()}
    state |= {
        name.replace("block1", "sub_block1"): value for name, value in state.items() if "block1" in name
    }
    torch.save(state, tmp_path / "trades.pt")
    check(load_weights(tmp_path / "trades.pt", "wrn-10-1", mean=[0.0] * 3, std=[1.0] * 3), expected)


@pytest.mark.slow
def test_autoattacks_own_example_is_recognised_as_a_resnet18() -> None:
    import sys

    folder = resources.files("pyautoattack") / "examples"
    sys.path.insert(0, str(folder))
    try:
        from resnet import ResNet18  # type: ignore[import-not-found]
    finally:
        sys.path.remove(str(folder))
    file = Path(str(folder / "model_test.pt"))
    original = ResNet18().eval()
    original.load_state_dict(torch.load(file, weights_only=True, map_location="cpu"))
    check(load_weights(file, mean=[0.0] * 3, std=[1.0] * 3), original)


@pytest.mark.parametrize("prefix", ["", "backbone.", "net.", "a.b.c."])
def test_any_prefix_is_found(tmp_path: Path, prefix: str) -> None:
    expected, weights = weights_of("demo-cnn")
    torch.save({"state_dict": {prefix + name: value for name, value in weights.items()}}, tmp_path / "w.pt")
    check(load_weights(tmp_path / "w.pt", "demo-cnn", mean=MEAN, std=STD), expected)


@pytest.mark.slow
def test_our_own_export_comes_back_with_its_normalisation(tmp_path: Path) -> None:
    expected, _ = weights_of("demo-cnn")
    torch.save(expected.state_dict(), tmp_path / "w.pt")
    check(load_weights(tmp_path / "w.pt"), expected)


def test_weights_without_a_normalisation_are_refused_until_it_is_given(tmp_path: Path) -> None:
    expected, weights = weights_of("demo-cnn")
    torch.save(weights, tmp_path / "w.pt")
    with pytest.raises(InputError, match=r"--mean and --std, or --normalize imagenet\|dataset\|none"):
        load_weights(tmp_path / "w.pt", "demo-cnn")
    torch.save(expected.state_dict(), tmp_path / "whole.pt")
    with pytest.raises(InputError, match="brings its own normalisation"):
        load_weights(tmp_path / "whole.pt", "demo-cnn", mean=MEAN, std=STD)


def test_a_normalisation_has_a_name() -> None:
    cifar = ((0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616))
    assert normalisation("imagenet", 3, cifar) == ([0.485, 0.456, 0.406], [0.229, 0.224, 0.225])
    assert normalisation("dataset", 3, cifar) == (list(cifar[0]), list(cifar[1]))
    assert normalisation("none", 1, cifar) == ([0.0], [1.0])
    with pytest.raises(InputError, match="'imagenet' has 3 channels, the images have 1"):
        normalisation("imagenet", 1, cifar)
    with pytest.raises(InputError, match="one of imagenet, dataset, none, got 'cifar'"):
        normalisation("cifar", 3, cifar)


def test_counters_of_newer_versions_may_be_missing(tmp_path: Path) -> None:
    expected, weights = weights_of("demo-cnn")
    torch.save({k: v for k, v in weights.items() if "num_batches" not in k}, tmp_path / "w.pt")
    check(load_weights(tmp_path / "w.pt", "demo-cnn", mean=MEAN, std=STD), expected)


@pytest.mark.slow
def test_a_checkpoint_of_another_architecture_is_refused_with_the_keys_that_differ(tmp_path: Path) -> None:
    _, weights = weights_of("preact-resnet18@0.125")
    torch.save(weights, tmp_path / "w.pt")
    with pytest.raises(
        InputError, match=r"not a resnet18@0.125 with 10 classes: \d+ missing: bn1\.weight.*; \d+ not known: "
    ):
        load_weights(tmp_path / "w.pt", "resnet18@0.125")
    with pytest.raises(
        InputError, match=r"of another shape: conv1\.weight \(8, 3, 3, 3\) instead of \(16, 3, 3, 3\)"
    ):
        load_weights(tmp_path / "w.pt", "preact-resnet18@0.25")
    with pytest.raises(
        InputError, match=r"of another shape: linear.weight \(10, 64\) instead of \(100, 64\)"
    ):
        load_weights(tmp_path / "w.pt", "preact-resnet18@0.125", num_classes=100)
    with pytest.raises(InputError, match="fits none of ours"):
        load_weights(tmp_path / "w.pt")


class Surprise:
    def __reduce__(self):
        return (print, ("executed",))


def test_a_file_with_python_objects_is_not_opened_and_says_how_to_convert_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    torch.save({"model": {"w": torch.ones(1)}, "args": Surprise()}, tmp_path / "w.pt")
    with pytest.raises(InputError, match="weights_only=False"):
        read_weights(tmp_path / "w.pt")
    assert "executed" not in capsys.readouterr().out


def test_files_without_weights_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="there is no checkpoint"):
        read_weights(tmp_path / "none.pt")
    (tmp_path / "text.pt").write_text("hello")
    with pytest.raises(InputError, match=r"text\.pt"):
        read_weights(tmp_path / "text.pt")
    torch.save(collections.OrderedDict(epoch=3), tmp_path / "empty.pt")
    with pytest.raises(InputError, match="holds no weights"):
        read_weights(tmp_path / "empty.pt")
    torch.save({"conv1.weight": torch.ones(2)}, tmp_path / "headless.pt")
    with pytest.raises(InputError, match="number of classes"):
        load_weights(tmp_path / "headless.pt")
