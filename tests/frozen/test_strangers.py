"""Models of strangers under their first attack and in `evaluate`: what the fast network finds is what the
model itself finds.
"""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import cfol_fast as cf
from cfol_fast.attacks import how
from cfol_fast.frozen.outputs import logits_in
from tests.attacks.small_models import awaken
from tests.frozen import grammar
from tests.frozen.strangers import CLASSES, SIDE, STRANGERS

IMAGES = 40
pytestmark = pytest.mark.filterwarnings("ignore")


def build(name: str) -> nn.Module:
    torch.manual_seed(0)
    return awaken(STRANGERS[name][1]()).double().eval()


def images(count: int) -> Tensor:
    generator = torch.Generator().manual_seed(1)
    return torch.rand(count, 3, SIDE, SIDE, generator=generator, dtype=torch.float64)


@pytest.mark.parametrize("name", STRANGERS)
def test_the_first_attack_is_the_plain_one(name: str) -> None:
    model, plain, x = build(name), build(name), images(4)
    grammar.check_equal(model, plain, x, torch.arange(4))
    assert how(model).startswith(STRANGERS[name][0]), how(model)


@pytest.mark.parametrize("name", STRANGERS)
@pytest.mark.slow
def test_evaluate_finds_what_it_finds_with_plain_passes(name: str) -> None:
    x = images(IMAGES)
    with torch.no_grad():
        y = logits_in(build(name)(x)).argmax(1)
    found = []
    for fast in (True, False):
        model = build(name)
        torch.manual_seed(5)
        attack = {"eps": 0.1, "steps": 3, "fast": fast}
        result = cf.evaluate(model, x, y, attack=attack, num_classes=CLASSES, batch_size=16)
        found.append((result.clean.per_class.tolist(), result.robust.per_class.tolist()))
    torch.testing.assert_close(*found, equal_nan=True, rtol=0, atol=0)
