"""Models by name: `create("resnet18", num_classes=10)`.

A name is one of ours, optionally with a width factor for reduced recipes (`resnet18@0.25`), a library's
(`timm:NAME`,
`torchvision:NAME`, or torchvision's alone where its family is not ours), or code of the user's
(`package.module:factory`). Every model is
`normalize` followed by `net`.
"""

from __future__ import annotations

import copy
import re
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from cfol_fast.errors import InputError, one_line
from cfol_fast.models import factories, libraries
from cfol_fast.models.normalize import Normalize
from cfol_fast.models.plain import VGG, DemoNet
from cfol_fast.models.preact import PreActResNet, WideResNet
from cfol_fast.models.resnet import BasicBlock, Bottleneck, ResNet
from cfol_fast.user_input import nearest

# (num_classes, in_channels, image_size, scale) -> network
Builder = Callable[[int, int, int, float], nn.Module]
# A user's own: (num_classes, in_channels, image_size) -> network
Factory = Callable[[int, int, int], nn.Module]


def widths(scale: float) -> tuple[int, ...]:
    return tuple(max(1, round(width * scale)) for width in (64, 128, 256, 512))


OURS: dict[str, Builder] = {
    "resnet18": lambda k, c, size, scale: ResNet(BasicBlock, (2, 2, 2, 2), k, c, widths(scale)),
    "resnet34": lambda k, c, size, scale: ResNet(BasicBlock, (3, 4, 6, 3), k, c, widths(scale)),
    "resnet50": lambda k, c, size, scale: ResNet(Bottleneck, (3, 4, 6, 3), k, c, widths(scale)),
    "resnet101": lambda k, c, size, scale: ResNet(Bottleneck, (3, 4, 23, 3), k, c, widths(scale)),
    "resnet152": lambda k, c, size, scale: ResNet(Bottleneck, (3, 8, 36, 3), k, c, widths(scale)),
    "preact-resnet18": lambda k, c, size, scale: PreActResNet((2, 2, 2, 2), k, c, widths(scale)),
    "wrn-34-10": lambda k, c, size, scale: WideResNet(34, 10, k, c, scale),
    "vgg16": lambda k, c, size, scale: VGG(k, c, scale),
    "demo-cnn": lambda k, c, size, scale: DemoNet(k, c, size, scale),
}
# What others added, by `register`.
REGISTERED: dict[str, Factory] = {}
ALIASES = {
    "preactresnet18": "preact-resnet18",
    "preact_resnet18": "preact-resnet18",
    "vgg16-bn": "vgg16",
    "vgg16_bn": "vgg16",
}
# Families of ours: without its prefix no name of them is torchvision's, whose stems are made for 224 px.
FAMILIES = r"(resnet|vgg)\d+(_bn)?"
WIDE = r"wrn-(\d+)-(\d+)"
# Of a Wide ResNet: far beyond what is trained, and built in a second where it has no numbers yet.
MOST_DEPTH, MOST_WIDTH = 1000, 100


def names() -> list[str]:
    """The names of our own models.

    Any `wrn-<depth>-<width>`, torchvision's, timm's and a user's factories work as well.
    """
    return list(OURS)


def registered_names() -> list[str]:
    """The names that others added."""
    return list(REGISTERED)


def register(name: str) -> Callable[[Factory], Factory]:
    """Makes a network of one's own known by name: `@models.register("mine")` above a function of
    (num_classes, in_channels, image_size).

    The network is given normalised images; the width factor of `mine@0.25` is not for it.
    """
    if name in OURS or name in ALIASES or not re.fullmatch(r"[\w.-]+", name):
        raise InputError(
            f"a model cannot be called {name!r}: the name is taken, or has other signs than letters, digits,"
            " - . _"
        )

    def add(factory: Factory) -> Factory:
        def build(num_classes: int, in_channels: int, image_size: int, scale: float) -> nn.Module:
            if scale != 1.0:
                raise InputError(f"the model {name!r} has no width factor: leave out @{scale:g}")
            return factory(num_classes, in_channels, image_size)

        OURS[name], REGISTERED[name] = build, factory
        return factory

    return add


def create(
    name: str,
    num_classes: int,
    image_size: int = 32,
    in_channels: int = 3,
    mean: Sequence[float] | None = None,
    std: Sequence[float] | None = None,
) -> nn.Module:
    """A new model; its input is (B, in_channels, image_size, image_size) in [0, 1], its output logits (B,
    num_classes).

    `mean` and `std` (one value per channel) belong to the first layer; without them the pixels are not
    normalised.
    """
    if num_classes < 2:
        raise InputError(f"a classifier needs at least 2 classes, got {num_classes}")
    if image_size < 1 or in_channels < 1:
        raise InputError(
            f"images need a positive size and channel count, got {image_size} px and {in_channels}"
        )
    model = _assembled(name, num_classes, image_size, in_channels, mean, std)
    # Ours take images of every size. The trial on "meta" makes torch import its compiler, which takes as long
    # as importing torch.
    if not _is_ours(name):
        _check_fit(model, name, num_classes, image_size, in_channels)
    return model


def _is_ours(name: str) -> bool:
    base = name.partition("@")[0]
    base = ALIASES.get(base, base)
    return (base in OURS and base not in REGISTERED) or re.fullmatch(WIDE, base) is not None


def _assembled(
    name: str,
    num_classes: int,
    image_size: int,
    in_channels: int,
    mean: Sequence[float] | None = None,
    std: Sequence[float] | None = None,
) -> nn.Module:
    net = _network(name, num_classes, image_size, in_channels)
    return nn.Sequential(OrderedDict(normalize=Normalize(in_channels, mean, std), net=net))


def create_without_numbers(name: str, num_classes: int, image_size: int, in_channels: int) -> nn.Module:
    """The model on the device "meta": names and shapes, without memory for them.

    It may not take such images: `create` tries that.
    """
    try:
        with torch.device("meta"):
            return _assembled(name, num_classes, image_size, in_channels)
    except NotImplementedError:
        # torchvision's RegNets compute their widths with tensors.
        with _WeightsOnMeta():
            return _assembled(name, num_classes, image_size, in_channels)


class _WeightsOnMeta(TorchFunctionMode):
    """Only what weights are made of goes to "meta"; what is counted with stays on the CPU."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        made = func in (torch.empty, torch.zeros, torch.ones, torch.full, torch.rand, torch.randn)
        if made and kwargs.get("device") is None:
            kwargs["device"] = "meta"
        return func(*args, **kwargs)


def published(name: str) -> libraries.Published | None:
    """What the library of a model says of its published weights; None for networks of ours and of the
    user's.
    """
    known = library_name(name)
    return None if known is None else libraries.published(known)


def published_weights(name: str, in_channels: int, image_size: int) -> Mapping[str, Tensor]:
    """The weights that a model's library publishes, from the library's cache or its download."""
    return libraries.published_weights(library_name(name) or name, in_channels, image_size)


def library_name(name: str) -> str | None:
    """The name with its library's prefix; None if the model is none of a library's."""
    base = name.partition("@")[0]
    if name.startswith(libraries.PREFIXES):
        return name
    ours = base in OURS or base in ALIASES or re.fullmatch(WIDE, base) or re.fullmatch(FAMILIES, base)
    if ":" in name or "@" in name or ours:
        return None
    return libraries.TORCHVISION + name


def namesake(name: str) -> str | None:
    """torchvision's network of the same name as one of ours."""
    both = re.fullmatch(FAMILIES, name) and name in libraries.torchvision_names()
    return libraries.TORCHVISION + name if both else None


def check_name(name: str) -> None:
    """Refuses a name that no network has. It is quick, so that a run asks before it reads images.

    Names of timm and of the user's own code are found out when the network is built.
    """
    if name.startswith(libraries.PREFIXES) or factories.is_factory(name) or name in REGISTERED:
        return
    base, scale = base_and_factor(name)
    if base in OURS or re.fullmatch(WIDE, base):
        return
    if "@" in name:
        raise InputError(f"no model {base!r} of ours to take the width factor @{scale:g}{_hint(base)}")
    if theirs := namesake(name):
        raise InputError(
            f"no model of ours is called {name!r}; torchvision's, made for 224 px, is {theirs} (ours:"
            f" {', '.join(names())})"
        )
    if name not in libraries.torchvision_names():
        raise InputError(f"no model is called {name!r}{_hint(name)}")


def _network(name: str, num_classes: int, image_size: int, in_channels: int) -> nn.Module:
    if name.startswith(libraries.PREFIXES):
        return libraries.build(name, num_classes, in_channels, image_size)
    if factories.is_factory(name):
        return factories.build(name, num_classes, in_channels, image_size)
    base, scale = base_and_factor(name)
    wide = re.fullmatch(WIDE, base)
    if wide:
        if len(wide[0]) > 20 or int(wide[1]) > MOST_DEPTH or int(wide[2]) > MOST_WIDTH:
            raise InputError(
                f"a Wide ResNet has a depth of at most {MOST_DEPTH} and a width of at most {MOST_WIDTH}, got"
                f" {base[:40]!r}"
            )
        return WideResNet(int(wide[1]), int(wide[2]), num_classes, in_channels, scale)
    if base in OURS:
        return OURS[base](num_classes, in_channels, image_size, scale)
    check_name(name)
    return libraries.build(libraries.TORCHVISION + name, num_classes, in_channels, image_size)


def base_and_factor(name: str) -> tuple[str, float]:
    """The name without aliases and width factor, and the factor."""
    base, at, text = name.partition("@")
    base = ALIASES.get(base, base)
    if not at:
        return base, 1.0
    try:
        scale = float(text)
    except ValueError:
        scale = 0.0
    if not 0.0 < scale <= 16.0:
        raise InputError(
            f"the width factor after '@' must be a number in (0, 16], got {name!r}; example: resnet18@0.25"
        )
    return base, scale


def _hint(name: str) -> str:
    """The nearest name; the libraries' own are too many to be listed."""
    close = nearest(name, [*names(), *libraries.torchvision_names()])
    hint = f"; did you mean {close!r}?" if close else ""
    return f"{hint} (ours: {', '.join(names())}; others: torchvision:NAME, timm:NAME, package.module:factory)"


def _check_fit(model: nn.Module, name: str, num_classes: int, image_size: int, in_channels: int) -> None:
    """One pass without data or arithmetic (device "meta"), so that a misfit is found before anything is
    trained.
    """
    x = torch.empty(2, in_channels, image_size, image_size, device="meta")
    try:
        logits = copy.deepcopy(model).to("meta").train()(x)
    # A network of others may fail in any way on images that it was not made for: a vision transformer asserts
    # their size.
    except Exception as error:
        own = published(name)
        hint = f" (its own are {own.image_size} px)" if own and own.image_size != image_size else ""
        raise InputError(
            f"model {name} does not take {in_channels}x{image_size}x{image_size} images{hint}:"
            f" {one_line(error)[:200]}"
        ) from None
    if not isinstance(logits, torch.Tensor) or logits.shape != (2, num_classes):
        raise InputError(
            f"model {name} does not return logits of shape (B, {num_classes}) in training (auxiliary"
            " outputs?)"
        )
