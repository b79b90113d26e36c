"""Exp3 over the examples: the tree against a flat list, statistics of the draws, and numbers that stay in
range.
"""

import math

import numpy as np
import pytest
import torch
from scipy import stats

from cfol_fast import ops
from tests.reference import sum_tree as reference

SIZES = [1, 2, 16, 17, 256, 257, 5000]
NAT = 2**36  # units of w


def build(backend, w):
    w = torch.as_tensor(w, dtype=torch.int64).clone()
    tree, meta = backend.op("sum_tree_build")(w)
    return ops.SumTreeState(tree, w, meta)


def draw(backend, state, gamma, rng, n):
    return backend.op("sum_tree_draw")(state.tree, len(state.w), gamma, rng, n)


def update(backend, state, idx, loss, p, eta, fault=None):
    backend.op("sum_tree_update")(*state, idx, loss, p, eta, fault)


def random_weights(n, seed=0):
    w = (np.random.default_rng(seed).normal(0, 2, n) * NAT).astype(np.int64)
    return w - w.max()


def assert_sums_are_right(state):
    """Every node is the sum of its sixteen children, and the leaves are what the weights say."""
    n = len(state.w)
    expected = torch.from_numpy(reference.leaves(state.w.numpy()))
    assert (state.tree[:n] - expected).abs().max() <= 1  # where exp is next to an integer
    level, begin = math.ceil(n / 16) * 16, 0
    while True:
        nodes = state.tree[begin : begin + level].view(-1, 16).sum(1)
        above = state.tree[begin + level : begin + level + len(nodes)]
        assert torch.equal(above, nodes)
        if len(nodes) == 1:
            break
        begin, level = begin + level, math.ceil(len(nodes) / 16) * 16
    assert begin + level + 1 == len(state.tree)


def test_a_new_tree_is_uniform(backend):
    state = build(backend, torch.zeros(20))
    assert state.tree[:20].tolist() == [2**40] * 20
    assert state.tree[20:32].tolist() == [0] * 12
    assert state.tree[32:34].tolist() == [16 * 2**40, 4 * 2**40]
    assert int(state.tree[-1]) == 20 * 2**40
    assert state.meta.tolist() == [0, 0]


def test_the_literal_update_and_probabilities(backend):
    state = build(backend, torch.zeros(4))
    idx, loss = torch.tensor([1, 3, 1]), torch.tensor([1.0, 0.0, 0.5])
    update(backend, state, idx, loss, torch.full((3,), 0.25).double(), 0.125)
    assert state.w.tolist() == [0, 3 * NAT // 4, 0, 0]
    z = 3 + math.exp(0.75)
    q = torch.tensor([1, math.exp(0.75), 1, 1], dtype=torch.float64) / z
    torch.testing.assert_close(ops.sum_tree_probabilities(state, 0.2), 0.05 + 0.8 * q, atol=1e-11, rtol=0)


def test_building_shifts_the_largest_weight_to_zero(backend):
    state = build(backend, [7 * NAT, 9 * NAT, -(2**62)])
    assert state.w.tolist() == [-2 * NAT, 0, -(2**58)]
    assert_sums_are_right(state)


@pytest.mark.parametrize("n", SIZES)
def test_draws_agree_with_a_flat_list(backend, n):
    state = build(backend, random_weights(n))
    assert_sums_are_right(state)
    for gamma in (0.1, 1.0):
        rng = torch.tensor([31, 4])
        idx, p = draw(backend, state, gamma, rng, 300)
        expected_idx, expected_p = reference.draw(state.tree[:n].numpy(), gamma, 31, 4, 300)
        assert idx.tolist() == expected_idx.tolist()
        torch.testing.assert_close(p, torch.from_numpy(expected_p), atol=0, rtol=1e-15)
        torch.testing.assert_close(p, ops.sum_tree_probabilities(state, gamma)[idx], atol=0, rtol=1e-14)
        assert rng.tolist() == [31, 5]


def test_more_draws_than_threads_agree_with_a_flat_list(backend):
    state, rng = build(backend, random_weights(5000)), torch.tensor([31, 4])
    idx, _ = draw(backend, state, 0.5, rng, 3000)
    assert idx.tolist() == reference.draw(state.tree[:5000].numpy(), 0.5, 31, 4, 3000)[0].tolist()


@pytest.mark.parametrize("n", SIZES)
@pytest.mark.parametrize("large", [False, True])  # large gains make the tree shift its weights
def test_updates_agree_with_a_flat_list_whatever_the_order(backend, n, large):
    generator = np.random.default_rng(n)
    start = random_weights(n)
    idx = torch.from_numpy(generator.integers(0, n, 300))  # with duplicates
    loss = torch.from_numpy(generator.random(300, np.float32))
    p = torch.from_numpy(generator.uniform(0.5, 1, 300)) / n
    eta = 50.0 if large else 0.01 / n
    expected, shift = reference.update(start, idx, loss, p, eta)
    assert (shift > 0) == large
    trees = []
    for order in (torch.arange(300), torch.from_numpy(generator.permutation(300))):
        state = build(backend, start)
        update(backend, state, idx[order], loss[order], p[order], eta)
        assert torch.equal(state.w, torch.from_numpy(expected))
        assert state.meta.tolist() == [shift, int(shift > 0)]
        assert_sums_are_right(state)
        trees.append(state.tree)
    assert torch.equal(*trees)


def test_an_empty_batch_changes_nothing(backend):
    state = build(backend, random_weights(50))
    before = [t.clone() for t in state]
    rng = ops.new_rng(1)
    idx, p = draw(backend, state, 0.5, rng, 0)
    update(backend, state, idx, torch.empty(0), p, 0.1)
    assert all(torch.equal(a, b) for a, b in zip(before, state, strict=True))
    assert rng.tolist() == [1, 1]


@pytest.mark.slow
def test_cpu_and_emulated_cuda_agree_for_1000_steps(cpu, schedule):
    n, batch = 600, 24
    states = [(side, build(side, torch.zeros(n)), ops.new_rng(6)) for side in (cpu, schedule)]
    for step in range(1000):
        drawn = []
        for side, state, rng in states:
            idx, p = draw(side, state, 0.5, rng, batch)
            loss = (0.5 + 0.5 * torch.sin(idx.float() * 0.1 + 0.01 * step)).clamp(0, 1)
            update(side, state, idx, loss, p, 3e-4)
            drawn.append((idx, p))
        assert all(torch.equal(a, b) for a, b in zip(*drawn, strict=True))
        assert all(torch.equal(a, b) for a, b in zip(states[0][1], states[1][1], strict=True))
    assert_sums_are_right(states[0][1])
    assert states[0][1].meta[1] > 0  # the weights were shifted on the way


def test_examples_are_drawn_as_often_as_their_probability_says(cpu):
    n, count = 300, 300_000
    state = build(cpu, random_weights(n))
    idx, _ = draw(cpu, state, 0.3, ops.new_rng(7), count)
    expected = ops.sum_tree_probabilities(state, 0.3).numpy() * count
    assert stats.chisquare(np.bincount(idx, minlength=n), expected * count / expected.sum()).pvalue > 0.001


def test_an_example_of_weight_zero_is_drawn_only_by_the_mixture(cpu):
    w = torch.zeros(40, dtype=torch.int64)
    w[::2] = -50 * NAT
    state = build(cpu, w)
    idx, p = draw(cpu, state, 1e-9, ops.new_rng(8), 100_000)
    assert (idx % 2 == 1).all()
    idx, p = draw(cpu, state, 0.5, ops.new_rng(8), 100_000)
    assert abs((idx % 2 == 0).double().mean() - 0.25) < 0.01
    assert p[idx % 2 == 0].unique().tolist() == [0.5 / 40]


@pytest.mark.slow
def test_ten_million_examples(cpu):
    n = 10_000_000
    state = ops.sum_tree_new(n)
    rng = ops.new_rng(9)
    for _ in range(20):
        idx, p = draw(cpu, state, 0.5, rng, 256)
        assert idx.min() >= 0
        assert idx.max() < n
        update(cpu, state, idx, torch.ones(256), p, 1e-7)
    assert int(state.tree[-1]) == int(state.tree[:n].sum())
    assert abs(ops.sum_tree_probabilities(state, 0.5).sum() - 1) < 1e-9
    # beyond the limit: all are shifted
    update(cpu, state, idx[:1].repeat(10), torch.ones(10), p[:1].repeat(10), 1e-7)
    assert state.meta[1] == 1
    assert state.w.max() == 0
    assert int(state.tree[-1]) == int(state.tree[:n].sum())


@pytest.mark.slow
def test_ten_million_updates_leave_finite_weights(cpu):
    state, rng, batch = ops.sum_tree_new(50), ops.new_rng(10), 10_000
    loss = torch.ones(batch)
    for _ in range(1000):
        idx, p = draw(cpu, state, 0.5, rng, batch)
        update(cpu, state, idx, loss, p, 1e-3)
    assert_sums_are_right(state)
    assert state.w.max() <= 5.5 * NAT
    assert int(state.tree[-1]) > 0
    assert abs(ops.sum_tree_probabilities(state, 0.5).sum() - 1) < 1e-12


@pytest.mark.slow
def test_one_example_gaining_for_ever_does_not_overflow(cpu):
    state = ops.sum_tree_new(3)
    for _ in range(1000):
        update(
            cpu,
            state,
            torch.zeros(100_000, dtype=torch.int64),
            torch.ones(100_000),
            torch.full((100_000,), 1e-9).double(),
            1e3,
        )
    assert state.w.tolist() == [0, -(2**58), -(2**58)]
    assert_sums_are_right(state)
    torch.testing.assert_close(ops.sum_tree_probabilities(state, 0.3), torch.tensor([0.8, 0.1, 0.1]).double())


def test_weights_may_be_given_in_natural_logarithms():
    w = torch.tensor([1.0, 3.0, 0.5]).double()
    state = ops.sum_tree_new(3, w=w)
    torch.testing.assert_close(
        ops.sum_tree_probabilities(state, 1e-12), torch.softmax(w, 0), atol=1e-10, rtol=0
    )


def test_kernels_use_several_blocks_at_normal_sizes(emulated):
    emulated.launches()
    state = build(emulated, torch.zeros(50_000))
    idx, p = draw(emulated, state, 0.5, ops.new_rng(0), 1024)
    update(emulated, state, idx, torch.ones(1024), p, 1e-7)
    kernels = [launch for launch in emulated.launches() if launch != (1, 1)]
    assert len(kernels) == 3 + 1 + 4  # build, draw, update
    assert all(blocks > 1 and threads > 32 for blocks, threads in kernels)


class TestBadInput:
    idx, loss = torch.tensor([0, 4]), torch.tensor([0.5, 1.0])
    p = torch.full((2,), 0.2, dtype=torch.float64)

    def refused(self, error, message, idx=idx, loss=loss, p=p, eta=0.1):
        state = ops.sum_tree_new(5)
        before = [t.clone() for t in state]
        with pytest.raises(error, match=message):
            ops.sum_tree_update_(state, idx, loss, p, eta)
        assert all(torch.equal(a, b) for a, b in zip(before, state, strict=True))

    def test_values_outside_their_range_change_nothing(self):
        self.refused(ValueError, r"idx must be in \[0, 5\), got 5 for example 1", idx=torch.tensor([0, 5]))
        self.refused(ValueError, r"idx must be in \[0, 5\), got -1", idx=torch.tensor([-1, 2]))
        self.refused(ValueError, r"loss must be in \[0, 1\], got nan", loss=torch.tensor([0.0, float("nan")]))
        self.refused(ValueError, r"loss must be in \[0, 1\], got 2 ", loss=torch.tensor([0.0, 2.0]))
        self.refused(
            ValueError, r"p must be at least 2\^-60, got 0 for example 0", p=torch.tensor([0.0, 0.2]).double()
        )
        self.refused(ValueError, "p must be at least", p=torch.tensor([0.1, float("nan")]).double())
        self.refused(ValueError, "eta must be in", eta=-1.0)

    def test_wrong_types_and_shapes_are_named(self):
        self.refused(TypeError, "p must be float64, got float32", p=self.p.float())
        self.refused(TypeError, "idx must be int64, got int32", idx=self.idx.int())
        self.refused(ValueError, r"p must have shape \(2,\), got \(1,\)", p=self.p[:1])
        self.refused(
            ValueError,
            r"at most 2\^20 entries",
            idx=torch.zeros(2**20 + 1, dtype=torch.int64),
            loss=torch.zeros(2**20 + 1),
        )
        with pytest.raises(ValueError, match=r"gamma .*got 0"):
            ops.sum_tree_draw(ops.sum_tree_new(5), 0.0, ops.new_rng(0), 2)
        with pytest.raises(ValueError, match=r"n .*got -2"):
            ops.sum_tree_draw(ops.sum_tree_new(5), 0.5, ops.new_rng(0), -2)
        with pytest.raises(ValueError, match=r"n .*got 0"):
            ops.sum_tree_new(0)
        state = ops.sum_tree_new(5)
        with pytest.raises(ValueError, match=r"tree .*got \(16,\)"):
            ops.sum_tree_draw(state._replace(tree=state.tree[:-1]), 0.5, ops.new_rng(0), 2)

    def test_the_device_raises_flags_and_passes_over_what_is_wrong(self, schedule):
        state, fault = build(schedule, torch.zeros(4)), ops.new_fault()
        idx = torch.tensor([0, 4, -1, 1, 2, 3, 3])
        loss = torch.tensor([0.5, 1.0, 1.0, 1.0, float("nan"), 7.0, -1.0])
        p = torch.tensor([0.5, 0.5, 0.5, 0.0, 0.5, 0.5, 0.5]).double()
        update(schedule, state, idx, loss, p, 0.25, fault)
        assert state.w.tolist() == [NAT // 4, 0, 0, NAT // 2]
        assert int(fault) == 2 | 8 | 16
        assert_sums_are_right(state)


@pytest.mark.parametrize(("gain", "shifted"), [(5.25, False), (5.75, True)])
def test_a_weight_beyond_the_limit_shifts_all_at_once(backend, gain, shifted):
    state = ops.sum_tree_new(40)
    one = torch.ones(1, dtype=torch.float64)
    backend.op("sum_tree_update")(*state, torch.tensor([3]), torch.ones(1), one, gain, None)
    assert int(state.meta[1]) == int(shifted)
    assert float(state.w.max()) * 2.0**-36 == (0 if shifted else gain)
    expected = torch.zeros(40, dtype=torch.float64)
    expected[3] = gain
    torch.testing.assert_close(ops.sum_tree_probabilities(state, 0.5), 0.5 / 40 + 0.5 * expected.softmax(0))
