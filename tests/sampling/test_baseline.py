"""The class bandit with a baseline, and with the errors of a hold-out: what it learns and what it refuses."""

from __future__ import annotations

import math
from collections import deque

import pytest
import torch
from torch import Tensor

from cfol_fast import ops
from cfol_fast.errors import InputError
from cfol_fast.sampling import ClassSampler
from tests.reference import exp3 as reference

LABELS = torch.arange(80) % 4
both = pytest.mark.parametrize("baseline", ["running", "mean"])


def make(**options: object) -> ClassSampler:
    return ClassSampler(LABELS, **{"eta": 0.01, "baseline": "running", **options})  # type: ignore[arg-type]


@both
@pytest.mark.parametrize("reweight", [False, True])
def test_a_course_is_that_of_the_formula(baseline: str, reweight: bool) -> None:
    s = make(baseline=baseline, reweight=reweight, gamma=0.3, prior=(0.1, 0.2, 0.3, 0.4))
    w, seen = s.w.numpy().copy(), ops.new_seen(1 if baseline == "mean" else 4).numpy()
    for step in range(6):
        y = LABELS[s.draw(50)]
        p, loss = s.ticket(), (torch.arange(50) * 0.37 * (step + 1)) % 1
        assert p is not None
        assert p.tolist() == pytest.approx([0.25] * 4 if reweight else s.p.tolist())
        s.update(y, loss)
        tally = ops.new_tally(4)
        ops.class_tally_(tally, y, loss)
        w, seen = reference.exp3_learn(w, p, tally, seen, 0.01)
        assert torch.equal(s.w, torch.from_numpy(w))


def estimates(lag: int, baseline: str, reweight: bool) -> tuple[Tensor, Tensor]:
    """The mean of eight thousand estimates of four known errors, drawn `lag` steps before their update.

    The weights start again every 6 steps, so that p moves fast.
    """
    risk, steps, batch = torch.tensor([0.1, 0.3, 0.5, 0.9]), 8000, 16
    s = make(eta=0.1, seed=3, baseline=baseline, reweight=reweight)
    generator = torch.Generator().manual_seed(lag)
    total, waiting = torch.zeros(4, dtype=torch.float64), deque[tuple[Tensor, Tensor | None]]()
    for step in range(steps + lag):
        waiting.append((LABELS[s.draw(batch)], s.ticket()))
        if len(waiting) > lag:
            y, p = waiting.popleft()
            before = s.w.clone()
            s.update(y, torch.rand(batch, generator=generator) < risk[y], p=p)
            total += (s.w - before) / (0.1 * batch)
        if step % 6 == 5:
            s.w.zero_()
    # What is the same for all classes is left out where one baseline serves all.
    common = risk.mean() - total.mean() / steps if baseline == "mean" else 0.0
    return total / steps + common, risk


@pytest.mark.slow
@both
@pytest.mark.parametrize(("lag", "reweight"), [(0, False), (8, False), (8, True)])
def test_the_estimate_is_unbiased_for_batches_that_were_drawn_ahead(
    baseline: str, lag: int, reweight: bool
) -> None:
    """128,000 terms with a variance of at most 2 each: 0.02 is five deviations."""
    found, risk = estimates(lag, baseline, reweight)
    assert (found - risk).abs().max().item() < 0.02


@both
def test_the_listing_s_call_keeps_no_baseline(baseline: str) -> None:
    s, plain = make(baseline=baseline), make(baseline="none")
    y = torch.tensor([0, 1, 1])
    for each in (s, plain):
        each.draw(3)
        each.batch_update(y, torch.tensor([0.01, 0.0, 0.01]))
    assert torch.equal(s.w, plain.w)
    assert not s.state_dict()["seen"].any()


def test_without_a_baseline_nothing_changed() -> None:
    s = ClassSampler(LABELS, eta=0.01)
    assert s.baseline == "none"
    assert set(s.state_dict()) == {"kind", "size", "eta", "gamma", "reweight", "w", "base", "rng"}


@both
def test_an_old_state_is_refused_in_a_sentence_and_one_of_the_same_kind_is_not(baseline: str) -> None:
    s, old = make(baseline=baseline), ClassSampler(LABELS, eta=0.01)
    with pytest.raises(InputError, match=f"baseline='none', this one has baseline='{baseline}'"):
        s.load_state_dict(old.state_dict())
    with pytest.raises(InputError, match=f"baseline='{baseline}', this one has baseline='none'"):
        old.load_state_dict(s.state_dict())
    make(baseline=baseline).load_state_dict(s.state_dict())


@pytest.mark.parametrize("seen", [(-1, 0), (1024, 0), (2, 2**32), (0, 1)])
def test_a_state_that_remembers_what_cannot_be_is_refused(seen: tuple[int, int]) -> None:
    s = make()
    state = s.state_dict()
    state["seen"][2] = torch.tensor(seen)
    state["w"] += 1
    with pytest.raises(InputError, match="no draws and losses"):
        s.load_state_dict(state)
    assert s.w.max() < 0


def test_the_theory_s_step_size_is_refused() -> None:
    for options in ({"baseline": "mean"}, {"baseline": "none", "signal": "holdout"}):
        with pytest.raises(InputError, match="about the paper's bandit"):
            make(eta="theory", **options)


@pytest.mark.parametrize("options", [{"baseline": "median"}, {"baseline": True}, {"signal": "test"}])
def test_unknown_words_are_refused(options: dict[str, object]) -> None:
    with pytest.raises(InputError, match="must be one of"):
        make(**options)


def test_the_hold_out_s_errors_are_learned_once_an_epoch() -> None:
    s = make(baseline="none", signal="holdout", prior=(0.1, 0.2, 0.3, 0.4))
    before = s.w.clone()
    idx = s.draw(8)
    s.observe(idx, LABELS[idx], torch.ones(8), s.ticket())
    assert torch.equal(s.w, before)
    s.hear(torch.tensor([0.5, 0.25, math.nan, 0.0]), 200)
    assert (s.w - before).tolist() == pytest.approx([1.0, 0.5, 0.5, 0.0])
    s.hear(torch.full((4,), 1.0), 10_000)
    assert s.w.max() == 0


@pytest.mark.parametrize(
    ("error", "draws", "message"),
    [
        (torch.tensor([0.5]), 10, "4 entries"),
        (torch.tensor([0.5, 0.5, 0.5, 1.5]), 10, r"in \[0, 1\]"),
        (torch.full((4,), math.nan), 10, "known for some class"),
        (torch.zeros(4), 0, "draws"),
    ],
)
def test_bad_hold_out_errors_are_refused(error: Tensor, draws: int, message: str) -> None:
    s = make(baseline="none", signal="holdout")
    with pytest.raises(InputError, match=message):
        s.hear(error, draws)


def test_a_batch_does_not_teach_what_hears_the_hold_out() -> None:
    s = make(baseline="none", signal="holdout")
    s.draw(2)
    with pytest.raises(InputError, match="learns nothing from a batch"):
        s.update(torch.tensor([0, 1]), torch.ones(2))


@pytest.mark.parametrize("labels", [torch.arange(ops.MAX_CLASSES + 1), torch.tensor([0, 1])])
def test_more_classes_than_can_be_drawn_are_refused_when_the_sampler_is_made(labels: Tensor) -> None:
    with pytest.raises(InputError, match="classes are too many, at most 65,536"):
        ClassSampler(labels, num_classes=ops.MAX_CLASSES + 1)


def test_imagenet_21k_s_classes_are_drawn_and_learned() -> None:
    k = 21_841
    s = ClassSampler(torch.arange(k), eta=1e-5, baseline="running")
    idx = s.draw(256)
    s.update(idx, torch.ones(256))
    assert s.p.sum().item() == pytest.approx(1)
    assert len(set(idx.tolist())) > 240
