"""The risks against literal cases, against linear programmes solved by scipy, and against finite
differences.
"""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy.optimize import linprog

from cfol_fast.objectives import class_weighted, cvar, lcvar, mean

CASES = 1000


def programme(values: np.ndarray, cap: np.ndarray) -> float:
    """max q.values over 0 <= q <= cap, sum q = 1."""
    bounds = np.column_stack([np.zeros_like(cap), cap])
    solved = linprog(-values, A_eq=np.ones((1, len(cap))), b_eq=[1.0], bounds=bounds, method="highs")
    assert solved.status == 0, solved.message
    return float(-solved.fun)


def draw_alpha(rng: np.random.Generator, case: int) -> float:
    """Every fifth case sits on an edge: the plain mean, or so small that one entry takes all."""
    return {0: 1.0, 1: 1e-4}.get(case % 5, float(rng.uniform(0.02, 1)))


def draw_losses(rng: np.random.Generator, size: int, case: int) -> np.ndarray:
    """Exponential losses; a third of the cases have ties, and a few are one value everywhere."""
    losses = rng.exponential(size=size)
    if case % 3 == 0:
        losses = np.round(losses * 2) / 2
    return np.full(size, losses[0]) if case % 50 == 7 else losses


@pytest.mark.slow
def test_cvar_is_the_value_of_its_linear_programme_on_1000_cases() -> None:
    rng = np.random.default_rng(0)
    for case in range(CASES):
        losses = draw_losses(rng, int(rng.integers(1, 40)), case)
        alpha = draw_alpha(rng, case)
        expected = programme(losses, np.full(len(losses), 1 / (alpha * len(losses))))
        assert cvar(torch.tensor(losses), alpha).item() == pytest.approx(expected, abs=1e-6), (
            case,
            alpha,
            losses,
        )


@pytest.mark.slow
@pytest.mark.parametrize("with_prior", [False, True])
def test_lcvar_is_the_value_of_its_linear_programme_on_1000_cases(with_prior: bool) -> None:
    rng = np.random.default_rng(1)
    absent = 0
    for case in range(CASES):
        k, size = int(rng.integers(2, 12)), int(rng.integers(1, 40))
        losses, y, alpha = draw_losses(rng, size, case), rng.integers(0, k, size=size), draw_alpha(rng, case)
        counts = np.bincount(y, minlength=k)
        present = counts > 0
        absent += int(not present.all())
        class_losses = np.bincount(y, weights=losses, minlength=k)[present] / counts[present]
        prior = rng.dirichlet(np.ones(k)) if with_prior else counts / size
        mass = prior[present] / prior[present].sum()
        expected = programme(class_losses, mass / alpha)
        given = torch.tensor(prior) if with_prior else None
        found = lcvar(torch.tensor(losses), torch.tensor(y), alpha, k, prior=given).item()
        assert found == pytest.approx(expected, abs=1e-6), (case, alpha, losses, y)
    assert absent > CASES / 4


def test_cvar_of_four_losses() -> None:
    losses = torch.tensor([1.0, 4.0, 2.0, 3.0])
    assert cvar(losses, 0.5).item() == pytest.approx(3.5)
    assert cvar(losses, 0.375).item() == pytest.approx((4 + 0.5 * 3) / 1.5)
    assert cvar(losses, 1.0).item() == pytest.approx(2.5)
    assert cvar(losses, 0.01).item() == pytest.approx(4.0)


def test_lcvar_fills_the_worst_class_first() -> None:
    losses = torch.tensor([1.0, 3.0, 5.0, 7.0])
    y = torch.tensor([0, 0, 2, 1])
    # class means 2, 7, 5 with masses .5, .25, .25; alpha = 1/2 doubles the masses: half class 1, half class 2
    assert lcvar(losses, y, 0.5, 4).item() == pytest.approx(6.0)
    assert lcvar(losses, y, 1.0, 4).item() == pytest.approx(4.0)
    assert lcvar(losses, y, 0.1, 4).item() == pytest.approx(7.0)


def test_lcvar_is_not_the_average_divided_by_alpha() -> None:
    """What the closed form in use elsewhere degenerates to for every alpha < 1 (docs/differences.md)."""
    losses, y = torch.tensor([1.0, 1.0, 2.0, 4.0]), torch.tensor([0, 0, 1, 2])
    for alpha in (0.1, 0.5, 0.8, 0.99):
        found, degenerate = lcvar(losses, y, alpha, 3).item(), losses.mean().item() / alpha
        assert abs(found - degenerate) > 0.005
        assert found <= 4.0 + 1e-6


def test_lcvar_gradient_rests_on_the_worst_classes_alone() -> None:
    losses, y = torch.tensor([1.0, 1.0, 2.0, 4.0], requires_grad=True), torch.tensor([0, 0, 1, 2])
    lcvar(losses, y, 0.5, 3).backward()
    assert losses.grad is not None
    assert losses.grad.tolist() == pytest.approx([0, 0, 0.5, 0.5])


def test_gradients_agree_with_finite_differences() -> None:
    torch.manual_seed(0)
    losses = torch.rand(12, dtype=torch.float64, requires_grad=True)
    y = torch.randint(0, 4, (12,))
    weights = torch.rand(4, dtype=torch.float64)
    prior = torch.softmax(torch.rand(4, dtype=torch.float64), 0)
    for function in (
        lambda t: cvar(t, 0.3),
        lambda t: lcvar(t, y, 0.6, 4),
        lambda t: lcvar(t, y, 0.6, 4, prior=prior),
        lambda t: class_weighted(t, y, weights),
        lambda t: mean(t, weights[y]),
    ):
        assert torch.autograd.gradcheck(function, (losses,))


def test_weights_multiply_the_losses_and_are_not_normalised() -> None:
    losses = torch.tensor([1.0, 2.0])
    assert mean(losses).item() == 1.5
    assert mean(losses, torch.tensor([3.0, 0.5])).item() == 2.0
    assert class_weighted(losses, torch.tensor([1, 0]), torch.tensor([0.5, 3.0])).item() == 2.0


def test_float32_losses_keep_their_dtype_and_their_mean() -> None:
    losses = torch.rand(129)
    assert cvar(losses, 1.0).dtype == torch.float32
    assert cvar(losses, 1.0).item() == pytest.approx(losses.mean().item(), rel=1e-6)


def test_risks_run_where_nothing_can_be_read_back() -> None:
    losses = torch.rand(16, device="meta", requires_grad=True)
    y = torch.zeros(16, dtype=torch.int64, device="meta")
    prior = torch.full((5,), 0.2, device="meta")
    total = (
        cvar(losses, 0.2) + lcvar(losses, y, 0.4, 5) + lcvar(losses, y, 0.4, 5, prior=prior) + mean(losses)
    )
    total.backward()
    assert losses.grad is not None


@pytest.mark.slow
def test_risks_compile_into_one_graph() -> None:
    losses, y = torch.rand(8), torch.randint(0, 3, (8,))
    compiled = torch.compile(
        lambda t, c: cvar(t, 0.3) + lcvar(t, c, 0.5, 3), fullgraph=True, backend="aot_eager"
    )
    assert compiled(losses, y).item() == pytest.approx((cvar(losses, 0.3) + lcvar(losses, y, 0.5, 3)).item())


@pytest.mark.parametrize("alpha", [0.0, -0.1, 1.5, math.nan])
def test_an_alpha_outside_its_range_is_refused(alpha: float) -> None:
    with pytest.raises(ValueError, match=r"alpha .*got"):
        cvar(torch.rand(3), alpha)
    with pytest.raises(ValueError, match=r"alpha .*got"):
        lcvar(torch.rand(3), torch.zeros(3, dtype=torch.int64), alpha, 2)


def test_shapes_that_do_not_match_are_refused() -> None:
    with pytest.raises(ValueError, match="shape"):
        lcvar(torch.rand(3), torch.zeros(2, dtype=torch.int64), 0.5, 2)
    with pytest.raises(ValueError, match=r"prior .*2"):
        lcvar(torch.rand(3), torch.zeros(3, dtype=torch.int64), 0.5, 2, prior=torch.rand(3))
    with pytest.raises(ValueError, match="loss"):
        cvar(torch.rand(0), 0.5)
