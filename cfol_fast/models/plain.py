"""Networks without shortcuts: VGG-16 with BatchNorm (the paper's second architecture) and the demo's small
network.
"""

from __future__ import annotations

from torch import Tensor, nn

from cfol_fast.models.resnet import conv3x3

VGG16 = (64, 64, "M", 128, 128, "M", 256, 256, 256, "M", 512, 512, 512, "M", 512, 512, 512, "M")


class VGG(nn.Module):
    """x: (B, in_channels, H, W) -> logits (B, num_classes).

    The pools round sizes up, which makes no difference at multiples of 32 and keeps 28 px images large enough
    for all five.
    """

    def __init__(self, num_classes: int, in_channels: int = 3, scale: float = 1.0) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        inputs = in_channels
        for entry in VGG16:
            if isinstance(entry, str):
                layers.append(nn.MaxPool2d(kernel_size=2, stride=2, ceil_mode=True))
                continue
            width = max(1, round(entry * scale))
            layers += [conv3x3(inputs, width), nn.BatchNorm2d(width), nn.ReLU()]
            inputs = width
        self.features = nn.Sequential(*layers)
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.classifier = nn.Linear(inputs, num_classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.classifier(self.pool(self.features(x)).flatten(1))


class DemoNet(nn.Module):
    """Three 3x3 convolutions with BatchNorm (16, 32, 64 channels; strides 1, 2, 2), then one linear layer on
    the map.

    Small enough that adversarial training takes minutes on two cores, large enough that one class stays
    visibly weaker.
    x: (B, in_channels, image_size, image_size) -> logits (B, num_classes).
    """

    def __init__(
        self, num_classes: int, in_channels: int = 3, image_size: int = 28, scale: float = 1.0
    ) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        inputs, side = in_channels, image_size
        for width, stride in ((16, 1), (32, 2), (64, 2)):
            width = max(1, round(width * scale))
            layers += [conv3x3(inputs, width, stride), nn.BatchNorm2d(width), nn.ReLU()]
            inputs, side = width, (side + stride - 1) // stride
        self.features = nn.Sequential(*layers)
        self.linear = nn.Linear(inputs * side * side, num_classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(self.features(x).flatten(1))
