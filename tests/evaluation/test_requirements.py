"""`--require`: what is read, what is met, and what is said where it is not."""

from __future__ import annotations

import pytest
import torch

from cfol_fast.errors import InputError
from cfol_fast.evaluation import ClassAccuracy, Evaluation
from cfol_fast.evaluation.requirements import Requirement, parse

CLASSES = ["cat", "dog", "clean.sheet"]


def report(robust: list[int], clean: list[int], counts: tuple[int, int, int] = (10, 10, 10)) -> Evaluation:
    """The number of right examples in each class."""

    def accuracy(hits: list[int]) -> ClassAccuracy:
        labels = torch.arange(3).repeat_interleave(torch.tensor(counts))
        within = torch.cat([torch.arange(n) for n in counts])
        right = within < torch.tensor(hits)[labels]
        return ClassAccuracy(labels, torch.where(right, labels, (labels + 1) % 3), CLASSES)

    return Evaluation(accuracy(clean), accuracy(robust))


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("worst>=0.3", Requirement("robust", "worst", 0.3)),
        (" average >= 1/2 ", Requirement("robust", "average", 0.5)),
        ("tail>=30%", Requirement("robust", "tail", 0.3)),
        ("clean.class_average>=0.5", Requirement("clean", "class_average", 0.5)),
        ("robust.dog>=0", Requirement("robust", "dog", 0.0)),
        ("clean.sheet>=0.5", Requirement("robust", "clean.sheet", 0.5)),
        ("clean.clean.sheet>=0.5", Requirement("clean", "clean.sheet", 0.5)),
        ("dog.lower>=0.3", Requirement("robust", "dog", 0.3, ".lower")),
        ("clean.clean.sheet.lower>=0.3", Requirement("clean", "clean.sheet", 0.3, ".lower")),
        ("worst.lower >= 0.3", Requirement("robust", "worst", 0.3, ".lower")),
        ("zero<=2", Requirement("robust", "zero", 2)),
        ("classes below 0.05 <= 3", Requirement("robust", "below_floor", 3, below=0.05)),
        ("clean.classes below 5% <= 0", Requirement("clean", "below_floor", 0, below=0.05)),
        ("below_floor.upper<=3", Requirement("robust", "below_floor", 3, ".upper")),
    ],
)
def test_a_requirement_is_read(text: str, meant: Requirement) -> None:
    assert parse(text, CLASSES, attacked=True) == meant


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("worst", "write FIGURE>=NUMBER"),
        ("worst>0.3", "write FIGURE>=NUMBER"),
        ("worst<=0.3", "worst is required with >="),
        ("zero>=3", "zero is required with <="),
        ("below_floor<=1/2", "a number of classes is whole, got 1/2"),
        ("below_floor<=3%", "a number of classes is whole, got 3%"),
        ("classes below 5<=3", "from 0 to 1, got 5"),
        ("gap.lower<=0.3", "there is no gap.lower; there are average.lower"),
        ("worst.upper>=0.3", "there is no worst.upper"),
        ("cat.upper>=0.3", "of a class the lower limit is required, cat.lower"),
        ("cat<=0.3", "cat is required with >="),
        ("worst>=x", "not a finite number"),
        ("worst>=30", "from 0 to 1, got 30; perhaps 30%"),
        ("wurst>=0.3", "did you mean 'worst'"),
        ("clean.cow>=0.3", "no figure or class 'cow'"),
    ],
)
def test_what_cannot_be_meant_is_refused(text: str, complaint: str) -> None:
    with pytest.raises(InputError, match=complaint):
        parse(text, CLASSES, attacked=True)


def test_without_an_attack_only_clean_figures_can_be_required() -> None:
    assert parse("clean.worst>=0.3", CLASSES, attacked=False) == Requirement("clean", "worst", 0.3)
    with pytest.raises(InputError, match=r"needs an attack; without one write 'clean.worst>=0.3'"):
        parse("worst>=0.3", CLASSES, attacked=False)


@pytest.mark.parametrize(
    ("text", "met"),
    [
        ("worst>=0.3", True),
        ("worst>=0.31", False),
        ("average>=0.5", True),
        ("average>=0.51", False),
        ("tail>=0.31", False),
        ("class_average>=0.5", True),
        ("dog>=0.5", True),
        ("cat>=0.5", False),
        ("clean.cat>=0.5", True),
        ("clean.worst>=0.95", False),
        ("classes below 0.5<=1", True),
        ("classes below 0.51<=1", False),
        ("zero<=0", True),
        ("cat.lower>=0.1", True),
        ("cat.lower>=0.11", False),
        ("worst.lower>=0.04", True),
        ("worst.lower>=0.05", False),
    ],
)
def test_it_is_met_or_not(text: str, met: bool) -> None:
    verdict = parse(text, CLASSES, attacked=True).verdict(report(robust=[3, 5, 7], clean=[9, 9, 10]))
    assert verdict["met"] is met


def test_the_reason_names_the_value_and_the_worst_class() -> None:
    verdict = Requirement("robust", "worst", 0.4).verdict(report(robust=[3, 5, 7], clean=[9, 9, 10]))
    assert verdict == {
        "requirement": "robust worst >= 0.4",
        "value": pytest.approx(0.3),
        "met": False,
        "reason": "it is 0.3 (cat)",
        "note": "only 10 images of cat stand behind it",
    }


def test_of_equal_worst_classes_the_reason_says_how_many() -> None:
    verdict = Requirement("robust", "worst", 0.4).verdict(report(robust=[3, 3, 7], clean=[9, 9, 10]))
    assert "(2 classes)" in verdict["reason"]


@pytest.mark.parametrize(
    ("text", "images"), [("dog>=0", 29), ("worst>=0", 29), ("cat>=0", 0), ("average>=0", 0), ("zero<=3", 29)]
)
def test_few_images_behind_a_requirement_are_said(text: str, images: int) -> None:
    found = report([20, 20, 20], [20, 20, 20], counts=(30, 29, 30))
    note = parse(text, CLASSES, attacked=True).verdict(found)["note"]
    assert bool(note) == bool(images)
    assert not images or f"only {images} images of dog" in note


@pytest.mark.parametrize("what", ["worst", "tail", "dog"])
def test_what_nobody_looked_at_is_not_met(what: str) -> None:
    verdict = Requirement("robust", what, 0.0).verdict(report([3, 0, 7], [3, 0, 7], counts=(10, 0, 10)))
    assert verdict["met"] is False
    assert verdict["value"] is None
    assert "no images" in verdict["reason"]
