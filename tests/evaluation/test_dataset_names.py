"""Whose label is which, by what data sets of torch and torchvision say of themselves."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import ConcatDataset, DataLoader, Dataset, Subset

import cfol_fast as cf
from cfol_fast.errors import InputError
from cfol_fast.evaluation import EnsembleEvaluation, evaluate_ensemble
from cfol_fast.evaluation.dataset_names import names_of
from cfol_fast.theory import AveragedLogits

Y = torch.arange(12) % 3
NAMES = ["ant", "bee", "cow"]


class Named(Dataset[Any]):
    """The image says which animal it is. classes: the animal of each label before target_transform, as
    torchvision's data sets have it.
    """

    def __init__(self, classes: list[str], target_transform: Callable[[int], Any] | None = None) -> None:
        self.classes, self.target_transform = classes, target_transform

    def __len__(self) -> int:
        return len(Y)

    def __getitem__(self, index: int) -> tuple[Tensor, Any]:
        animal = int(Y[index])
        label = self.classes.index(NAMES[animal]) if NAMES[animal] in self.classes else animal
        x = nn.functional.one_hot(torch.tensor(animal), 3).float().view(3, 1, 1)
        return 0.9 * x + index / 1000, label if self.target_transform is None else self.target_transform(
            label
        )


def model() -> nn.Module:
    """Knows each animal."""
    found = nn.Sequential(nn.Hardtanh(0, 1), nn.Flatten())
    found.classes = NAMES  # type: ignore[assignment]
    return found.eval()


class Numbered(Named):
    """Its labels are those of class_to_idx, its names are listed in the order of the alphabet."""

    def __init__(self, order: list[str]) -> None:
        super().__init__(sorted(order))
        self.class_to_idx = {name: label for label, name in enumerate(order)}

    def __getitem__(self, index: int) -> tuple[Tensor, Any]:
        return super().__getitem__(index)[0], self.class_to_idx[NAMES[int(Y[index])]]


MIXED = ["bee", "cow", "ant"]
SAME_ANIMALS: dict[str, Dataset[Any]] = {
    "as the model": Named(NAMES),
    "in another order": Named(MIXED),
    "a part": Subset(Named(MIXED), [0, 4, 5, 8]),
    "two parts": ConcatDataset([Named(MIXED), Subset(Named(MIXED), [])]),
    "numbered otherwise": Numbered(MIXED),
    "labels that are turned": Named(NAMES, lambda label: (label + 1) % 3),
    "labels that become tensors": Named(MIXED, torch.tensor),
}


@pytest.mark.parametrize("name", list(SAME_ANIMALS))
def test_labels_are_matched_with_the_models_by_their_names(name: str) -> None:
    data = SAME_ANIMALS[name]
    assert bool(cf.evaluate(model(), DataLoader(data, 2), attack=None).clean.correct.all())


@pytest.mark.parametrize("data", [Named(["x", "y", "z"]), ConcatDataset([Named(["x", "y", "z"])] * 1)])
def test_other_names_are_refused(data: Dataset[Any]) -> None:
    with pytest.raises(InputError, match="the data have 'x', 'y', 'z'"):
        cf.evaluate(model(), DataLoader(data, 2), attack=None)


def test_parts_with_the_same_names_in_other_orders_are_refused() -> None:
    with pytest.raises(InputError, match="a label has two meanings"):
        cf.evaluate(model(), DataLoader(ConcatDataset([Named(NAMES), Named(MIXED)]), 2), attack=None)


@pytest.mark.parametrize(
    "data",
    [Named(NAMES, lambda label: label // 2), Named(NAMES, str), ConcatDataset([Named(NAMES), Named(["x"])])],
)
def test_names_that_are_not_those_of_the_labels_are_not_used_and_that_is_said(data: Dataset[Any]) -> None:
    names, notes = names_of(data)
    assert names == []
    assert len(notes) == 1


class Turned(nn.Module):
    """The same network with its outputs in another order."""

    def __init__(self, order: list[str]) -> None:
        super().__init__()
        self.inner, self.classes = model(), order

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x)[:, [NAMES.index(name) for name in self.classes]]


def test_members_of_an_ensemble_are_matched_by_their_names() -> None:
    members = [Turned(MIXED), model(), nn.DataParallel(Turned(NAMES[::-1]))]
    whole = AveragedLogits(members)
    x = torch.stack([Named(NAMES)[index][0] for index in range(12)])
    assert torch.allclose(whole(x), members[0](x))
    for options in ({}, {"averaged_logits": True}):
        found = evaluate_ensemble(members, DataLoader(Named(NAMES), 5), **options)
        each = found.members if isinstance(found, EnsembleEvaluation) else [found]
        assert all(bool(one.clean.correct.all()) for one in each)
    assert evaluate_ensemble(members, x, Y, class_names=NAMES).worst_risk == 0
    with pytest.raises(InputError, match="pass class_names="):
        evaluate_ensemble(members, x, Y)
    # Of one order nothing needs to be known.
    assert evaluate_ensemble([model(), model()], x, Y).worst_risk == 0


def test_members_of_an_ensemble_with_other_classes_are_refused() -> None:
    with pytest.raises(InputError, match=r"must have the same classes, got ant, bee, cow; ant, bee$"):
        AveragedLogits([model(), Turned(["ant", "bee"])])
    unnamed = nn.Sequential(*model())
    assert not hasattr(AveragedLogits([model(), unnamed]), "classes")


def test_the_sampler_takes_the_labels_of_joined_data_sets() -> None:
    class Labelled(Named):
        targets = Y

    joined = ConcatDataset([Labelled(NAMES), Subset(Labelled(NAMES, lambda label: 2 - label), [0, 1])])
    sampler = cf.ClassSampler(joined)
    assert sampler.classes.labels.tolist() == [*Y.tolist(), 2, 1]
