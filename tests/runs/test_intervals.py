"""Intervals hold what they promise, also at accuracies of 0 and 1 and where classes tie."""

import numpy as np
import pytest
from scipy import special, stats

from cfol_fast.runs import intervals


@pytest.mark.parametrize(("a", "b"), [(0.5, 0.5), (1, 300), (300, 1), (2.5, 0.5), (40, 261), (5000, 5001)])
def test_the_incomplete_beta_function_is_scipys(a, b):
    for x in (0.0, 1e-9, 0.01, 0.1, 0.4999, 0.5, 0.9, 0.999999, 1.0):
        assert intervals.incomplete_beta(a, b, x) == pytest.approx(
            special.betainc(a, b, x), rel=1e-8, abs=1e-14
        )


@pytest.mark.parametrize(("a", "b"), [(0.5, 0.5), (1, 300), (300, 1), (2.5, 0.5), (40, 261), (5000, 5001)])
def test_the_beta_quantile_is_scipys(a, b):
    for share in (1e-6, 0.0025, 0.05, 0.5, 0.975, 0.9999):
        assert intervals.beta_quantile(share, a, b) == pytest.approx(stats.beta.ppf(share, a, b), rel=1e-7)


@pytest.mark.parametrize("degrees", [1, 2, 4, 29])
def test_the_t_quantile_and_probability_are_scipys(degrees):
    for error in (0.5, 0.05, 0.001):
        expected = stats.t.ppf(1 - error / 2, degrees)
        assert intervals.t_quantile(degrees, error) == pytest.approx(expected, rel=1e-8)
        assert intervals.t_probability(-expected, degrees) == pytest.approx(error, rel=1e-8)


@pytest.mark.parametrize(("hits", "n"), [(0, 300), (300, 300), (1, 10), (150, 300), (999, 1000)])
def test_clopper_pearson_is_scipys(hits, n):
    expected = stats.binomtest(hits, n).proportion_ci(0.995, method="exact")
    assert intervals.clopper_pearson(hits, n, 0.005) == pytest.approx((expected.low, expected.high), rel=1e-7)


def test_without_images_anything_is_possible():
    assert intervals.clopper_pearson(0, 0) == (0.0, 1.0)


def test_the_binomial_tail_is_scipys():
    for hits, n, p in (
        (0, 5, 0.5),
        (3, 5, 0.5),
        (5, 5, 0.1),
        (60, 1000, 0.05),
        (900, 1000, 0.5),
        (6, 5, 0.5),
    ):
        assert intervals.binomial_tail(hits, n, p) == pytest.approx(stats.binom.sf(hits - 1, n, p), rel=1e-8)


def test_the_worst_and_the_tail_take_the_smallest_of_each_limit():
    pairs = [(0.1, 0.9), (0.2, 0.3), (0.0, 0.5)]
    assert intervals.of_smallest(pairs) == (0.0, 0.3)
    assert intervals.of_smallest(pairs, 2) == pytest.approx((0.05, 0.4))


TRUTHS = {
    "ten ties": [0.5] * 10,
    "ties at the bottom": [0.1] * 3 + [0.6] * 7,
    "a class at zero": [0.0] + [0.3] * 9,
    "all right": [1.0] * 10,
    "one below many at one": [0.97] + [1.0] * 9,
    "spread": [0.05 + 0.1 * i for i in range(10)],
}


@pytest.mark.parametrize("what", TRUTHS)
def test_worst_class_and_tail_are_covered_in_95_of_100_cases(what):
    truth = np.array(TRUTHS[what])
    noise, n, repeats, covered = np.random.default_rng(0), 60, 2000, {1: 0, 2: 0}
    names = [str(i) for i in range(len(truth))]
    for hits in noise.binomial(n, truth, size=(repeats, len(truth))):
        found = intervals.simultaneous(dict(zip(names, hits.tolist(), strict=True)), dict.fromkeys(names, n))
        for size in covered:
            low, high = intervals.of_smallest(list(found.values()), size)
            covered[size] += (
                low <= np.sort(truth)[:size].mean() + 1e-12 and high >= np.sort(truth)[:size].mean() - 1e-12
            )
    assert min(covered.values()) >= 0.95 * repeats


def test_one_seed_and_equal_seeds_have_no_interval():
    assert intervals.t_interval([0.3]) is None
    assert intervals.t_interval([0.1 + 0.2, 0.3, 0.3]) is None


def test_the_t_interval_is_scipys():
    values = [0.1, 0.3, 0.25, 0.4, 0.05]
    expected = stats.ttest_1samp(values, 0).confidence_interval(0.95)
    assert intervals.t_interval(values) == pytest.approx((expected.low, expected.high), rel=1e-8)
