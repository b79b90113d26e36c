"""The worst distributions of both balls against scipy's solver, their KKT conditions and the cases that are
known.
"""

import numpy as np
import pytest
import torch
from scipy.optimize import minimize

from cfol_fast import objectives
from cfol_fast.errors import InputError
from cfol_fast.objectives import chi2_ball, kl_ball

BALLS = {
    "kl": (kl_ball, lambda p: -np.log(len(p)) - np.log(p).mean()),
    "chi2": (chi2_ball, lambda p: len(p) / 2 * ((p - 1 / len(p)) ** 2).sum()),
}
both = pytest.mark.parametrize("name", BALLS)


def answer(name: str, values, radius: float, present=None) -> np.ndarray:
    values = torch.as_tensor(values)
    present = torch.ones(len(values), dtype=torch.bool) if present is None else torch.tensor(present)
    return BALLS[name][0](values, present, radius).numpy()


def solved(name: str, values: np.ndarray, radius: float) -> float:
    """The best value that SLSQP finds."""
    k = len(values)
    least = 1e-12 if name == "kl" else 0.0
    found = minimize(
        lambda p: -(values @ p),
        np.full(k, 1 / k) + 1e-3 * (values - values.mean()),
        jac=lambda p: -values,
        bounds=[(least, 1)] * k,
        constraints=[
            {"type": "eq", "fun": lambda p: p.sum() - 1},
            {"type": "ineq", "fun": lambda p: radius - BALLS[name][1](p)},
        ],
        method="SLSQP",
        options={"ftol": 1e-14, "maxiter": 1000},
    )
    # 8: the line search finds nothing better.
    assert found.success or found.status == 8, found.message
    return -found.fun


@both
@pytest.mark.parametrize("radius", [0.01, 0.1, 0.5, 2.0])
def test_the_answer_is_the_solvers(name, radius):
    """With the larger radii of the chi-square ball some weights are zero."""
    draw = np.random.default_rng(0)
    for k in (3, 10):
        values = draw.uniform(-1, 1, k)
        p = answer(name, values, radius)
        assert p.sum() == pytest.approx(1)
        assert (p >= 0).all()
        assert BALLS[name][1](p) <= radius + 1e-9
        assert values @ p == pytest.approx(solved(name, values, radius), abs=2e-7)


@pytest.mark.parametrize("radius", [1e-4, 0.1, 0.5])
@pytest.mark.parametrize("k", [2, 10, 200, 1000])
@pytest.mark.parametrize("shape", ["any", "one above", "one below", "tiny", "ties"])
def test_the_kl_ball_meets_its_kkt_conditions(k, shape, radius):
    """p_y (nu - c_y) is one constant, and the divergence is the radius."""
    values = np.random.default_rng(1).uniform(-1, 1, k)
    values = {
        "any": values,
        "one above": np.where(np.arange(k) == 0, 0.3, -0.5),
        "one below": np.where(np.arange(k) == 0, -0.5, 0.3),
        "tiny": 1e-6 * values,
        "ties": np.round(values),
    }[shape]
    p = answer("kl", values, radius)
    if np.ptp(values):
        assert BALLS["kl"][1](p) == pytest.approx(radius, abs=1e-9)
    # 1/p is linear in c: a line through its ends. With two values any p is.
    low, high = values.argmin(), values.argmax()
    if len(np.unique(values)) > 2:
        share = (values - values[low]) / (values[high] - values[low])
        assert p * ((1 - share) / p[low] + share / p[high]) == pytest.approx(np.ones(k), rel=1e-9)
    assert p[high] >= p[low]


@both
def test_no_radius_is_uniform_and_a_large_one_takes_the_worst_class(name):
    values = [0.1, 0.9, -0.3, 0.2]
    assert answer(name, values, 0.0) == pytest.approx(np.full(4, 0.25))
    assert answer(name, values, 40.0)[1] == pytest.approx(1.0, abs=1e-6)


def test_a_radius_beyond_what_numbers_can_express_leaves_out_the_class_at_the_bottom():
    """The one class would need the weight exp(-5000), which is 0; the others share the rest."""
    p = answer("kl", np.where(np.arange(1000) == 0, -0.5, 0.3), 5.0)
    assert p[1:] == pytest.approx(np.full(999, 1 / 999))
    assert p[0] < 1e-100


@both
def test_equal_values_have_the_uniform_answer(name):
    assert answer(name, [0.4] * 5, 0.5) == pytest.approx(np.full(5, 0.2))


@both
def test_classes_at_the_top_share_what_is_taken_from_the_others(name):
    p = answer(name, [0.5, 0.5, -0.5], 3.0)
    assert p[0] == pytest.approx(p[1])
    assert p[2] < 0.01


@both
def test_absent_classes_take_no_part(name):
    present = [True, False, True, True]
    p = answer(name, [0.1, 5.0, 0.7, -0.2], 0.3, present)
    assert p[1] == 0
    assert p[present] == pytest.approx(answer(name, [0.1, 0.7, -0.2], 0.3))


def test_the_value_of_the_chi_square_ball_is_mean_and_deviation():
    values = np.array([0.9, 1.0, 1.1, 1.3])
    expected = values.mean() + np.sqrt(2 * 0.1 * values.var())
    assert values @ answer("chi2", values, 0.1) == pytest.approx(expected)


@pytest.mark.parametrize("radius", [-0.1, float("nan"), float("inf"), "wide", True])
def test_bad_radii_are_refused(radius):
    with pytest.raises(InputError, match="radius must be a finite number of at least 0"):
        objectives.FAAL(radius, 3)
    with pytest.raises(InputError, match="rho must be a finite number of at least 0"):
        objectives.ChiSquare(radius, 3)
