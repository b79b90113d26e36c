"""Every policy against the same sums in numpy or by hand; what all of them promise."""

import numpy as np
import pytest
import torch

from cfol_fast import policies
from cfol_fast.errors import InputError
from cfol_fast.methods import METHODS
from cfol_fast.policies import EpochFacts
from cfol_fast.policies.hold_out import projected
from cfol_fast.policies.training_record import distance_weights

K = 4
POLICIES = sorted({m.policy for m in METHODS.values()} - {policies.Neutral}, key=lambda kind: kind.__name__)
every = pytest.mark.parametrize("kind", POLICIES, ids=lambda kind: kind.__name__)


def facts(epoch: int = 1, seed: int = 0, k: int = K) -> EpochFacts:
    errors, clean, robust, losses = torch.rand(
        4, k, generator=torch.Generator().manual_seed(seed), dtype=torch.float64
    )
    return EpochFacts(epoch, errors, clean, clean * robust, losses, float(losses.mean()))


def observed(policy: policies.ClassPolicy, seed: int = 0) -> None:
    draw = torch.Generator().manual_seed(seed)
    policy.observe(torch.arange(40) % K, torch.randn(40, K, generator=draw))


def values(policy: policies.ClassPolicy) -> dict[str, torch.Tensor]:
    return {name: getattr(policy.view, name) for name in policy.factors}


@every
def test_a_policy_starts_neutral_and_changes_its_factors_in_place(kind):
    policy = kind(K, epochs=3)
    before = values(policy)
    assert all(torch.equal(factor, torch.ones(K)) for factor in before.values())
    for epoch in (1, 2):
        observed(policy, epoch)
        policy.epoch_end(facts(epoch, epoch))
    assert policy.acted
    for name, factor in values(policy).items():
        assert factor is before[name]
        assert not torch.equal(factor, torch.ones(K))
        assert factor.min() > 0


@every
def test_a_policy_acts_in_a_run_of_two_epochs_and_says_so_if_it_never_did(kind):
    policy = kind(K, epochs=2)
    assert "never changed" in policy.review()[0]
    observed(policy)
    policy.epoch_end(facts(1))
    assert policy.review() == []


@every
def test_a_policy_that_is_saved_and_loaded_goes_on_the_same(kind):
    """Saved in the middle of the third epoch of five, after which DAFA acts."""
    whole, other = (kind(K, epochs=5) for _ in range(2))
    for epoch in (1, 2):
        observed(whole, epoch)
        whole.epoch_end(facts(epoch, epoch))
    observed(whole, 3)
    state = whole.state_dict()
    other.load_state_dict(state)
    for policy in (whole, other):
        observed(policy, 4)
        for epoch in (3, 4):
            policy.epoch_end(facts(epoch, epoch))
    assert all(torch.equal(a, b) for a, b in zip(values(whole).values(), values(other).values(), strict=True))
    assert whole.acted == other.acted > 0
    with pytest.raises(InputError, match="has the shape"):
        kind(K + 1, epochs=5).load_state_dict(state)


@every
def test_observing_reads_nothing_back(kind):
    policy = kind(K, epochs=2, device="meta")
    policy.observe(torch.zeros(8, dtype=torch.int64, device="meta"), torch.zeros(8, K, device="meta"))


def test_without_a_policy_nothing_is_scaled():
    neutral = policies.Neutral(K, epochs=2)
    assert neutral.radii(torch.zeros(3, dtype=torch.int64), 0.1, 0.02) == {}
    assert all(getattr(neutral.view, name) is None for name in ("weight", "clean", "robust", "radius"))
    assert neutral.review() == []


# ---------------------------------------------------------------- CFA


def test_cfas_radius_is_one_half_plus_the_training_robust_accuracy():
    cfa = policies.CFATrades(3, epochs=200)
    cfa.epoch_end(EpochFacts(9, torch.tensor([0.2, 0.5, 1.0])))
    assert not cfa.acted
    cfa.epoch_end(EpochFacts(10, torch.tensor([0.2, 0.5, 1.0], dtype=torch.float64)))
    assert cfa.view.radius.tolist() == pytest.approx([1.3, 1.0, 0.5])
    assert cfa.view.robust.tolist() == pytest.approx([1.3, 1.0, 0.5])


def test_cfas_step_stays_and_dafas_follows_the_radius():
    y = torch.tensor([1, 0])
    for policy, step in ((policies.CFA(2, 2), 0.02), (policies.DAFA(2, 2), [0.04, 0.01])):
        policy.view.radius.copy_(torch.tensor([0.5, 2.0]))
        radii = policy.radii(y, 0.1, 0.02)
        assert radii["eps"].tolist() == pytest.approx([0.2, 0.05])
        assert radii["step"] == step or radii["step"].tolist() == pytest.approx(step)


def test_a_class_that_was_not_drawn_keeps_its_factor():
    cfa = policies.CFA(2, epochs=10)
    cfa.epoch_end(EpochFacts(1, torch.tensor([0.3, 0.6], dtype=torch.float64)))
    cfa.epoch_end(EpochFacts(2, torch.tensor([0.5, float("nan")], dtype=torch.float64)))
    assert cfa.view.radius.tolist() == pytest.approx([1.0, 0.9])


# ---------------------------------------------------------------- DAFA


def by_double_loop(s: np.ndarray, strength: float) -> np.ndarray:
    k = len(s)
    w = np.ones(k)
    for i in range(k):
        for j in range(k):
            if s[i, i] < s[j, j]:
                w[i] += strength * s[i, j] * s[j, j]
                w[j] -= strength * s[i, j] * s[j, j]
    return w


@pytest.mark.parametrize("seed", range(3))
def test_dafas_weights_are_those_of_the_double_loop_and_sum_to_k(seed):
    s = np.random.default_rng(seed).dirichlet(np.ones(5), size=5)
    found = distance_weights(torch.tensor(s), 0.5).numpy()
    assert found == pytest.approx(by_double_loop(s, 0.5))
    assert found.sum() == pytest.approx(5)


def test_classes_that_are_equally_hard_take_nothing_from_each_other():
    s = torch.tensor([[0.6, 0.4], [0.4, 0.6]], dtype=torch.float64)
    assert distance_weights(s, 1.0).tolist() == [1.0, 1.0]


def test_no_dafa_weight_falls_below_a_tenth():
    s = torch.full((6, 6), 0.1, dtype=torch.float64).fill_diagonal_(0.3)
    s[0, 0], s[1:, 0] = 0.9, 0.5
    assert by_double_loop(s.numpy(), 1.0)[0] < 0
    assert distance_weights(s, 1.0).min() == 0.1


def test_dafa_acts_once_on_the_last_epoch_of_its_warm_up():
    dafa = policies.DAFA(K, epochs=110)
    assert dafa.begin == 70
    for epoch in (69, 70, 71):
        y, logits = torch.arange(40) % K, torch.randn(40, K, generator=torch.Generator().manual_seed(epoch))
        dafa.observe(y[:20], logits[:20])
        dafa.observe(y[20:], logits[20:])
        dafa.epoch_end(facts(epoch))
        if epoch == 70:
            p = logits.softmax(1).double().numpy()
            s = np.stack([p[y.numpy() == c].mean(0) for c in range(K)])
    assert dafa.acted == 1
    expected = by_double_loop(s, 1.0)
    assert dafa.view.weight.tolist() == pytest.approx(expected, rel=1e-5)
    assert dafa.view.radius.tolist() == pytest.approx(expected, rel=1e-5)


# ---------------------------------------------------------------- FRL


def test_frl_by_hand():
    """Three classes; the third errs more than tolerated, clean and at the boundary."""
    frl = policies.FRL(3, epochs=9, tolerance=0.1)
    clean, robust = (torch.tensor(a, dtype=torch.float64) for a in ([0.9, 0.9, 0.3], [0.7, 0.8, 0.0]))
    frl.epoch_end(EpochFacts(1, clean, clean, robust))
    # Clean errors 0.1, 0.1, 0.7, mean 0.3: excess -0.3, -0.3, 0.3. Boundary errors 0.2, 0.1, 0.3, mean 0.2:
    # -0.1, -0.2, 0.0.
    lambda0 = [0, 0, 0.05 * 0.3]
    weight = [1 + 3 * (m - sum(lambda0) / 3) for m in lambda0]
    assert frl.view.clean.tolist() == pytest.approx(weight)
    assert frl.view.robust.tolist() == [1, 1, 1]
    assert frl.view.clean.sum() == pytest.approx(3)
    # exp(2 * 0.2 * excess), not below 0.98
    assert frl.view.radius.tolist() == pytest.approx([0.98, 0.98, 1.0])
    robust[2], robust[0] = -0.4, 0.9
    frl.epoch_end(EpochFacts(2, clean, clean, robust))
    # Boundary errors 0, 0.1, 0.7, mean 4/15: the third's excess is 1/3.
    assert frl.boundary.tolist() == pytest.approx([0, 0, 2 * 0.05 / 3])
    assert frl.view.radius[2] == pytest.approx(np.exp(2 * 0.2 / 3))


def test_frls_multipliers_are_not_negative_and_sum_to_at_most_one_half():
    assert projected(torch.tensor([-1.0, 0.1, 0.2])).tolist() == pytest.approx([0, 0.1, 0.2])
    assert projected(torch.tensor([-1.0, 1.0, 3.0])).tolist() == pytest.approx([0, 0.125, 0.375])
    assert projected(torch.tensor([-1.0, -2.0])).tolist() == [0, 0]


def test_frls_weights_stay_positive_and_its_radius_bounded():
    frl = policies.FRL(3, epochs=99)
    clean, robust = torch.tensor([1.0, 1.0, 0.9]).double(), torch.tensor([1.0, 1.0, 0.0]).double()
    for epoch in range(1, 60):
        frl.epoch_end(EpochFacts(epoch, clean, clean, robust))
    assert frl.view.robust.min() == pytest.approx(0.5)
    assert frl.view.radius.tolist() == pytest.approx([0.98, 0.98, 3.0])


def test_without_remargin_frl_leaves_the_radius_and_tolerates_more():
    frl = policies.FRL(K, epochs=9, remargin=False)
    frl.epoch_end(facts())
    assert torch.equal(frl.view.radius, torch.ones(K))
    assert (frl.tolerance, policies.FRL(K, epochs=9).tolerance) == (0.1, 0.07)


# ---------------------------------------------------------------- WAT


@pytest.mark.parametrize("released", [False, True])
def test_wats_weights_are_hedges_over_the_classes_and_the_mean(released):
    wat, costs = policies.WAT(3, epochs=9, released=released), np.zeros(4)
    for losses in ([1.0, 2.0, 4.5], [0.5, 3.0, 4.0]):
        wat.epoch_end(EpochFacts(1, torch.zeros(3), None, None, torch.tensor(losses).double(), 2.5))
        costs += [*losses, 2.5]
    p = np.exp(0.1 * costs) / np.exp(0.1 * costs).sum()
    expected = 3 * p[:3] + (3 if released else 1) * p[3]
    assert wat.view.weight.tolist() == pytest.approx(expected)


def test_equal_losses_leave_wats_weights_at_one_and_a_constant_changes_nothing():
    equal, shifted, plain = (policies.WAT(3, epochs=9) for _ in range(3))
    losses = torch.tensor([1.0, 2.0, 4.5]).double()
    equal.epoch_end(EpochFacts(1, losses, None, None, torch.full_like(losses, 7.0), 7.0))
    plain.epoch_end(EpochFacts(1, losses, None, None, losses, 2.5))
    shifted.epoch_end(EpochFacts(1, losses, None, None, losses + 100, 102.5))
    assert equal.view.weight.tolist() == pytest.approx([1, 1, 1])
    assert shifted.view.weight.tolist() == pytest.approx(plain.view.weight.tolist())


@pytest.mark.parametrize("kind", [policies.FRL, policies.WAT])
def test_an_epoch_without_validation_changes_nothing(kind):
    policy = kind(K, epochs=9)
    policy.epoch_end(EpochFacts(1, torch.zeros(K)))
    assert not policy.acted


# ---------------------------------------------------------------- bad values


@pytest.mark.parametrize(
    ("kind", "option", "message"),
    [
        (policies.CFA, {"begin": 1.0}, r"begin must be a share of the run in \[0, 1\), got 1.0"),
        (policies.CFA, {"offset": -1}, "offset must be a number of at least 0, got -1"),
        (policies.DAFA, {"strength": "much"}, "strength must be a number of at least 0, got 'much'"),
        (policies.FRL, {"remargin": 1}, "remargin must be true or false, got 1"),
        (policies.WAT, {"hedge_rate": float("nan")}, "hedge_rate must be a number of at least 0, got nan"),
    ],
)
def test_bad_options_are_refused(kind, option, message):
    with pytest.raises(InputError, match=message):
        kind(K, epochs=9, **option)
