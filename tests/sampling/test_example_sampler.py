"""FOL's sampler: Exp3 over single examples."""

from __future__ import annotations

import math
from collections import deque

import pytest
import torch
from scipy import stats

from cfol_fast import ops
from cfol_fast.sampling import ExampleSampler


def probabilities(s: ExampleSampler) -> torch.Tensor:
    return ops.sum_tree_probabilities(s.tree, s.gamma)


def test_the_hardest_examples_gain_probability() -> None:
    s = ExampleSampler(200, eta=1e-3, seed=2)
    for _ in range(40):
        idx = s.draw(64)
        s.update(idx, idx < 10)
    p = probabilities(s)
    assert p[:10].min() > 2 * p[10:].max()
    assert p.sum().item() == pytest.approx(1)


def test_draws_follow_p_and_their_ticket_says_with_what_probability() -> None:
    s = ExampleSampler(50, eta=0.01, gamma=0.3)
    idx = s.draw(64)
    s.update(idx, idx % 5 == 0)
    p = probabilities(s)
    idx = s.draw(50_000)
    ticket = s.ticket()
    assert ticket is not None
    torch.testing.assert_close(ticket, p[idx])
    counts = torch.bincount(idx, minlength=50)
    assert stats.chisquare(counts.numpy(), (p * 50_000).numpy()).pvalue > 1e-4


def test_an_example_drawn_twice_gains_twice() -> None:
    s = ExampleSampler(20, eta=0.01)
    p = torch.full((3,), 0.05, dtype=torch.float64)
    s.update(torch.tensor([4, 4, 7]), torch.tensor([1.0, 0.5, 1.0]), p)
    q = (probabilities(s) - 0.5 / 20) / 0.5
    assert math.log(q[4] / q[0]) == pytest.approx(1.5 * 0.01 / 0.05, rel=1e-6)
    assert math.log(q[7] / q[0]) == pytest.approx(0.01 / 0.05, rel=1e-6)


@pytest.mark.parametrize("lag", [0, 1, 4])
def test_the_estimate_is_unbiased_however_far_batches_are_drawn_ahead(lag: int) -> None:
    """48,000 terms of variance at most N / gamma = 16 for each of 8 risks: 0.1 is more than five standard
    deviations.
    """
    risk = torch.arange(8) / 10
    s = ExampleSampler(8, eta=0.02, seed=lag)
    generator = torch.Generator().manual_seed(lag)
    total, waiting = torch.zeros(8, dtype=torch.float64), deque()
    for step in range(3000 + lag):
        idx = s.draw(16)
        waiting.append((idx, s.ticket()))
        if len(waiting) > lag:
            idx, p = waiting.popleft()
            loss = (torch.rand(16, generator=generator) < risk[idx]).float()
            assert p is not None
            total.index_add_(0, idx, loss / p)
            s.observe(idx, idx, loss, p)
        if step % 16 == 15:
            s.tree = ops.sum_tree_new(8)
    assert (total / (3000 * 16) - risk).abs().max().item() < 0.1


@pytest.mark.slow
def test_ten_million_updates_leave_every_number_finite() -> None:
    s = ExampleSampler(1000, eta=1e-3, seed=5)
    for _ in range(10):
        idx = s.draw(2**20)
        s.update(idx, idx < 3)
    p = probabilities(s)
    assert p.isfinite().all()
    assert p.min().item() >= 0.5 / 1000
    assert p.sum().item() == pytest.approx(1)
    assert p[:3].sum() > 0.45
    assert int(s.draw(1000).max()) < 1000


def test_ten_million_examples_are_drawn_from_and_learned_from() -> None:
    s = ExampleSampler(10_000_000)
    idx = s.draw(128)
    s.update(idx, torch.ones(128))
    assert len(s) == 10_000_000
    ticket = s.ticket()
    assert ticket is not None
    assert ticket.tolist() == pytest.approx([1e-7] * 128)


def test_updates_after_iterating_use_what_each_index_was_drawn_with() -> None:
    s = ExampleSampler(200, eta=0.005, seed=1)
    iterator = iter(s)
    first = torch.tensor([next(iterator) for _ in range(50)])  # more than one chunk
    s.update(first, torch.ones(50))
    p = probabilities(s)
    second = torch.tensor([next(iterator) for _ in range(3)])
    before = s.tree.w.clone()
    s.update(second, torch.ones(3))
    gained = (s.tree.w - before).double()[second] * 2.0**-36
    assert len(set(second.tolist())) == 3
    torch.testing.assert_close(gained, 0.005 / p[second], rtol=1e-6, atol=0)


def test_an_index_that_no_iterator_gave_out_cannot_be_learned_from() -> None:
    s = ExampleSampler(200)
    next(iter(s))
    chunk = set(ExampleSampler(200).draw(s.chunk).tolist())
    never = next(i for i in range(200) if i not in chunk)
    with pytest.raises(ValueError, match=r"^p "):
        s.update(torch.tensor([never]), torch.ones(1))


def test_bad_input_is_refused() -> None:
    with pytest.raises(ValueError, match="eta"):
        ExampleSampler(10, eta=0)
    with pytest.raises(ValueError, match=r"gamma .*got 2"):
        ExampleSampler(10, gamma=2)
    with pytest.raises(ValueError, match="got 0"):
        ExampleSampler(0)
    s = ExampleSampler(10)
    with pytest.raises(ValueError, match="before any draw"):
        s.update(torch.tensor([1]), torch.ones(1))
    idx = s.draw(4)
    with pytest.raises(ValueError, match=r"4 examples.*2"):
        s.update(idx[:2], torch.ones(2))
    with pytest.raises(ValueError, match=r"loss .*got 2"):
        s.update(idx, torch.full((4,), 2.0))
    with pytest.raises(ValueError, match=r"idx.*\[0, 10\)"):
        s.update(torch.tensor([0, 1, 2, 10]), torch.ones(4))


def test_the_step_size_may_be_named() -> None:
    assert ExampleSampler(100, eta="theory").eta == pytest.approx(1 / 200)
    assert ExampleSampler(100, eta="auto", draws=626).eta == pytest.approx(2 * math.log(2) / 626)
