"""Checkpoints as a run leaves them, without a run: any model, with random weights."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import nn

from cfol_fast.models import ModelSpec
from cfol_fast.runs import checkpoints
from tests.attacks.small_models import awaken

CLASSES = ["cat", "dog", "emu"]


def store(file: Path, name: str, size: int = 32, channels: int = 3, **more: Any) -> nn.Module:
    """Writes a checkpoint to `file` and returns its model, in eval mode."""
    torch.manual_seed(0)
    spec = ModelSpec(name, len(CLASSES), size, channels, (0.5,) * channels, (0.25,) * channels)
    model = awaken(spec.create()).eval()
    state = {
        "format": checkpoints.FORMAT,
        "model": model.state_dict(),
        "spec": spec.to_dict(),
        "classes": CLASSES,
    }
    checkpoints.write(file, {**state, "dataset": "folder", "method": "cfol", "seed": 0, "epoch": 2, **more})
    return model
