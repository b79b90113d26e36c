"""Attacks refuse what is no image in [0, 1] and no radius for one, read values at the first call only, and
flag them afterwards.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch._subclasses import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

from cfol_fast import attacks, evaluate, ops
from cfol_fast.attacks.active_set import attack_survivors
from cfol_fast.attacks.pixels import can_be_read, check_pixels, flag_pixels
from cfol_fast.errors import InputError
from cfol_fast.frozen import paused
from tests.attacks.small_models import EPS, SmallNet, Trained, images

every_attack = pytest.mark.parametrize("kind", attacks.KINDS)
BAD: dict[str, Callable[[Tensor], Tensor]] = {
    "normalised": lambda x: (x - 0.5) / 0.25,
    "bytes": lambda x: x * 255,
    "nan": lambda x: torch.where(x > 0.5, float("nan"), x),
    "one nan": lambda x: x.index_put((torch.tensor(1), torch.tensor(0)), torch.tensor(float("nan"))),
    "infinite": lambda x: x / 0,
}


def make(kind: str, model: SmallNet) -> attacks.Attack:
    return attacks.create(kind, model, **({} if kind == "none" else {"eps": EPS}))


@every_attack
@pytest.mark.parametrize("spoil", BAD.values(), ids=BAD)
def test_no_attack_takes_images_outside_the_cube(kind: str, spoil: Callable[[Tensor], Tensor]) -> None:
    x, y = images(4, 0)
    attack = make(kind, SmallNet())
    with pytest.raises(InputError, match=r"images must be in \[0, 1\]"):
        attack(spoil(x), y)
    # The first call that was good does not open the door for a later one.
    attack(x, y)
    with pytest.raises(InputError, match=r"images must be in \[0, 1\]"):
        attack(spoil(x), y)


@every_attack
@pytest.mark.parametrize("label", [-1, 10, 2**40])
def test_no_attack_takes_a_label_that_is_no_class_of_the_model(kind: str, label: int) -> None:
    x, y = images(4, 0)
    model = SmallNet()
    bad = y.index_fill(0, torch.tensor(2), label)
    attack = make(kind, model)
    with pytest.raises(
        InputError, match=f"^labels must be from 0 to 9, as the model has 10 classes, got {label}$"
    ):
        attack(x, bad)
    attack(x, y)
    with pytest.raises(InputError, match="labels must be from 0 to 9"):
        attack(x, bad)
    assert model.training


def test_the_classes_are_counted_once_and_never_for_the_trainer() -> None:
    x, y = images(4, 0)
    model, passes = SmallNet(), []
    model.register_forward_pre_hook(lambda _, inputs: passes.append(len(inputs[0])))
    attack = make("none", model)
    for _ in range(3):
        attack(x, y)
    assert passes == [1]
    attack = make("none", model)
    attack.trusts_images = True
    attack(x, y)
    with Counting():
        make("none", model)(x, y)
    assert passes == [1]


def test_the_active_set_takes_no_images_outside_the_cube() -> None:
    x, y = images(4, 0)
    with pytest.raises(InputError, match=r"images must be in \[0, 1\]"):
        attack_survivors(attacks.PGD(SmallNet(), EPS), x * 255, y, torch.ones(4, dtype=torch.bool))


@pytest.mark.parametrize(
    ("spoil", "way_out"),
    [("bytes", "divide bytes by 255"), ("normalised", "first layer"), ("nan", "got NaN")],
)
def test_the_message_says_what_is_wrong(spoil: str, way_out: str) -> None:
    with pytest.raises(InputError, match=way_out):
        check_pixels(BAD[spoil](images(4, 0)[0]))


def test_pixels_may_leave_the_cube_by_rounding_and_a_batch_may_be_empty() -> None:
    check_pixels(torch.tensor([-1e-6, 1 + 1e-6]))
    check_pixels(torch.zeros(0, 3, 4, 4))
    flag_pixels(torch.zeros(0, 3, 4, 4), ops.new_fault())


@pytest.mark.parametrize("spoil", BAD.values(), ids=BAD)
def test_the_flag_says_the_same_as_the_error(spoil: Callable[[Tensor], Tensor]) -> None:
    x, fault = images(4, 0)[0], ops.new_fault()
    flag_pixels(x, fault)
    assert ops.fault_messages(int(fault)) == []
    flag_pixels(spoil(x), fault)
    flag_pixels(x, fault)
    assert "outside [0, 1]" in ops.fault_messages(int(fault))[0]


class Counting(TorchDispatchMode):
    """Counts the values that are read back from the device."""

    only_watches = True
    reads = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        self.reads += func is torch.ops.aten._local_scalar_dense.default
        return func(*args, **(kwargs or {}))


def test_where_values_must_not_be_read_a_flag_is_set_instead() -> None:
    x, y = images(4, 0)
    attack = attacks.PGD(SmallNet(), EPS, steps=1)
    # As while a step is captured: the proof of the fast network, which reads, is made before.
    with Counting() as counting, paused():
        attack(x * 255, y)
        assert attacks.how(attack.model) == "fast"
    assert counting.reads == 0
    assert "outside [0, 1]" in ops.fault_messages(int(attack.fault))[0]


def test_values_of_meta_and_fake_tensors_are_not_asked_for() -> None:
    assert not can_be_read(torch.zeros(1, device="meta"))
    with FakeTensorMode():
        fake = torch.zeros(2, 3, 10, 10)
        assert not can_be_read(fake)
        attacks.PGD(SmallNet().eval(), EPS, steps=1, fast=False).check(
            fake, torch.zeros(2, dtype=torch.int64)
        )
    assert not can_be_read(fake)
    assert can_be_read(torch.zeros(1))


def test_the_images_of_the_trainers_own_sources_are_not_looked_at() -> None:
    x, y = images(4, 0)
    attack = attacks.PGD(SmallNet(), EPS, steps=1)
    attack.trusts_images = True
    attack(x * 255, y)
    assert int(attack.fault) == 0


def test_an_evaluation_ends_with_the_flags_of_its_attack(trained: Trained) -> None:
    attack = attacks.PGD(trained.model, EPS, steps=1)
    flag_pixels(trained.x * 255, attack.fault)
    with pytest.raises(InputError, match=r"outside \[0, 1\]"):
        evaluate(*trained, attack=attack)


@pytest.mark.parametrize("kind", ["pgd", "trades", "fgsm", "n-fgsm"])
@pytest.mark.parametrize("name", ["eps", "step"])
def test_a_radius_beyond_the_range_of_a_pixel_is_refused(kind: str, name: str) -> None:
    with pytest.raises(InputError, match=f"{name} must be at most 1.*8/255"):
        attacks.create(kind, SmallNet(), **{"eps": EPS, name: 8})
    with pytest.raises(InputError, match=f"{name} must be at most 1"):
        attacks.create(kind, SmallNet(), eps=EPS)(*images(4, 0), **{name: 8})


def test_radii_for_each_example_are_refused_too() -> None:
    with pytest.raises(InputError, match=r"eps must be at most 1.*got 8"):
        attacks.PGD(SmallNet(), torch.tensor([0.1, 8.0, 0.1, 0.1]))(*images(4, 0))


def test_an_l2_radius_may_be_larger_than_1() -> None:
    x, y = images(4, 0)
    adv = attacks.PGD(SmallNet(), 2.0, norm="l2", steps=1)(x, y)
    assert (adv - x).flatten(1).norm(dim=1).max() > 1


@pytest.mark.parametrize("attack", [{"eps": 8}, {"kind": "autoattack", "eps": 8}])
def test_an_evaluation_with_such_a_radius_is_refused(trained: Trained, attack: dict[str, object]) -> None:
    with pytest.raises(InputError, match="eps must be at most 1"):
        evaluate(*trained, attack=attack)
