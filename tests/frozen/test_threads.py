"""Attacks beside other threads: tracing a model changes nothing that they see, and two attacks on one model
agree on its mode.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import Tensor, fx, nn

from cfol_fast import PGD
from cfol_fast.frozen.network import evaluation_mode
from cfol_fast.frozen.tracing import plan_for
from tests.attacks.small_models import SmallNet, awaken, images

CALL, GETATTR = nn.Module.__call__, nn.Module.__getattr__


class Watched(nn.Module):
    """Runs `during` whenever it is traced. What it fills must be no list: a trace puts those back."""

    def __init__(self, during: Callable[[], None]) -> None:
        super().__init__()
        self.inner = awaken(SmallNet())
        self.during = during

    def forward(self, x: Tensor) -> Tensor:
        if isinstance(x, fx.Proxy):
            self.during()
        return self.inner(x)


def in_another_thread(work: Callable[[], object]) -> object:
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(work).result()


def test_a_forward_pass_in_another_thread_goes_through_untouched() -> None:
    other, (x, _) = awaken(SmallNet(), seed=1), images(4, 0)
    expected, found = other(x), queue.SimpleQueue()
    model = Watched(lambda: found.put(in_another_thread(lambda: other(x)))).eval()
    assert plan_for(model) is not None
    assert not found.empty()
    while not found.empty():
        assert torch.equal(found.get(), expected)


def test_torch_itself_is_not_changed_while_a_model_is_traced() -> None:
    seen = queue.SimpleQueue()
    model = Watched(lambda: seen.put((nn.Module.__call__ is CALL, nn.Module.__getattr__ is GETATTR))).eval()
    assert plan_for(model) is not None
    assert not seen.empty()
    while not seen.empty():
        assert all(seen.get())


def test_two_threads_trace_two_models_at_once() -> None:
    both = threading.Barrier(2)
    x, y = images(6, 0)
    models = [Watched(lambda: both.wait(60) and None).eval() for _ in range(2)]
    with ThreadPoolExecutor(2) as pool:
        found = list(pool.map(lambda model: PGD(model, 0.05, steps=2)(x, y), models))
    assert nn.Module.__call__ is CALL
    for model, adv in zip(models, found, strict=True):
        assert torch.equal(adv, PGD(model.inner, 0.05, steps=2)(x, y))


@pytest.mark.slow
def test_many_forward_passes_beside_many_traces() -> None:
    x, y = images(2, 0)
    done = threading.Event()

    def forward_passes(seed: int) -> int:
        model = awaken(SmallNet(), seed)
        expected, passes = model(x), 0
        while not done.is_set():
            assert torch.equal(model(x), expected)
            passes += 1
        return passes

    with ThreadPoolExecutor(4) as pool:
        hammering = [pool.submit(forward_passes, seed) for seed in range(2)]
        try:
            for _ in pool.map(lambda seed: PGD(awaken(SmallNet(), seed), 0.05, steps=1)(x, y), range(24)):
                pass
        finally:
            done.set()
        assert all(passes.result() > 0 for passes in hammering)


def test_the_model_is_not_touched_by_its_own_trace() -> None:
    class Counting(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner, self.calls = SmallNet(), 0

        def forward(self, x: Tensor) -> Tensor:
            self.calls += 1
            return self.inner(x)

    model = Counting().eval()
    before = {name: value for name, value in model.__dict__.items() if name != "_modules"}
    plan_for(model)
    assert model.calls == 0
    assert {name: value for name, value in model.__dict__.items() if name != "_modules"} == before


@pytest.mark.parametrize("first_to_leave", [0, 1])
def test_the_last_block_to_end_puts_the_models_mode_back(first_to_leave: int) -> None:
    model = SmallNet().train()
    model.linear.eval()
    blocks = [evaluation_mode(model) for _ in range(2)]
    for block in blocks:
        block.__enter__()
    blocks.pop(first_to_leave).__exit__(None, None, None)
    assert not any(module.training for module in model.modules())
    blocks.pop().__exit__(None, None, None)
    assert [module for module in model.modules() if not module.training] == [model.linear]
