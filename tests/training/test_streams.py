"""The order of streams around a capture, its warm-up and its replays, without a GPU.

Every op is stamped with the stream it is queued on. What one stream wrote, another may use, and what one
still reads, another may write, only when it was waited for.
"""

from __future__ import annotations

import contextlib
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from tests.training.replaying import storage, tensors
from tests.training.tiny import take_steps


class Stream:
    """What it knows of each stream: how many of its ops are over when this one's next begins."""

    def __init__(self, device: Any = None, name: str = "side") -> None:
        self.name, self.clock = name, {}

    def tick(self) -> int:
        self.clock[self] = self.clock.get(self, 0) + 1
        return self.clock[self]

    def wait_stream(self, other: Stream) -> None:
        for stream, time in other.clock.items():
            self.clock[stream] = max(self.clock.get(stream, 0), time)


class Order(TorchDispatchMode):
    """Finds the ops that use memory which another stream may not be done with."""

    def __init__(self, default: Stream) -> None:
        super().__init__()
        self.current, self.found, self.ops = default, [], {}
        self.written: dict[int, tuple[Stream, int]] = {}
        self.read: dict[int, dict[Stream, int]] = {}
        # Addresses must not be used again.
        self.kept: list[Any] = []

    def waited_for(self, stream: Stream, time: int) -> bool:
        return self.current.clock.get(stream, 0) >= time

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        out = func(*args, **kwargs)
        if (
            func.is_view
            or "profiler" in str(func)
            or func.overloadpacket.__name__ in ("detach", "device", "set_")
        ):
            return out
        time = self.current.tick()
        self.ops[self.current.name] = self.ops.get(self.current.name, 0) + 1
        named = dict(zip((a.name for a in func._schema.arguments), args, strict=False)) | kwargs
        changed = [
            a.name for a in func._schema.arguments if a.alias_info is not None and a.alias_info.is_write
        ]
        writes = {storage(t) for name in changed for t in tensors(named.get(name))}
        self.kept += [t.untyped_storage() for t in tensors((args, kwargs, out))]
        for place in {storage(t) for t in tensors((args, kwargs))}:
            self.look(func, place, place in writes)
            self.read.setdefault(place, {})[self.current] = time
        for place in writes | {storage(t) for t in tensors(out)}:
            self.written[place] = self.current, time
        return out

    def look(self, func, place, writes):
        stream, time = self.written.get(place, (self.current, 0))
        if not self.waited_for(stream, time):
            self.found.append(f"{func} on {self.current.name} uses what {stream.name} may still write")
        for stream, time in self.read.get(place, {}).items() if writes else ():
            if not self.waited_for(stream, time):
                self.found.append(f"{func} on {self.current.name} writes what {stream.name} may still read")


@pytest.fixture
def order(monkeypatch, fake_graphs):
    default = Stream(name="default")
    order = Order(default)

    @contextlib.contextmanager
    def on(stream):
        before, order.current = order.current, stream
        try:
            yield
        finally:
            order.current = before

    record = torch.cuda.graph

    @contextlib.contextmanager
    def capture(graph, stream, capture_error_mode):
        stream.wait_stream(order.current)  # torch waits for the device before a capture
        with on(stream), record(graph, stream, capture_error_mode):
            yield
        order.current.wait_stream(stream)  # nothing ran on it

    monkeypatch.setattr(torch.cuda, "graph", capture)
    monkeypatch.setattr(torch.cuda, "Stream", Stream)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device=None: order.current)
    monkeypatch.setattr(torch.cuda, "stream", on)
    return order


@pytest.mark.slow
@pytest.mark.parametrize("method", ["cfol", "trades"])
def test_no_op_of_a_captured_run_meets_another_stream(few_images, graph_trainer, order, method):
    trainer = graph_trainer(method, optimizer__schedule="one-cycle")
    with order:
        take_steps(trainer, 6)
    assert order.ops["default"] > 0
    assert order.ops["side"] > 100
    assert order.found == [], f"{len(order.found)}: {order.found[:3]}"


def test_the_order_is_looked_at(order):
    """Each kind of use without a wait, once; with one none."""
    side, x = Stream(), torch.zeros(3)
    with order:
        x.add_(1)
        with torch.cuda.stream(side):
            y = x * 2
        assert len(order.found) == 1
        y.sum()
        assert len(order.found) == 2
        x.fill_(0)
        assert len(order.found) == 3
        order.found.clear()
        torch.cuda.current_stream().wait_stream(side)
        y.sum()
        x.fill_(0)
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            x.add_(y)
    assert order.found == []
