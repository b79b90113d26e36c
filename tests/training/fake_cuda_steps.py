"""A process of its own: training steps on fake tensors whose device is cuda:0. python -m
tests.training.fake_cuda_steps PRECISION, or resume.

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
from collections import deque
from collections.abc import Iterator
from typing import Any

import torch
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    FakeTensor,
    FakeTensorMode,
    unset_fake_temporarily,
)
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

from cfol_fast import machine
from cfol_fast.frozen import cudnn, snapshot
from cfol_fast.methods import METHODS
from cfol_fast.runs.checkpoint_contents import Checkpoint
from cfol_fast.runs.optimizers import OPTIMIZERS, DeviceRateSGD
from cfol_fast.sampling import index_sampler
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
    # torch has no shape functions for these; they return nothing.
    LIBRARY.impl("_fused_sgd_.tensor_lr", lambda *arguments, **options: None)
    LIBRARY.impl("_fused_adamw_.tensor_lr", lambda *arguments, **options: None)
    # Nor for these, which have no derivative either.
    LIBRARY.impl("cudnn_convolution_relu", convolution_relu)
    LIBRARY.impl("cudnn_convolution_add_relu", convolution_add_relu)
    cudnn.fuses = lambda device, dtype: True
    # The state of the host's generator is a real tensor.
    in_bytes = snapshot.in_bytes

    def of_a_real_tensor(state: torch.Tensor) -> bytes:
        with unset_fake_temporarily():
            return in_bytes(state)

    snapshot.in_bytes = of_a_real_tensor


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
                # A complete configuration takes no value, not even its own.
                if (swapped := swap(value)) is not value:
                    table[key] = swapped


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


def reachable(root: Any) -> Iterator[tuple[str, torch.Tensor]]:
    """(where, tensor) of every tensor that can be reached from an object's attributes and items."""
    done: set[int] = set()
    todo = [("", root)]
    while todo:
        where, thing = todo.pop()
        if id(thing) in done or isinstance(thing, (str, int, float, type, torch.device)):
            continue
        done.add(id(thing))
        if isinstance(thing, torch.Tensor):
            yield where, thing
            if thing.grad is not None:
                yield f"{where}.grad", thing.grad
        elif isinstance(thing, dict):
            todo += [(f"{where}[{key!r}]", value) for key, value in thing.items()]
        elif isinstance(thing, (list, tuple, deque)):
            todo += [(f"{where}[{i}]", value) for i, value in enumerate(thing)]
        else:
            attributes = getattr(thing, "__dict__", {})
            todo += [(f"{where}.{key}", value) for key, value in attributes.items()]


class Copies(TorchDispatchMode):
    """Notes every op that takes tensors of two devices, or gives one of another device."""

    def __init__(self) -> None:
        super().__init__()
        self.ops = 0
        self.between: list[str] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        out = func(*args, **(kwargs or {}))
        leaves = tree_leaves((args, kwargs, out))
        devices = {leaf.device for leaf in leaves if isinstance(leaf, torch.Tensor)}
        self.ops += 1
        if len(devices) > 1:
            self.between.append(f"{func} over {sorted(map(str, devices))}")
        return out


# Random states that were read and set: torch's own generators, where a model has dropout.
GENERATORS: list[tuple[str, str]] = []


def pretend_generators() -> None:
    def state(device: Any = "cuda") -> torch.Tensor:
        GENERATORS.append(("read", str(device)))
        return torch.zeros(16, dtype=torch.uint8)

    def set_state(state: torch.Tensor, device: Any = "cuda") -> None:
        assert state.device.type == "cpu", "a generator's state goes through the host"
        GENERATORS.append(("set", str(device)))

    def set_host_state(state: torch.Tensor) -> None:
        assert state.device.type == "cpu", "the host's generator has a state on the host"

    torch.cuda.get_rng_state, torch.cuda.set_rng_state = state, set_state  # type: ignore[assignment]
    torch.set_rng_state = set_host_state
    torch.cuda.get_device_name = lambda device=None: "fake"  # type: ignore[assignment]
    # Fake tensors have no values to look at.
    index_sampler._not_like = lambda name, mine, theirs: None


def elsewhere(trainer: Any) -> list[str]:
    """What of a trainer's step is not on the GPU."""
    parts = {"step": trainer.step, "batches": trainer.state.batches, "average": trainer.state.average}
    return [f"{where} is on {t.device}" for where, t in reachable(parts) if t.device != CUDA]


def resume(method: str, optimizer: str, folder: str) -> None:
    """A run goes on from a checkpoint that was read to the device, and from one that came through the host,
    as it does with several processes.
    """
    settings = {"model__name": "resnet18@0.125", "precision": "float32", "optimizer__name": optimizer}
    trainer = new_trainer(folder, method, device="meta", ema__decay=0.9, **settings)
    # A checkpoint is looked at as a model of its own, which is made of real tensors.
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    on_cuda(mode, trainer)
    trainer.config = trainer.config.with_settled({"device": str(CUDA)})
    state = trainer.state
    with mode:
        trainer.step.optimizer = OPTIMIZERS[optimizer](trainer.step.model, trainer.config.optimizer, CUDA)
        two_steps(trainer, 2)
        copies = Copies()
        with copies:
            two_steps(trainer, 1)
        assert copies.ops > 100
        assert not copies.between, copies.between[:5]
        # One that a source has drawn ahead, with its ticket.
        state.batches._waiting.append((trainer.step.sampler.draw(16), trainer.step.sampler.ticket()))
        stored = state.whole().to_state()
        for place in (CUDA, torch.device("cpu")):

            def put(value: Any, place: torch.device = place) -> Any:
                if not isinstance(value, torch.Tensor):
                    return value
                with unset_fake_temporarily():
                    empty = torch.empty(value.shape, dtype=value.dtype, device="meta")
                return FakeTensor(mode, empty, place)

            moved = tree_map(put, stored)
            state.load(Checkpoint.of(moved, state.folder / "last.pt", trainer.config.data.name))
            assert len(state.batches._waiting) == 1
            assert not elsewhere(trainer), elsewhere(trainer)[:5]
            state.batches._waiting.clear()
            two_steps(trainer, 1)
            assert not elsewhere(trainer), elsewhere(trainer)[:5]
    assert {device for _, device in GENERATORS} == {str(CUDA)}, GENERATORS
    assert {what for what, _ in GENERATORS} == {"read", "set"}


def resume_all() -> None:
    pretend_generators()
    for optimizer in OPTIMIZERS:
        with tempfile.TemporaryDirectory() as folder, machine.computing("float32", False):
            print("resumed with", optimizer, flush=True)
            resume("cfol", optimizer, folder)


def take_steps_of_all(precision: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        # The methods' bfloat16 is that of the CPU, where tests/training/test_replay.py has them all; here it
        # is that of the attack.
        chosen = METHODS if precision == "float32" else QUICK
        for method, deterministic in [*((method, False) for method in chosen), *DETERMINISTIC]:
            print(method, "deterministic" if deterministic else "", flush=True)
            with machine.computing(precision, deterministic):
                take_steps(method, precision, folder)
    assert set(FUSED) == {getattr(torch, precision)}, FUSED


if __name__ == "__main__":
    pretend()
    # To choose a backend for bfloat16, torch would ask cuDNN, and cuDNN the device.
    torch.backends.cudnn.enabled = sys.argv[1] != "bfloat16"
    use_few_images()
    resume_all() if sys.argv[1] == "resume" else take_steps_of_all(sys.argv[1])
    print("all ran on", CUDA)
