"""The last linear layer of a network, which makes the logits."""

from __future__ import annotations

from torch import nn


def last_linear(model: nn.Module) -> nn.Linear | None:
    """None for a network without linear layers. The layer need not make the logits: compare its outputs with
    the number of classes.
    """
    found = None
    for layer in model.modules():
        if isinstance(layer, nn.Linear):
            found = layer
    return found
