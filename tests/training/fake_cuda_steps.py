"""A process of its own: training steps on fake tensors whose device is cuda:0. python -m
tests.training.fake_cuda_steps PRECISION.

Every branch for a GPU is taken, a read-back raises, and mixing devices raises. FakeTensorMode takes a guard
that does nothing while torch counts no device, but the autograd engine asks for the state of every device it
could have: so the preloaded shim counts none at first and many afterwards (tests/training/test_fake_cuda.py
starts it). Everything is built on the meta device; then each of its tensors becomes a fake one on the GPU.
"""

from __future__ import annotations

import contextlib
import ctypes
import sys
import tempfile
from typing import Any

import torch
from torch._subclasses.fake_tensor import DataDependentOutputException, FakeTensor, FakeTensorMode

from cfol_fast import machine
from cfol_fast.frozen import cudnn
from cfol_fast.methods import METHODS
from cfol_fast.runs.optimizers import DeviceRateSGD
from tests.training.tiny import QUICK, new_trainer, use_few_images
from tests.training.tiny import take_steps as two_steps

CUDA = torch.device("cuda", 0)
# Those that compute otherwise with --deterministic.
DETERMINISTIC = [("cvar", True), ("lcvar", True)]
# The precision of each fused convolution that was asked for.
FUSED: list[torch.dtype] = []
LIBRARY = torch.library.Library("aten", "IMPL", "Meta")


def convolution_relu(x, weight, bias, stride, padding, dilation, groups):  # type: ignore[no-untyped-def]
    FUSED.append(x.dtype)
    return torch.relu(torch.conv2d(x, weight, bias, stride, padding, dilation, groups))


def convolution_add_relu(x, weight, z, alpha, bias, *rest):  # type: ignore[no-untyped-def]
    return torch.relu(torch.conv2d(x, weight, bias, *rest) + alpha * z)


def pretend() -> None:
    """A machine with GPUs, as far as Python asks."""
    torch._C._ensureCUDADeviceGuardSet()
    ctypes.CDLL(None).fake_cuda_set_count(64)
    torch.cuda._lazy_init = lambda: None
    torch.cuda.is_available = lambda: True
    torch.cuda.current_device = lambda: 0
    torch.cuda.device = lambda device: contextlib.nullcontext()
    torch.cuda.is_bf16_supported = lambda including_emulation=True: True
    # torch has no shape function for it; it returns nothing.
    LIBRARY.impl("_fused_sgd_.tensor_lr", lambda *arguments, **options: None)
    # Nor for these, which have no derivative either.
    LIBRARY.impl("cudnn_convolution_relu", convolution_relu)
    LIBRARY.impl("cudnn_convolution_add_relu", convolution_add_relu)
    cudnn.fuses = lambda device, dtype: True


def on_cuda(mode: FakeTensorMode, root: Any) -> None:
    """Every meta tensor that can be reached from `root` becomes a fake tensor on cuda:0, every other one a
    fake tensor where it is.
    """
    done: set[int] = set()
    made: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
    todo = [root]

    def convert(t: torch.Tensor) -> torch.Tensor:
        if t.device.type != "meta":
            return mode.from_tensor(t)
        if id(t) not in made:
            fake: torch.Tensor = FakeTensor(mode, t.detach(), CUDA)
            if isinstance(t, torch.nn.Parameter):
                fake = torch.nn.Parameter(fake, t.requires_grad)
            made[id(t)] = t, fake
        return made[id(t)][1]

    def swap(value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            return convert(value)
        if isinstance(value, torch.device) and value.type == "meta":
            return CUDA
        if isinstance(value, tuple) and any(isinstance(item, torch.Tensor) for item in value):
            items = [swap(item) for item in value]
            return type(value)(*items) if hasattr(value, "_fields") else tuple(items)
        todo.append(value)
        return value

    while todo:
        thing = todo.pop()
        if id(thing) in done or isinstance(thing, (str, int, float, type)):
            continue
        done.add(id(thing))
        table = thing if isinstance(thing, dict) else getattr(thing, "__dict__", None)
        if isinstance(thing, list):
            thing[:] = [swap(item) for item in thing]
        elif isinstance(thing, tuple):
            todo += thing
        if isinstance(table, dict):
            for key, value in list(table.items()):
                table[key] = swap(value)


def take_steps(method: str, precision: str, folder: str) -> None:
    trainer = new_trainer(folder, method, device="meta", precision=precision, model__name="resnet18@0.125")
    mode = FakeTensorMode()
    on_cuda(mode, trainer)
    trainer.config = trainer.config.with_settled({"device": str(CUDA)})
    with mode:
        trainer.step.optimizer = DeviceRateSGD(trainer.step.model, trainer.config.optimizer, CUDA)
        two_steps(trainer, 2)
        parameters = list(trainer.step.model.parameters())
        assert all(p.device == p.grad.device == CUDA for p in parameters), "a gradient is elsewhere"
        assert trainer.step.optimizer.param_groups[0]["fused"], "SGD is not fused"
        try:
            float(trainer.step.counts.loss_sum)
        except DataDependentOutputException:
            return
    raise AssertionError("a read-back did not raise")


if __name__ == "__main__":
    pretend()
    # To choose a backend for bfloat16, torch would ask cuDNN, and cuDNN the device.
    torch.backends.cudnn.enabled = sys.argv[1] == "float32"
    use_few_images()
    with tempfile.TemporaryDirectory() as folder:
        # The methods' bfloat16 is that of the CPU, where tests/training/test_replay.py has them all; here it
        # is that of the attack.
        chosen = METHODS if sys.argv[1] == "float32" else QUICK
        for method, deterministic in [*((method, False) for method in chosen), *DETERMINISTIC]:
            print(method, "deterministic" if deterministic else "", flush=True)
            with machine.computing(sys.argv[1], deterministic):
                take_steps(method, sys.argv[1], folder)
    assert set(FUSED) == {getattr(torch, sys.argv[1])}, FUSED
    print("all ran on", CUDA)
