"""Always plain is no answer: the networks that people train run fast."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from cfol_fast import models
from cfol_fast.attacks import PGD, how
from tests.attacks.small_models import awaken

OURS = [
    "demo-cnn",
    "resnet18@0.125",
    "resnet50@0.0625",
    "preact-resnet18@0.125",
    "wrn-10-1@0.5",
    "vgg16@0.125",
]
TORCHVISION = [
    "resnet18",
    "resnet50",
    "resnext50_32x4d",
    "mobilenet_v2",
    "mobilenet_v3_small",
    "efficientnet_b0",
]
TORCHVISION += ["shufflenet_v2_x0_5", "squeezenet1_1", "regnet_y_400mf", "mnasnet0_5"]


def check_fast(model: nn.Module, side: int = 32) -> None:
    generator = torch.Generator().manual_seed(0)
    x, y = torch.rand(4, 3, side, side, generator=generator), torch.arange(4)
    attack = PGD(awaken(model), 0.03, steps=1)
    # The proof is made at the first call and at the second.
    for _ in range(3):
        attack(x, y)
        assert how(model) == "fast"


@pytest.mark.parametrize("name", OURS)
def test_our_networks_run_fast(name: str) -> None:
    torch.manual_seed(0)
    check_fast(models.create(name, 10, mean=[0.5, 0.4, 0.3], std=[0.2, 0.3, 0.25]))


@pytest.mark.parametrize("name", TORCHVISION)
@pytest.mark.slow
def test_torchvisions_networks_run_fast(name: str) -> None:
    torch.manual_seed(0)
    check_fast(models.create(f"torchvision:{name}", 10, 32, mean=[0.5] * 3, std=[0.25] * 3))


@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last])
def test_the_result_has_the_memory_layout_of_the_images(memory_format: torch.memory_format) -> None:
    """Else the next line, `model(x_adv)`, ends in an error of `view`."""
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 36, 10)).eval()
    x = torch.rand(4, 3, 8, 8).to(memory_format=memory_format)
    for attack in (PGD(model, 0.03), PGD(model, 0.03, fast=False)):
        assert attack(x, torch.arange(4)).stride() == x.stride()
