"""SGD and AdamW in one op, with the learning rate in device memory: a captured step reads the rate of the
moment, not that of its capture.
"""

from __future__ import annotations

from inspect import unwrap
from typing import Any, ClassVar

import torch
from torch import nn

from cfol_fast.errors import InputError
from cfol_fast.models.head import last_linear
from cfol_fast.runs.setting_groups import OptimizerConfig

# What belongs to where a run is carried out: a checkpoint of another device, or of an older version, does not
# change it.
OF_THE_DEVICE = ("lr", "fused", "foreach", "capturable")
# AdamW's second decay; the first is the momentum.
SQUARES_DECAY = 0.999


def parameter_groups(model: nn.Module, chosen: OptimizerConfig) -> list[dict[str, Any]]:
    """The parameters that are trained; with `optimizer.head_lr` the last linear layer apart, after
    the others.
    """
    trained = [each for each in model.parameters() if each.requires_grad]
    if chosen.head_lr is None:
        return [{"params": trained}]
    layer = last_linear(model)
    own = [] if layer is None else [each for each in layer.parameters() if each.requires_grad]
    if not own:
        problem = "has no linear layer" if layer is None else "has its last linear layer frozen"
        raise InputError(
            f"optimizer.head_lr={chosen.head_lr:g} is the rate of the last linear layer, and the model"
            f" {problem}: leave optimizer.head_lr out"
        )
    of_head = set(map(id, own))
    others = [each for each in trained if id(each) not in of_head]
    return [{"params": others}, {"params": own}]


class DeviceRate(torch.optim.Optimizer):
    """`rate` is the learning rate as a number; `set_rate` before a step. Checkpoints hold the number. The
    second group of parameters, where there is one, has `head_lr / lr` times the rate.

    The meta device, which only the tests use, has no fused ops: there the rate is a number in the few ops of
    `foreach`. torch wraps an optimizer's functions for torch.compile, whose import takes as long as torch's
    own. Here no optimizer is compiled, so the functions are taken without that.
    """

    rate: float
    fused: bool
    # The learning rate of this optimiser where nobody gives one; None: the data set's.
    own_rate: ClassVar[float | None] = None
    has_nesterov: ClassVar[bool] = False

    add_param_group = unwrap(torch.optim.Optimizer.add_param_group)
    zero_grad = unwrap(torch.optim.Optimizer.zero_grad)

    def _put_rate_on(self, device: torch.device, chosen: OptimizerConfig) -> None:
        of_head = 1.0 if chosen.head_lr is None else chosen.head_lr / chosen.lr
        self._factors = [1.0, of_head][: len(self.param_groups)]
        self._on_device = [
            torch.full((), self.rate * factor, dtype=torch.float32, device=device) for factor in self._factors
        ]
        self.set_rate(self.rate)

    def set_rate(self, rate: float) -> None:
        # A rate that stays costs a captured step no launch beside its replay.
        changed, self.rate = rate != self.rate, rate
        for group, factor, on_device in zip(self.param_groups, self._factors, self._on_device, strict=True):
            if changed and self.fused:
                on_device.fill_(rate * factor)
            group["lr"] = on_device if self.fused else rate * factor

    def state_dict(self) -> dict[str, Any]:
        state: dict[str, Any] = unwrap(torch.optim.Optimizer.state_dict)(self)
        for group in state["param_groups"]:
            group["lr"] = self.rate
        return state

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        own = [{key: group[key] for key in OF_THE_DEVICE if key in group} for group in self.param_groups]
        unwrap(torch.optim.Optimizer.load_state_dict)(self, state_dict)
        for group, kept in zip(self.param_groups, own, strict=True):
            group.update(kept)
        self.set_rate(state_dict["param_groups"][0]["lr"])


class DeviceRateSGD(DeviceRate, torch.optim.SGD):
    has_nesterov = True
    _step = torch.no_grad()(unwrap(torch.optim.SGD.step))

    def step(self) -> None:  # type: ignore[override]
        self._begin_late_momenta()
        self._step()

    def _begin_late_momenta(self) -> None:
        """Momentum of zero for weights that get their first gradient after others had theirs: torch's fused
        step takes all or none.
        """
        for group in self.param_groups:
            if not (group["fused"] and group["momentum"]):
                continue
            moved = [weight for weight in group["params"] if weight.grad is not None]
            late = [weight for weight in moved if self.state[weight].get("momentum_buffer") is None]
            if len(late) < len(moved):
                for weight in late:
                    self.state[weight]["momentum_buffer"] = torch.zeros_like(weight)

    def __init__(self, model: nn.Module, chosen: OptimizerConfig, device: torch.device) -> None:
        self.rate, self.fused = chosen.lr, device.type != "meta"
        super().__init__(
            parameter_groups(model, chosen),
            lr=self.rate,
            momentum=chosen.momentum,
            weight_decay=chosen.weight_decay,
            nesterov=chosen.nesterov,
            fused=self.fused,
            foreach=not self.fused,
        )
        self._put_rate_on(device, chosen)


class DeviceRateAdamW(DeviceRate, torch.optim.AdamW):
    # torch's own default; SGD's 0.1 would diverge.
    own_rate = 1e-3
    step = torch.no_grad()(unwrap(torch.optim.AdamW.step))

    def __init__(self, model: nn.Module, chosen: OptimizerConfig, device: torch.device) -> None:
        self.rate, self.fused = chosen.lr, device.type != "meta"
        super().__init__(
            parameter_groups(model, chosen),
            lr=self.rate,
            betas=(chosen.momentum, SQUARES_DECAY),
            weight_decay=chosen.weight_decay,
            fused=self.fused,
            foreach=not self.fused,
            # The count of its steps is on the device too.
            capturable=device.type == "cuda",
        )
        self._put_rate_on(device, chosen)


# The choices of the setting `optimizer.name`.
OPTIMIZERS: dict[str, type[DeviceRateSGD] | type[DeviceRateAdamW]] = {
    "sgd": DeviceRateSGD,
    "adamw": DeviceRateAdamW,
}
