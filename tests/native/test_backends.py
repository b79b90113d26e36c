"""The backends that run the native tests on a device, shown here with fakes: what a GPU owner runs must not
fail by itself.
"""

import contextlib
from types import SimpleNamespace

import pytest
import torch

from cfol_fast import ops
from tests.native.backends import Moved


class FakeCuda:
    """torch.cuda without a device: streams that do nothing, and a graph whose replay runs what was
    recorded.
    """

    def __init__(self):
        self.called = []

    def install(self, monkeypatch):
        def stream(device=None):
            return SimpleNamespace(
                wait_stream=lambda other: self.called.append("wait"),
                synchronize=lambda: self.called.append("synchronize"),
            )

        @contextlib.contextmanager
        def entered(*arguments):
            self.called.append("inside")
            yield
            self.called.append("outside")

        graph = SimpleNamespace(replay=lambda: self.called.append("replay"))
        monkeypatch.setattr(torch.cuda, "Stream", stream)
        monkeypatch.setattr(torch.cuda, "current_stream", stream)
        monkeypatch.setattr(torch.cuda, "_sleep", lambda cycles: self.called.append("sleep"))
        monkeypatch.setattr(torch.cuda, "synchronize", lambda device: None)
        monkeypatch.setattr(torch.cuda, "CUDAGraph", lambda: graph)
        for name in ("stream", "graph", "device"):
            monkeypatch.setattr(torch.cuda, name, entered)
        return self


@pytest.mark.parametrize(
    ("how", "order"),
    [
        ("plain", []),
        ("side-stream", ["wait", "inside", "sleep", "outside", "synchronize"]),
        ("captured", ["inside", "inside", "outside", "replay", "outside"]),
    ],
)
def test_what_an_op_writes_comes_back_and_what_it_returns_too(monkeypatch, how, order):
    fake = FakeCuda().install(monkeypatch)
    backend = Moved(how, torch.ops.cfol_fast, "cpu", how)
    rng, fault = ops.new_rng(3), ops.new_fault()
    images = torch.rand(1 + 2 * 5)[1:].view(2, 5)
    before = images.clone()
    result = backend.op("pgd_start")(images, 0.1, None, rng, False, fault)
    assert rng.tolist() == [3, 1]
    assert torch.equal(result, ops.pgd_start(before, 0.1, ops.new_rng(3)))
    assert torch.equal(images, before)
    assert fake.called == order


def test_offsets_strides_and_shared_storages_are_kept():
    seen = []
    base = torch.arange(24.0)
    namespace = SimpleNamespace(probe=SimpleNamespace(default=lambda *a: seen.extend(a)))
    Moved("moved", namespace, "cpu").op("probe")(base[1:13].view(3, 4).t(), base[5:], 7)
    first, second, number = seen
    assert (first.shape, first.stride(), first.storage_offset()) == ((4, 3), (1, 4), 1)
    assert first.untyped_storage()._cdata == second.untyped_storage()._cdata
    assert first.untyped_storage()._cdata != base.untyped_storage()._cdata
    assert number == 7
