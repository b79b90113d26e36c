"""Using what a run left: `load` gives the model of a run, a checkpoint or an exported file."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from cfol_fast.errors import InputError
from cfol_fast.runs import checkpoints, run_folder, safetensors_files
from cfol_fast.runs.checkpoint_contents import Checkpoint


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
) -> Checkpoint:
    """A checkpoint whose weights fit its model.

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
    return Checkpoint.of(state, path, model)


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
    return read_label(path) is not None


@dataclass(frozen=True)
class Label:
    """What a checkpoint of ours says of itself, read without its numbers and not checked yet."""

    model: str | None
    dataset: str | None
    classes: list[str] | None


def read_label(path: Path) -> Label | None:
    """None for every file that is not a checkpoint of ours."""
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
    if not (isinstance(state, dict) and "spec" in state and "model" in state):
        return None
    spec, dataset, classes = state["spec"], state.get("dataset"), state.get("classes")
    name = spec.get("name") if isinstance(spec, dict) else None
    return Label(
        name if isinstance(name, str) else None,
        dataset if isinstance(dataset, str) else None,
        classes if isinstance(classes, list) else None,
    )


def load(
    run_or_checkpoint: str | Path, device: torch.device | str = "cpu", model: str | None = None
) -> nn.Module:
    """The trained model, in eval mode; its input is pixels in [0, 1].

    `model.classes` has the class names, `model.spec` its description.

    model: its name, needed where it is code of yours (`package.module:factory`).
    """
    found = read_checkpoint(run_or_checkpoint, device, model)
    network = found.spec.create().to(device)
    network.load_state_dict(found.model)
    network.classes, network.spec = list(found.classes), found.spec  # type: ignore[assignment]
    return network.eval()
