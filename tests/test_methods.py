"""The table of methods: each row can be trained with, and has the paper's defaults."""

from __future__ import annotations

import dataclasses
import re

import pytest
import torch
from torch import nn

from cfol_fast import methods, objectives, policies, sampling
from cfol_fast.errors import InputError
from cfol_fast.methods import METHODS, Method

NAMES = ["erm", "cfol", "cfol-reweighted", "fol", "cvar", "lcvar", "trades", "two-run", "clean", "group-dro"]
BEYOND = [
    "cfol-trades",
    "cfa",
    "cfa-trades",
    "dafa",
    "dafa-trades",
    "frl",
    "wat",
    "faal",
    "chi2",
    "lhcvar",
    "balanced",
]
ON_TRADES = ["trades", "cfol-trades", "cfa-trades", "dafa-trades", "frl", "wat"]
LABELS = torch.arange(90) % 3
every = pytest.mark.parametrize("method", METHODS.values(), ids=METHODS)


def test_every_method_of_the_paper_and_beyond_has_its_row() -> None:
    assert list(METHODS) == NAMES + BEYOND
    assert all(name == method.name for name, method in METHODS.items())


@every
def test_a_row_says_what_it_is_and_where_its_numbers_come_from(method: Method) -> None:
    assert method.title
    assert method.section
    assert method.summary.endswith(".")
    assert bool(method.origin) == bool(method.defaults)
    assert all(re.search(rf"\b{name}\b", method.origin) for name in method.defaults)
    assert method.attack in ("pgd", "trades", None)


@every
def test_a_training_loop_needs_only_the_row(method: Method) -> None:
    torch.manual_seed(0)
    x = torch.rand(90, 1, 2, 2)
    model = nn.Sequential(nn.Flatten(), nn.Linear(4, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    start = model[1].weight.detach().clone()
    previous = None
    for _ in range(method.stages):
        sampler = method.sampler(LABELS, 3, {}, seed=1, device="cpu", previous=previous)
        objective = method.objective({}, 3)
        for _ in range(3):
            idx = sampler.draw(16)
            y, clean = LABELS[idx], x[idx]
            attacked = clean if method.attack is None else (clean + 0.1).clamp(0, 1)
            loss, logits = objective(model, objectives.Batch(clean, attacked, y, sampler.weight(y)))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            sampler.observe(idx, y, logits.argmax(1) != y, sampler.ticket())
        previous = torch.tensor([0.9, 0.5, 0.1])
    assert not torch.equal(model[1].weight, start)


def test_defaults_are_the_papers() -> None:
    assert METHODS["cfol"].defaults["eta"] == 2e-6
    assert METHODS["cfol"].defaults["gamma"] == 0.5
    assert METHODS["fol"].defaults["eta"] == 1e-7
    assert METHODS["lcvar"].defaults["alpha"] == 0.8
    assert METHODS["trades"].defaults["beta"] == 6
    assert METHODS["cfol"].params(dataset="imagenette")["eta"] == pytest.approx(2.5 * 2e-6)
    assert METHODS["cfol"].params(dataset="cifar10")["eta"] == 2e-6


def test_attacks_and_stages_are_the_rows_own() -> None:
    others = {name: m.attack for name, m in METHODS.items() if m.attack != "pgd"}
    assert others == {**dict.fromkeys(ON_TRADES, "trades"), "clean": None}
    assert {name: m.stages for name, m in METHODS.items() if m.stages != 1} == {"two-run": 2}


@every
def test_the_objective_makes_use_of_every_factor_of_the_policy(method: Method) -> None:
    policy = method.class_policy({}, 3, epochs=10)
    assert set(policy.factors) <= method.objective({}, 3).factors | {"radius"}
    assert set(policy.options) <= set(method.defaults)


def test_parameters_reach_the_policy() -> None:
    dafa = METHODS["dafa"].class_policy({"begin": "1/2", "strength": 2}, 3, epochs=10)
    assert isinstance(dafa, policies.DAFA)
    assert (dafa.begin, dafa.strength, dafa.num_classes) == (5, 2, 3)
    assert METHODS["dafa"].params(dataset="cifar100")["strength"] == 1.5
    assert isinstance(METHODS["erm"].class_policy({}, 3, epochs=10), policies.Neutral)


def test_columns_combine() -> None:
    """CFOL's sampler with DAFA's radii is a row of the same table."""
    row = dataclasses.replace(
        METHODS["cfol"],
        policy=policies.DAFA,
        defaults={**METHODS["cfol"].defaults, **METHODS["dafa"].defaults},
    )
    assert isinstance(row.sampler(LABELS, 3), sampling.ClassSampler)
    assert isinstance(row.class_policy({}, 3, epochs=10), policies.DAFA)


def test_parameters_reach_the_sampler_and_the_objective() -> None:
    s = METHODS["cfol"].sampler(LABELS, 3, {"eta": "1/1000", "gamma": 0.25, "prior": [0.2, 0.3, 0.5]}, seed=3)
    assert isinstance(s, sampling.ClassSampler)
    assert (s.eta, s.gamma, s.reweight) == (0.001, 0.25, False)
    assert s.q.tolist() == pytest.approx([0.2, 0.3, 0.5])
    reweighted = METHODS["cfol-reweighted"].sampler(LABELS, 3)
    assert isinstance(reweighted, sampling.ClassSampler)
    assert reweighted.reweight
    lcvar = METHODS["lcvar"].objective({"alpha": "0.3"}, 3)
    assert isinstance(lcvar, objectives.LCVaR)
    assert (lcvar.alpha, lcvar.num_classes) == (0.3, 3)


def test_the_step_size_may_be_the_theorem_s_or_follow_the_run() -> None:
    named = METHODS["cfol"].sampler(LABELS, 3, {"eta": "theory", "C": 100})
    automatic = METHODS["fol"].sampler(LABELS, 3, {"eta": "auto"}, draws=80_128)
    assert named.eta == pytest.approx(0.0302, abs=1e-4)
    assert automatic.eta == pytest.approx(1.73e-5, rel=1e-3)


def test_the_second_run_is_drawn_by_the_accuracies_of_the_first() -> None:
    row = METHODS["two-run"]
    assert isinstance(row.sampler(LABELS, 3), sampling.UniformSampler)
    second = row.sampler(LABELS, 3, {"gamma": 0.9}, previous=[0.1, 0.5, 0.9])
    assert isinstance(second, sampling.FixedClassSampler)
    assert torch.equal(second.p, sampling.two_run_distribution([0.1, 0.5, 0.9], 0.9))


def test_group_dro_weights_the_loss_of_uniformly_drawn_classes() -> None:
    s = METHODS["group-dro"].sampler(LABELS, 3, {"eta": 0.01})
    for _ in range(10):
        y = LABELS[s.draw(128)]
        s.observe(y, y, y == 2, s.ticket())
    weight = s.weight(torch.arange(3))
    assert weight is not None
    assert weight.argmax() == 2
    assert weight[2] > 2.9


def test_names_that_do_not_exist_are_refused_with_the_nearest() -> None:
    assert methods.get("cfol") is METHODS["cfol"]
    with pytest.raises(InputError, match=r"unknown method 'cflo'.*did you mean 'cfol'"):
        methods.get("cflo")
    with pytest.raises(InputError, match=r"cfol has no parameter 'gama'.*did you mean 'gamma'"):
        METHODS["cfol"].params({"gama": 0.5})
    with pytest.raises(InputError, match=r"erm .*'eta'"):
        METHODS["erm"].params({"eta": 0.5})


def test_bad_values_are_refused() -> None:
    with pytest.raises(ValueError, match="eta"):
        METHODS["cfol"].sampler(LABELS, 3, {"eta": "quick"})
    with pytest.raises(ValueError, match="alpha"):
        METHODS["cvar"].objective({"alpha": 0}, 3)


def test_a_default_says_for_which_data_it_is_another():
    """Beside a command that trains with 1e-4 or auto, 2e-06 alone would be wrong."""
    words = METHODS["cfol"].default_in_words("eta")
    assert words == "2e-06 (imagenette 5e-06, fashion-mini 0.0001, data that are not the paper's: auto)"
    assert METHODS["cfol"].default_in_words("gamma") == "0.5"
    for row in METHODS.values():
        for own in row.datasets.values():
            assert all(f"{value:g}" in row.default_in_words(name) for name, value in own.items())
