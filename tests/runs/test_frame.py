"""Means over seeds and differences paired by seed, against formulas and scipy."""

from __future__ import annotations

import statistics

import pytest
from scipy import stats

from cfol_fast.runs.frame import Frame, Result, Summary, paired_by_seed, shared_seeds
from tests.runs.test_metrics import of_classes

VALUES = (0.31, 0.42, 0.35, 0.39)


def test_a_summary_is_mean_deviation_and_t_interval():
    found = Summary(VALUES)
    assert found.mean == pytest.approx(statistics.mean(VALUES))
    assert found.deviation == pytest.approx(statistics.stdev(VALUES))
    expected = stats.t.interval(0.95, 3, found.mean, stats.sem(VALUES))
    assert found.interval == pytest.approx(expected)


def test_one_value_has_no_spread():
    found = Summary((0.25,))
    assert (found.mean, found.deviation, found.interval) == (0.25, None, None)


def test_differences_are_paired_by_the_seeds_that_both_have():
    first, second = {3: 0.5, 1: 0.4, 7: 0.9, 2: 0.6}, {1: 0.3, 2: 0.35, 3: 0.45, 8: 0.0}
    found = paired_by_seed(first, second)
    assert found.values == pytest.approx((0.1, 0.25, 0.05))
    expected = stats.ttest_rel([0.4, 0.6, 0.5], [0.3, 0.35, 0.45])
    assert found.probability == pytest.approx(expected.pvalue)
    assert paired_by_seed({1: 0.5}, {2: 0.5}) is None


def test_shared_seeds_stand_in_order_an_unknown_one_last():
    assert shared_seeds([10, None, 9, 2], [None, 2, 10]) == [2, 10, None]


@pytest.fixture
def frame():
    """Two methods over two seeds; the hits of three classes of 100 images."""
    hits = {
        ("erm", 0): (5, 50, 80),
        ("erm", 1): (15, 40, 90),
        ("cfol", 1): (35, 40, 70),
        ("cfol", 0): (30, 50, 60),
    }
    return Frame(
        Result(row, seed, split, of_classes(*some))
        for (row, seed), some in hits.items()
        for split in ("clean", "robust")
    )


def test_results_are_chosen_by_their_fields(frame):
    erm = frame.where(row="erm", split="robust")
    assert [one.seed for one in erm.results] == [0, 1]
    assert erm.summary("worst").values == (0.05, 0.15)
    assert erm.of_class("c1").mean == pytest.approx(0.45)
    assert frame.where(row="fol").summary("worst") is None
    assert frame.where(row="fol").of_class("c1") is None


def test_only_a_single_run_has_limits_for_its_images(frame):
    assert frame.where(row="erm", split="robust").summary("worst").limits is None
    (alone,) = frame.where(row="erm", split="robust", seed=1).results
    found = Frame([alone])
    assert found.summary("worst").limits == alone.accuracy.limits("worst")
    assert found.of_class("c0").limits == alone.accuracy.interval["c0"]


def test_one_row_is_above_another_by_seeds_in_any_order(frame):
    robust = frame.where(split="robust")
    found = robust.where(row="cfol").above(robust.where(row="erm"), "worst")
    assert found.values == pytest.approx((0.25, 0.2))
    assert robust.where(row="fol").above(robust.where(row="erm"), "worst") is None


def test_precision_is_of_the_results_that_have_it(frame):
    found = frame.where(split="robust", row="erm").precision_of("c1")
    assert found.values == pytest.approx((50 / (50 + 95), 40 / (40 + 85)))
