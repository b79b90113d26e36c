"""config.json records the steps that the training attack takes, and a setting that would be ignored is
refused.
"""

import pytest

from cfol_fast.errors import InputError
from cfol_fast.methods import METHODS
from cfol_fast.runs.config import TrainConfig
from cfol_fast.runs.defaults import evaluation_step
from cfol_fast.training.building import training_attack
from tests.attacks.small_models import SmallNet


def completed(method="erm", **attack):
    return TrainConfig(method=method, device="cpu", attack=attack)


TOLD = [{}, {"step": 0.02}, {"random_start": False}, {"norm": "l2", "eps": 0.5}]


# N-FGSM is for linf.
@pytest.mark.parametrize(
    ("kind", "told"),
    [
        (kind, told)
        for kind in ("pgd", "trades", "fgsm", "n-fgsm")
        for told in TOLD
        if (kind, told.get("norm")) != ("n-fgsm", "l2")
    ],
)
def test_what_is_recorded_is_what_the_attack_does(kind, told):
    chosen = completed(kind=kind, **told)
    described = training_attack(SmallNet(), chosen).describe()
    for name in ("kind", "eps", "step", "steps", "norm", "random_start"):
        assert described[name] == pytest.approx(getattr(chosen.attack, name)), name
    for name, value in told.items():
        assert described[name] == value


@pytest.mark.parametrize("method", METHODS)
def test_every_method_trains_with_the_attack_it_records(method):
    chosen = completed(method)
    described = training_attack(SmallNet(), chosen).describe()
    assert described["kind"] == chosen.attack.kind
    assert described.get("steps", chosen.attack.steps) == chosen.attack.steps


def test_trades_takes_its_own_ten_steps_unless_told():
    assert completed("trades").attack.steps == 10
    assert completed("erm", kind="trades").attack.steps == 10
    assert completed("trades", steps=7).attack.steps == 7
    assert completed("trades", kind="pgd").attack.steps == completed("erm").attack.steps == 7


def test_single_step_attacks_take_steps_of_their_own_size_unless_told():
    eps = completed().attack.eps
    assert completed(kind="fgsm").attack.step == pytest.approx(1.25 * eps)
    assert completed(kind="fgsm", random_start=False).attack.step == eps
    assert completed(kind="n-fgsm").attack.step == eps
    assert completed(kind="fgsm", step=0.03).attack.step == 0.03
    assert completed(kind="fgsm", steps=1).attack.steps == 1


@pytest.mark.parametrize("kind", ["fgsm", "n-fgsm"])
def test_more_than_one_step_is_refused_where_it_would_be_ignored(kind):
    with pytest.raises(InputError, match=f"attack.steps must be 1 for {kind}.*got 7"):
        completed(kind=kind, steps=7)


@pytest.mark.parametrize("kind", ["pgd", "fgsm"])
def test_no_step_that_nobody_gave_is_beyond_a_pixel(kind):
    """Attacks refuse such a step: the test would, after all of the training."""
    config = TrainConfig(device="cpu", attack={"kind": kind, "eps": 0.9}, test={"steps": 1})
    assert (config.attack.step <= 1, config.test.step) == (True, 1.0)
    assert evaluation_step(0.9, 1, "linf") == 1.0
    assert config.replace(attack={"norm": "l2"}).test.step == pytest.approx(2.25)


@pytest.mark.parametrize("part", ["attack", "test"])
def test_a_step_beyond_a_pixel_is_refused_before_training(part):
    with pytest.raises(InputError, match=rf"{part}\.step must be at most 1 for linf.*5/255 is written"):
        TrainConfig({f"{part}.step": 5}, device="cpu")


def test_clean_training_refuses_an_attack_that_it_would_not_use():
    with pytest.raises(InputError, match=r"clean trains on the images as they are, got attack\.kind=pgd"):
        completed("clean", kind="pgd")


@pytest.mark.parametrize("name", ["sgd", "adamw"])
def test_a_momentum_that_never_forgets_is_refused(name):
    with pytest.raises(InputError, match=r"optimizer\.momentum must be at most 0\.99999, got 1"):
        TrainConfig(device="cpu", optimizer={"name": name, "momentum": 1.0})
