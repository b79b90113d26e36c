"""A small trained classifier and its data, made in a second: ten smooth patterns in noise, and a network with
every usual part.
"""

from __future__ import annotations

import copy
from functools import lru_cache
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from cfol_fast.models import Normalize

EPS = 0.037  # leaves about half of the examples right


class Block(nn.Module):
    """A shortcut with a convolution, in-place ReLU and an in-place sum: what folding has to get right."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.shortcut = nn.Sequential(
            nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs)
        )
        self.relu = nn.ReLU(inplace=True)

    def forward(self, x: Tensor) -> Tensor:
        out = self.relu(self.bn1(self.conv1(x)))
        out = self.bn2(self.conv2(out))
        out += self.shortcut(x)
        return self.relu(out)


class SmallNet(nn.Module):
    def __init__(self, classes: int = 10) -> None:
        super().__init__()
        self.normalize = Normalize(3, [0.5, 0.45, 0.4], [0.25, 0.2, 0.3])
        self.stem = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8), nn.ReLU())
        self.block1, self.block2 = Block(8, 12, 1), Block(12, 16, 2)
        self.dropout = nn.Dropout(0.2)
        self.linear = nn.Linear(16 * 25, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = self.block2(self.block1(self.stem(self.normalize(x))))
        return self.linear(self.dropout(x.flatten(1)))


class Trained(NamedTuple):
    model: SmallNet
    x: Tensor
    y: Tensor


def images(n: int, seed: int) -> tuple[Tensor, Tensor]:
    """(n, 3, 10, 10) in [0, 1] and labels."""
    patterns = torch.rand(10, 3, 4, 4, generator=torch.Generator().manual_seed(3))
    patterns = 0.3 + 0.4 * F.interpolate(patterns, size=10, mode="bilinear")
    generator = torch.Generator().manual_seed(seed)
    y = torch.randint(0, 10, (n,), generator=generator)
    return (patterns[y] + 0.12 * torch.randn(n, 3, 10, 10, generator=generator)).clamp(0, 1), y


@lru_cache(maxsize=1)
def _train() -> Trained:
    with torch.random.fork_rng(), torch.enable_grad():
        torch.manual_seed(0)
        model = SmallNet().train()
        optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
        for step in range(80):
            x, y = images(64, 100 + step)
            optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()
            optimizer.step()
    x, y = images(200, 7)
    return Trained(model.eval(), x, y)


def trained() -> Trained:
    """The model in eval mode, a copy for each caller, and 200 test images with their labels."""
    model, x, y = _train()
    model = copy.deepcopy(model)
    model.zero_grad(set_to_none=True)
    return Trained(model, x.clone(), y.clone())


def awaken(model: nn.Module, seed: int = 0) -> nn.Module:
    """BatchNorm with statistics and weights as after training: fresh ones hide mistakes in folding."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for module in model.modules():
            if isinstance(module, nn.BatchNorm2d):
                if module.running_mean is not None:
                    module.running_mean.normal_(0, 0.2, generator=generator)
                    module.running_var.uniform_(0.5, 2, generator=generator)
                if module.weight is not None:
                    module.weight.uniform_(0.5, 1.5, generator=generator)
                    module.bias.normal_(0, 0.2, generator=generator)
    return model.eval()
