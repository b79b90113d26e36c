"""The gradient that an attack climbs, beside plain autograd's through the model in eval mode."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from cfol_fast.frozen.network import frozen


def gradient(network: nn.Module | object, x: Tensor, y: Tensor) -> Tensor:
    x = x.clone().requires_grad_()
    return torch.autograd.grad(F.cross_entropy(network(x), y), x)[0]  # type: ignore[operator]


def check_attack_gradient(model: nn.Module, x: Tensor, y: Tensor) -> None:
    """The model is given in training mode, with dropout and stochastic depth at work, and is left there."""
    model.train()
    with frozen(model, x.device) as network:
        found = gradient(network, x, y)
    assert model.training
    wanted = gradient(model.eval(), x, y)
    # Folding rounds otherwise than BatchNorm: in units of the largest entry.
    assert float(wanted.abs().max()) > 0
    torch.testing.assert_close(found / wanted.abs().max(), wanted / wanted.abs().max(), rtol=1e-3, atol=1e-3)
