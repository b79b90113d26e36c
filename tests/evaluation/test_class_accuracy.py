"""Figures of accuracy: literal cases, and intervals against scipy."""

from __future__ import annotations

import json
import math

import pytest
import torch
from scipy.stats import binomtest

from cfol_fast.evaluation import ClassAccuracy, wilson
from cfol_fast.runs.metrics import METRICS

#          a  a  a  a  b  b  c  c  c  c
LABELS = [0, 0, 0, 0, 1, 1, 2, 2, 2, 2]
PREDICTED = [0, 0, 0, 1, 1, 2, 2, 0, 1, 1]


@pytest.fixture
def accuracy() -> ClassAccuracy:
    return ClassAccuracy(torch.tensor(LABELS), torch.tensor(PREDICTED), ["a", "b", "c"])


def test_the_average_is_over_examples_and_the_class_average_over_classes(accuracy: ClassAccuracy) -> None:
    assert accuracy.average == 5 / 10
    assert accuracy.class_average == pytest.approx((3 / 4 + 1 / 2 + 1 / 4) / 3)
    assert accuracy.per_class.tolist() == [0.75, 0.5, 0.25]


def test_the_worst_class_has_a_name(accuracy: ClassAccuracy) -> None:
    assert (accuracy.worst, accuracy.worst_class, accuracy.worst_index) == (0.25, "c", 2)


def test_the_confusion_matrix_has_a_row_for_each_true_class(accuracy: ClassAccuracy) -> None:
    assert accuracy.confusion.tolist() == [[3, 1, 0], [0, 1, 1], [1, 2, 1]]
    assert accuracy.counts.tolist() == [4, 2, 4]
    assert accuracy.correct.tolist() == [a == b for a, b in zip(LABELS, PREDICTED, strict=True)]


@pytest.mark.parametrize(
    ("k", "worst"), [(1, 1), (3, 1), (5, 1), (6, 2), (10, 2), (15, 3), (43, 9), (100, 20)]
)
def test_the_tail_is_the_mean_of_a_fifth_of_the_classes_rounded_up(k: int, worst: int) -> None:
    labels = torch.arange(k).repeat_interleave(k)
    right = torch.arange(k).repeat(k) < labels  # class c has accuracy c / k
    predictions = torch.where(right, labels, (labels + 1) % k)
    accuracy = ClassAccuracy(labels, predictions, [str(c) for c in range(k)])
    if k > 1:
        assert accuracy.tail() == pytest.approx(sum(range(worst)) / worst / k)
    assert accuracy.tail(1) == pytest.approx(accuracy.class_average)


def test_a_tail_of_nothing_is_refused(accuracy: ClassAccuracy) -> None:
    with pytest.raises(ValueError, match=r"must be in \(0, 1\], got 0"):
        accuracy.tail(0)


def test_a_class_without_examples_counts_nowhere() -> None:
    accuracy = ClassAccuracy(torch.tensor([0, 0, 2]), torch.tensor([0, 2, 2]), ["a", "none", "c"])
    assert math.isnan(accuracy.per_class[1])
    assert (accuracy.worst_class, accuracy.class_average, accuracy.tail()) == ("a", 0.75, 0.5)
    facts = accuracy.to_json()
    assert facts["per_class"] == {"a": 0.5, "none": None, "c": 1.0}
    assert facts["interval"]["none"] is None
    json.dumps(facts, allow_nan=False)


@pytest.mark.parametrize(
    ("hits", "n"), [(0, 1), (0, 10), (3, 10), (10, 10), (1, 1000), (517, 1000), (1000, 1000)]
)
def test_the_intervals_are_wilsons(hits: int, n: int) -> None:
    expected = binomtest(hits, n).proportion_ci(0.95, method="wilson")
    low, high = wilson(torch.tensor([hits]), torch.tensor([n]))[0].tolist()
    assert low == pytest.approx(expected.low, abs=1e-12)
    assert high == pytest.approx(expected.high, abs=1e-12)


def test_json_has_everything_by_name(accuracy: ClassAccuracy) -> None:
    facts = accuracy.to_json()
    assert set(facts) == {
        *METRICS,
        "floor",
        "worst_class",
        "per_class",
        "interval",
        "limits",
        "count",
        "confusion",
    }
    assert facts["per_class"] == {"a": 0.75, "b": 0.5, "c": 0.25}
    assert facts["count"] == {"a": 4, "b": 2, "c": 4}
    assert facts["interval"]["c"][0] < 0.25 < facts["interval"]["c"][1]
