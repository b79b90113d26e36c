"""The C library keeps an attack's memory while the attack lasts, and no longer."""

from __future__ import annotations

import pytest
import torch

from cfol_fast.frozen import heap
from cfol_fast.frozen.heap import INSIDE, OUTSIDE, kept
from cfol_fast.frozen.network import frozen
from tests.attacks.small_models import SmallNet

CPU = torch.device("cpu")


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> dict[int, int]:
    """What the C library was told last."""
    values: dict[int, int] = {}
    monkeypatch.setattr(heap, "mallopt", lambda: values.__setitem__)
    return values


def test_memory_is_kept_inside_and_given_back_afterwards(told: dict[int, int]) -> None:
    with kept(CPU):
        assert told == INSIDE
    assert told == OUTSIDE


def test_the_last_of_several_blocks_gives_it_back_also_after_an_error(told: dict[int, int]) -> None:
    with kept(CPU):
        with pytest.raises(KeyError), kept(CPU):
            raise KeyError
        assert told == INSIDE
    assert told == OUTSIDE


def test_a_gpu_has_an_allocator_of_its_own(told: dict[int, int]) -> None:
    with kept(torch.device("cuda")):
        assert told == {}


def test_a_c_library_without_the_function_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(heap, "mallopt", lambda: None)
    with kept(CPU):
        assert heap._blocks == 0


def test_an_attack_keeps_its_memory(told: dict[int, int]) -> None:
    with frozen(SmallNet(), CPU):
        assert told == INSIDE
    assert told == OUTSIDE
