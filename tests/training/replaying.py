"""A CUDA graph's stand-in on the CPU: records the ops of a step with their very tensors, and runs them again
into the same memory.

As with a real capture nothing has happened once the recording is over: what the ops wrote is put back. Host
code is not recorded, so a number that Python computes anew at each step stays what it was, and a tensor that
a step replaces is missed.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

# Ops that bring a value to the host; under a capture they are errors.
HOST_READS = {"_local_scalar_dense", "nonzero", "equal", "is_nonzero", "masked_select"}


def tensors(tree: Any) -> list[Tensor]:
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, Tensor)]


def storage(tensor: Tensor) -> int:
    return tensor.untyped_storage()._cdata


class Trace(TorchDispatchMode):
    """The ops of a step with the shapes of their tensors and the values of everything else."""

    only_watches = True

    def __init__(self) -> None:
        super().__init__()
        self.ops: list[tuple[str, list[str]]] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        leaves = tree_leaves((args, kwargs or {}))
        shown = [str(tuple(leaf.shape)) if isinstance(leaf, Tensor) else repr(leaf) for leaf in leaves]
        if "profiler" not in str(func):
            self.ops.append((str(func), shown))
        return func(*args, **(kwargs or {}))


class RecordedGraph(TorchDispatchMode):
    """Used as `with graph: step()`, then `graph.replay()`."""

    only_watches = True

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[Any, Any, Any, Any]] = []
        self.replays = 0
        # What was there before the recording: storage -> (a tensor over all of it, its contents).
        self._before: dict[int, tuple[Any, Any]] = {}
        self._made: set[int] = set()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        name = func.overloadpacket.__name__
        if name in HOST_READS:
            raise RuntimeError(
                f"operation not permitted when stream is capturing: {name} reads from the device"
            )
        for tensor in tensors((args, kwargs)):
            if storage(tensor) not in self._before and storage(tensor) not in self._made:
                whole = tensor.untyped_storage()
                self._before[storage(tensor)] = whole, whole.clone()
        out = func(*args, **kwargs)
        self._made |= {storage(tensor) for tensor in tensors(out)} - self._before.keys()
        computes = not func.is_view and name not in ("detach", "_unsafe_view") and "profiler" not in str(func)
        if computes:
            self.calls.append((func, args, kwargs, out))
        return out

    def __exit__(self, *exception: Any) -> None:
        super().__exit__(*exception)
        for whole, contents in self._before.values():
            whole.copy_(contents)

    @torch.no_grad()
    def replay(self) -> None:
        self.replays += 1
        for func, args, kwargs, out in self.calls:
            read = {storage(tensor) for tensor in tensors((args, kwargs))}
            for old, new in zip(tensors(out), tensors(func(*args, **kwargs)), strict=True):
                if storage(old) not in read and old.numel():
                    old.copy_(new)


class FakeStream:
    def __init__(self, device: Any = None) -> None:
        self.device = device

    def wait_stream(self, other: Any) -> None:
        assert isinstance(other, FakeStream)


def fake_cuda(monkeypatch: Any) -> list[RecordedGraph]:
    """Replaces what `capture.CapturedStep` calls of torch.cuda; returns the list of the graphs that it will
    have captured.
    """
    graphs: list[RecordedGraph] = []

    def new_graph() -> RecordedGraph:
        graphs.append(RecordedGraph())
        return graphs[-1]

    @contextlib.contextmanager
    def capturing(graph: RecordedGraph, stream: FakeStream, capture_error_mode: str) -> Iterator[None]:
        assert capture_error_mode == "thread_local"
        with graph:
            yield

    monkeypatch.setattr(torch.cuda, "CUDAGraph", new_graph)
    monkeypatch.setattr(torch.cuda, "graph", capturing)
    monkeypatch.setattr(torch.cuda, "Stream", FakeStream)
    monkeypatch.setattr(torch.cuda, "current_stream", FakeStream)
    monkeypatch.setattr(torch.cuda, "stream", lambda stream: contextlib.nullcontext())
    monkeypatch.setattr(torch.cuda, "device", lambda device: contextlib.nullcontext())
    return graphs
