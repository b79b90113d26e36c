"""Which network a file's weights belong to, by the names and shapes of its layers: of ours, of torchvision's,
of timm's where timm is there.

Building every network to compare its layers would take minutes. A layer that a family has tells which ones
are worth it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from cfol_fast import models
from cfol_fast.errors import InputError

# A layer of ours, and of each of torchvision's families, with the beginnings of their names.
OURS = {
    "linear.weight": ("resnet", "preact", "demo"),
    "block3.layer.0.bn1.weight": "wrn",
    "classifier.weight": "vgg",
}
TORCHVISION: dict[str, str | tuple[str, ...]] = {
    "class_token": "vit_",
    "features.conv0.weight": "densenet",
    "stem.0.weight": "regnet",
    "layers.0.weight": "mnasnet",
    "conv1.0.weight": "shufflenet",
    "conv1.weight": ("resnet", "resnext", "wide_resnet"),
    "features.0.weight": ("alexnet", "vgg", "squeezenet"),
    "features.0.0.weight": ("convnext", "efficientnet", "mobilenet", "swin"),
}
# A layer of each of timm's common families, with the modules of timm that have it.
TIMM = {
    "conv_stem.weight": ("mobilenetv3", "efficientnet", "ghostnet"),
    "layers.0.blocks.0.attn.qkv.weight": ("swin_transformer", "swin_transformer_v2"),
    "pos_embed": ("vision_transformer", "deit", "beit"),
    "stages.0.blocks.0.conv_dw.weight": ("convnext",),
    "stages.0.blocks.0.conv1.weight": ("resnetv2",),
    "s1.b1.conv1.conv.weight": ("regnet",),
    "layer1.0.conv1.weight": ("resnet", "resnest", "sknet"),
    "layer1.0.convs.0.weight": ("res2net",),
    "head.fc.weight": ("vgg",),
}
# So many candidates are named.
MOST = 6


def recognise(layers: Iterable[str], fits: Callable[[str], bool]) -> str | None:
    """The network that has these layers, or None. fits: whether the weights fit a network, by its name.

    Several of timm's may have the same layers and compute something else (padding, activations): then the
    user says which.
    """
    names = list(layers)
    others = [f"torchvision:{name}" for name in _beginning(TORCHVISION, names, models.torchvision_names())]
    for name in [*_beginning(OURS, names, models.names()), *models.registered_names(), *others]:
        if fits(name):
            return name
    modules = [module for layer, of_timm in TIMM.items() if _has(names, layer) for module in of_timm]
    found = [name for name in models.timm_names(modules) if fits(name)]
    if len(found) > 1:
        more = f" and {len(found) - MOST} more" if len(found) > MOST else ""
        raise InputError(
            f"these layers are those of {', '.join(found[:MOST])}{more}, which may not compute the same: say"
            " which with --model"
        )
    return found[0] if found else None


def _beginning(families: Mapping[str, Any], layers: Sequence[str], known: Sequence[str]) -> list[str]:
    """The known networks of the families whose layer is there."""
    found = [begins for layer, begins in families.items() if _has(layers, layer)]
    return [name for name in known if any(name.startswith(begins) for begins in found)]


def _has(layers: Sequence[str], layer: str) -> bool:
    """Whether the layer is there, under whatever prefix."""
    return any(f".{name}".endswith(f".{layer}") for name in layers)
