"""What all attacks have in common: a model, a random state on the device that can be saved, and a description
for the records.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import torch
from torch import Tensor, nn

from cfol_fast import ops
from cfol_fast.attacks.pixels import can_be_read, check_labels, check_pixels, flag_pixels
from cfol_fast.errors import InputError
from cfol_fast.frozen import frozen, logits_in
from cfol_fast.machine import changing_shapes

# One number, or (B,) with one for each example.
Radius = float | Tensor
# Of a part of a batch: the slot of its first image in the whole batch, and how many slots that has.
Slots = tuple[int, int]


class Attack(ABC):
    """Called as `attack(x, y)`: x (B, C, H, W) in [0, 1], y (B,) int64 -> x_adv like x.

    The model is left as it was: mode, gradients, `requires_grad` and BatchNorm statistics. Nothing is read
    back from the device. `fault` collects the flags of kernels that cannot raise (on a GPU).

    steps_unless_told: how many steps the attack takes in training where nobody says another number.
    single_step: it always takes one step, of a size of its own unless told.
    trusts_images: images and labels are not checked; the trainer vouches for those of its own sources.
    any_layout: x_adv may be in channels_last, in which the attack works, where the model takes that. Else it
    has the layout of x.
    A call with `slots` attacks a part of a batch: the noise belongs to the slot. The parts of one batch start
    from the same random state (`state_dict`).
    """

    kind: str
    steps_unless_told = 7
    single_step = False

    def __init__(
        self, model: nn.Module, seed: int = 0, trusts_images: bool = False, any_layout: bool = False
    ) -> None:
        self.model, self.seed = model, seed
        self.trusts_images, self.any_layout = trusts_images, any_layout
        first = next(model.parameters(), None)
        device = torch.device("cpu") if first is None else first.device
        self.rng, self.fault = ops.new_rng(seed, device), ops.new_fault(device)
        self._has_read = False
        # The labels of a call that reads values, until the model has said how many classes it has.
        self._unchecked: Tensor | None = None

    @abstractmethod
    def __call__(self, x: Tensor, y: Tensor, *, slots: Slots | None = None) -> Tensor: ...

    @abstractmethod
    def describe(self) -> dict[str, Any]:
        """The attack and its parameters, for JSON."""

    def __repr__(self) -> str:
        said = {key: value for key, value in self.describe().items() if key != "kind"}
        inside = "".join(f", {key}={value!r}" for key, value in said.items())
        return f"{type(self).__name__}({type(self.model).__name__}{inside})"

    def state_dict(self) -> dict[str, Any]:
        return {"rng": self.rng.clone()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.rng.copy_(state["rng"])

    @property
    def draws(self) -> int:
        """By how much a call advances the random state, whatever the batch."""
        return 0

    def skip(self, calls: int) -> None:
        """Goes on as if so many more calls had been made: on many ranks they are those of the others."""
        self.rng[1] += calls * self.draws

    def check(self, x: Tensor, y: Tensor) -> bool:
        """Refuses a batch that the attack is not defined for.

        True if values were read: at the first call, on the CPU at every one.
        """
        check_batch(x, y)
        self._to(x.device)
        self._unchecked = None
        if self.trusts_images:
            return False
        if can_be_read(x) and (not self._has_read or x.device.type == "cpu"):
            check_pixels(x)
            self._has_read, self._unchecked = True, y
            return True
        flag_pixels(x, self.fault)
        return False

    def see(self, logits: Tensor) -> None:
        """The first logits (B, k) of a call: now its labels can be checked, where `check` read values."""
        labels, self._unchecked = self._unchecked, None
        if labels is not None:
            check_labels(labels, logits.shape[1])

    def _to(self, device: torch.device) -> None:
        """Moves the random state to the batches' device: once, not at every step."""
        if self.rng.device != device:
            self.rng, self.fault = self.rng.to(device), self.fault.to(device)


class NoAttack(Attack):
    """Clean training and evaluation: x itself."""

    kind = "none"
    # What the model returns for one image: asked for once, since nothing else here tells how many classes it
    # has.
    _returned: Any = None

    def __call__(self, x: Tensor, y: Tensor, *, slots: Slots | None = None) -> Tensor:
        if self.check(x, y) and len(x):
            if self._returned is None:
                with torch.no_grad(), changing_shapes(), frozen(self.model, x.device, fast=False) as net:
                    self._returned = logits_in(net(x[:1]))
            if isinstance(self._returned, Tensor) and self._returned.dim() == 2:
                self.see(self._returned)
        return x

    def describe(self) -> dict[str, Any]:
        return {"kind": self.kind}


def check_radius(value: Radius, name: str, norm: str | None = None) -> None:
    """Refuses what is no radius or step size; the kernels check the values of a tensor.

    norm: "linf" refuses what is larger than the whole range of a pixel, such as 8 instead of 8/255.
    """
    if isinstance(value, Tensor):
        if value.dim() > 1:
            raise ValueError(
                f"{name} must be a number or a tensor of shape (batch,), got the shape {tuple(value.shape)}"
            )
        return
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise TypeError(f"{name} must be a number or a tensor of shape (batch,), got {type(value).__name__}")
    if not 0 <= value < float("inf"):
        raise InputError(f"{name} must be a finite number of at least 0, got {value}")
    if norm == "linf" and value > 1:
        raise InputError(
            f"{name} must be at most 1 for norm 'linf', got {value}: pixels are in [0, 1]; perhaps"
            f" {value:g}/255"
        )


def describe_radius(value: Radius) -> float | str:
    return "per example" if isinstance(value, Tensor) else float(value)


def check_batch(x: Tensor, y: Tensor) -> None:
    """Shapes and types only: looking at the values would read them back from the device."""
    if not isinstance(x, Tensor) or not x.is_floating_point() or x.dim() < 2:
        what = f"{x.dtype} {tuple(x.shape)}" if isinstance(x, Tensor) else type(x).__name__
        raise TypeError(f"x must be a floating point tensor of shape (batch, ...) in [0, 1], got {what}")
    if not isinstance(y, Tensor) or y.dtype != torch.int64:
        raise TypeError(
            f"y must be an int64 tensor, got {y.dtype if isinstance(y, Tensor) else type(y).__name__}"
        )
    if y.shape != x.shape[:1]:
        raise ValueError(f"y must have shape ({x.shape[0]},), one label for each image, got {tuple(y.shape)}")
