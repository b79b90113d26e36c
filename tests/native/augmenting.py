"""What the tests of gather + augment share: the op on either side with the wrapper's keywords, images and
parameters.
"""

import torch

from cfol_fast.ops import Augment
from tests.reference.augment import NEUTRAL

FULL = Augment(pad=2, flip=True, brightness=0.4, contrast=0.4, saturation=0.4, degrees=20.0)


def gather(
    backend,
    images,
    idx,
    *,
    rng=None,
    parameters=None,
    size=None,
    augment=None,
    dtype=torch.float32,
    channels_last=False,
    table=None,
    channels=None,
    first=0,
    fault=None,
):
    height, width = size or images.shape[1:3]
    a = augment or Augment()
    ranges = (a.pad, a.crop, a.flip, a.brightness, a.contrast, a.saturation, a.degrees)
    channels = channels or images.shape[3]
    layout = (dtype == torch.bfloat16, channels_last)
    op = backend.op("gather_augment")
    return op(images, table, idx, rng, parameters, channels, height, width, *ranges, first, *layout, fault)


def row(**changes):
    names = ("top", "left", "flip", "brightness", "contrast", "saturation", "angle", "unused")
    return torch.tensor([[changes.get(name, value) for name, value in zip(names, NEUTRAL, strict=True)]])


def random_images(*shape, seed=0):
    return torch.randint(0, 256, shape, dtype=torch.uint8, generator=torch.Generator().manual_seed(seed))


def random_parameters(n, seed=0, degrees=180.0):
    g = torch.Generator().manual_seed(seed)
    corner = torch.randint(-4, 5, (n, 2), generator=g)
    flip = torch.randint(0, 2, (n, 1), generator=g)
    factors = torch.rand(n, 3, generator=g) * 2
    angle = (torch.rand(n, 1, generator=g) * 2 - 1) * degrees
    return torch.cat([corner, flip, factors, angle, torch.zeros(n, 1)], 1).float()
