"""The figures of an accuracy, and its way to JSON and back."""

from __future__ import annotations

import json

import pytest

from cfol_fast.errors import InputError
from cfol_fast.runs.accuracy import Accuracy, wilson
from cfol_fast.runs.metrics import tail_mean, tail_size

CONFUSION = [[3, 1, 0], [0, 0, 0], [1, 2, 1]]


def test_the_wilson_interval_is_the_known_one():
    assert wilson(0.5, 100) == pytest.approx((0.4038, 0.5962), abs=1e-4)
    assert wilson(0.0, 10) == pytest.approx((0.0, 0.2775), abs=1e-4)


def test_without_examples_anything_is_possible():
    assert wilson(0.0, 0) == (0.0, 1.0)


@pytest.mark.parametrize(
    ("classes", "size"), [(10, 2), (11, 3), (5, 1), (15, 3), (100, 20), (3, 1), (200, 40)]
)
def test_the_tail_is_a_fifth_of_the_classes_rounded_up(classes, size):
    assert tail_size(classes) == size


def test_the_tail_is_the_mean_of_the_worst():
    assert tail_mean([0.9, 0.1, 0.5, 0.3], 0.5) == pytest.approx(0.2)


@pytest.mark.parametrize("fraction", [0, 1.5, -1])
def test_a_tail_of_no_classes_is_refused(fraction):
    with pytest.raises(InputError, match=r"must be in \(0, 1\]"):
        tail_size(10, fraction)


def test_a_confusion_matrix_gives_every_figure():
    found = Accuracy.from_confusion(["a", "none", "c"], CONFUSION)
    assert (found.average, found.class_average, found.tail) == (0.5, 0.5, 0.25)
    assert (found.worst, found.worst_class) == (0.25, "c")
    assert found.per_class == {"a": 0.75, "c": 0.25}
    assert found.count == {"a": 4, "none": 0, "c": 4}
    assert found.interval["a"] == wilson(0.75, 4)


def test_what_is_written_is_read_back_the_same():
    written = Accuracy.from_confusion(["a", "none", "c"], CONFUSION)
    text = json.dumps(written.to_json(), allow_nan=False)
    assert Accuracy.from_json(json.loads(text), "file") == written
    assert Accuracy.from_json(json.loads(text), "file", ["a", "none", "c"]) == written


def test_the_average_and_the_classes_are_enough():
    found = Accuracy.from_json(
        {"average": 0.6, "per_class": {"a": 0.7, "b": 0.5}, "count": {"a": 10}}, "file"
    )
    assert (found.class_average, found.tail, found.worst, found.worst_class) == (0.6, 0.5, 0.5, "b")
    assert found.interval == {"a": wilson(0.7, 10)}


def test_the_two_averages_of_balanced_classes_are_one_number():
    """A difference in the last digit would let early stopping prefer one of two equally good epochs."""
    classes = [str(c) for c in range(10)]
    for shift in range(50):
        hits = [(37 * c + 11 * shift) % 101 for c in range(10)]
        confusion = [[0] * 10 for _ in range(10)]
        for c, right in enumerate(hits):
            confusion[c][c], confusion[c][(c + 1) % 10] = right, 100 - right
        record = Accuracy.from_confusion(classes, confusion)
        assert record.class_average == record.average


def test_an_interval_ends_exactly_at_nothing_and_at_everything():
    for count in range(1, 400):
        assert wilson(0.0, count)[0] == 0.0
        assert wilson(1.0, count)[1] == 1.0


def test_the_worst_class_and_the_tail_have_intervals_that_hold_for_all_classes_together():
    found = Accuracy.from_confusion(["a", "b", "c"], [[9, 1, 0], [0, 10, 0], [5, 0, 5]])
    low, high = found.limits("worst")
    assert low < found.interval["c"][0] < 0.5 < found.interval["c"][1] < high
    assert found.limits("tail") == (low, high)
    assert found.limits("average")[0] < 0.8 < found.limits("average")[1]


def test_without_the_numbers_of_images_there_are_no_limits():
    assert (
        Accuracy.from_json({"average": 0.5, "per_class": {"a": 0.4, "b": 0.6}}, "x").limits("worst") is None
    )


def test_precision_is_over_the_images_taken_for_a_class():
    found = Accuracy.from_confusion(["a", "b", "c"], [[9, 1, 0], [0, 10, 0], [5, 5, 0]])
    assert found.precision == {"a": 9 / 14, "b": 10 / 16}
    assert found.false_alarms("a") == 5


@pytest.mark.parametrize("count", [0, -5, 2**60])
def test_a_number_of_images_that_cannot_be_gives_no_limits(count):
    given = {
        "average": 0.5,
        "per_class": {"a": 0.4, "b": 0.6},
        "count": {"a": count, "b": 10},
        "interval": {"a": [0.1, 0.9]},
    }
    assert Accuracy.from_json(given, "x").limits("worst") is None


def test_the_interval_of_ten_million_images_is_found():
    low, high = Accuracy.from_json(
        {"average": 0.5, "per_class": {"a": 0.5}, "count": {"a": 10_000_000}}, "x"
    ).limits("average")
    assert (low, high) == pytest.approx((0.5 - 1.96 * 0.5 / 10**3.5, 0.5 + 1.96 * 0.5 / 10**3.5), abs=1e-6)
