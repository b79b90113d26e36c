"""Networks of a few thousand weights, for runs on several processes: `--model tests.distributed.networks:plain`."""

from __future__ import annotations

from torch import nn

PLAIN, DROPOUT = "tests.distributed.networks:plain", "tests.distributed.networks:with_dropout"


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
