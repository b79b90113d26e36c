"""The network and the attack of a run, as its configuration says."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from cfol_fast import attacks
from cfol_fast.machine import keep_compiled_code_apart
from cfol_fast.models.spec import ModelSpec
from cfol_fast.runs.config import TrainConfig


def new_model(spec: ModelSpec, config: TrainConfig, device: torch.device) -> nn.Module:
    """The network with its seeded start, in training mode."""
    torch.manual_seed(config.seed)
    model = spec.create().to(device)
    if config.model.channels_last:
        model = model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    if config.batchnorm == "sync":
        model = nn.SyncBatchNorm.convert_sync_batchnorm(model)
    return model.train()


def compiled(model: nn.Module, device: torch.device) -> Callable[[Tensor], Tensor]:
    """The model under torch.compile; on a GPU with CUDA graphs, which "reduce-overhead" brings."""
    keep_compiled_code_apart()
    return torch.compile(model, mode="reduce-overhead" if device.type == "cuda" else "default")


def training_attack(model: nn.Module, config: TrainConfig, in_step: bool = False) -> attacks.Attack:
    """The attack of the training step, with its own random state.

    in_step: its images are those of our own sources, and what it returns is for the model alone.
    """
    chosen = config.attack
    if chosen.kind == "none":
        return attacks.create("none", model, trusts_images=in_step, any_layout=in_step)
    params: dict[str, Any] = {"eps": chosen.eps, "norm": chosen.norm, "seed": config.seed}
    params |= {"step": chosen.step, "random_start": chosen.random_start}
    params |= {"trusts_images": in_step, "any_layout": in_step}
    params |= {"dtype": torch.bfloat16 if config.precision == "bfloat16" else None}
    if not attacks.KINDS[chosen.kind].single_step:
        params["steps"] = chosen.steps
    return attacks.create(chosen.kind, model, **params)
