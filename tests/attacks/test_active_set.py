"""The active set: the same attack at the price of the survivors, with the worst iterate instead of
the last.
"""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from cfol_fast.attacks import PGD, active_set
from cfol_fast.attacks.active_set import attack_survivors
from cfol_fast.machine import computing
from tests.attacks.small_models import EPS, Trained


def everyone(y: Tensor) -> Tensor:
    return torch.ones_like(y, dtype=torch.bool)


@pytest.mark.slow
def test_it_fools_every_example_that_the_last_iterate_fools(trained: Trained) -> None:
    model, x, y = trained
    plain = PGD(model, EPS, steps=10, seed=1)(x, y)
    outcome = attack_survivors(PGD(model, EPS, steps=10, seed=1), x, y, everyone(y))
    with torch.no_grad():
        last = model(plain).argmax(1) != y
        assert torch.equal(model(outcome.x_adv).argmax(1) != y, outcome.fooled)
    assert bool((outcome.fooled | ~last).all())
    assert 0.2 < outcome.fooled.float().mean() < 0.9


def test_survivors_end_where_the_plain_attack_ends(trained: Trained) -> None:
    model, x, y = trained
    plain = PGD(model, EPS, steps=5, seed=1)(x, y)
    outcome = attack_survivors(PGD(model, EPS, steps=5, seed=1), x, y, everyone(y))
    same = ((outcome.x_adv - plain).abs() < 1e-6).flatten(1).float().mean(1)
    assert same[~outcome.fooled].mean() > 0.99
    assert (outcome.x_adv - x).abs().max() <= EPS + 1e-6


def test_an_example_costs_nothing_after_it_is_fooled(trained: Trained) -> None:
    model, x, y = trained
    sizes: list[int] = []
    model.linear.register_forward_hook(lambda module, inputs, output: sizes.append(len(output)))
    outcome = attack_survivors(PGD(model, EPS, steps=10, seed=1), x, y, everyone(y))
    assert sizes == sorted(sizes, reverse=True)
    assert sizes[0] == len(x)
    assert sizes[-1] < 0.9 * len(x)
    assert len(sizes) == 11
    assert sizes[-1] >= int((~outcome.fooled).sum())


def test_examples_that_are_wrong_from_the_start_are_not_touched(trained: Trained) -> None:
    model, x, y = trained
    alive = torch.arange(len(y)) % 2 == 0
    outcome = attack_survivors(PGD(model, EPS, steps=3), x, y, alive)
    assert torch.equal(outcome.x_adv[~alive], x[~alive])
    assert bool(outcome.fooled[~alive].all())


def test_restarts_go_to_the_survivors_only(trained: Trained) -> None:
    model, x, y = trained
    one = attack_survivors(PGD(model, EPS, steps=3, seed=1), x, y, everyone(y))
    three = attack_survivors(PGD(model, EPS, steps=3, seed=1, restarts=3), x, y, everyone(y))
    assert bool((three.fooled | ~one.fooled).all())
    assert three.fooled.sum() >= one.fooled.sum()
    assert torch.equal(three.x_adv[one.fooled], one.x_adv[one.fooled])


@pytest.mark.parametrize("restarts", [1, 3])
def test_who_asks_the_model_about_the_images_saves_the_last_look_and_gets_the_same_images(
    trained: Trained, restarts: int
) -> None:
    model, x, y = trained
    passes: list[int] = []
    model.linear.register_forward_hook(lambda module, inputs, output: passes.append(len(output)))
    found = []
    for judge_last in (True, False):
        attack = PGD(model, EPS, steps=4, seed=1, restarts=restarts)
        found.append((attack_survivors(attack, x, y, everyone(y), judge_last), len(passes)))
        passes.clear()
    (judged, all_passes), (unjudged, fewer) = found
    assert torch.equal(judged.x_adv, unjudged.x_adv)
    assert fewer == all_passes - 1
    with torch.no_grad():
        assert torch.equal(model(unjudged.x_adv).argmax(1) != y, judged.fooled)


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("rows", [[], [4], [0, 3, 5]])
def test_rows_are_taken_in_the_layout_of_the_whole(channels: int, memory_format, rows: list[int]) -> None:
    whole = torch.rand(6, channels, 5, 4).contiguous(memory_format=memory_format)
    taken = active_set._take(whole, torch.tensor(rows, dtype=torch.int64))
    assert torch.equal(taken, whole[rows])
    assert taken.is_contiguous(memory_format=memory_format)


def test_each_example_stays_in_its_own_ball(trained: Trained) -> None:
    model, x, y = trained
    eps = torch.linspace(0, 2 * EPS, len(y))
    outcome = attack_survivors(PGD(model, eps, steps=5), x, y, everyone(y))
    assert bool(((outcome.x_adv - x).abs().flatten(1).amax(1) <= eps + 1e-6).all())


def test_when_all_are_fooled_it_stops(trained: Trained) -> None:
    model, x, y = trained
    outcome = attack_survivors(PGD(model, EPS), x, (y + 1) % 10, everyone(y))
    assert bool(outcome.fooled.all())
    assert torch.equal(outcome.predicted, y)


def test_cudnn_does_not_try_its_algorithms_for_each_new_shape(trained: Trained) -> None:
    model, x, y = trained
    seen: list[bool] = []
    model.linear.register_forward_hook(lambda *_: seen.append(torch.backends.cudnn.benchmark))
    with computing("float32"):
        attack_survivors(PGD(model, EPS, steps=2, seed=1), x, y, everyone(y))
        assert torch.backends.cudnn.benchmark
    assert seen
    assert not any(seen)


@pytest.mark.parametrize("alive", [1, 3])
@pytest.mark.slow
def test_on_a_gpu_the_rows_are_filled_up_to_a_few_sizes_and_nothing_else_changes(
    trained: Trained, monkeypatch: pytest.MonkeyPatch, alive: int
) -> None:
    model, x, y = trained
    eps = torch.linspace(0.5 * EPS, 2 * EPS, len(y))
    marked = torch.arange(len(y)) % alive == 0
    outcomes, sizes = [], []
    model.linear.register_forward_hook(lambda module, inputs, output: sizes[-1].append(len(output)))
    for filled in (False, True):
        sizes.append([])
        monkeypatch.setattr(active_set, "_pays", lambda device, filled=filled: filled)
        attack = PGD(model, eps, steps=20, seed=1, restarts=2)
        outcomes.append(attack_survivors(attack, x, y, marked))
    plain, padded = outcomes
    assert torch.equal(padded.fooled, plain.fooled)
    assert torch.equal(padded.predicted, plain.predicted)
    assert ((padded.x_adv - plain.x_adv).abs() < 1e-6).float().mean() > 0.999
    assert len(sizes[0]) == len(sizes[1])
    assert len(set(sizes[1])) <= len(active_set.SHARES) == 8
    assert len(set(sizes[1])) < len(set(sizes[0]))


def test_a_batch_is_filled_with_its_first_row_to_the_next_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(active_set, "_pays", lambda device: True)
    filled = {
        count: active_set._padded(torch.arange(5, 5 + count), 64) for count in (0, 1, 3, 16, 17, 49, 64)
    }
    assert {count: len(rows) for count, rows in filled.items()} == {
        0: 0,
        1: 2,
        3: 4,
        16: 16,
        17: 24,
        49: 64,
        64: 64,
    }
    assert filled[3].tolist() == [5, 6, 7, 5]


def test_on_the_cpu_no_row_is_added() -> None:
    assert len(active_set._padded(torch.arange(3), 64)) == 3


def test_inference_mode_changes_nothing(trained: Trained) -> None:
    model, x, y = trained
    expected = attack_survivors(PGD(model, EPS, steps=2, seed=1), x, y, everyone(y))
    with torch.inference_mode():
        found = attack_survivors(PGD(model, EPS, steps=2, seed=1), x.clone(), y.clone(), everyone(y))
    assert torch.equal(found.x_adv, expected.x_adv)
