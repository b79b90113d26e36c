"""Checkpoints from elsewhere: names are translated, what does not fit is refused with what differs, only tensors are read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from cfol_fast import models
from cfol_fast.errors import InputError
from cfol_fast.recipes.pretrained import load_pretrained

MODEL = "resnet18@0.0625"


def weights(seed: int = 0, model: str = MODEL, classes: int = 10) -> dict[str, torch.Tensor]:
    torch.manual_seed(seed)
    network = models.create(model, classes, 32, 3)
    return {
        key.removeprefix("net."): value
        for key, value in network.state_dict().items()
        if key.startswith("net.")
    }


def save(folder: Path, value: Any) -> Path:
    path = folder / "model.pt"
    torch.save(value, path)
    return path


def same(model: torch.nn.Module, expected: dict[str, torch.Tensor]) -> bool:
    found = model.state_dict()
    return all(torch.equal(found[f"net.{key}"], value) for key, value in expected.items())


def torchvision_words(key: str) -> str:
    return key.replace("shortcut.", "downsample.").replace("linear.", "fc.")


@pytest.mark.parametrize("prefix", ["", "module.", "module.model.", "net."])
@pytest.mark.parametrize("wrap", [None, "state_dict", "model"])
def test_prefixes_and_wrappers_of_other_code_bases_are_understood(
    tmp_path: Path, prefix: str, wrap: str | None
) -> None:
    state: Any = {prefix + key: value for key, value in weights().items()}
    path = save(tmp_path, {wrap: state, "epoch": 3} if wrap else state)
    assert same(load_pretrained(path, MODEL, 10, 32, 3), weights())


def test_torchvisions_words_for_the_same_layers_are_understood(tmp_path: Path) -> None:
    path = save(tmp_path, {torchvision_words(key): value for key, value in weights().items()})
    assert same(load_pretrained(path, MODEL, 10, 32, 3), weights())


def test_the_robustness_packages_normalisation_is_taken_over(tmp_path: Path) -> None:
    state = {f"module.model.{key}": value for key, value in weights().items()}
    state |= {f"module.attacker.model.{key}": value for key, value in weights().items()}
    state["module.normalizer.new_mean"] = torch.tensor([0.1, 0.2, 0.3]).view(3, 1, 1)
    state["module.normalizer.new_std"] = torch.tensor([0.4, 0.5, 0.6]).view(3, 1, 1)
    model = load_pretrained(save(tmp_path, {"model": state}), MODEL, 10, 32, 3)
    assert model.state_dict()["normalize.mean"].flatten().tolist() == pytest.approx([0.1, 0.2, 0.3])
    assert model.state_dict()["normalize.std"].flatten().tolist() == pytest.approx([0.4, 0.5, 0.6])
    assert not model.training


def test_without_a_normalisation_of_its_own_pixels_pass_unchanged(tmp_path: Path) -> None:
    model = load_pretrained(save(tmp_path, weights()), MODEL, 10, 32, 3)
    assert model.state_dict()["normalize.std"].flatten().tolist() == [1.0, 1.0, 1.0]


def test_another_architecture_does_not_fit(tmp_path: Path) -> None:
    path = save(tmp_path, weights(model="vgg16@0.0625"))
    with pytest.raises(
        InputError,
        match=r"model\.pt does not fit resnet18@0.0625: .* tensors are not in it, the first is 'conv1.weight'",
    ):
        load_pretrained(path, MODEL, 10, 32, 3)


def test_another_number_of_classes_does_not_fit(tmp_path: Path) -> None:
    path = save(tmp_path, weights(classes=100))
    with pytest.raises(
        InputError, match=r"with 10 classes: linear.weight is \(100, 32\), expected \(10, 32\)"
    ):
        load_pretrained(path, MODEL, 10, 32, 3)


def test_files_that_are_no_checkpoints_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="there is no checkpoint"):
        load_pretrained(tmp_path / "gone.pt", MODEL, 10, 32, 3)
    (tmp_path / "text.pt").write_text("not a checkpoint", encoding="utf-8")
    with pytest.raises(InputError, match="cannot be read as tensors"):
        load_pretrained(tmp_path / "text.pt", MODEL, 10, 32, 3)
    with pytest.raises(InputError, match="holds no weights"):
        load_pretrained(save(tmp_path, {"epoch": 3}), MODEL, 10, 32, 3)


class Hostile:
    def __reduce__(self) -> tuple[Any, ...]:
        return (Path("pwned").touch, ())


def test_python_objects_in_a_checkpoint_are_never_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    path = save(tmp_path, {"model": Hostile()})
    with pytest.raises(InputError, match="files with Python objects are not opened"):
        load_pretrained(path, MODEL, 10, 32, 3)
    assert not (tmp_path / "pwned").exists()
