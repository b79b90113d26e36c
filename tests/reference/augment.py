"""Gather and augment, one image at a time in numpy float64, written from torchvision's documentation and
formulas.
"""

import math

import numpy as np
import torch
from torch import Tensor

from tests.reference.philox import random4, uniform01

NEUTRAL = (0.0, 0.0, 0.0, 1.0, 1.0, 1.0, 0.0, 0.0)
GREY = (0.2989, 0.587, 0.114)


def centre(extent: int, size: int) -> int:
    """torchvision.transforms.CenterCrop: round half to even, and less padding before than after."""
    return round((extent - size) / 2) if extent >= size else -((size - extent) // 2)


def augment_parameters(augment, seed: int, step: int, sizes: list, size: tuple, first: int = 0) -> Tensor:
    """The parameters of a batch whose images have the given (height, width): (B, 8) float32."""
    rows = []
    for i, (height, width) in enumerate(sizes):
        words = random4(seed, step, "augment", [2 * (first + i), 2 * (first + i) + 1]).reshape(8)
        u = uniform01(words)

        def corner(word: int, extent: int, length: int) -> int:
            room = extent + 2 * augment.pad - length
            if not augment.crop or room < 0:
                return centre(extent, length)
            return (int(word) * (room + 1) >> 32) - augment.pad

        def factor(u: np.float32, b: float) -> float:
            low = max(0.0, 1 - b)
            return low + float(u) * (1 + b - low)

        rows.append(
            (
                corner(words[0], height, size[0]),
                corner(words[1], width, size[1]),
                float(augment.flip and u[2] >= 0.5),
                factor(u[3], augment.brightness),
                factor(u[4], augment.contrast),
                factor(u[5], augment.saturation),
                (2 * float(u[6]) - 1) * augment.degrees,
                0.0,
            )
        )
    return torch.tensor(rows, dtype=torch.float32).view(-1, 8)


def _blend(a: np.ndarray, b: np.ndarray | float, ratio: float) -> np.ndarray:
    return np.clip(a * ratio + b * (1 - ratio), 0, 1)


def _grey(image: np.ndarray) -> np.ndarray:
    return image if image.shape[2] == 1 else (image * GREY).sum(2, keepdims=True)


def _rotate(image: np.ndarray, degrees: float) -> np.ndarray:
    height, width = image.shape[:2]
    c, s = math.cos(math.radians(degrees)), math.sin(math.radians(degrees))
    out = np.zeros_like(image)
    for y in range(height):
        for x in range(width):
            dx, dy = x - (width - 1) / 2, y - (height - 1) / 2
            from_x, from_y = (
                round(c * dx - s * dy + (width - 1) / 2),
                round(s * dx + c * dy + (height - 1) / 2),
            )
            if 0 <= from_x < width and 0 <= from_y < height:
                out[y, x] = image[from_y, from_x]
    return out


def augment_image(image: Tensor, parameters: Tensor, size: tuple) -> Tensor:
    """image: (H, W, C) uint8. Returns (C, h, w) float64."""
    top, left, flip, brightness, contrast, saturation, angle, _ = parameters.tolist()
    source = image.numpy() / 255.0
    out = np.zeros((*size, source.shape[2]))
    for y in range(size[0]):
        for x in range(size[1]):
            from_y, from_x = int(top) + y, int(left) + x
            if 0 <= from_y < source.shape[0] and 0 <= from_x < source.shape[1]:
                out[y, x] = source[from_y, from_x]
    if flip:
        out = out[:, ::-1]
    out = np.clip(out * brightness, 0, 1)
    out = _blend(out, _grey(out).mean(), contrast)
    if out.shape[2] == 3:
        out = _blend(out, _grey(out), saturation)
    if angle:
        out = _rotate(out, angle)
    return torch.from_numpy(np.ascontiguousarray(out.transpose(2, 0, 1)))


def augment_with(images: list, parameters: Tensor, size: tuple) -> Tensor:
    """images: uint8 (H, W, C) each, one for each row of parameters. Returns (B, C, h, w) float32."""
    return torch.stack([augment_image(i, p, size) for i, p in zip(images, parameters, strict=True)]).float()
