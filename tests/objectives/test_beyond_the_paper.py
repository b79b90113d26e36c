"""The objectives of FAAL, chi2, LHCVaR, CFA and FRL against the same sums in numpy."""

import numpy as np
import pytest
import torch
from torch import nn

from cfol_fast import objectives
from cfol_fast.errors import InputError
from cfol_fast.objectives import Batch

K, B = 4, 23


@pytest.fixture
def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Linear(5, K).double().requires_grad_(False)


@pytest.fixture
def batch() -> Batch:
    """Class 3 is absent."""
    draw = torch.Generator().manual_seed(1)
    x = torch.rand(B, 5, generator=draw, dtype=torch.float64)
    return Batch(x, x + 0.3, torch.arange(B) % 3)


def softmax(model: nn.Module, x: torch.Tensor) -> np.ndarray:
    return model(x).softmax(1).detach().numpy()


def with_factors(batch: Batch, **factors: list[float]) -> Batch:
    each = {name: torch.tensor(values, dtype=torch.float64)[batch.y] for name, values in factors.items()}
    return Batch(batch.x, batch.x_adv, batch.y, **each)


def terms(model: nn.Module, batch: Batch) -> tuple[np.ndarray, np.ndarray]:
    p, q = softmax(model, batch.x), softmax(model, batch.x_adv)
    return -np.log(p[np.arange(B), batch.y]), (p * np.log(p / q)).sum(1)


def test_faal_weights_by_margins_and_not_by_counts(model, batch):
    loss, logits = objectives.FAAL(0.5, K)(model, batch)
    p, y = softmax(model, batch.x_adv), batch.y.numpy()
    right = p[np.arange(B), y]
    wrong = np.where(np.arange(K) == y[:, None], -1, p).max(1)
    margins = np.array([(wrong - right)[y == c].mean() for c in range(3)])
    weights = objectives.kl_ball(torch.tensor(margins), torch.ones(3, dtype=torch.bool), 0.5).numpy()
    expected = 3 * (weights[y] * -np.log(right)).sum() / B
    assert float(loss) == pytest.approx(expected, rel=1e-6)
    assert torch.equal(logits, model(batch.x_adv))


def test_classes_of_different_sizes_with_equal_margins_get_equal_weights():
    logits = torch.zeros(12, 3, dtype=torch.float64)
    y = torch.tensor([0] * 7 + [1] * 4 + [2])
    batch = Batch(logits, logits, y)
    faal = objectives.FAAL(0.5, 3)(lambda x: x, batch)[0]
    assert float(faal) == pytest.approx(float(objectives.Mean()(lambda x: x, batch)[0]))


def test_without_a_ball_faal_is_the_mean(model, batch):
    faal, mean = objectives.FAAL(0.0, K), objectives.Mean()
    assert float(faal(model, batch)[0]) == pytest.approx(float(mean(model, batch)[0]), rel=1e-6)


def test_chi2_is_the_mean_of_the_class_losses_plus_their_deviation(model, batch):
    loss, _ = objectives.ChiSquare(0.05, K)(model, batch)
    p, y = softmax(model, batch.x_adv), batch.y.numpy()
    losses = -np.log(p[np.arange(B), y])
    means = np.array([losses[y == c].mean() for c in range(3)])
    assert float(loss) == pytest.approx(means.mean() + np.sqrt(2 * 0.05 * means.var()))


@pytest.mark.parametrize("make", [objectives.FAAL, objectives.ChiSquare])
def test_the_gradient_does_not_go_through_the_weights(model, batch, make):
    """The weights are the adversary's best answer: by the envelope theorem they count as constants."""
    loss, logits = make(0.2, K)(model.requires_grad_(), batch)
    (grad,) = torch.autograd.grad(loss, logits)
    one = torch.zeros_like(logits)
    one[torch.arange(B), batch.y] = 1
    direction = logits.softmax(1) - one
    # Cross-entropy's gradient times one number for each class.
    factor = (grad / direction)[:, 0]
    for c in range(3):
        own = factor[batch.y == c]
        assert torch.allclose(own, own[0].expand_as(own))
        assert torch.allclose(grad[batch.y == c], own[0] * direction[batch.y == c])


@pytest.mark.parametrize("alpha", [0.3, 0.8, 1.0])
def test_lhcvar_with_one_level_is_lcvar(model, batch, alpha):
    lcvar = objectives.LCVaR(alpha, K)(model, batch)[0]
    for levels in (alpha, [alpha] * K):
        assert torch.equal(objectives.LHCVaR(levels, K)(model, batch)[0], lcvar)


def test_lhcvar_is_the_value_of_its_linear_programme(model, batch):
    from scipy.optimize import linprog

    levels = [0.5, 0.9, 0.3, 0.7]
    y = batch.y.numpy()
    losses = -np.log(softmax(model, batch.x_adv)[np.arange(B), y])
    means = np.array([losses[y == c].mean() for c in range(3)])
    caps = np.bincount(y, minlength=3) / B / np.array(levels[:3])
    found = linprog(-means, A_eq=np.ones((1, 3)), b_eq=[1], bounds=[(0, cap) for cap in caps])
    loss = objectives.LHCVaR(levels, K)(model, batch)[0]
    assert float(loss) == pytest.approx(-found.fun)


def test_bad_levels_are_refused():
    with pytest.raises(InputError, match="alpha must be a number or a list of 4, one for each class, got 2"):
        objectives.LHCVaR([0.5, 0.5], 4)
    with pytest.raises(InputError, match=r"alpha must be in \(0, 1\], got 1.5"):
        objectives.LHCVaR([0.5, 1.5], 2)


@pytest.mark.parametrize("t", [0.0, 0.2, 0.5, 1.0])
def test_cfa_with_equal_accuracies_is_trades_with_another_beta_scaled(model, batch, t):
    beta = 6 * (0.5 + t)
    expected = objectives.Trades(beta)(model, batch)[0] / (1 + beta)
    found = objectives.BalancedTrades(6.0)(model, with_factors(batch, robust=[0.5 + t] * K))[0]
    assert float(found) == pytest.approx(float(expected))


def test_cfa_weighs_the_terms_of_each_class_by_its_own_beta(model, batch):
    factors = [0.5, 1.5, 0.9, 1.0]
    clean, divergence = terms(model, batch)
    beta = 6 * np.array(factors)[batch.y]
    b = beta / (1 + beta)
    expected = ((1 - b) * clean + b * divergence).mean()
    assert float(
        objectives.BalancedTrades(6.0)(model, with_factors(batch, robust=factors))[0]
    ) == pytest.approx(expected)


def test_frl_divides_each_term_by_the_weights_of_the_batch(model, batch):
    w0, w1 = [1.2, 0.7, 1.1, 1.0], [0.5, 1.9, 0.6, 1.0]
    clean, divergence = terms(model, batch)
    a, b = np.array(w0)[batch.y], np.array(w1)[batch.y]
    expected = (a * clean).sum() / a.sum() + 1.5 * (b * divergence).sum() / b.sum()
    found = objectives.NormalisedTrades(1.5)(model, with_factors(batch, clean=w0, robust=w1))[0]
    assert float(found) == pytest.approx(expected)


def test_trades_weighs_its_terms_apart(model, batch):
    w0, w1 = [1.2, 0.7, 1.1, 1.0], [0.5, 1.9, 0.6, 1.0]
    clean, divergence = terms(model, batch)
    expected = (np.array(w0)[batch.y] * clean + 6 * np.array(w1)[batch.y] * divergence).mean()
    found = objectives.Trades(6.0)(model, with_factors(batch, clean=w0, robust=w1))[0]
    assert float(found) == pytest.approx(expected)


def test_neutral_factors_leave_trades_as_it_is_and_its_relatives_near(model, batch):
    ones = [1.0] * K
    base = objectives.Trades(6.0)(model, batch)[0]
    assert torch.equal(objectives.Trades(6.0)(model, with_factors(batch, clean=ones, robust=ones))[0], base)
    normalised = objectives.NormalisedTrades(6.0)(model, with_factors(batch, clean=ones, robust=ones))[0]
    balanced = objectives.BalancedTrades(6.0)(model, with_factors(batch, robust=ones))[0]
    assert float(normalised) == pytest.approx(float(base), rel=1e-6)
    assert 7 * float(balanced) == pytest.approx(float(base), rel=1e-6)
