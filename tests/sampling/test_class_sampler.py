"""CFOL's sampler: what it draws, what it learns from, and what it refuses."""

from __future__ import annotations

import math
from collections import deque

import numpy as np
import pytest
import torch
from scipy import stats
from torch import Tensor

from cfol_fast import ops
from cfol_fast.sampling import ClassSampler

SIZES = (30, 10, 50, 10)
LABELS = torch.arange(4).repeat_interleave(torch.tensor(SIZES))[
    torch.randperm(100, generator=torch.Generator().manual_seed(0))
]


def make(**options: object) -> ClassSampler:
    return ClassSampler(LABELS, **{"eta": 0.01, **options})  # type: ignore[arg-type]


def test_classes_are_drawn_from_p_and_examples_uniformly_within_them() -> None:
    s = make(prior=(0.1, 0.2, 0.3, 0.4), gamma=0.2)
    p = s.p
    assert p.tolist() == pytest.approx([0.05 + 0.8 * q for q in (0.1, 0.2, 0.3, 0.4)])
    idx = s.draw(40_000)
    counts = torch.bincount(idx, minlength=100)
    expected = p[LABELS] / torch.tensor(SIZES)[LABELS]
    assert stats.chisquare(counts.numpy(), (expected * 40_000).numpy()).pvalue > 1e-4


def test_the_hardest_class_gains_probability() -> None:
    s = make(eta=0.005)
    for _ in range(20):
        y = LABELS[s.draw(64)]
        s.update(y, y == 2)
    assert s.p.argmax() == 2
    assert s.p[2] > 0.5
    assert s.q[2] > s.p[2]
    assert s.p.sum().item() == pytest.approx(1)


def test_an_update_adds_eta_loss_over_p_for_every_example_of_the_batch() -> None:
    s = make(prior="empirical", base="empirical", gamma=0.3)
    s.draw(1)
    p, before = s.p.numpy(), s.w.numpy().copy()
    y, loss = torch.tensor([0, 2, 2, 3, 2]), torch.tensor([1.0, 0.5, 0.25, 0.0, 1.0])
    s.update(y, loss)
    gained = np.zeros(4)
    np.add.at(gained, y.numpy(), 0.01 * loss.numpy() / p[y.numpy()])
    np.testing.assert_allclose(s.w.numpy() - before, gained, atol=1e-9)


def test_zero_one_losses_may_be_bool_or_integers_or_double() -> None:
    y, wrong = torch.tensor([0, 1, 1]), torch.tensor([True, False, True])
    ends = []
    for loss in (wrong, wrong.long(), wrong.float(), wrong.double(), wrong.bfloat16()):
        s = make()
        s.draw(3)
        s.update(y, loss)
        ends.append(s.w)
    assert all(torch.equal(end, ends[0]) for end in ends)


@pytest.mark.parametrize(
    ("prior", "base", "q", "mixed"),
    [
        ("uniform", "uniform", [0.25] * 4, [0.25] * 4),
        ("empirical", "uniform", [0.3, 0.1, 0.5, 0.1], [0.275, 0.175, 0.375, 0.175]),
        ("empirical", "empirical", [0.3, 0.1, 0.5, 0.1], [0.3, 0.1, 0.5, 0.1]),
        (
            [0.7, 0.1, 0.1, 0.1],
            torch.tensor([0.1, 0.7, 0.1, 0.1]),
            [0.7, 0.1, 0.1, 0.1],
            [0.4, 0.4, 0.1, 0.1],
        ),
    ],
    ids=["UU", "EU", "EE", "given"],
)
def test_prior_is_the_first_q_and_base_is_mixed_in(prior, base, q, mixed) -> None:
    s = make(prior=prior, base=base)
    assert s.q.tolist() == pytest.approx(q)
    assert s.p.tolist() == pytest.approx(mixed)


def estimates(lag: int, pass_p: bool, steps: int = 6000, batch: int = 16) -> tuple[Tensor, Tensor]:
    """The bandit's mean estimate of four known class risks, with batches drawn `lag` steps before their
    update.

    The weights start again every 6 steps, so that p moves fast and a stale p would show.
    """
    risk = torch.tensor([0.1, 0.3, 0.5, 0.9])
    s = make(eta=0.1, gamma=0.5, seed=3)
    generator = torch.Generator().manual_seed(lag)
    total, waiting = torch.zeros(4, dtype=torch.float64), deque()
    for step in range(steps + lag):
        waiting.append((LABELS[s.draw(batch)], s.ticket()))
        if len(waiting) > lag:
            y, p = waiting.popleft()
            loss = torch.rand(batch, generator=generator) < risk[y]
            before = s.w.clone()
            s.update(y, loss, p=p if pass_p else None)
            total += (s.w - before) / (0.1 * batch)
        if step % 6 == 5:
            s.w.zero_()
    return total / steps, risk


@pytest.mark.parametrize("lag", [0, 1, 4])
@pytest.mark.slow
def test_the_estimate_is_unbiased_however_far_batches_are_drawn_ahead(lag: int) -> None:
    """Each of the 96,000 terms has variance at most k / gamma = 8, so 0.05 is more than five standard
    deviations.
    """
    found, risk = estimates(lag, pass_p=True)
    assert (found - risk).abs().max().item() < 0.05


def test_the_p_of_the_latest_draw_would_bias_batches_that_were_drawn_ahead() -> None:
    found, risk = estimates(4, pass_p=False)
    assert (found - risk).abs().max().item() > 0.1


def test_an_update_takes_the_p_of_the_latest_draw_and_not_the_current_one() -> None:
    s = make(eta=1.0, gamma=0.1)
    s.draw(8)
    first = s.ticket()
    s.update(torch.tensor([0]), torch.ones(1))
    before = s.w.clone()
    s.update(torch.tensor([0]), torch.ones(1))
    assert first is not None
    assert (s.w - before)[0].item() == pytest.approx(1 / first[0].item())


def test_batch_update_is_the_listings_call_with_the_current_p() -> None:
    y, wrong, eta = torch.tensor([1, 1, 3]), torch.tensor([True, False, True]), 2e-6
    s = make(prior=(0.4, 0.1, 0.4, 0.1))
    s.draw(3)
    s.w[1] += 1.0
    p, before = s.p, s.w.clone()
    s.batch_update(y, eta * wrong)
    assert ((s.w - before) / eta).tolist() == pytest.approx(
        [0, 1 / p[1].item(), 0, 1 / p[3].item()], rel=1e-5
    )


def test_batch_update_of_correct_examples_or_of_none_changes_nothing() -> None:
    s = make()
    before = s.w.clone()
    s.batch_update(torch.tensor([0, 1]), 2e-6 * torch.zeros(2))
    s.batch_update(torch.empty(0, dtype=torch.int64), torch.empty(0))
    assert torch.equal(s.w, before)


class TestReweighted:
    def test_classes_are_drawn_uniformly_whatever_p_is(self) -> None:
        s = make(reweight=True, prior=(0.97, 0.01, 0.01, 0.01))
        counts = torch.bincount(LABELS[s.draw(20_000)], minlength=4)
        assert stats.chisquare(counts.numpy()).pvalue > 1e-4

    def test_weights_are_k_p_and_make_the_expected_loss_that_of_the_draws(self) -> None:
        s = make(reweight=True, prior=(0.7, 0.1, 0.1, 0.1))
        losses = torch.tensor([1.0, 2.0, 3.0, 4.0], dtype=torch.float64)
        weight = s.weight(torch.arange(4))
        assert weight is not None
        assert weight.tolist() == pytest.approx((4 * s.p).tolist())
        assert (weight * losses).mean().item() == pytest.approx((s.p * losses).sum().item())

    def test_the_estimator_is_the_loss_times_k(self) -> None:
        for update in ("update", "batch_update"):
            s = make(reweight=True, prior=(0.7, 0.1, 0.1, 0.1))
            s.draw(2)
            before, loss = s.w.clone(), torch.tensor([1.0, 0.5])
            if update == "update":
                s.update(torch.tensor([0, 2]), loss)
            else:
                s.batch_update(torch.tensor([0, 2]), 0.01 * loss)
            assert (s.w - before).tolist() == pytest.approx([0.04, 0, 0.02, 0], abs=1e-8)

    def test_no_weights_are_asked_for_without_it(self) -> None:
        assert make().weight(torch.arange(4)) is None


def test_weights_stay_bounded_and_the_distribution_too() -> None:
    s = make(eta=5.0)
    s.draw(4)
    for _ in range(2000):
        s.update(torch.tensor([0, 1, 1]), torch.ones(3))
    assert s.w.isfinite().all()
    assert s.p.sum().item() == pytest.approx(1)
    assert s.p.min().item() >= 0.5 / 4 - 1e-12


def test_the_step_size_may_be_named() -> None:
    s = make(eta="theory", C=1000)
    assert s.eta == pytest.approx(math.sqrt(math.log(4) / (4 * 4 * 1000)))
    assert make(eta="theory").eta == pytest.approx(1 / 8)  # C = k log k, the largest step allowed
    assert make(eta="auto", draws=10_000).eta == pytest.approx(2 * math.log(3) / (0.4 * 10_000))


def test_labels_come_from_tensors_sequences_and_data_sets() -> None:
    class Images(torch.utils.data.Dataset):
        targets = LABELS.tolist()

        def __len__(self) -> int:
            return len(self.targets)

    expected = make().draw(32)
    for labels in (LABELS.to(torch.int32), LABELS.tolist(), LABELS.numpy(), Images()):
        assert torch.equal(ClassSampler(labels).draw(32), expected)
    part = torch.utils.data.Subset(Images(), list(range(50)))
    assert len(ClassSampler(part)) == 50
    assert int(ClassSampler(part).draw(500).max()) < 50


def test_labels_are_those_that_the_data_set_hands_out() -> None:
    """torchvision's `targets` are as on the disk; the loop is given, and the sampler told of, what
    target_transform makes of them.
    """

    class Images(torch.utils.data.Dataset):
        targets = LABELS
        target_transform = staticmethod(lambda y: 3 - y)

        def __len__(self) -> int:
            return len(self.targets)

    expected = ClassSampler(3 - LABELS).draw(32)
    assert torch.equal(ClassSampler(Images()).draw(32), expected)
    assert torch.equal(ClassSampler(torch.utils.data.Subset(Images(), range(len(LABELS)))).draw(32), expected)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"eta": 0.0}, "eta must be a positive number, 'auto' or 'theory', got 0.0"),
        ({"eta": -1e-3}, "eta must be a positive number"),
        ({"eta": math.nan}, "eta must be a positive number"),
        ({"eta": "fast"}, "got 'fast'"),
        ({"draws": 0}, "draws must be a whole number of at least 1, got 0"),
        ({"eta": "auto", "C": 50}, "C belongs to eta='theory', got C=50 and eta='auto'"),
        ({"eta": "auto", "draws": 0}, "draws must be a whole number of at least 1, got 0"),
        ({"gamma": 0.0}, r"gamma must be in \(0, 1\], got 0.0"),
        ({"gamma": 1.5}, r"gamma must be in \(0, 1\], got 1.5"),
        ({"prior": "even"}, "prior must be 'uniform', 'empirical' or 4 probabilities, got 'even'"),
        ({"base": [0.5, 0.5]}, "base must have 4 entries"),
        ({"prior": [0.5, 0.5, 0.5, 0.5]}, "prior must be positive and sum to 1, got a sum of 2"),
        ({"prior": [1.0, 0.0, 0.0, 0.0]}, "a least entry of 0"),
        ({"seed": -1}, "seed must be in"),
        ({"num_classes": 6}, "class 4 has no examples"),
        ({"num_classes": 2}, r"labels must be in \[0, 2\)"),
    ],
)
def test_bad_options_are_refused(options: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make(**options)


@pytest.mark.parametrize(
    ("labels", "kind", "message"),
    [
        (torch.tensor([0.0, 1.0]), ValueError, "labels must be integers"),
        (torch.tensor([[0, 1]]), ValueError, "labels must be integers of shape"),
        (torch.tensor([], dtype=torch.int64), ValueError, "empty"),
        (torch.tensor([0, 2]), ValueError, "class 1 has no examples"),
        (["cat", "dog"], ValueError, r"labels must be integers of shape \(N,\), one for each example"),
        (torch.tensor([0, -1]), ValueError, "labels must be in"),
        (torch.utils.data.TensorDataset(torch.rand(3)), TypeError, "neither 'targets' nor 'labels'"),
    ],
)
def test_labels_that_do_not_match_are_refused(labels: object, kind: type[Exception], message: str) -> None:
    with pytest.raises(kind, match=message):
        ClassSampler(labels)


def test_an_update_needs_a_draw_or_the_p_that_drew() -> None:
    s = make()
    with pytest.raises(ValueError, match="before any draw"):
        s.update(torch.tensor([0]), torch.ones(1))
    s.update(torch.tensor([0]), torch.ones(1), p=s.p)


@pytest.mark.parametrize("loss", [1.5, -0.1, math.nan])
def test_losses_outside_the_unit_interval_are_refused(loss: float) -> None:
    s = make()
    s.draw(2)
    before = s.w.clone()
    with pytest.raises(ValueError, match="loss"):
        s.update(torch.tensor([0, 1]), torch.tensor([0.5, loss]))
    with pytest.raises(ValueError, match="loss"):
        s.batch_update(torch.tensor([0, 1]), torch.tensor([0.5, loss]))
    assert torch.equal(s.w, before)


def test_updates_that_do_not_fit_are_refused() -> None:
    s = make()
    s.draw(2)
    for y, loss in ((torch.tensor([0, 4]), torch.ones(2)), (torch.tensor([0]), torch.ones(2))):
        with pytest.raises(ValueError):
            s.update(y, loss)
    with pytest.raises(ValueError, match=r"^n "):
        s.draw(-1)


def test_faults_are_reported_in_the_word_the_trainer_reads() -> None:
    s = make()
    assert s.fault.dtype == torch.int32
    assert ops.fault_messages(int(s.fault)) == []
