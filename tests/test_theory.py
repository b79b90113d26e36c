"""The theory's numbers, the inequalities it rests on, and Theorem 1 itself on a problem whose mistake bound
is known.
"""

from __future__ import annotations

import copy
import io
import math
from types import SimpleNamespace

import pytest
import torch
from scipy import stats
from torch import Tensor, nn

from cfol_fast import theory
from cfol_fast.errors import InputError
from cfol_fast.sampling import ClassSampler, ExampleSampler
from cfol_fast.theory import AveragedLogits, IterateReservoir, ensemble_risk, worst_class_bound


def test_the_step_size_of_the_theorem() -> None:
    assert theory.step_size(10, 5000) == pytest.approx(math.sqrt(math.log(10) / (4 * 10 * 5000)))
    assert theory.step_size(10) == theory.step_size(10, 1.0) == pytest.approx(1 / 20)  # C is at least k log k


def test_the_bound_says_nothing_at_the_paper_s_scale() -> None:
    """The figures of docs/differences.md: a risk is at most 1."""
    T = 62_600
    assert worst_class_bound(T / 2, T, 10, 0.05, 1) == pytest.approx(10.5, abs=0.05)
    assert worst_class_bound(T / 2, T, 10, 0.05, 50) == pytest.approx(3.6, abs=0.05)
    assert worst_class_bound(T / 10, T, 10, 0.05, 50) == pytest.approx(1.2, abs=0.05)


def test_the_bound_is_the_sum_of_its_named_terms() -> None:
    bound = worst_class_bound(C=100, T=10_000, k=10, delta=0.05, n=50)
    log = math.log(2 * 10 / 0.05)
    assert bound.terms == pytest.approx(
        {
            "regret": 600 / 10_000,
            "sampling": math.sqrt(40 * log) / 100,
            "sampling_tail": 21 * log / 30_000,
            "ensemble": math.sqrt(2 * log) / math.sqrt(50),
            "ensemble_tail": 2 * log / 150,
        }
    )
    assert float(bound) == pytest.approx(sum(bound.terms.values()))
    assert bound.regret == 0.06
    with pytest.raises(AttributeError):
        bound.variance  # noqa: B018
    assert copy.copy(float(bound)) < worst_class_bound(C=100, T=1000, k=10, delta=0.05, n=50)


def test_the_cvar_level_of_the_same_uncertainty_set() -> None:
    assert theory.cvar_alpha(0.5, 10) == pytest.approx(2 / 11)
    assert theory.cvar_alpha(1.0, 10) == 1.0
    for gamma, m in ((0.1, 3), (0.5, 10), (0.9, 200)):  # its cap is the largest p that mixing allows
        assert 1 / (theory.cvar_alpha(gamma, m) * m) == pytest.approx(1 - (m - 1) * gamma / m)


@pytest.mark.parametrize("gamma", [0.05, 0.5, 0.9])
@pytest.mark.parametrize("k", [2, 10, 100])
def test_mixing_bounds_hold_on_real_sampler_states(gamma: float, k: int) -> None:
    s = ClassSampler(torch.arange(4 * k) % k, eta=0.02, gamma=gamma)
    for step in range(200):
        y = s.draw(32) % k
        s.update(y, y <= step // 100)  # first one class is hard, then two
        p, q = s.p, s.q
        assert (1 / p).max().item() <= k / gamma * (1 + 1e-9)
        assert (q / p).max().item() <= 1 / (1 - gamma) * (1 + 1e-9)
        assert p.max().item() <= (1 - (k - 1) * gamma / k) * (1 + 1e-9)
        assert p.sum().item() == pytest.approx(1, abs=1e-9)
    assert p.max() > 1.05 / k  # and they were tried on a distribution that moved


def test_mixing_bounds_hold_over_examples_too() -> None:
    s = ExampleSampler(50, eta=0.02, gamma=0.5)
    for _ in range(100):
        idx = s.draw(32)
        p = s.ticket()
        assert p is not None
        assert p.min().item() >= 0.5 / 50 * (1 - 1e-9)
        assert p.max().item() <= (1 - 49 * 0.5 / 50) * (1 + 1e-9)
        s.update(idx, idx == 3)


class Perceptron(nn.Linear):
    """Rosenblatt's, on the worst case of an l-infinity attack, which for a linear model is known in closed
    form.

    If all perturbed examples of a class have |x| <= R and margin m under some unit vector, it errs at most
    (R/m)^2 times
    on any sequence of them: the mistake bound of assumption 1.
    """

    eps = 0.1

    def __init__(self, features: int) -> None:
        super().__init__(features, 1, bias=False)
        nn.init.zeros_(self.weight)

    @torch.no_grad()
    def attacked(self, x: Tensor, sign: Tensor) -> Tensor:
        return x - sign.unsqueeze(1) * self.eps * self.weight.sign()

    @torch.no_grad()
    def wrong(self, x: Tensor, sign: Tensor) -> Tensor:
        """The zero-one loss under attack of each example: (B,) float32."""
        return (sign * self(self.attacked(x, sign)).squeeze(1) <= 0).float()

    @torch.no_grad()
    def learn(self, x: Tensor, sign: Tensor, wrong: Tensor) -> None:
        self.weight += (wrong * sign) @ self.attacked(x, sign)


def separable_examples() -> tuple[Tensor, Tensor, float]:
    """500 examples of an easy class and 20 of a harder one, and the mistake bound under the attack."""
    generator = torch.Generator().manual_seed(0)
    y = torch.cat([torch.zeros(500, dtype=torch.int64), torch.ones(20, dtype=torch.int64)])
    sign = 2.0 * y - 1
    x = torch.rand(520, 4, generator=generator) - 0.5
    x[:, 0] = sign * (torch.where(y == 0, 0.8, 0.5) + 0.3 * torch.rand(520, generator=generator))
    margin = float((sign * x[:, 0]).min()) - Perceptron.eps  # under the first unit vector, whose l1 norm is 1
    radius = float((x.abs() + Perceptron.eps).norm(dim=1).max())
    return x, y, (radius / margin) ** 2


@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.slow
def test_theorem_1_holds_where_the_mistake_bound_is_known(seed: int) -> None:
    x, y, C = separable_examples()
    sign, model = 2.0 * y - 1, Perceptron(4)
    T, n, delta = 3000, 300, 0.1
    bound = worst_class_bound(C, T, k=2, delta=delta, n=n)
    assert bound < 0.5

    sampler = ClassSampler(y, eta=theory.step_size(2, C), gamma=0.5, seed=seed)
    reservoir, mistakes = IterateReservoir(n, seed), 0.0
    for step in range(T):
        reservoir.observe(step, model)
        i = sampler.draw(1)
        wrong = model.wrong(x[i], sign[i])
        sampler.update(y[i], wrong)
        model.learn(x[i], sign[i], wrong)
        mistakes += float(wrong)
    assert mistakes <= C

    def class_accuracies(member: nn.Module) -> Tensor:
        wrong = member.wrong(x, sign)  # type: ignore[operator]
        return torch.stack([1 - wrong[y == c].mean() for c in (0, 1)])

    risk = ensemble_risk(reservoir.models(Perceptron(4)), class_accuracies)
    assert risk.members.shape == (n, 2)
    assert risk.worst <= bound


class TestReservoir:
    @pytest.mark.slow
    def test_each_member_is_a_uniform_iterate_independent_of_the_others(self) -> None:
        reservoir = IterateReservoir(20_000, seed=5)
        model = nn.Linear(1, 1)
        for step in range(10):
            reservoir.observe(step, model)
        steps = torch.tensor(reservoir.steps)
        assert stats.chisquare(torch.bincount(steps, minlength=10).numpy()).pvalue > 1e-4
        pairs = torch.bincount(steps[::2] * 10 + steps[1::2], minlength=100)
        assert stats.chisquare(pairs.numpy()).pvalue > 1e-4

    def test_members_hold_the_weights_of_their_step(self) -> None:
        model = nn.Linear(2, 1)
        reservoir = observed(IterateReservoir(30, seed=1), model, range(50))
        assert len(set(reservoir.steps)) > 10
        network = nn.Linear(2, 1)
        for step, member in zip(reservoir.steps, reservoir.models(network), strict=True):
            assert member.weight.tolist() == [[float(step)] * 2]
        assert model.weight.tolist() == [[49.0] * 2]

    def test_a_saved_reservoir_continues_exactly(self) -> None:
        model = nn.Linear(2, 1)
        whole = observed(IterateReservoir(8, seed=2), model, range(300))
        half = observed(IterateReservoir(8, seed=2), model, range(120))
        buffer = io.BytesIO()
        torch.save(half.state_dict(), buffer)
        buffer.seek(0)
        again = IterateReservoir(8, seed=77)
        again.load_state_dict(torch.load(buffer, weights_only=True))
        observed(again, model, range(120, 300))
        assert again.steps == whole.steps
        for left, right in zip(again.weights, whole.weights, strict=True):
            assert all(torch.equal(left[name], right[name]) for name in right)

    def test_steps_that_are_skipped_or_repeated_are_refused(self) -> None:
        reservoir, model = IterateReservoir(2), nn.Linear(1, 1)
        reservoir.observe(0, model)
        for step in (0, 2):
            with pytest.raises(ValueError, match=f"step {step}"):
                reservoir.observe(step, model)

    def test_bad_input_is_refused(self) -> None:
        with pytest.raises(ValueError, match=r"n .*got 0"):
            IterateReservoir(0)
        with pytest.raises(ValueError, match="iterate"):
            next(IterateReservoir(1).models(nn.Linear(1, 1)))
        with pytest.raises(ValueError, match=r"3 members.*2"):
            IterateReservoir(2).load_state_dict(IterateReservoir(3).state_dict())


def observed(reservoir: IterateReservoir, model: nn.Linear, steps: range) -> IterateReservoir:
    """Lets the reservoir see a model whose weights are the number of the step."""
    for step in steps:
        nn.init.constant_(model.weight, step)
        nn.init.zeros_(model.bias)
        reservoir.observe(step, model)
    return reservoir


def test_the_ensembles_risk_is_averaged_class_by_class_over_its_members() -> None:
    accuracies = iter(
        [torch.tensor([1.0, 0.5, 0.0]), SimpleNamespace(per_class=torch.tensor([0.0, 0.5, 0.5]))]
    )
    risk = ensemble_risk([nn.Identity(), nn.Identity()], lambda model: next(accuracies))
    assert risk.per_class.tolist() == pytest.approx([0.5, 0.5, 0.75])
    assert risk.worst == pytest.approx(0.75)
    assert risk.worst_class == 2
    with pytest.raises(ValueError, match="no members"):
        ensemble_risk([], lambda model: torch.zeros(2))


def test_averaged_logits_are_a_model_of_their_own() -> None:
    members = [nn.Linear(3, 2), nn.Linear(3, 2)]
    x = torch.rand(5, 3)
    torch.testing.assert_close(AveragedLogits(members)(x), (members[0](x) + members[1](x)) / 2)
    with pytest.raises(ValueError, match="no members"):
        AveragedLogits([])
    with pytest.raises(ValueError, match="there twice"):
        AveragedLogits([members[0], members[0]])


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: theory.step_size(1, 10), "k must be at least 2 classes, got 1"),
        (lambda: theory.step_size(10, -5), "C must be a positive number of mistakes, got -5"),
        (lambda: worst_class_bound(10, 0, 2, 0.1, 5), "T and n must be at least 1, got T = 0, n = 5"),
        (lambda: worst_class_bound(10, 100, 2, 1.0, 5), r"delta must be in \(0, 1\), got 1.0"),
        (lambda: theory.cvar_alpha(0, 5), r"gamma must be in \(0, 1\], got 0"),
        (lambda: theory.cvar_alpha(0.5, 0), "m must be at least 1, got 0"),
    ],
)
def test_values_outside_the_theory_are_refused(call, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call()


def test_the_bound_is_refused_for_a_bandit_with_a_baseline() -> None:
    with pytest.raises(InputError, match="without a baseline, got baseline='running'"):
        worst_class_bound(100.0, 1000, 10, 0.05, 10, baseline="running")
