"""PGD's start and step, in plain torch."""

import numpy as np
import torch
from torch import Tensor

from tests.reference.philox import random4, uniform01


def _planes(x: Tensor) -> tuple[int, int, int]:
    batch = x.shape[0]
    channels = x.shape[1] if x.dim() == 4 else 1
    return batch, channels, x[:1].numel() // channels if batch else int(np.prod(x.shape[1:])) // channels


def _column(value: float | Tensor, x: Tensor) -> Tensor:
    value = torch.as_tensor(value, dtype=torch.float64).expand(x.shape[0])
    return value.view(-1, *[1] * (x.dim() - 1))


def _words(x: Tensor, seed: int, step: int, first: int) -> np.ndarray:
    """Four pixels of a plane share a slot: (batch, channels, quads, 4) uint32."""
    batch, channels, plane = _planes(x)
    quads = (plane + 3) // 4
    slots = first * channels * quads + np.arange(batch * channels * quads)
    words = random4(seed, step, "attack_start", slots)
    return words.reshape(batch, channels, quads, 4)


def pgd_start(
    x: Tensor,
    eps: float | Tensor,
    seed: int,
    step: int,
    norm: str = "linf",
    slots: tuple[int, int] | None = None,
) -> Tensor:
    batch, channels, plane = _planes(x)
    first, whole = slots or (0, batch)
    words = _words(x, seed, step, first)
    if norm == "linf":
        u = uniform01(words).reshape(batch, channels, words.shape[2] * 4)[..., :plane].reshape(x.shape)
        noise = (2 * torch.from_numpy(u).double() - 1) * _column(eps, x)
        return (x.double() + noise).clamp(0, 1).float()
    u = uniform01(words).astype(np.float64)
    radius = np.sqrt(-2 * np.log(u[..., [0, 2]] + 0.5 / 2**24))
    angle = 2 * np.pi * u[..., [1, 3]]
    normal = np.stack([radius * np.cos(angle), radius * np.sin(angle)], -1).reshape(
        batch, channels, words.shape[2] * 4
    )[..., :plane]
    direction = torch.from_numpy(normal.reshape(batch, channels * plane))
    direction = direction / direction.norm(dim=1, keepdim=True)
    radius_slots = whole * words.shape[1] * words.shape[2] + first + np.arange(batch)
    share = uniform01(random4(seed, step, "attack_start", radius_slots)[:, 0]).astype(np.float64)
    length = torch.from_numpy((share + 0.5 / 2**24) ** (1 / (channels * plane))).unsqueeze(1)
    return (x.double() + (direction * length).view(x.shape) * _column(eps, x)).clamp(0, 1).float()


def pgd_step(
    adv: Tensor, x: Tensor, grad: Tensor, step: float | Tensor, eps: float | Tensor, norm: str = "linf"
) -> Tensor:
    adv, x, grad = adv.double(), x.double(), grad.double()
    eps, step = _column(eps, x), _column(step, x)
    if norm == "linf":
        return torch.minimum(torch.maximum(adv + step * grad.sign(), x - eps), x + eps).clamp(0, 1).float()
    flat = grad.flatten(1).norm(dim=1).view_as(eps)
    delta = adv + step * torch.where(flat > 1e-12, grad / flat.clamp_min(1e-12), torch.zeros_like(grad)) - x
    length = delta.flatten(1).norm(dim=1).view_as(eps)
    return (
        (x + delta * torch.where(length > eps, eps / length.clamp_min(1e-300), torch.ones_like(eps)))
        .clamp(0, 1)
        .float()
    )
