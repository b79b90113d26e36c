"""The pre-activation networks: PreActResNet-18 and Wide ResNets of any depth and width (Zagoruyko &
Komodakis, 2016).

BatchNorm and ReLU come before each convolution. The Wide ResNet's layer names are those of the TRADES code,
so that its WRN-34-10 checkpoint fits.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch.nn.functional as F
from torch import Tensor, nn

from cfol_fast.errors import InputError
from cfol_fast.models.resnet import conv1x1, conv3x3, stages


class PreActBlock(nn.Module):
    def __init__(self, inputs: int, width: int, stride: int = 1) -> None:
        super().__init__()
        self.bn1 = nn.BatchNorm2d(inputs)
        self.conv1 = conv3x3(inputs, width, stride)
        self.bn2 = nn.BatchNorm2d(width)
        self.conv2 = conv3x3(width, width)
        self.reshape = stride != 1 or inputs != width
        if self.reshape:
            self.shortcut = nn.Sequential(conv1x1(inputs, width, stride))

    def forward(self, x: Tensor) -> Tensor:
        out = F.relu(self.bn1(x))
        shortcut = self.shortcut(out) if self.reshape else x
        out = self.conv1(out)
        return self.conv2(F.relu(self.bn2(out))) + shortcut


class PreActResNet(nn.Module):
    """x: (B, in_channels, H, W) -> logits (B, num_classes)."""

    def __init__(
        self,
        depths: Sequence[int],
        num_classes: int,
        in_channels: int = 3,
        widths: Sequence[int] = (64, 128, 256, 512),
    ) -> None:
        super().__init__()
        self.conv1 = conv3x3(in_channels, widths[0])
        self.layer1, self.layer2, self.layer3, self.layer4 = stages(PreActBlock, depths, widths)
        self.bn = nn.BatchNorm2d(widths[-1])
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.linear = nn.Linear(widths[-1], num_classes)

    def forward(self, x: Tensor) -> Tensor:
        out = self.layer4(self.layer3(self.layer2(self.layer1(self.conv1(x)))))
        out = F.relu(self.bn(out))
        return self.linear(self.pool(out).flatten(1))


class WideBlock(nn.Module):
    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        self.bn1 = nn.BatchNorm2d(inputs)
        self.conv1 = conv3x3(inputs, width, stride)
        self.bn2 = nn.BatchNorm2d(width)
        self.conv2 = conv3x3(width, width)
        self.equal = inputs == width and stride == 1
        if not self.equal:
            self.convShortcut = conv1x1(inputs, width, stride)

    def forward(self, x: Tensor) -> Tensor:
        activated = F.relu(self.bn1(x))
        out = self.conv1(activated)
        out = self.conv2(F.relu(self.bn2(out)))
        return out + (x if self.equal else self.convShortcut(activated))


class WideStage(nn.Module):
    """One resolution's blocks, under the name `layer` that the TRADES checkpoints use."""

    def __init__(self, blocks: int, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        self.layer = nn.Sequential(
            *(
                WideBlock(inputs if index == 0 else width, width, stride if index == 0 else 1)
                for index in range(blocks)
            )
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x)


class WideResNet(nn.Module):
    """WRN-depth-width; depth = 6 n + 4. x: (B, in_channels, H, W) -> logits (B, num_classes)."""

    def __init__(
        self, depth: int, width: int, num_classes: int, in_channels: int = 3, scale: float = 1.0
    ) -> None:
        super().__init__()
        if depth < 10 or (depth - 4) % 6 != 0:
            nearest = max(10, 6 * round((depth - 4) / 6) + 4)
            raise InputError(
                f"the depth of a Wide ResNet must be 6 n + 4 (10, 16, 22, 28, 34, ...), got {depth}; "
                f"the nearest is wrn-{nearest}-{width}"
            )
        if width < 1:
            raise InputError(f"the width of a Wide ResNet must be at least 1, got {width}")
        blocks = (depth - 4) // 6
        stem, *widths = (max(1, round(w * scale)) for w in (16, 16 * width, 32 * width, 64 * width))
        self.conv1 = conv3x3(in_channels, stem)
        self.block1 = WideStage(blocks, stem, widths[0], stride=1)
        self.block2 = WideStage(blocks, widths[0], widths[1], stride=2)
        self.block3 = WideStage(blocks, widths[1], widths[2], stride=2)
        self.bn1 = nn.BatchNorm2d(widths[2])
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.fc = nn.Linear(widths[2], num_classes)

    def forward(self, x: Tensor) -> Tensor:
        out = self.block3(self.block2(self.block1(self.conv1(x))))
        out = F.relu(self.bn1(out))
        return self.fc(self.pool(out).flatten(1))
