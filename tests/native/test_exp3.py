"""Exp3 over the classes: literal cases, the reference, statistics of the draws, and the same indices on every
side.
"""

import math

import numpy as np
import pytest
import torch
from scipy import stats

from cfol_fast import ops
from tests.reference import exp3 as reference

INFINITY = float("inf")


def doubles(*values):
    return torch.tensor(values, dtype=torch.float64)


def uniform(k):
    return torch.full((k,), 1 / k, dtype=torch.float64)


def weights(k, seed=0, spread=3.0):
    return torch.from_numpy(np.random.default_rng(seed).normal(0, spread, k))


def classes(k, examples, seed=0):
    """labels with every class present, and their grouping."""
    labels = np.random.default_rng(seed).integers(0, k, examples)
    labels[:k] = np.arange(k)
    labels = torch.from_numpy(labels)
    return labels, *ops.group_by_class(labels, k)


def test_equal_weights_give_the_uniform_distribution(backend):
    p, q, cdf = backend.op("exp3_distribution")(doubles(3, 3), uniform(2), 0.5)
    assert p.tolist() == q.tolist() == [0.5, 0.5]
    assert cdf.tolist() == [2**51, 2**52]


def test_the_mixture_of_a_known_softmax_and_a_base(backend):
    w = doubles(math.log(3), 0.0, -INFINITY)
    p, q, _ = backend.op("exp3_distribution")(w, doubles(0.2, 0.3, 0.5), 0.5)
    torch.testing.assert_close(q, doubles(0.75, 0.25, 0.0), atol=1e-11, rtol=0)
    torch.testing.assert_close(p, doubles(0.475, 0.275, 0.25), atol=1e-11, rtol=0)


def test_weights_that_are_all_far_below_zero_have_the_softmax_of_their_differences(backend):
    _, q, _ = backend.op("exp3_distribution")(doubles(-100.0, -100.0 - math.log(3)), uniform(2), 0.5)
    torch.testing.assert_close(q, doubles(0.75, 0.25), atol=1e-11, rtol=0)


@pytest.mark.parametrize("first", [1.0, 1 - 2.0**-53, 1 - 2.0**-52, 0.5 + 2.0**-53, 2.0**-52, 2.0**-53, 0.0])
def test_the_units_of_a_chance_are_its_integer_part_up_to_the_last_bit(backend, first):
    p, _, cdf = backend.op("exp3_distribution")(doubles(0, 0), doubles(first, 1 - first), 1.0)
    assert p.tolist() == [first, 1 - first]
    assert cdf[0].item() == math.floor(first * 2**52)


def test_the_literal_update(backend):
    w, p = doubles(0.0, 1.0, 5.0), doubles(0.5, 0.25, 0.25)
    y, loss = torch.tensor([0, 1, 1]), torch.tensor([1.0, 0.5, 0.25])
    backend.op("exp3_update")(w, p, y, loss, 0.1, None)
    torch.testing.assert_close(w, doubles(0.2, 1.3, 5.0), atol=1e-15, rtol=0)


def test_large_weights_are_shifted_and_the_softmax_stays(backend):
    w = doubles(63.9, 1.0, -INFINITY)
    backend.op("exp3_update")(w, doubles(0.5, 0.5, 0.5), torch.tensor([0]), torch.tensor([1.0]), 0.5, None)
    torch.testing.assert_close(w, doubles(0.0, -63.9, -INFINITY), atol=1e-12, rtol=0)


@pytest.mark.parametrize("k", [2, 3, 10, 33, 257, 1000, pytest.param(10_000, marks=pytest.mark.slow)])
def test_the_distribution_agrees_with_the_reference(backend, k):
    w, base = weights(k), torch.softmax(weights(k, 1), 0)
    for gamma in (0.01, 0.5, 1.0):
        p, q, cdf = backend.op("exp3_distribution")(w, base, gamma)
        expected_p, expected_q, expected_cdf = map(
            torch.from_numpy, reference.exp3_distribution(w, base, gamma)
        )
        # a weight of the softmax may differ by one unit of 2^-40, where exp(w) is next to an integer
        torch.testing.assert_close(q, expected_q, atol=2**-39, rtol=2**-39)
        torch.testing.assert_close(p, expected_p, atol=2**-39, rtol=2**-39)
        assert (cdf - expected_cdf).abs().max() <= k * 2**13
        torch.testing.assert_close(q, torch.softmax(w, 0), atol=k * 2**-39, rtol=0)


def test_exp_is_right_to_the_last_quantum(cpu):
    # the weight of one class beside e^0, over the range in which it is not rounded to 0: q = e / (1 + e)
    x = np.concatenate([-np.logspace(-12, math.log10(27), 4000), [-math.log(2), -1.0, -27.7]])
    for value in x:
        _, q, _ = cpu.op("exp3_distribution")(doubles(0.0, value), uniform(2), 0.5)
        units = q[1].item() / q[0].item() * 2**40
        assert abs(units - math.exp(value) * 2**40) <= 1.001


@pytest.mark.parametrize(
    ("k", "examples", "n"), [(2, 2, 50), (10, 100, 300), (300, 900, 700), (10, 5000, 3000)]
)
def test_draws_agree_with_the_reference(backend, k, examples, n):
    labels, offsets, members = classes(k, examples)
    w, base, rng = weights(k), uniform(k), torch.tensor([123, 9])
    _, _, cdf = backend.op("exp3_distribution")(w, base, 0.3)
    idx, y, p = backend.op("exp3_draw")(w, base, 0.3, offsets, members, rng, n)
    expected_idx, expected_y = reference.exp3_draw(cdf.numpy(), offsets, members, 123, 9, n)
    assert idx.tolist() == expected_idx.tolist()
    assert y.tolist() == expected_y.tolist() == labels[idx].tolist()
    torch.testing.assert_close(p, backend.op("exp3_distribution")(w, base, 0.3)[0], atol=0, rtol=0)
    assert rng.tolist() == [123, 10]


@pytest.mark.parametrize(("k", "n"), [(2, 0), (2, 1), (10, 128), (500, 1000)])
def test_updates_agree_with_the_reference_whatever_the_order(backend, k, n):
    generator = np.random.default_rng(k + n)
    w, p = weights(k), torch.softmax(weights(k, 1), 0)
    y, loss = torch.from_numpy(generator.integers(0, k, n)), torch.from_numpy(generator.random(n, np.float32))
    expected = torch.from_numpy(reference.exp3_update(w, p, y, loss, 0.1))
    for order in (torch.arange(n), torch.arange(n).flip(0), torch.from_numpy(generator.permutation(n))):
        result = w.clone()
        backend.op("exp3_update")(result, p, y[order], loss[order], 0.1, None)
        assert torch.equal(result, expected)


def test_an_empty_batch_advances_the_random_state_and_nothing_else(backend):
    _, offsets, members = classes(3, 9)
    w, rng = weights(3), torch.tensor([5, 0])
    before = w.clone()
    idx, y, _ = backend.op("exp3_draw")(w, uniform(3), 0.5, offsets, members, rng, 0)
    backend.op("exp3_update")(w, uniform(3), y, torch.empty(0), 0.1, None)
    assert len(idx) == len(y) == 0
    assert rng.tolist() == [5, 1]
    assert torch.equal(w, before)


@pytest.mark.slow
def test_cpu_and_emulated_cuda_draw_the_same_indices_step_after_step(cpu, schedule):
    k, n = 10, 40
    # A thousand steps of an emulated kernel take half a minute.
    steps = 1000 if schedule.name == "random-1" or not schedule.emulated else 100
    _, offsets, members = classes(k, 500)
    states = [(side, torch.zeros(k, dtype=torch.float64), ops.new_rng(3)) for side in (cpu, schedule)]
    hard = torch.linspace(0.1, 0.9, k)
    for step in range(steps):
        drawn = []
        for side, w, rng in states:
            idx, y, p = side.op("exp3_draw")(w, uniform(k), 0.5, offsets, members, rng, n)
            loss = (hard[y] + 0.1 * torch.sin(idx.float() + step)).clamp(0, 1)
            side.op("exp3_update")(w, p, y, loss, 0.01, None)
            drawn.append((idx, y, p))
        assert all(torch.equal(a, b) for a, b in zip(*drawn, strict=True))
        assert torch.equal(states[0][1], states[1][1])
    final = states[0][1]
    # the hardest classes have gained most
    assert final.argmax() > final.argmin()


def test_classes_are_drawn_as_often_as_p_says(cpu):
    k, n = 10, 200_000
    _, offsets, members = classes(k, 1000)
    _, y, p = cpu.op("exp3_draw")(weights(k, 2, 1.0), uniform(k), 0.2, offsets, members, ops.new_rng(17), n)
    assert stats.chisquare(np.bincount(y, minlength=k), p.numpy() * n).pvalue > 0.001


def test_examples_are_drawn_uniformly_within_their_class(cpu):
    k, n = 5, 200_000
    labels, offsets, members = classes(k, 200)
    idx, _, _ = cpu.op("exp3_draw")(weights(k, 2, 1.0), uniform(k), 0.2, offsets, members, ops.new_rng(18), n)
    counts = np.bincount(idx, minlength=200)
    for c in range(k):
        assert stats.chisquare(counts[labels == c]).pvalue > 0.001


def test_successive_draws_are_independent(cpu):
    _, offsets, members = classes(4, 8)
    rng = ops.new_rng(19)
    pairs = np.zeros((4, 4))
    for _ in range(400):
        _, y, _ = cpu.op("exp3_draw")(torch.zeros(4).double(), uniform(4), 0.5, offsets, members, rng, 50)
        np.add.at(pairs, (y[:-1].numpy(), y[1:].numpy()), 1)
    assert stats.chi2_contingency(pairs).pvalue > 0.001


def test_a_class_of_probability_zero_is_never_drawn(backend):
    _, offsets, members = classes(4, 40)
    w, base = doubles(0.0, -INFINITY, -100.0, 0.0), doubles(0.0, 0.0, 0.5, 0.5)
    n = 2000 if backend.emulated else 100_000
    _, y, p = backend.op("exp3_draw")(w, base, 0.5, offsets, members, ops.new_rng(4), n)
    assert p[1] == 0
    counts = np.bincount(y, minlength=4)
    assert counts[1] == 0
    assert (counts[[0, 2, 3]] > 0).all()


def test_weights_stay_finite_and_bounded(cpu):
    w, p = torch.zeros(3, dtype=torch.float64), uniform(3)
    for _ in range(2000):
        cpu.op("exp3_update")(w, p, torch.tensor([0, 0, 1]), torch.ones(3), 10.0, None)
    assert torch.isfinite(w).all()
    assert w.max() <= 64


def test_large_batches_use_several_blocks(emulated):
    _, offsets, members = classes(10, 100)
    emulated.launches()
    _, y, p = emulated.op("exp3_draw")(weights(10), uniform(10), 0.5, offsets, members, ops.new_rng(0), 1024)
    emulated.op("exp3_update")(weights(10), p, y, torch.ones(1024), 0.1, None)
    # distribution, draw, advance; clear, collect, gain: what scans all classes is one block by design
    assert [blocks for blocks, _ in emulated.launches()] == [1, 4, 1, 1, 4, 1]


class TestGrouping:
    def test_members_are_sorted_by_class_and_by_index(self):
        offsets, members = ops.group_by_class(torch.tensor([2, 0, 1, 0, 2]), 3)
        assert offsets.tolist() == [0, 2, 3, 5]
        assert members.tolist() == [1, 3, 2, 0, 4]

    def test_a_class_without_examples_is_refused_with_its_number(self):
        with pytest.raises(ValueError, match="class 1"):
            ops.group_by_class(torch.tensor([0, 2, 2]), 3)

    def test_bad_labels_are_refused(self):
        with pytest.raises(ValueError, match=r"labels .*got 2"):
            ops.group_by_class(torch.tensor([0, 1, 2]), 2)
        with pytest.raises(ValueError, match="got -1"):
            ops.group_by_class(torch.tensor([0, -1]), 2)
        with pytest.raises(TypeError, match="integers"):
            ops.group_by_class(torch.tensor([0.0, 1.0]), 2)


class TestBadInput:
    w, base = torch.zeros(3, dtype=torch.float64), torch.full((3,), 1 / 3, dtype=torch.float64)
    y, loss = torch.tensor([0, 2]), torch.tensor([0.5, 1.0])

    @pytest.mark.parametrize("gamma", [0.0, -0.1, 1.5, float("nan")])
    def test_gamma_outside_its_range_is_refused(self, gamma):
        with pytest.raises(ValueError, match="gamma"):
            ops.exp3_distribution(self.w, self.base, gamma)

    @pytest.mark.parametrize("value", [-0.5, 1.5, float("nan"), INFINITY])
    def test_a_loss_outside_its_range_changes_nothing(self, value):
        w = self.w.clone()
        with pytest.raises(ValueError, match=r"loss .*got .* for example 1"):
            ops.exp3_update_(w, self.base, self.y, torch.tensor([0.5, value]), 0.1)
        assert torch.equal(w, self.w)

    @pytest.mark.parametrize("label", [-1, 3, 2**40])
    def test_a_label_outside_its_range_changes_nothing(self, label):
        w = self.w.clone()
        with pytest.raises(ValueError, match=rf"y .*got {label} for example 1"):
            ops.exp3_update_(w, self.base, torch.tensor([0, label]), self.loss, 0.1)
        assert torch.equal(w, self.w)

    @pytest.mark.parametrize("eta", [-0.1, float("nan"), INFINITY])
    def test_eta_outside_its_range_is_refused(self, eta):
        with pytest.raises(ValueError, match="eta"):
            ops.exp3_update_(self.w.clone(), self.base, self.y, self.loss, eta)

    def test_a_probability_that_is_not_positive_is_refused(self):
        with pytest.raises(ValueError, match=r"p .*got 0 for class 2"):
            ops.exp3_update_(self.w.clone(), doubles(0.5, 0.5, 0.0), self.y, self.loss, 0.1)

    def test_weights_that_are_not_finite_are_refused(self):
        for value in (float("nan"), INFINITY):
            with pytest.raises(ValueError, match=r"w .*got .* for class 1"):
                ops.exp3_distribution(doubles(0.0, value, 0.0), self.base, 0.5)
        with pytest.raises(ValueError, match="class"):
            ops.exp3_distribution(doubles(-INFINITY, -INFINITY, -INFINITY), self.base, 0.5)

    @pytest.mark.parametrize("gamma", [1e-12, 1.1e-6, 1e-3, 1.0])
    @pytest.mark.parametrize("k", [2, 10_000])
    def test_a_base_that_is_a_distribution_is_never_refused(self, k, gamma):
        generator = torch.Generator().manual_seed(k)
        base = torch.rand(k, dtype=torch.float64, generator=generator)
        w = torch.randn(k, dtype=torch.float64, generator=generator)
        p = ops.exp3_distribution(w, base / base.sum(), gamma)[0]
        assert float(p.sum()) == pytest.approx(1.0, abs=1e-12)

    def test_a_base_that_is_no_distribution_is_refused(self):
        with pytest.raises(ValueError, match=r"base .*got 1\.5"):
            ops.exp3_distribution(self.w, doubles(0.5, 0.5, 0.5), 0.5)
        with pytest.raises(ValueError, match=r"base .*got -0.5 for class 2"):
            ops.exp3_distribution(self.w, doubles(0.5, 1.0, -0.5), 0.5)

    def test_wrong_types_shapes_and_sizes_are_named(self):
        _, offsets, members = classes(3, 9)
        with pytest.raises(TypeError, match=r"w .*got float32"):
            ops.exp3_distribution(self.w.float(), self.base, 0.5)
        with pytest.raises(ValueError, match=r"base .*got \(2,\)"):
            ops.exp3_distribution(self.w, self.base[:2], 0.5)
        with pytest.raises(ValueError, match="got 1"):
            ops.exp3_distribution(self.w[:1], self.base[:1], 0.5)
        with pytest.raises(TypeError, match=r"y .*got int32"):
            ops.exp3_update_(self.w.clone(), self.base, self.y.int(), self.loss, 0.1)
        with pytest.raises(TypeError, match=r"loss .*got float64"):
            ops.exp3_update_(self.w.clone(), self.base, self.y, self.loss.double(), 0.1)
        with pytest.raises(ValueError, match=r"loss .*got \(3,\)"):
            ops.exp3_update_(self.w.clone(), self.base, self.y, torch.ones(3), 0.1)
        with pytest.raises(ValueError, match=r"n .*got -1"):
            ops.exp3_draw(self.w, self.base, 0.5, offsets, members, ops.new_rng(0), -1)

    def test_offsets_that_lead_outside_the_members_are_refused(self):
        _, offsets, members = classes(3, 9)
        rng = ops.new_rng(0)
        with pytest.raises(ValueError, match="class 1"):
            ops.exp3_draw(self.w, self.base, 0.5, torch.tensor([0, 3, 3, 9]), members, rng, 4)
        with pytest.raises(ValueError, match="offsets"):
            ops.exp3_draw(self.w, self.base, 0.5, offsets, members[:5], rng, 4)
        assert rng.tolist() == [0, 0]

    def test_bool_losses_are_accepted(self):
        w = self.w.clone()
        ops.exp3_update_(w, self.base, self.y, torch.tensor([True, False]), 0.1)
        torch.testing.assert_close(w, doubles(0.3, 0.0, 0.0))

    def test_the_device_raises_flags_and_passes_over_what_is_wrong(self, schedule):
        w, fault = self.w.clone(), ops.new_fault()
        p = doubles(0.5, 0.0, 0.5)
        y = torch.tensor([0, 3, -1, 1, 2, 2, 0])
        loss = torch.tensor([0.5, 1.0, 1.0, 1.0, float("nan"), 7.0, -3.0])
        schedule.op("exp3_update")(w, p, y, loss, 0.1, fault)
        torch.testing.assert_close(w, doubles(0.1, 0.0, 0.2))
        assert len(ops.fault_messages(int(fault))) == 3
        assert int(fault) == 1 | 2 | 16

    def test_both_faults_of_one_example_are_flagged(self, schedule):
        fault = ops.new_fault()
        schedule.op("exp3_update")(
            self.w.clone(), self.base, torch.tensor([3]), torch.tensor([7.0]), 0.1, fault
        )
        assert int(fault) == 1 | 2

    def test_the_device_flags_a_label_equal_to_the_number_of_classes(self, schedule):
        w, fault = self.w.clone(), ops.new_fault()
        schedule.op("exp3_update")(w, self.base, torch.tensor([3]), torch.ones(1), 0.1, fault)
        assert ops.fault_messages(int(fault)) == ["a label was outside [0, number of classes)"]
        assert torch.equal(w, self.w)

    def test_wrong_offsets_do_not_lead_outside_the_memory_on_the_device(self, schedule):
        members = torch.arange(5)
        for offsets in ([0, 3, 3, 9], [-4, 0, 2, 3], [2**62, 1, 0, 7]):
            idx, _, _ = schedule.op("exp3_draw")(
                self.w, self.base, 0.5, torch.tensor(offsets), members, ops.new_rng(0), 64
            )
            assert ((idx >= 0) & (idx < 5)).all()
