"""The samplers that learn nothing: ERM's shuffle and a fixed class distribution."""

from __future__ import annotations

import pytest
import torch
from scipy import stats

from cfol_fast.sampling import FixedClassSampler, UniformSampler, two_run_distribution

LABELS = torch.arange(60) % 3


def test_every_example_comes_once_an_epoch_in_a_new_order() -> None:
    s = UniformSampler(100)
    epochs = [torch.cat([s.draw(20) for _ in range(5)]) for _ in range(3)]
    assert all(epoch.sort().values.tolist() == list(range(100)) for epoch in epochs)
    assert not torch.equal(epochs[0], epochs[1])
    assert not torch.equal(epochs[1], epochs[2])


def test_batches_reach_across_epochs_without_losing_an_example() -> None:
    s, whole = UniformSampler(10, seed=4), UniformSampler(10, seed=4)
    pieces = torch.cat([s.draw(n) for n in (7, 25, 0, 8)])
    assert torch.equal(pieces, torch.cat([whole.draw(10) for _ in range(4)]))


def test_the_first_place_of_the_order_is_uniform() -> None:
    s = UniformSampler(7, seed=1)
    firsts = torch.bincount(torch.stack([s.draw(7)[0] for _ in range(3000)]), minlength=7)
    assert stats.chisquare(firsts.numpy()).pvalue > 1e-4


def test_iterating_gives_one_epoch() -> None:
    s = UniformSampler(70)
    assert sorted(s) == list(range(70))
    assert len(s) == 70


def test_feedback_changes_nothing() -> None:
    s, same = UniformSampler(50), UniformSampler(50)
    idx = s.draw(20)
    s.update(idx, torch.ones(20))
    s.observe(idx, idx % 5, torch.ones(20), s.ticket())
    same.draw(20)
    assert torch.equal(s.draw(20), same.draw(20))
    assert s.p is None
    assert s.weight(idx) is None


def test_a_fixed_distribution_is_drawn_from() -> None:
    p = [0.2, 0.3, 0.5]
    s = FixedClassSampler(LABELS, p)
    counts = torch.bincount(s.draw(30_000), minlength=60)
    expected = torch.tensor(p, dtype=torch.float64)[LABELS] / 20 * 30_000
    assert stats.chisquare(counts.numpy(), expected.numpy()).pvalue > 1e-4
    assert s.p.tolist() == pytest.approx(p)
    assert FixedClassSampler(LABELS).p.tolist() == pytest.approx([1 / 3] * 3)


def test_the_second_run_draws_by_the_softmax_of_negative_accuracies() -> None:
    p = two_run_distribution([0.2, 0.8], gamma=0.5)
    q = torch.softmax(torch.tensor([-0.2, -0.8], dtype=torch.float64), 0)
    assert p.tolist() == pytest.approx((0.25 + 0.5 * q).tolist())
    assert two_run_distribution([0.2, 0.8], gamma=1.0).tolist() == [0.5, 0.5]


def test_bad_input_is_refused() -> None:
    with pytest.raises(ValueError, match="got 0"):
        UniformSampler(0)
    with pytest.raises(ValueError, match=r"n .*got -1"):
        UniformSampler(3).draw(-1)
    with pytest.raises(ValueError, match="accuracies"):
        two_run_distribution([50.0, 20.0])
    with pytest.raises(ValueError, match=r"gamma .*got 0"):
        two_run_distribution([0.5, 0.2], gamma=0)
    with pytest.raises(ValueError, match=r"^p .*3"):
        FixedClassSampler(LABELS, [0.5, 0.5])
