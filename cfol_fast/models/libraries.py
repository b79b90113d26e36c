"""Networks of torchvision and timm by name, and what these libraries say of the weights that they publish for
them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from cfol_fast.errors import InputError, one_line
from cfol_fast.user_input import nearest

TORCHVISION, TIMM = "torchvision:", "timm:"
PREFIXES = (TORCHVISION, TIMM)


@dataclass(frozen=True)
class Published:
    """The images that a library's published weights were trained with."""

    num_classes: int
    image_size: int
    mean: tuple[float, ...]
    std: tuple[float, ...]

    def normalisation(self, channels: int) -> tuple[list[float], list[float]]:
        """For images of another number of channels (timm sums the first layer's weights): the mean over
        theirs.
        """
        if channels == len(self.mean):
            return list(self.mean), list(self.std)
        return [sum(self.mean) / len(self.mean)] * channels, [sum(self.std) / len(self.std)] * channels


def build(name: str, num_classes: int, in_channels: int, image_size: int) -> nn.Module:
    """The network with random weights. name: with its prefix."""
    if name.startswith(TIMM):
        bare = name.removeprefix(TIMM)
        return _timm(bare).create_model(bare, **_timm_options(bare, num_classes, in_channels, image_size))
    bare = name.removeprefix(TORCHVISION)
    models = _torchvision(bare)
    if in_channels != 3:
        raise InputError(
            f"torchvision's {bare} takes 3 channels, the data set has {in_channels}; timm's take any number"
            " (timm:NAME)"
        )
    return models.get_model(bare, weights=None, num_classes=num_classes)


def call(name: str, num_classes: int, in_channels: int, image_size: int) -> tuple[str, str]:
    """What `build` calls, and with which arguments, as Python code."""
    if name.startswith(TIMM):
        bare = name.removeprefix(TIMM)
        options = _timm_options(bare, num_classes, in_channels, image_size)
        return "timm.create_model", f"{bare!r}, " + ", ".join(
            f"{key}={value}" for key, value in options.items()
        )
    bare = name.removeprefix(TORCHVISION)
    return "torchvision.models.get_model", f"{bare!r}, weights=None, num_classes={num_classes}"


def published(name: str) -> Published | None:
    """What the library says of the weights it publishes for the model; None if there are none. name: with its
    prefix.
    """
    if name.startswith(TIMM):
        config = _timm_config(name.removeprefix(TIMM))
        if not (config.url or config.hf_hub_id or config.file):
            return None
        return Published(config.num_classes, config.input_size[-1], tuple(config.mean), tuple(config.std))
    weights = _torchvision_weights(name.removeprefix(TORCHVISION))
    if weights is None:
        return None
    eyes = weights.transforms()
    return Published(len(weights.meta["categories"]), eyes.crop_size[0], tuple(eyes.mean), tuple(eyes.std))


def published_weights(name: str, in_channels: int, image_size: int) -> Mapping[str, Tensor]:
    """The published weights, from the library's own cache or its download, with the head of the published
    classes.
    """
    found = published(name)
    assert found is not None, "the caller looked"
    try:
        if name.startswith(TIMM):
            bare = name.removeprefix(TIMM)
            options = _timm_options(bare, found.num_classes, in_channels, image_size)
            return _timm(bare).create_model(bare, pretrained=True, **options).state_dict()
        weights = _torchvision_weights(name.removeprefix(TORCHVISION))
        assert weights is not None
        return weights.get_state_dict(progress=False, check_hash=True)
    except InputError:
        raise
    # A cache, a network and a hub may fail in many ways.
    except Exception as error:
        raise InputError(
            f"the published weights of {name} are neither in the library's cache nor can they be fetched "
            f"({one_line(error)[:150]}): where you have them as a file, take --init FILE"
        ) from error


def torchvision_names() -> list[str]:
    """torchvision's image classifiers; its submodules hold detection, segmentation and video."""
    import torchvision

    return torchvision.models.list_models(module=torchvision.models)


def _torchvision(name: str) -> Any:
    import torchvision

    if name not in torchvision_names():
        close = nearest(name, torchvision_names())
        hint = f"; did you mean {TORCHVISION}{close}?" if close else ""
        raise InputError(f"torchvision has no image classifier {name!r}{hint}")
    return torchvision.models


def _torchvision_weights(name: str) -> Any:
    kinds = _torchvision(name).get_model_weights(name)
    return kinds.DEFAULT if len(kinds) else None


def _timm(name: str) -> Any:
    try:
        import timm
    except ImportError as error:
        raise InputError(
            f"{TIMM}{name} needs the package timm ({one_line(error)}): pip install timm"
        ) from None
    # Only what is registered: timm itself would also take addresses of hubs and folders, and build what they
    # say.
    base = name.partition(".")[0]
    known = timm.list_models()
    if base not in known:
        close = nearest(base, known)
        raise InputError(f"timm has no model {base!r}{f'; did you mean {TIMM}{close}?' if close else ''}")
    return timm


def _timm_config(name: str) -> Any:
    timm = _timm(name)
    try:
        config = timm.get_pretrained_cfg(name)
    except Exception as error:
        raise InputError(f"timm knows no weights {name!r}: {one_line(error)[:150]}") from None
    # A model without weights of its own has a description with nothing in it.
    return config or timm.models.PretrainedCfg()


def _timm_options(name: str, num_classes: int, in_channels: int, image_size: int) -> dict[str, int]:
    options = {"num_classes": num_classes, "in_chans": in_channels}
    if _timm_config(name).fixed_input_size:
        # Transformers have a position for every patch: they are built for the size of the images.
        options["img_size"] = image_size
    return options
