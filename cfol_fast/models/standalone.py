"""A network as Python code that needs torch, or the model's own library, but not this package: for exported
files.

Our own networks are plain torch, so their code is copied as it stands.
"""

from __future__ import annotations

import inspect
import re
from typing import Any

from cfol_fast.models import factories, libraries, plain, preact, resnet, zoo
from cfol_fast.models.spec import ModelSpec

IMPORTS = """\
from __future__ import annotations

from collections import OrderedDict

import torch
from torch import Tensor, nn
"""
# What the code of our own networks needs besides.
OUR_IMPORTS = """\
from collections.abc import Callable, Sequence

import torch.nn.functional as F
"""
NORMALIZE = '''
class Normalize(nn.Module):
    """(x - mean) / std for each channel."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(1, channels, 1, 1))
        self.register_buffer("std", torch.ones(1, channels, 1, 1))

    def forward(self, x: Tensor) -> Tensor:
        return (x - self.mean) / self.std
'''
CONVOLUTIONS = (resnet.conv3x3, resnet.conv1x1)
RESNET = (
    *CONVOLUTIONS,
    resnet.projection,
    resnet.stages,
    resnet.BasicBlock,
    resnet.Bottleneck,
    resnet.ResNet,
)
PREACT = (*CONVOLUTIONS, resnet.stages, preact.PreActBlock, preact.PreActResNet)
WIDE = (*CONVOLUTIONS, preact.WideBlock, preact.WideStage, preact.WideResNet)
# name -> (what its code consists of, how it is called): k classes, c channels, images of s px, widths, a
# factor of width.
OURS: dict[str, tuple[tuple[Any, ...], str]] = {
    "resnet18": (RESNET, "ResNet(BasicBlock, (2, 2, 2, 2), {k}, {c}, {widths})"),
    "resnet34": (RESNET, "ResNet(BasicBlock, (3, 4, 6, 3), {k}, {c}, {widths})"),
    "resnet50": (RESNET, "ResNet(Bottleneck, (3, 4, 6, 3), {k}, {c}, {widths})"),
    "resnet101": (RESNET, "ResNet(Bottleneck, (3, 4, 23, 3), {k}, {c}, {widths})"),
    "resnet152": (RESNET, "ResNet(Bottleneck, (3, 8, 36, 3), {k}, {c}, {widths})"),
    "preact-resnet18": (PREACT, "PreActResNet((2, 2, 2, 2), {k}, {c}, {widths})"),
    "vgg16": ((resnet.conv3x3, plain.VGG), "VGG({k}, {c}, {factor})"),
    "demo-cnn": ((resnet.conv3x3, plain.DemoNet), "DemoNet({k}, {c}, {s}, {factor})"),
}


def python_code(spec: ModelSpec) -> str:
    """Code that ends with `model`, of random weights and without normalisation: both are in the file that it
    loads.
    """
    code, network = _network(spec)
    made = f"model = nn.Sequential(OrderedDict(normalize=Normalize({spec.in_channels}), net={network}))"
    return f"{IMPORTS}{code}\n{NORMALIZE}\n\n{made}\n"


def _network(spec: ModelSpec) -> tuple[str, str]:
    """What has to stand before, and the expression that makes the network."""
    k, c, s = spec.num_classes, spec.in_channels, spec.image_size
    library = zoo.library_name(spec.name)
    if library is not None:
        called, options = libraries.call(library, k, c, s)
        return f"import {called.partition('.')[0]}\n", f"{called}({options})"
    if factories.is_factory(spec.name):
        module, _, path = spec.name.partition(":")
        return f"import {module}\n", f"{module}.{path}({factories.arguments(spec.name, k, c, s)})"
    base, factor = zoo.base_and_factor(spec.name)
    if base in zoo.REGISTERED:
        factory = zoo.REGISTERED[base]
        return f"import {factory.__module__}\n", f"{factory.__module__}.{factory.__qualname__}({k}, {c}, {s})"
    wide = re.fullmatch(zoo.WIDE, base)
    parts, call = (
        (WIDE, f"WideResNet({wide[1]}, {wide[2]}, {{k}}, {{c}}, {{factor}})") if wide else OURS[base]
    )
    code = "".join(f"\n\n{inspect.getsource(part)}" for part in parts)
    # Two names that stand at the head of their modules.
    constants = [f"VGG16 = {plain.VGG16!r}"] if plain.VGG in parts else []
    constants += ["InputError = ValueError"] if preact.WideResNet in parts else []
    values = {"k": k, "c": c, "s": s, "widths": zoo.widths(factor), "factor": factor}
    return OUR_IMPORTS + "".join(f"\n{line}" for line in constants) + code, call.format(**values)
