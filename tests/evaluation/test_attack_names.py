"""`evaluate(..., attack="pgd", eps=8 / 255)`: an attack by its name needs a radius."""

import pytest
import torch

import cfol_fast as cf
from cfol_fast.errors import InputError


@pytest.fixture
def images():
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(12, 3))
    return model, torch.rand(30, 3, 2, 2), torch.arange(30) % 3


@pytest.mark.parametrize("eps", [8 / 255, "8/255"])
def test_a_name_is_the_attack_of_that_name_with_this_radius(images, eps):
    named = cf.evaluate(*images, attack="pgd", eps=eps)
    meant = cf.evaluate(*images, attack={"kind": "pgd", "eps": 8 / 255})
    assert named.attacks[0][0] == meant.attacks[0][0]
    assert named.robust.correct.tolist() == meant.robust.correct.tolist()


def test_names_and_dicts_are_attacks_beside_each_other(images):
    found = cf.evaluate(*images, attack=["fgsm", {"kind": "pgd", "eps": 0.25}], eps=0.125)
    assert [(what["kind"], what["eps"]) for what, _ in found.attacks] == [("fgsm", 0.125), ("pgd", 0.25)]


@pytest.mark.parametrize(
    ("attack", "eps", "parts"),
    [
        ("pgd", None, ["'pgd' needs a radius", "eps=8 / 255"]),
        ("pdg", 0.1, ["'pdg'", "did you mean 'pgd'"]),
        ("autoatack", None, ["did you mean 'autoattack'"]),
        ("pgd", "eight", ["'eight'"]),
        ({"eps": 0.1}, 0.2, ["eps=0.2", "attack='pgd'"]),
        (None, 0.2, ["eps=0.2", "attack='pgd'"]),
    ],
)
def test_a_wrong_name_or_a_missing_radius_is_refused(images, attack, eps, parts):
    with pytest.raises(InputError) as error:
        cf.evaluate(*images, attack=attack, eps=eps)
    assert [part for part in parts if part not in str(error.value)] == []
