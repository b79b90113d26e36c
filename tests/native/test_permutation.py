"""The shuffle: a permutation for every n, in pieces that fit, and uniform over all outcomes."""

import math

import numpy as np
import pytest
import torch
from scipy import stats

from cfol_fast import ops
from tests.reference import permutation as reference


def at(start: int) -> torch.Tensor:
    return torch.tensor([start])


def test_the_shuffle_of_one_element(backend):
    assert backend.op("permutation")(ops.new_rng(0), 1, at(0), 1).tolist() == [0]


@pytest.mark.parametrize("n", [1, 2, 3, 5, 64, 65, 1000])
def test_every_element_appears_once_and_as_in_the_reference(backend, n):
    rng = torch.tensor([12, 34])
    result = backend.op("permutation")(rng, n, at(0), n)
    assert sorted(result.tolist()) == list(range(n))
    assert rng.tolist() == [12, 34]
    piece = min(n, 40)
    assert result[:piece].tolist() == reference.permutation(12, 34, n, 0, piece)


@pytest.mark.parametrize("n", [10**7, 2**31 + 11, 2**40])
def test_pieces_of_large_permutations_agree_with_the_reference(backend, n):
    for start in (0, n // 2, n - 5):
        result = backend.op("permutation")(ops.new_rng(5), n, at(start), 5)
        assert result.tolist() == reference.permutation(5, 0, n, start, 5)


def test_pieces_fit_together(backend):
    rng = ops.new_rng(8)
    whole = backend.op("permutation")(rng, 300, at(0), 300)
    pieces = [
        backend.op("permutation")(rng, 300, at(a), b - a)
        for a, b in [(0, 1), (1, 128), (128, 128), (128, 300)]
    ]
    assert torch.equal(torch.cat(pieces), whole)


@pytest.mark.parametrize(
    ("n", "start", "count"), [(10, 7, 25), (3, 0, 9), (1, 4, 3), (300, 600, 5), (5, 5, 0)]
)
def test_the_permutations_of_the_next_steps_follow(backend, n, start, count):
    result = backend.op("permutation")(torch.tensor([6, 2]), n, at(start), count)
    sequence = [x for step in range(2, 10) for x in reference.permutation(6, step, n, 0, n)]
    assert result.tolist() == sequence[start : start + count]


def test_cpu_and_emulated_cuda_agree(cpu, schedule):
    rng = ops.new_rng(9)
    assert torch.equal(*(side.op("permutation")(rng, 5000, at(100), 700) for side in (cpu, schedule)))


def test_ten_million_elements_are_a_permutation(cpu):
    n = 10**7
    seen = torch.zeros(n, dtype=torch.bool)
    rng = ops.new_rng(2)
    piece = 200_000
    for start in range(0, n, 2_500_000):
        result = cpu.op("permutation")(rng, n, at(start), piece)
        assert result.min() >= 0
        assert result.max() < n
        assert not seen[result].any()
        seen[result] = True
    assert seen.sum() == 4 * piece


@pytest.mark.parametrize("n", [2, 3, 4])
@pytest.mark.slow
def test_all_orders_are_equally_likely(cpu, n):
    rng, counts = ops.new_rng(21), {}
    for step in range(12_000):
        rng[1] = step
        order = tuple(cpu.op("permutation")(rng, n, at(0), n).tolist())
        counts[order] = counts.get(order, 0) + 1
    assert len(counts) == math.factorial(n)
    assert stats.chisquare(list(counts.values())).pvalue > 0.001


@pytest.mark.parametrize("n", [10, 100])
@pytest.mark.slow
def test_every_element_comes_to_every_place_equally_often(cpu, n):
    rng, counts, steps = ops.new_rng(22), np.zeros((n, n)), 10_000
    for step in range(steps):
        rng[1] = step
        counts[np.arange(n), cpu.op("permutation")(rng, n, at(0), n).numpy()] += 1
    # rows and columns of the counts have fixed sums: (n-1)^2 degrees of freedom
    expected = steps / n
    statistic = ((counts - expected) ** 2 / expected).sum() * (n - 1) / n
    assert stats.chi2.sf(statistic, (n - 1) ** 2) > 0.001


def test_neighbours_of_a_large_shuffle_are_independent(cpu):
    n, bins = 200_000, 20
    order = cpu.op("permutation")(ops.new_rng(23), n, at(0), n).numpy() * bins // n
    pairs = np.zeros((bins, bins))
    np.add.at(pairs, (order[:-1], order[1:]), 1)
    assert stats.chi2_contingency(pairs).pvalue > 0.001


def test_seeds_and_steps_give_different_shuffles(cpu):
    orders = {
        tuple(cpu.op("permutation")(torch.tensor([a, b]), 50, at(0), 50).tolist())
        for a in range(6)
        for b in range(6)
    }
    assert len(orders) == 36


def test_large_pieces_use_several_blocks(emulated):
    emulated.launches()
    emulated.op("permutation")(ops.new_rng(0), 1024, at(0), 1024)
    assert emulated.launches() == [(4, 256)]


@pytest.mark.parametrize(
    ("n", "start", "count", "message"),
    [
        (0, 0, 0, r"n must be from 1 to 2\^40, got 0"),
        (2**40 + 1, 0, 1, "n must be from 1"),
        (5, -1, 1, "start must be at least 0, got -1"),
        (5, 2, -1, "count must be at least 0, got -1"),
    ],
)
def test_bad_input_is_refused(n, start, count, message):
    with pytest.raises(ValueError, match=message):
        ops.permutation(ops.new_rng(0), n, at(start), count)


def test_a_wrong_start_is_refused():
    with pytest.raises(TypeError, match=r"start .*int64"):
        ops.permutation(ops.new_rng(0), 5, torch.zeros(1), 5)
    with pytest.raises(ValueError, match=r"start .*got \(2,\)"):
        ops.permutation(ops.new_rng(0), 5, torch.zeros(2, dtype=torch.int64), 5)


def test_a_wrong_random_state_is_refused():
    with pytest.raises(TypeError, match=r"rng .*int64"):
        ops.permutation(torch.zeros(2), 5, at(0), 5)
    with pytest.raises(ValueError, match=r"rng .*got \(3,\)"):
        ops.permutation(torch.zeros(3, dtype=torch.int64), 5, at(0), 5)
