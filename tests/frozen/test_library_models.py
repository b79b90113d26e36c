"""torchvision's models under our attacks: folded and traced, they have the gradient of plain autograd."""

from __future__ import annotations

import pytest
import torch

from cfol_fast import models
from tests.attacks.small_models import awaken
from tests.frozen.gradients import check_attack_gradient


@pytest.mark.parametrize("name", ["resnet18", "mobilenet_v3_small", "efficientnet_b0"])
@pytest.mark.slow
def test_the_attacks_gradient_is_plain_autograds(name: str) -> None:
    torch.manual_seed(0)
    model = awaken(models.create(f"torchvision:{name}", 10, 32, mean=[0.5] * 3, std=[0.25] * 3))
    check_attack_gradient(model, torch.rand(2, 3, 32, 32), torch.tensor([3, 7]))
