"""A robust model from elsewhere, given by path: its weights in one of our networks.

Taken are our own checkpoints and plain or wrapped state dicts: names may carry the prefixes of DataParallel and of the
`robustness` package, and the words by which torchvision and the CIFAR code bases call the same layers. Only tensors are read.
"""

from __future__ import annotations

import pickle
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cfol_fast.errors import InputError

if TYPE_CHECKING:
    from torch import Tensor, nn

PREFIXES = ("module.attacker.model.", "module.model.", "module.", "model.", "net.")
WRAPPERS = ("model", "state_dict", "model_state_dict", "net")
# How other code bases call what ours call by the name on the right.
WORDS = (("downsample.", "shortcut."), ("fc.", "linear."), ("linear.", "fc."), ("shortcut.", "downsample."))
MEAN, STD = ("normalizer.new_mean", "normalize.mean"), ("normalizer.new_std", "normalize.std")


def load_pretrained(path: Path, model: str, num_classes: int, image_size: int, channels: int) -> nn.Module:
    """The network `model` with the weights of the file, in eval mode; a file that does not fit is refused with what differs."""
    from cfol_fast import models

    weights, statistics = _read(path)
    mean, std = statistics.get("mean"), statistics.get("std")
    network = models.create(
        model, num_classes, image_size, channels, mean=mean or [0.0] * channels, std=std or [1.0] * channels
    )
    wanted = {k: v for k, v in network.state_dict().items() if k.startswith("net.")}
    found = _rename(weights, wanted)
    missing = [key for key in wanted if key not in found and not key.endswith("num_batches_tracked")]
    if missing:
        raise InputError(
            f"{path} does not fit {model}: {len(missing)} of {len(wanted)} tensors are not in it, the first is "
            f"{missing[0].removeprefix('net.')!r} (it has {_few(list(weights))})"
        )
    for key, value in found.items():
        if tuple(value.shape) != tuple(wanted[key].shape):
            raise InputError(
                f"{path} does not fit {model} with {num_classes} classes: {key.removeprefix('net.')} is "
                f"{tuple(value.shape)}, expected {tuple(wanted[key].shape)}"
            )
    network.load_state_dict(found, strict=False)
    return network.eval()


def _read(path: Path) -> tuple[dict[str, Tensor], dict[str, list[float]]]:
    import torch

    if not path.is_file():
        raise InputError(f"there is no checkpoint {path}")
    try:
        state = torch.load(path, map_location="cpu", weights_only=True)
    except (pickle.UnpicklingError, RuntimeError, EOFError, ValueError) as error:
        raise InputError(
            f"{path} cannot be read as tensors ({str(error).splitlines()[0]}); files with Python objects are not opened: "
            "load it where you trust it and save its state dict with torch.save"
        ) from None
    for name in WRAPPERS:
        if isinstance(state, Mapping) and isinstance(state.get(name), Mapping):
            state = state[name]
    tensors = (
        {str(k): v for k, v in state.items() if isinstance(v, torch.Tensor)}
        if isinstance(state, Mapping)
        else {}
    )
    if not tensors:
        raise InputError(
            f"{path} holds no weights: expected a state dict, or a dict with one under {', '.join(WRAPPERS)}"
        )
    statistics: dict[str, list[float]] = {}
    weights = {}
    for key, value in tensors.items():
        if key.endswith(MEAN):
            statistics["mean"] = value.flatten().tolist()
        elif key.endswith(STD):
            statistics["std"] = value.flatten().tolist()
        elif ".attacker." not in key or key.startswith("module.attacker.model."):
            weights[key] = value
    return weights, statistics


def _rename(weights: Mapping[str, Any], wanted: Mapping[str, Any]) -> dict[str, Any]:
    """The weights under the network's names."""
    found: dict[str, Any] = {}
    for key, value in weights.items():
        bare = key
        stripped = True
        while stripped:
            stripped = False
            for prefix in PREFIXES:
                if bare.startswith(prefix):
                    bare, stripped = bare.removeprefix(prefix), True
        names = [bare] + [bare.replace(theirs, ours) for theirs, ours in WORDS if theirs in bare]
        for name in names:
            if f"net.{name}" in wanted:
                found.setdefault(f"net.{name}", value)
                break
    return found


def _few(names: list[str]) -> str:
    return ", ".join(names[:3]) + (", ..." if len(names) > 3 else "")
