"""The bandit's update with a baseline: literal cases, the reference, what it remembers, and the same bits on
every side.
"""

import math

import numpy as np
import pytest
import torch

from cfol_fast import ops
from tests.reference import exp3 as reference

HALF = 2**29


def doubles(*values):
    return torch.tensor(values, dtype=torch.float64)


def rows(*values):
    return torch.tensor(values, dtype=torch.int64)


def tally_of(k, y, loss):
    tally = ops.new_tally(k)
    ops.class_tally_(tally, y, loss)
    return tally


def test_the_literal_first_batch_has_the_baseline_one_half(backend):
    w, p, seen = doubles(0, 1, 2), doubles(0.5, 0.25, 0.25), ops.new_seen(3)
    # Class 0: one draw with loss 1; class 1: two draws with losses 1 and 0.
    backend.op("exp3_learn")(w, p, rows((1, 2 * HALF), (2, 2 * HALF), (0, 0)), seen, 0.1, None)
    common = 0.1 * 3 * 0.5
    torch.testing.assert_close(w, doubles(0 + common + 0.1, 1 + common, 2 + common), atol=1e-15, rtol=0)
    assert seen.tolist() == [[1, 2 * HALF], [2, 2 * HALF], [0, 0]]


def test_the_literal_baselines_are_shrunk_to_the_mean_of_all(backend):
    # 24 draws with 16 mistakes: the mean of all is (16 + 4) / 32; class 0 has (4 + 5) / 16, class 1 17 / 24.
    w, seen = doubles(0, 0), rows((8, 8 * HALF), (16, 24 * HALF))
    backend.op("exp3_learn")(w, doubles(0.5, 0.5), rows((1, 2 * HALF), (0, 0)), seen, 1.0, None)
    expected = doubles(9 / 16 + (1 - 9 / 16) / 0.5, 17 / 24)
    torch.testing.assert_close(w, expected, atol=2**-29, rtol=0)


def test_one_baseline_for_all_moves_only_what_was_drawn(backend):
    w, seen = doubles(3, 1, -1), ops.new_seen(1)
    backend.op("exp3_learn")(
        w, doubles(0.5, 0.25, 0.25), rows((2, 0), (1, 2 * HALF), (0, 0)), seen, 0.1, None
    )
    torch.testing.assert_close(w, doubles(3 - 0.2, 1 + 0.2, -1), atol=1e-15, rtol=0)
    assert seen.tolist() == [[3, 2 * HALF]]


def test_a_row_is_halved_before_it_has_1024_draws_and_its_mean_stays(backend):
    for count in (2, 1):
        seen = rows(*[(1023, 1023 * HALF)] * count)
        backend.op("exp3_learn")(
            doubles(0, 0), doubles(0.5, 0.5), rows((1, 2 * HALF), (0, 0)), seen, 0.1, None
        )
        assert seen[0].tolist() == [512, (1023 + 2) * HALF // 2]
    seen = ops.new_seen(1)
    backend.op("exp3_learn")(
        doubles(0, 0), doubles(0.5, 0.5), rows((5000, 10000 * HALF), (0, 0)), seen, 0.1, None
    )
    draws, losses = seen[0].tolist()
    assert 512 <= draws < 1024
    assert losses <= draws * 2 * HALF


def test_large_weights_are_shifted(backend):
    w = doubles(63.9, 1.0, -math.inf)
    backend.op("exp3_learn")(
        w, doubles(0.5, 0.25, 0.25), rows((1, 2 * HALF), (0, 0), (0, 0)), ops.new_seen(3), 1.0, None
    )
    torch.testing.assert_close(w, doubles(0.0, -63.9, -math.inf), atol=1.1, rtol=0)
    assert w[0] == 0


@pytest.mark.parametrize("one", [False, True], ids=["running", "mean"])
@pytest.mark.parametrize(("k", "n"), [(2, 0), (2, 5), (10, 128), (300, 700), (257, 3000)])
def test_a_course_of_updates_is_that_of_the_reference_bit_for_bit(backend, k, n, one):
    generator = np.random.default_rng(k + n)
    w, p = (
        torch.from_numpy(generator.normal(0, 3, k)),
        torch.softmax(torch.from_numpy(generator.normal(0, 1, k)), 0),
    )
    seen = ops.new_seen(1 if one else k)
    expected, expected_seen = w.numpy().copy(), seen.numpy().copy()
    for _ in range(3):
        y = torch.from_numpy(generator.integers(0, k, n) ** 2 // k)
        tally = tally_of(k, y, torch.from_numpy(generator.random(n, np.float32)))
        expected, expected_seen = reference.exp3_learn(expected, p, tally, expected_seen, 0.05)
        backend.op("exp3_learn")(w, p, tally, seen, 0.05, None)
        assert torch.equal(w, torch.from_numpy(expected))
        assert torch.equal(seen, torch.from_numpy(expected_seen))


@pytest.mark.parametrize("rows_of_seen", [1, 4])
def test_the_estimate_is_unbiased_for_whatever_was_seen_before(cpu, rows_of_seen):
    """100 batches of 400 draws; a term's variance is at most 4 / p, so 0.05 is more than four deviations."""
    k, n, batches = 4, 400, 100
    risk, p = doubles(0.05, 0.3, 0.6, 0.95), doubles(0.1, 0.2, 0.3, 0.4)
    generator = torch.Generator().manual_seed(rows_of_seen)
    gained = torch.zeros(k, dtype=torch.float64)
    for _ in range(batches):
        seen = rows(*[(900, 1000 * HALF), (3, 0), (0, 0), (17, 30 * HALF)][:rows_of_seen])
        y = torch.multinomial(p, n, replacement=True, generator=generator)
        loss = (torch.rand(n, generator=generator) < risk[y]).float()
        w = torch.zeros(k, dtype=torch.float64)
        cpu.op("exp3_learn")(w, p, tally_of(k, y, loss), seen, 1.0 / n, None)
        gained += w / batches
    # With one baseline for all, what is the same for every class is left out.
    found, expected = gained - gained.mean(), risk - risk.mean()
    assert (found - expected).abs().max() < 0.05


@pytest.mark.slow
def test_large_k_takes_every_class_on_every_side(cpu, emulated):
    k = 21_841
    generator = np.random.default_rng(1)
    w, base = torch.from_numpy(generator.normal(0, 1, k)), torch.full((k,), 1 / k, dtype=torch.float64)
    offsets, members = ops.group_by_class(torch.arange(2 * k) % k, k)
    ends = []
    for side in (cpu, emulated):
        own, rng, seen = w.clone(), torch.tensor([3, 1]), ops.new_seen(k)
        idx, y, p = side.op("exp3_draw")(own, base, 0.5, offsets, members, rng, 64)
        side.op("exp3_update")(own, p, y, torch.ones(64), 1e-6, None)
        side.op("exp3_learn")(own, p, tally_of(k, y, torch.ones(64)), seen, 1e-6, None)
        ends.append((idx, y, p, own, seen))
    assert all(torch.equal(a, b) for a, b in zip(*ends, strict=True))
    assert float(ends[0][2].sum()) == pytest.approx(1)
    assert int(ends[0][1].max()) > 10_000
    expected = reference.exp3_draw(ops.exp3_distribution(w, base, 0.5)[2].numpy(), offsets, members, 3, 1, 4)
    assert ends[0][0][:4].tolist() == expected[0].tolist()


class TestBadInput:
    def learn(self, p=None, tally=None, seen=None, eta=0.1):
        w = doubles(0, 0, 0)
        given = [doubles(0.5, 0.25, 0.25), rows((1, 0), (0, 0), (0, 0)), ops.new_seen(3)]
        given = [own if other is None else other for own, other in zip(given, (p, tally, seen), strict=True)]
        try:
            ops.exp3_learn_(w, *given, eta)
        finally:
            assert w.tolist() == [0, 0, 0] or p is None

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({"p": doubles(0, 0.5, 0.5)}, r"p must be at least 2\^-60 .* got 0 for class 0"),
            ({"tally": rows((1, 0), (0, 0))}, r"tally must have shape \(3, 2\), got \(2, 2\)"),
            ({"tally": rows((-1, 0), (0, 0), (0, 0))}, "got -1 in row 0"),
            ({"tally": rows((0, 0), (1, 2**31), (0, 0))}, "got a sum of 2147483648 for 1 draws in row 1"),
            ({"seen": ops.new_seen(2)}, "seen must have 1 or 3 rows, got 2"),
            ({"seen": rows((1024, 0))}, "got 1024 in row 0"),
            ({"seen": rows((1, -1))}, "got a sum of -1"),
            ({"eta": -1.0}, "eta must be in"),
            ({"tally": doubles(1, 2)}, "tally must be int64"),
        ],
    )
    def test_what_cannot_be_is_refused_and_changes_nothing(self, options, message):
        with pytest.raises((ValueError, TypeError), match=message):
            self.learn(**options)

    def test_a_gpu_flags_a_chance_that_cannot_be_and_leaves_the_class(self, emulated):
        w, fault = doubles(0, 0), ops.new_fault()
        emulated.op("exp3_learn")(w, doubles(0, 1), rows((1, 2 * HALF), (0, 0)), ops.new_seen(1), 0.1, fault)
        assert w.tolist() == [0, 0]
        assert int(fault) != 0

    def test_more_classes_than_the_ops_take_are_refused(self):
        k = ops.MAX_CLASSES + 1
        w = torch.zeros(k, dtype=torch.float64)
        with pytest.raises(ValueError, match=rf"from 2 to {ops.MAX_CLASSES} classes, got {k}"):
            ops.exp3_distribution(w, torch.full_like(w, 1 / k), 0.5)
