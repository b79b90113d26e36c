"""Using what a run left: `load` gives the model of a run or a checkpoint, `export` its plain weights."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import torch
from torch import nn

from cfol_fast import atomic
from cfol_fast.errors import InputError
from cfol_fast.models import ModelSpec
from cfol_fast.runs import checkpoints


def checkpoint_path(run_or_checkpoint: str | Path, name: str | None = None) -> Path:
    """A run's checkpoint of that name, or the tested one: the best average robust accuracy, or the last epoch without a hold-out.

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
    there = [file.stem for file in sorted(store.folder.glob("*.pt"))]
    for wanted in order:
        if wanted in there:
            return store.path(wanted)
    if name is not None and there:
        raise InputError(f"{path} has no checkpoint {name!r}: it has {', '.join(there)}")
    raise InputError(f"{path} has no checkpoint (yet)")


def read_checkpoint(run_or_checkpoint: str | Path, device: torch.device | str = "cpu") -> dict[str, Any]:
    """The checkpoint with its `model` (weights), `spec`, `classes`, `dataset`, `method`, `seed` and `epoch`."""
    path = checkpoint_path(run_or_checkpoint)
    try:
        state = checkpoints.read(path, device)
    except checkpoints.DamagedCheckpoint as error:
        before = path.with_name(f"{checkpoints.PREVIOUS}.pt")
        if path.name != f"{checkpoints.LAST}.pt" or not before.exists():
            raise
        state = checkpoints.read(before, device)
        warnings.warn(f"{error}; using {before} instead", stacklevel=2)
    if "spec" not in state or "model" not in state:
        raise InputError(f"{path} is not a checkpoint of cfol_fast (it has no model description)")
    try:
        spec = ModelSpec.from_dict(state["spec"])
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


def is_ours(path: Path) -> bool:
    """A checkpoint that describes its own model; a damaged file of ours counts as ours, so that `load` says what is wrong."""
    if path.parent.name == checkpoints.FOLDER and (path.parent.parent / "config.json").exists():
        return True
    return read_own(path) is not None


def read_own(path: Path) -> dict[str, Any] | None:
    """What a checkpoint of ours holds, without its numbers; None for every other file."""
    try:
        state = torch.load(path, map_location="meta", weights_only=True)
    except Exception:
        # Not ours, and perhaps no checkpoint at all: whoever reads it next says so.
        return None
    return state if isinstance(state, dict) and "spec" in state and "model" in state else None


def load(run_or_checkpoint: str | Path, device: torch.device | str = "cpu") -> nn.Module:
    """The trained model, in eval mode; its input is pixels in [0, 1]. `model.classes` has the class names."""
    state = read_checkpoint(run_or_checkpoint, device)
    model = ModelSpec.from_dict(state["spec"]).create().to(device)
    model.load_state_dict(state["model"])
    model.classes = list(state["classes"])  # type: ignore[assignment]
    return model.eval()


def export(run_or_checkpoint: str | Path, file: str | Path) -> Path:
    """Writes the weights alone as a torch state dict (the normalisation is its first layer) and returns the path."""
    file = Path(file).expanduser()
    state = read_checkpoint(run_or_checkpoint)
    try:
        atomic.save_torch(file, {key: value.contiguous() for key, value in state["model"].items()})
    except OSError as error:
        raise InputError(f"cannot write {file}: {error.strerror or error}") from None
    return file
