"""`evaluate` takes what people have: loaders, data sets, and models that wrap their logits."""

from __future__ import annotations

from collections import namedtuple
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, IterableDataset, Subset, TensorDataset

from cfol_fast import data
from cfol_fast.errors import InputError
from cfol_fast.evaluation import AutoAttack, Evaluation, evaluate
from tests.attacks.small_models import EPS, Trained

PGD = {"eps": EPS, "steps": 3, "random_start": False}


class Dicts(Dataset):
    def __init__(self, x: Tensor, y: Tensor, images: str = "pixel_values", labels: str = "label") -> None:
        self.x, self.y, self.names = x, y, (images, labels)

    def __len__(self) -> int:
        return len(self.y)

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {self.names[0]: self.x[index], self.names[1]: int(self.y[index])}


def figures(report: Evaluation) -> list[list[bool]]:
    assert report.robust is not None
    return [report.clean.correct.tolist(), report.robust.correct.tolist()]


@pytest.mark.parametrize("workers", [0, pytest.param(2, marks=pytest.mark.slow)])
@pytest.mark.parametrize("kind", ["loader", "data set", "dicts", "loader of dicts"])
def test_loaders_and_data_sets_give_what_tensors_give(trained: Trained, kind: str, workers: int) -> None:
    model, x, y = trained
    given = {
        "loader": DataLoader(TensorDataset(x, y), batch_size=32, num_workers=workers),
        "data set": TensorDataset(x, y),
        "dicts": Dicts(x, y),
        "loader of dicts": DataLoader(Dicts(x, y, "image", "labels"), batch_size=32, num_workers=workers),
    }[kind]
    expected = evaluate(model, x, y, attack=PGD, batch_size=32)
    assert figures(evaluate(model, given, attack=PGD, batch_size=32)) == figures(expected)


@pytest.mark.slow
def test_a_loader_that_shuffles_keeps_one_order_for_all_attacks(trained: Trained) -> None:
    """AutoAttack reads the images a second time: in another order they would meet other labels."""
    model, x, y = trained
    loader = DataLoader(TensorDataset(x[:48], y[:48]), batch_size=16, shuffle=True)
    report = evaluate(model, loader, attack=[AutoAttack(model, EPS, attacks=("apgd-ce",)), PGD])
    plain = evaluate(model, x[:48], y[:48], attack=[PGD])
    assert report.clean.confusion.tolist() == plain.clean.confusion.tolist()
    assert report.attacks[1][1].confusion.tolist() == plain.attacks[0][1].confusion.tolist()
    assert report.attacks[0][1].average <= report.attacks[1][1].average


def test_a_part_of_a_data_set_is_evaluated_as_that_part(trained: Trained) -> None:
    model, x, y = trained
    part = Subset(TensorDataset(x, y), range(10, 60))
    report = evaluate(model, DataLoader(part, batch_size=16, drop_last=True))
    assert torch.equal(report.clean.correct, evaluate(model, x[10:58], y[10:58]).clean.correct)


def test_class_names_come_from_the_data_set(trained: Trained) -> None:
    model, x, y = trained
    given = TensorDataset(x, y)
    given.classes = [("sign", "plate") if c == 0 else f"class {c}" for c in range(10)]
    report = evaluate(model, Subset(given, range(100)))
    assert report.clean.classes[:2] == ["sign, plate", "class 1"]


def test_our_own_image_sets_are_data_sets_too(trained: Trained) -> None:
    model, x, y = trained
    pixels = (x * 255).round().to(torch.uint8).permute(0, 2, 3, 1).contiguous()
    images = data.ImageSet(pixels, y, [str(c) for c in range(10)])
    expected = evaluate(model, data.ResidentSource(images))
    assert torch.equal(evaluate(model, images).clean.correct, expected.clean.correct)


class Stream(IterableDataset):
    def __iter__(self) -> Any:
        yield from ()


class Bytes(TensorDataset):
    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        x, y = super().__getitem__(index)
        return (x * 255).to(torch.uint8), y


def bad_inputs(x: Tensor, y: Tensor) -> dict[str, tuple[Any, str]]:
    return {
        "stream": (DataLoader(Stream(), batch_size=4), "map-style data set"),
        "no batches": (DataLoader(TensorDataset(x, y), batch_size=None), "with a batch_size"),
        "other names": (
            Dicts(x, y, "picture"),
            "entries picture, label: expected images as one of pixel_values",
        ),
        "images alone": (TensorDataset(x), r"must be \(images, labels\)|labels must be integers"),
        "bytes": (Bytes(x, y), "floating point numbers in .*torch.uint8"),
        "normalised": (TensorDataset(x * 2 - 1, y), "put the normalisation into the model"),
        "label 10 in the last batch": (
            TensorDataset(x, torch.cat([y[:-1], torch.tensor([10])])),
            "labels must be 0..9 for 10 classes",
        ),
        "labels of floats": (TensorDataset(x, y.float()), "labels must be integers"),
    }


@pytest.mark.parametrize("name", list(bad_inputs(torch.zeros(1, 1), torch.zeros(1))))
def test_what_gives_no_images_and_labels_is_refused(trained: Trained, name: str) -> None:
    given, complaint = bad_inputs(trained.x, trained.y)[name]
    with pytest.raises(InputError, match=complaint):
        evaluate(trained.model, given, batch_size=64)


def test_labels_beside_a_data_set_are_refused(trained: Trained) -> None:
    with pytest.raises(InputError, match="a data set has its own labels"):
        evaluate(trained.model, TensorDataset(trained.x, trained.y), trained.y)


@dataclass
class Output:
    logits: Tensor
    loss: Tensor | None = None


Pair = namedtuple("Pair", "logits aux")
WRAPPERS = {
    "dataclass": Output,
    "namespace": lambda logits: SimpleNamespace(logits=logits),
    "named tuple": lambda logits: Pair(logits, None),
    "tuple": lambda logits: (logits, logits.flatten(1).mean()),
    "dict": lambda logits: {"features": logits[:, :2], "logits": logits},
}


class Wrapped(nn.Module):
    def __init__(self, model: nn.Module, wrapper: Any) -> None:
        super().__init__()
        self.model, self.wrapper = model, wrapper

    def forward(self, x: Tensor) -> Any:
        return self.wrapper(self.model(x))


@pytest.mark.parametrize("active_set", [False, pytest.param(True, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", list(WRAPPERS))
def test_logits_are_found_in_what_the_model_returns(trained: Trained, name: str, active_set: bool) -> None:
    model, x, y = trained
    wrapped = Wrapped(model, WRAPPERS[name]).eval()
    expected = evaluate(model, x, y, attack={**PGD, "fast": False}, active_set=active_set)
    found = evaluate(wrapped, x, y, attack={**PGD, "fast": False}, active_set=active_set)
    assert figures(found) == figures(expected)
    # And on the folded network, where the wrapper can be traced.
    assert evaluate(wrapped, x, y, attack=PGD).robust.average == pytest.approx(
        expected.robust.average, abs=0.03
    )


@pytest.mark.slow
def test_autoattack_finds_them_too(trained: Trained) -> None:
    model, x, y = trained
    reports = [
        evaluate(m, x[:24], y[:24], attack=AutoAttack(m, EPS, attacks=("apgd-ce",)))
        for m in (model, Wrapped(model, Output).eval())
    ]
    assert figures(reports[0]) == figures(reports[1])


def test_a_dict_without_logits_is_refused_with_its_entries(trained: Trained) -> None:
    wrapped = Wrapped(trained.model, lambda logits: {"out": logits})
    with pytest.raises(InputError, match="a dict with the entries out"):
        evaluate(wrapped, trained.x, trained.y)
