"""ResNet-18 to ResNet-152 with the stem for small images (He et al., 2016); the first is the paper's network.

The names of the layers are those of the usual CIFAR code (kuangliu, MadryLab/robustness, RobustBench), so
that their checkpoints fit after a prefix is removed. Pooling is adaptive: 32, 64, 96 and 160 px use the same
network.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch.nn.functional as F
from torch import Tensor, nn


def conv3x3(inputs: int, outputs: int, stride: int = 1) -> nn.Conv2d:
    return nn.Conv2d(inputs, outputs, kernel_size=3, stride=stride, padding=1, bias=False)


def conv1x1(inputs: int, outputs: int, stride: int = 1) -> nn.Conv2d:
    return nn.Conv2d(inputs, outputs, kernel_size=1, stride=stride, bias=False)


class BasicBlock(nn.Module):
    expansion = 1

    def __init__(self, inputs: int, width: int, stride: int = 1) -> None:
        super().__init__()
        self.conv1 = conv3x3(inputs, width, stride)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = conv3x3(width, width)
        self.bn2 = nn.BatchNorm2d(width)
        self.shortcut = projection(inputs, width * self.expansion, stride)

    def forward(self, x: Tensor) -> Tensor:
        out = F.relu(self.bn1(self.conv1(x)))
        out = self.bn2(self.conv2(out))
        return F.relu(out + self.shortcut(x))


class Bottleneck(nn.Module):
    expansion = 4

    def __init__(self, inputs: int, width: int, stride: int = 1) -> None:
        super().__init__()
        self.conv1 = conv1x1(inputs, width)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = conv3x3(width, width, stride)
        self.bn2 = nn.BatchNorm2d(width)
        self.conv3 = conv1x1(width, width * self.expansion)
        self.bn3 = nn.BatchNorm2d(width * self.expansion)
        self.shortcut = projection(inputs, width * self.expansion, stride)

    def forward(self, x: Tensor) -> Tensor:
        out = F.relu(self.bn1(self.conv1(x)))
        out = F.relu(self.bn2(self.conv2(out)))
        out = self.bn3(self.conv3(out))
        return F.relu(out + self.shortcut(x))


def projection(inputs: int, outputs: int, stride: int) -> nn.Sequential:
    """The shortcut: empty where the shapes agree, otherwise a 1x1 convolution with BatchNorm."""
    if stride == 1 and inputs == outputs:
        return nn.Sequential()
    return nn.Sequential(conv1x1(inputs, outputs, stride), nn.BatchNorm2d(outputs))


def stages(
    block: Callable[[int, int, int], nn.Module],
    depths: Sequence[int],
    widths: Sequence[int],
    expansion: int = 1,
) -> list[nn.Sequential]:
    """`depths[i]` blocks of `widths[i]` for each stage; every stage but the first halves the height and width
    of its maps.

    block: called with the channels that come in, the width and the stride; expansion times the width comes
    out.
    """
    found = []
    inputs = widths[0]
    for number, (width, depth) in enumerate(zip(widths, depths, strict=True)):
        blocks = []
        for index in range(depth):
            blocks.append(block(inputs, width, 2 if number > 0 and index == 0 else 1))
            inputs = width * expansion
        found.append(nn.Sequential(*blocks))
    return found


class ResNet(nn.Module):
    """x: (B, in_channels, H, W) -> logits (B, num_classes)."""

    def __init__(
        self,
        block: type[BasicBlock] | type[Bottleneck],
        depths: Sequence[int],
        num_classes: int,
        in_channels: int = 3,
        widths: Sequence[int] = (64, 128, 256, 512),
    ) -> None:
        super().__init__()
        self.conv1 = conv3x3(in_channels, widths[0])
        self.bn1 = nn.BatchNorm2d(widths[0])
        self.layer1, self.layer2, self.layer3, self.layer4 = stages(block, depths, widths, block.expansion)
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.linear = nn.Linear(widths[-1] * block.expansion, num_classes)

    def forward(self, x: Tensor) -> Tensor:
        out = F.relu(self.bn1(self.conv1(x)))
        out = self.layer4(self.layer3(self.layer2(self.layer1(out))))
        return self.linear(self.pool(out).flatten(1))
