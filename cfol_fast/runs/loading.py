"""Using what a run left: `load` gives the model of a run, a checkpoint or an exported file."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

from cfol_fast.errors import InputError
from cfol_fast.models import ModelSpec, name_today
from cfol_fast.runs import checkpoints, run_folder, safetensors_files


def checkpoint_path(run_or_checkpoint: str | Path, name: str | None = None) -> Path:
    """A run's checkpoint of that name, or the tested one: the best average robust accuracy, or the last epoch
    without a hold-out.

    A file is itself.
    """
    path = Path(run_or_checkpoint).expanduser()
    if path.is_file():
        if name is not None:
            raise InputError(f"{path} is a checkpoint itself: --checkpoint {name} belongs to a run folder")
        return path
    if not path.is_dir():
        raise InputError(f"no run folder or checkpoint {path}")
    store = checkpoints.CheckpointStore(path)
    order = (checkpoints.BEST_AVERAGE, checkpoints.LAST, checkpoints.PREVIOUS) if name is None else (name,)
    # A pipe of that name would wait forever.
    there = [file.stem for file in sorted(store.folder.glob("*.pt")) if file.is_file()]
    for wanted in order:
        if wanted in there:
            return store.path(wanted)
    if name is not None and there:
        raise InputError(f"{path} has no checkpoint {name!r}: it has {', '.join(there)}")
    raise InputError(f"{path} has no checkpoint (yet)")


def read_checkpoint(
    run_or_checkpoint: str | Path, device: torch.device | str = "cpu", model: str | None = None
) -> dict[str, Any]:
    """The checkpoint with its `model` (weights), `spec`, `classes`, `dataset`, `method`, `seed` and `epoch`.

    model: its model's name, needed where that is code (`package.module:factory`), which no file can make us
    import.
    """
    path = checkpoint_path(run_or_checkpoint)
    try:
        state = _read(path, device)
    except checkpoints.DamagedCheckpoint as error:
        before = path.with_name(f"{checkpoints.PREVIOUS}.pt")
        if path.name != f"{checkpoints.LAST}.pt" or not before.exists():
            raise
        state = checkpoints.read(before, device)
        warnings.warn(f"{error}; using {before} instead", stacklevel=2)
    if "spec" not in state or "model" not in state:
        raise InputError(f"{path} is not a checkpoint of cfol_fast (it has no model description)")
    state = named_as_today(state)
    try:
        spec = ModelSpec.from_dict(state["spec"], model)
        spec.check_weights(state["model"])
    except InputError as error:
        raise InputError(f"{path} is not a checkpoint of cfol_fast: {error}") from None
    classes = state.get("classes")
    if (
        not isinstance(classes, list)
        or [str(name) for name in classes] != classes
        or len(classes) != spec.num_classes
    ):
        raise InputError(
            f"{path} is not a checkpoint of cfol_fast: it must name its {spec.num_classes} classes"
        )
    return state


def _read(path: Path, device: torch.device | str) -> dict[str, Any]:
    if not (path.is_file() and safetensors_files.is_safetensors(path)):
        return checkpoints.read(path, device)
    tensors, description = safetensors_files.read(path, device)
    state = {**(description or {}), "model": tensors}
    checkpoints.check_contents(state, path)
    return state


def is_ours(path: Path) -> bool:
    """A checkpoint that describes its own model; a damaged file of ours counts as ours, so that `load` says
    what is wrong.
    """
    if path.parent.name == checkpoints.FOLDER and run_folder.is_run(path.parent.parent):
        return True
    return read_own(path) is not None


def read_own(path: Path) -> dict[str, Any] | None:
    """What a checkpoint of ours holds, without its numbers; None for every other file."""
    try:
        if safetensors_files.is_safetensors(path):
            tensors, description = safetensors_files.read(path)
            state = {**(description or {}), "model": tensors}
        else:
            with warnings.catch_warnings(action="ignore"):
                state = torch.load(path, map_location="meta", weights_only=True)
    except Exception:
        # Not ours, and perhaps no checkpoint at all: whoever reads it next says so.
        return None
    return named_as_today(state) if isinstance(state, dict) and "spec" in state and "model" in state else None


def named_as_today(state: dict[str, Any]) -> dict[str, Any]:
    """The checkpoint with the model's name of today.

    What it says may be anything: `ModelSpec.from_dict` looks at it.
    """
    spec, weights = state["spec"], state["model"]
    if not (isinstance(spec, dict) and isinstance(spec.get("name"), str) and isinstance(weights, Mapping)):
        return state
    name = name_today(spec["name"], [key for key in weights if isinstance(key, str)])
    return state if name == spec["name"] else {**state, "spec": {**spec, "name": name}}


def load(
    run_or_checkpoint: str | Path, device: torch.device | str = "cpu", model: str | None = None
) -> nn.Module:
    """The trained model, in eval mode; its input is pixels in [0, 1].

    `model.classes` has the class names, `model.spec` its description.

    model: its name, needed where it is code of yours (`package.module:factory`).
    """
    state = read_checkpoint(run_or_checkpoint, device, model)
    spec = ModelSpec.from_dict(state["spec"], model)
    network = spec.create().to(device)
    network.load_state_dict(state["model"])
    network.classes, network.spec = list(state["classes"]), spec  # type: ignore[assignment]
    return network.eval()
