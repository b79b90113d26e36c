"""The fingerprint alone notices what changes a model between two attacks, and lets everything else pass."""

from __future__ import annotations

import copy
import gc
import weakref
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from cfol_fast import PGD, models
from cfol_fast.attacks import how
from cfol_fast.frozen import proof, python_state, tracing
from cfol_fast.frozen.python_state import fingerprint, named
from cfol_fast.frozen.tracing import plan_for
from tests.attacks.small_models import SmallNet
from tests.frozen.changing_models import CHANGES, Config, batch, make

x, y = batch()


def same(one: torch.Tensor, other: torch.Tensor) -> bool:
    return bool(((one - other).abs() < 1e-6).float().mean() > 0.99)


@pytest.fixture
def no_proof(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(proof, "due", lambda *_: False)


@pytest.mark.parametrize("change", CHANGES)
def test_a_change_between_two_attacks_is_noticed_without_a_proof(
    change: str, no_proof: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = make()
    attack = PGD(model, 0.1, steps=2, random_start=False)
    before = attack(x, y)
    assert how(model) == "fast"
    CHANGES[change](model, monkeypatch.setattr)
    after = attack(x, y)
    assert not same(before, after)
    assert same(after, PGD(model, 0.1, steps=2, random_start=False, fast=False)(x, y))


def test_what_does_not_change_the_forward_pass_is_not_traced_again(
    no_proof: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = make()
    functions = named(model)
    before = fingerprint(model, functions)
    with torch.no_grad():
        for tensor in (*model.parameters(), *model.buffers()):
            tensor.add_(1)
    model.requires_grad_(False)
    model.load_state_dict(model.state_dict())
    model.config.unread.append(3)
    model.bn.num_batches_tracked = model.bn.num_batches_tracked + 1
    assert fingerprint(model, functions) == before
    assert hash(before) == hash(fingerprint(model))


def test_two_states_of_a_model_are_both_kept(no_proof: None, monkeypatch: pytest.MonkeyPatch) -> None:
    model, traced = make(), []
    trace = tracing._trace
    monkeypatch.setattr(tracing, "_trace", lambda model: traced.append(1) or trace(model))
    for _ in range(3):
        for flag in (False, True):
            model.flag = flag
            assert plan_for(model) is not None
    assert len(traced) == 2


@pytest.mark.parametrize(
    "register",
    [
        nn.modules.module.register_module_forward_hook,
        nn.modules.module.register_module_forward_pre_hook,
    ],
)
def test_a_global_hook_is_called_in_an_attack(register, no_proof: None) -> None:
    model, seen = make(), []
    attack = PGD(model, 0.1, steps=2, random_start=False)
    attack(x, y)
    handle = register(lambda module, *_: seen.append(module) if module is model.act else None)
    try:
        assert how(model) == "plain: there are global hooks on modules"
        attack(x, y)
        assert len(seen) == 2
    finally:
        handle.remove()
    assert how(model) == "fast"


def test_weights_that_were_one_and_are_two_now(no_proof: None) -> None:
    model = make()
    model.second.weight = model.head.weight
    tied = fingerprint(model)
    model.second.weight = nn.Parameter(model.head.weight.detach().clone())
    assert fingerprint(model) != tied


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (1, True),
        (1, 1.0),
        (0, False),
        (None, 0),
        ([1, 2], (1, 2)),
        ([[1], 2], [[1, 2]]),
        ({"a": 1}, {"b": 1}),
    ],
    ids=str,
)
def test_values_that_python_calls_equal_or_writes_alike(one: object, other: object) -> None:
    model = nn.ReLU()
    model.value = one
    before = fingerprint(model)
    model.value = copy.deepcopy(one)
    assert (fingerprint(model) == before) is True
    model.value = other
    assert fingerprint(model) != before


def test_lists_that_hold_themselves_end() -> None:
    model = nn.ReLU()
    model.value = [1]
    model.value.append(model.value)
    model.value.append(model)
    before = fingerprint(model)
    assert fingerprint(model) == before
    model.value[0] = 2
    assert fingerprint(model) != before


def test_a_model_with_too_much_state_to_compare_runs_as_it_is() -> None:
    model = make()
    model.words = list(range(python_state.MOST + 1))
    assert how(model) == "plain: its Python state is too large to be compared at every attack"
    assert same(
        PGD(model, 0.1, random_start=False)(x, y), PGD(model, 0.1, random_start=False, fast=False)(x, y)
    )
    del model.words
    assert how(model) == "fast"


def test_a_training_loop_that_a_model_refers_to_is_not_looked_through() -> None:
    model = make()
    model._loop = SimpleNamespace(step=0, model=model)
    before = fingerprint(model)
    model._loop.step += 1
    assert fingerprint(model) == before


def test_nothing_keeps_the_model_alive(no_proof: None) -> None:
    model = make()
    model.conv.forward = lambda x, of=model.conv: nn.Conv2d.forward(of, x)
    model.config = Config()
    model.config.owner = model
    PGD(model, 0.1, steps=1)(x, y)
    watch = weakref.ref(model)
    del model
    gc.collect()
    assert watch() is None


@pytest.mark.parametrize(
    "name", ["demo-cnn", "resnet18@0.125", "preact-resnet18@0.125", "wrn-10-1@0.5", "vgg16@0.125"]
)
def test_our_networks_run_fast(name: str) -> None:
    assert how(models.create(name, 10)) == "fast"


def test_small_networks_of_users_run_fast() -> None:
    class Mine(nn.Conv2d):
        pass

    class View(SmallNet):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            h = self.block2(self.block1(self.stem(self.normalize(x))))
            return self.linear(h.view(h.size(0), -1))

    assert how(View()) == how(SmallNet()) == "fast"
    assert (
        how(nn.Sequential(Mine(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(144, 10)))
        == "fast"
    )


@pytest.mark.slow
def test_torchvisions_resnet_runs_fast() -> None:
    model = models.create("torchvision:resnet18", 10)
    images = torch.rand(4, 3, 32, 32)
    PGD(model, 0.1, steps=1)(images, y[:4])
    assert how(model) == "fast"
