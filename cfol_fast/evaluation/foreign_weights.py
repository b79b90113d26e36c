"""Checkpoints of other projects, loaded into our networks: every name and shape is checked, whatever prefix they have.

Known layouts: MadryLab/robustness (a dict with the weights of a wrapper under "model", its normalisation inside), TRADES'
WRN-34-10 and AutoAttack's example (plain state dicts, pixels as they are), our own exports, and any state dict in which all names
have the same prefix. Files are read with weights_only=True: nothing in them is executed.
"""

from __future__ import annotations

import pickle
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from cfol_fast import models
from cfol_fast.data.registry import IMAGENET
from cfol_fast.errors import InputError
from cfol_fast.runs.checkpoints import check_own_digest

NORMALISATIONS = ("imagenet", "dataset", "none")
WRAPPERS = ("state_dict", "model_state_dict", "model", "net", "ema")
NORMALISATION = {
    "mean": ("normalizer.new_mean", "normalize.mean"),
    "std": ("normalizer.new_std", "normalize.std"),
}
# TRADES' network has a block that its forward pass never reaches.
UNUSED = ("sub_block1.",)
# A counter that older versions of torch did not store.
OPTIONAL = ("num_batches_tracked",)
HEADS = ("linear.weight", "fc.weight", "classifier.weight")


def read_state_dict(path: str | Path) -> dict[str, Tensor]:
    """The tensors of a checkpoint, by name."""
    path = Path(path).expanduser()
    if not path.is_file():
        raise InputError(f"there is no checkpoint {path}")
    check_own_digest(path)
    content = _load(path)
    for name in WRAPPERS:
        if isinstance(content, Mapping) and isinstance(content.get(name), Mapping):
            content = content[name]
    tensors = {}
    if isinstance(content, Mapping):
        tensors = {str(name): value for name, value in content.items() if isinstance(value, Tensor)}
    if not tensors:
        raise InputError(
            f"{path} holds no weights: expected a state dict, or a dict with one under {', '.join(WRAPPERS)}"
        )
    return tensors


def _load(path: Path) -> Any:
    try:
        return torch.load(path, map_location="cpu", weights_only=True)
    # The unpickler may raise anything on bytes that are no pickle.
    except Exception as error:
        if isinstance(error, pickle.UnpicklingError) and "nsupported" in str(error):
            raise InputError(
                f"{path} holds Python objects besides tensors, and loading those may run code: it is not opened. Where you trust "
                "it, convert it: state = torch.load(FILE, weights_only=False); torch.save(state['model'], 'weights.pt')"
            ) from None
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise InputError(f"{path} is damaged or not a torch checkpoint ({reason})") from None


def load_weights(
    path: str | Path,
    model: str | None = None,
    num_classes: int | None = None,
    image_size: int = 32,
    in_channels: int = 3,
    mean: Sequence[float] | None = None,
    std: Sequence[float] | None = None,
) -> nn.Module:
    """The network `model` with the weights of the file, in eval mode, for pixels in [0, 1].

    model: a name of `models.create`; without it, the one of ours whose layers are in the file.
    mean, std: what the network was trained with, see `normalisation`; needed where the file has no such layer, refused where it has.
    """
    weights = read_state_dict(path)
    found = {name: _normalisation(weights, endings) for name, endings in NORMALISATION.items()}
    own = found["mean"] is not None and found["std"] is not None
    if own and (mean is not None or std is not None):
        raise InputError(
            f"{path} brings its own normalisation, mean {found['mean']} and std {found['std']}: leave out --normalize, --mean and --std"
        )
    classes = num_classes or _outputs(weights)
    if classes is None:
        raise InputError(f"{path}: the number of classes cannot be seen from its layers; give it")
    name = model or _recognise(weights, classes, image_size, in_channels)
    if name is None:
        raise InputError(
            f"{path} fits none of our networks ({', '.join(models.names())}): name one with --model"
        )
    mean, std = (found["mean"], found["std"]) if own else (mean, std)
    network = models.create(name, classes, image_size, in_channels, mean=mean, std=std)
    inner = network.get_submodule("net")
    inner.load_state_dict(
        _matching(weights, inner.state_dict(), f"{path} is not a {name} with {classes} classes")
    )
    if mean is None or std is None:
        raise InputError(
            f"{path} does not say how its images were normalised, and a wrong guess gives wrong accuracies: give --mean and --std, or "
            f"--normalize {'|'.join(NORMALISATIONS)} (none: the network takes pixels from 0 to 1 as they are)"
        )
    return network.eval()


def normalisation(
    kind: str, channels: int, dataset: tuple[Sequence[float], Sequence[float]]
) -> tuple[list[float], list[float]]:
    """The mean and std that `kind` names: ImageNet's, those of the data set, or none, which changes nothing."""
    if kind not in NORMALISATIONS:
        raise InputError(f"the normalisation must be one of {', '.join(NORMALISATIONS)}, got {kind!r}")
    mean, std = {"imagenet": IMAGENET, "dataset": dataset, "none": ([0.0] * channels, [1.0] * channels)}[kind]
    if len(mean) != channels:
        raise InputError(f"normalisation {kind!r} has {len(mean)} channels, the images have {channels}")
    return list(mean), list(std)


def _matching(
    weights: Mapping[str, Tensor], wanted: Mapping[str, Tensor], complaint: str
) -> dict[str, Tensor]:
    """The weights under the network's names, or an error that says which names and shapes differ."""
    prefix = _prefix(weights, wanted)
    given = {
        name.removeprefix(prefix): value
        for name, value in weights.items()
        if name.startswith(prefix) and not name.removeprefix(prefix).startswith(UNUSED)
    }
    if prefix == "":
        # A normalisation at the top level belongs to our first layer, not to the network.
        given = {
            name: value for name, value in given.items() if not name.endswith(sum(NORMALISATION.values(), ()))
        }
    missing = [name for name in wanted if name not in given and not name.endswith(OPTIONAL)]
    surplus = [name for name in given if name not in wanted]
    shapes = [
        f"{name} {tuple(given[name].shape)} instead of {tuple(value.shape)}"
        for name, value in wanted.items()
        if name in given and given[name].shape != value.shape
    ]
    problems = [
        f"{len(names)} {what}: {', '.join(names[:3])}{', ...' if len(names) > 3 else ''}"
        for what, names in (("missing", missing), ("not known", surplus), ("of another shape", shapes))
        if names
    ]
    if problems:
        raise InputError(f"{complaint}: {'; '.join(problems)}")
    return {name: given.get(name, value) for name, value in wanted.items()}


def _prefix(weights: Mapping[str, Tensor], wanted: Mapping[str, Tensor]) -> str:
    """The prefix under which most of the network's names stand; the shortest of several."""
    prefixes = {""} | {
        name.removesuffix(ending)
        for ending in list(wanted)[:1]
        for name in weights
        if name.endswith(f".{ending}")
    }
    return max(sorted(prefixes, key=len), key=lambda prefix: sum(prefix + name in weights for name in wanted))


def _recognise(weights: Mapping[str, Tensor], classes: int, image_size: int, in_channels: int) -> str | None:
    """The name of the network of ours that the file fits, found with networks that have shapes but no numbers."""
    for name in models.names():
        with torch.device("meta"):
            try:
                wanted = (
                    models.create(name, classes, image_size, in_channels).get_submodule("net").state_dict()
                )
                _matching(weights, wanted, name)
            except InputError:
                continue
        return name
    return None


def _outputs(weights: Mapping[str, Tensor]) -> int | None:
    """The number of classes: the rows of the last layer."""
    heads = [value.shape[0] for name, value in weights.items() if name.endswith(HEADS) and value.dim() == 2]
    return int(heads[-1]) if heads else None


def _normalisation(weights: Mapping[str, Tensor], endings: Sequence[str]) -> list[float] | None:
    found: list[Any] = [value for name, value in weights.items() if name.endswith(tuple(endings))]
    return found[0].flatten().tolist() if found else None
