"""Checkpoints of other projects, loaded into the network that they belong to: every name and shape is
checked, whatever prefix they have.

Known layouts: MadryLab/robustness (a dict with the weights of a wrapper under "model", its normalisation
inside), TRADES' WRN-34-10 and AutoAttack's example (plain state dicts, pixels as they are), the checkpoints
of torchvision's and timm's scripts and of Lightning, safetensors, our own exports, and any state dict in
which all names have the same prefix. Files are read with weights_only=True: nothing in them is executed.
"""

from __future__ import annotations

import argparse
import pickle
import re
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from cfol_fast import models
from cfol_fast.data.registry import IMAGENET
from cfol_fast.errors import InputError
from cfol_fast.evaluation.recognition import recognise
from cfol_fast.runs import safetensors_files
from cfol_fast.runs.checkpoints import check_own_digest
from cfol_fast.runs.setting_groups import NORMALISATIONS

WRAPPERS = ("state_dict", "model_state_dict", "model", "net")
# Moving averages of the weights, which some projects keep beside them.
AVERAGES = ("state_dict_ema", "ema_state_dict", "model_ema", "ema_model", "ema")
NORMALISATION = {
    "mean": ("normalizer.new_mean", "normalize.mean"),
    "std": ("normalizer.new_std", "normalize.std"),
}
# TRADES' network has a block that its forward pass never reaches.
UNUSED = ("sub_block1.",)
# Names of the classes, beside the weights.
CLASS_NAMES = ("classes", "class_names", "class_to_idx")
# A counter that older versions of torch did not store.
OPTIONAL = ("num_batches_tracked",)
# The last layer of a classifier, in the libraries and most projects.
HEAD = re.compile(r"(^|\.)(head|heads\.head|head\.fc|fc|classifier|linear|last_linear)(\.\d+)?\.weight$")
CONVERT = (
    "Where you trust it, convert it once: s = torch.load(FILE, weights_only=False); s = s.state_dict() if"
    " hasattr(s, 'state_dict') else s.get('state_dict', s.get('model', s)); torch.save(s, 'weights.pt')"
)


class ReadWeights(NamedTuple):
    """tensors: by name. model: its name; classes: their names; both where the file says it."""

    tensors: dict[str, Tensor]
    model: str | None
    classes: list[str] | None


def read_weights(path: str | Path, ema: bool = False) -> ReadWeights:
    """What a file of weights holds. ema: the averaged weights, where it has both."""
    path = Path(path).expanduser()
    if not path.is_file():
        raise InputError(f"there is no checkpoint {path}")
    check_own_digest(path)
    content: Any = safetensors_files.read(path)[0] if safetensors_files.is_safetensors(path) else _load(path)
    # timm's script writes it.
    arch = content.get("arch") if isinstance(content, Mapping) else None
    classes = _class_names(content)
    taken = ""
    for name in (*AVERAGES, *WRAPPERS) if ema else (*WRAPPERS, *AVERAGES):
        if isinstance(content, Mapping) and isinstance(content.get(name), Mapping):
            content, taken = content[name], name
            if ema and name in AVERAGES:
                break
    tensors = {}
    if isinstance(content, Mapping):
        tensors = {str(name): value for name, value in content.items() if isinstance(value, Tensor)}
    if not tensors:
        raise InputError(
            f"{path} holds no weights: expected a state dict, or a dict with one under"
            f" {', '.join((*WRAPPERS, *AVERAGES))}"
        )
    if ema and taken not in AVERAGES and not any("ema" in name for name in tensors):
        raise InputError(f"{path} holds no averaged weights: leave out --ema")
    model = f"timm:{arch}" if isinstance(arch, str) and re.fullmatch(r"\w{1,80}", arch) else None
    return ReadWeights(tensors, model, classes)


def _class_names(content: Any) -> list[str] | None:
    """A list of names, or torchvision's {name: number}, which many scripts store beside the weights."""
    for key in CLASS_NAMES if isinstance(content, Mapping) else ():
        found = content.get(key)
        if isinstance(found, Mapping) and sorted(map(str, found.values())) == sorted(
            map(str, range(len(found)))
        ):
            found = sorted(found, key=found.__getitem__)
        if isinstance(found, list | tuple) and found and all(isinstance(name, str) for name in found):
            return list(found)
    return None


def _load(path: Path) -> Any:
    try:
        # The arguments of a training script: a plain object that holds values. torchvision's and timm's files
        # have one. What torch would say of a TorchScript archive, the error says.
        with torch.serialization.safe_globals([argparse.Namespace]), warnings.catch_warnings(action="ignore"):
            return torch.load(path, map_location="cpu", weights_only=True)
    # The unpickler may raise anything on bytes that are no pickle.
    except Exception as error:
        if path.suffix == ".onnx":
            raise InputError(
                f"{path}: an ONNX file holds a graph, whose gradients torch does not know: take the"
                " checkpoint that it was made from"
            ) from None
        if "TorchScript" in str(error):
            raise InputError(
                f"{path} is a TorchScript archive, which holds code: it is not opened. Where you trust it,"
                " convert it once: torch.save(torch.jit.load(FILE).state_dict(), 'weights.pt')"
            ) from None
        if isinstance(error, pickle.UnpicklingError) and "nsupported" in str(error):
            raise InputError(
                f"{path} holds Python objects besides tensors, and loading those may run code: it is not"
                f" opened. {CONVERT}"
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
    ema: bool = False,
) -> nn.Module:
    """The network `model` with the weights of the file, in eval mode, for pixels in [0, 1].

    model: a name of `models.create`; without it, the one that the file names, or the one of ours whose layers
    it has.
    mean, std: what the network was trained with, see `normalisation`; refused where the file has them.
    Without them a library's model takes those of the library's own weights, and every other is refused.
    """
    path = Path(path).expanduser()
    weights, said, names = read_weights(path, ema)
    found = classes_of(weights)
    classes = num_classes or found
    if classes is None:
        raise InputError(f"{path}: the number of classes cannot be seen from its layers; give it")
    name = model or said or _recognise(weights, found or classes, image_size, in_channels)
    if name is None:
        raise InputError(
            f"{path} does not say which network it is, and fits none of ours ({', '.join(models.names())}):"
            " name it with --model (timm:NAME, torchvision:NAME, package.module:factory)"
        )
    network = models.create(name, classes, image_size, in_channels)
    complaint = f"{path} is not a {name} with {classes} classes{other_family(name)}"
    adopt(network, weights, complaint, ema=ema)
    settle_normalisation(network, weights, str(path), name, mean, std)
    if names is not None and len(names) == classes:
        network.classes = names  # type: ignore[assignment]
    return network.eval()


def other_family(name: str) -> str:
    """The end of a complaint about weights that may be torchvision's, where ours have the same name."""
    theirs = models.namesake(name)
    return f" (torchvision's network of that name is {theirs})" if theirs else ""


def published_model(name: str, num_classes: int, image_size: int, in_channels: int) -> nn.Module:
    """A library's model with the weights that the library publishes, in eval mode, for pixels in [0, 1]."""
    published = _published(name)
    if published.num_classes != num_classes:
        raise InputError(
            f"the published weights of {name} tell {published.num_classes} classes apart, the data set has"
            f" {num_classes}: train it first (train --pretrained)"
        )
    network = models.create(name, num_classes, image_size, in_channels)
    adopt_published(network, name, image_size, in_channels)
    return network.eval()


def adopt_published(network: nn.Module, name: str, image_size: int, in_channels: int) -> list[str]:
    """Gives the network its library's weights and their normalisation; returns the layers that are new, see
    `adopt`.
    """
    published = _published(name)
    weights = models.published_weights(name, in_channels, image_size)
    new = adopt(network, weights, f"the published weights of {name} do not fit", new_head=True)
    _set_normalisation(network, *published.normalisation(in_channels))
    return new


def _published(name: str) -> models.Published:
    found = models.published(name)
    if found is None:
        raise InputError(
            f"there are no published weights of {name}: --pretrained belongs to timm:NAME and"
            " torchvision:NAME, others take --init FILE"
        )
    return found


def adopt(
    network: nn.Module,
    weights: Mapping[str, Tensor],
    complaint: str,
    new_head: bool = False,
    ema: bool = False,
) -> list[str]:
    """Loads weights into a model of ours, normalisation aside, or raises `complaint` with the names and
    shapes that differ.

    new_head: a last layer for another number of classes keeps the network's own, random weights. Returns the
    names of those.
    """
    inner = network.get_submodule("net")
    fitting, new = _matching(weights, inner.state_dict(), complaint, new_head, ema)
    inner.load_state_dict(fitting)
    return new


def settle_normalisation(
    network: nn.Module,
    weights: Mapping[str, Tensor],
    where: str,
    name: str,
    mean: Sequence[float] | None,
    std: Sequence[float] | None,
) -> None:
    """Gives the model the normalisation that its weights bring, or that is given, or that its library
    says.
    """
    found = {part: _normalisation(weights, endings) for part, endings in NORMALISATION.items()}
    if found["mean"] is not None and found["std"] is not None:
        if mean is not None or std is not None:
            raise InputError(
                f"{where} brings its own normalisation, mean {found['mean']} and std {found['std']}: leave"
                " out --normalize, --mean and --std"
            )
        mean, std = found["mean"], found["std"]
    elif mean is None or std is None:
        published = models.published(name)
        if published is None:
            raise InputError(
                f"{where} does not say how its images were normalised, and a wrong guess gives wrong"
                f" accuracies: give --mean and --std, or --normalize {'|'.join(NORMALISATIONS)} (none: the"
                " network takes pixels from 0 to 1 as they are)"
            )
        channels = network.get_submodule("normalize").mean.shape[1]  # type: ignore[union-attr, index]
        mean, std = published.normalisation(int(channels))
        warnings.warn(
            f"{where} does not say how its images were normalised: taking {name}'s own, mean {mean} and std"
            f" {std} (--normalize, or model.init_normalize in training, says otherwise)",
            stacklevel=2,
        )
    _set_normalisation(network, mean, std)


def _set_normalisation(network: nn.Module, mean: Sequence[float], std: Sequence[float]) -> None:
    layer = network.get_submodule("normalize")
    made = models.Normalize(int(layer.mean.shape[1]), mean, std)  # type: ignore[union-attr, index]
    layer.load_state_dict(made.state_dict())


def normalisation(
    kind: str, channels: int, dataset: tuple[Sequence[float], Sequence[float]]
) -> tuple[list[float], list[float]]:
    """The mean and std that `kind` names: ImageNet's, those of the data set, or none, which changes
    nothing.
    """
    if kind not in NORMALISATIONS:
        raise InputError(f"the normalisation must be one of {', '.join(NORMALISATIONS)}, got {kind!r}")
    mean, std = {"imagenet": IMAGENET, "dataset": dataset, "none": ([0.0] * channels, [1.0] * channels)}[kind]
    if len(mean) != channels:
        raise InputError(f"normalisation {kind!r} has {len(mean)} channels, the images have {channels}")
    return list(mean), list(std)


def _matching(
    weights: Mapping[str, Tensor],
    wanted: Mapping[str, Tensor],
    complaint: str,
    new_head: bool = False,
    ema: bool = False,
) -> tuple[dict[str, Tensor], list[str]]:
    """The weights under the network's names, and those of a head that stays the network's; or an error that
    says what differs.
    """
    prefix = _prefix(weights, wanted, ema)
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
    differing = [name for name, value in wanted.items() if name in given and given[name].shape != value.shape]
    new = differing if new_head and _is_head(differing, given, wanted) else []
    shapes = [
        f"{name} {tuple(given[name].shape)} instead of {tuple(wanted[name].shape)}"
        for name in differing
        if name not in new
    ]
    problems = [
        f"{len(names)} {what}: {', '.join(names[:3])}{', ...' if len(names) > 3 else ''}"
        for what, names in (("missing", missing), ("not known", surplus), ("of another shape", shapes))
        if names
    ]
    if problems:
        raise InputError(f"{complaint}: {'; '.join(problems)}")
    return {name: value if name in new else given.get(name, value) for name, value in wanted.items()}, new


def _is_head(names: Sequence[str], given: Mapping[str, Tensor], wanted: Mapping[str, Tensor]) -> bool:
    """One layer that differs in its number of outputs alone."""
    layers = {name.rpartition(".")[0] for name in names}
    return len(layers) == 1 and all(given[name].shape[1:] == wanted[name].shape[1:] for name in names)


def _prefix(weights: Mapping[str, Tensor], wanted: Mapping[str, Tensor], ema: bool = False) -> str:
    """The prefix under which most of the network's names stand; of several an average's if that is wanted,
    then the shortest.
    """
    prefixes = {""} | {
        name.removesuffix(ending)
        for ending in list(wanted)[:1]
        for name in weights
        if name.endswith(f".{ending}")
    }
    order = sorted(prefixes, key=lambda prefix: (("ema" in prefix) != ema, len(prefix)))
    return max(order, key=lambda prefix: sum(prefix + name in weights for name in wanted))


def _recognise(weights: Mapping[str, Tensor], classes: int, image_size: int, in_channels: int) -> str | None:
    """The network that the file fits, found with networks that have shapes but no numbers."""

    def fits(name: str) -> bool:
        try:
            shapes = models.create_without_numbers(name, classes, image_size, in_channels)
            _matching(weights, shapes.get_submodule("net").state_dict(), name)
        except InputError:
            return False
        return True

    return recognise(weights, fits)


def classes_of(weights: Mapping[str, Tensor]) -> int | None:
    """The number of classes: the rows of the head, by its name; without one, of the last matrix."""
    # A convolution of one pixel is a matrix, too: SqueezeNet's head is one.
    small = [name for name, value in weights.items() if value.dim() > 1 and value.shape[2:].numel() == 1]
    heads = [name for name in small if HEAD.search(name)]
    # The order of a safetensors file is the alphabet's: the head lies least deep of what is called like one.
    heads.sort(key=lambda name: -name.count("."))
    matrices = [name for name, value in weights.items() if value.dim() == 2]
    found = heads or matrices
    return int(weights[found[-1]].shape[0]) if found else None


def _normalisation(weights: Mapping[str, Tensor], endings: Sequence[str]) -> list[float] | None:
    found: list[Any] = [value for name, value in weights.items() if name.endswith(tuple(endings))]
    return found[0].flatten().tolist() if found else None
