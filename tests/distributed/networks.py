"""Networks of a few thousand weights, for runs on several processes: `--model
tests.distributed.networks:plain`.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

PLAIN, DROPOUT = "tests.distributed.networks:plain", "tests.distributed.networks:with_dropout"
UNUSED, SKIPPING = "tests.distributed.networks:with_unused", "tests.distributed.networks:skipping"


def plain(num_classes: int, in_channels: int, image_size: int) -> nn.Module:
    """No layer that sees other examples: a batch gives the same gradients whole and in parts."""
    side = image_size // 4
    return nn.Sequential(
        nn.Conv2d(in_channels, 4, 4, stride=4),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(4 * side * side, num_classes),
    )


def with_dropout(num_classes: int, in_channels: int, image_size: int) -> nn.Module:
    """BatchNorm, whose statistics are a shard's, and dropout, whose masks are."""
    side = image_size // 4
    return nn.Sequential(
        nn.Conv2d(in_channels, 4, 4, stride=4),
        nn.BatchNorm2d(4),
        nn.ReLU(),
        nn.Flatten(),
        nn.Dropout(0.3),
        nn.Linear(4 * side * side, num_classes),
    )


class WithMore(nn.Module):
    """The network above with one more layer, which no step uses, as auxiliary heads are; or which a shard
    uses or not, as LayerDrop does.
    """

    def __init__(self, layers: nn.Module, num_classes: int, chance: float) -> None:
        super().__init__()
        self.layers, self.more, self.chance = layers, nn.Linear(num_classes, num_classes), chance

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.layers(x)
        takes = self.training and float(torch.rand(())) < self.chance
        return logits + self.more(logits) if takes else logits


def with_unused(num_classes: int, in_channels: int, image_size: int) -> nn.Module:
    return WithMore(with_dropout(num_classes, in_channels, image_size), num_classes, 0.0)


def skipping(num_classes: int, in_channels: int, image_size: int) -> nn.Module:
    return WithMore(with_dropout(num_classes, in_channels, image_size), num_classes, 0.5)
