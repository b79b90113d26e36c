"""Which round of a fit of class offsets is taken: the oracles of the one-standard-error rule."""

from __future__ import annotations

import math

import pytest
import torch

from cfol_fast.training.offset_path import Round, keeping_average, rounds_of, standard_error, taken

# ERM on the demo's images, seed 0: hold-out worst class and average by round, 100 images a class.
WORST = [0.08, 0.36, 0.41, 0.44, 0.44, 0.45, 0.46, 0.46, 0.44]
AVERAGE = [0.684, 0.678, 0.661, 0.650, 0.643, 0.635, 0.632, 0.624, 0.524]
ZERO = torch.zeros(3, dtype=torch.float64)


def path(worst: list[float], average: list[float]) -> list[Round]:
    return [Round(ZERO, *pair) for pair in zip(worst, average, strict=True)]


def test_the_best_average_within_one_standard_error_is_taken() -> None:
    """se = sqrt(.46 * .54 / 100) = .0498: .41 is just outside of .4102, .44 is inside."""
    assert standard_error(0.46, 100) == pytest.approx(0.04984, abs=1e-5)
    assert taken(path(WORST, AVERAGE), 100) == 3


def test_two_of_a_hundred_images_do_not_cost_seventeen_points() -> None:
    """CFOL, seed 2: round 19 had .45/.481, round 1 .43/.641."""
    assert taken(path([0.39, 0.43, 0.45], [0.66, 0.641, 0.481]), 100) == 1


def test_with_many_images_the_first_best_worst_class_is_taken() -> None:
    assert taken(path(WORST, AVERAGE), 10**9) == 6


def test_with_one_image_every_round_within_the_largest_error_counts() -> None:
    """se = sqrt(.46 * .54) = .498: all rounds, so the best average."""
    assert taken(path(WORST, AVERAGE), 1) == 0
    # A worst class of 1 has no error: the first round that has it.
    assert taken(path([0.0, 1.0, 1.0], [0.5, 1.0, 1.0]), 1) == 1


def test_one_round_is_taken() -> None:
    assert taken(path([0.0], [0.3]), 5) == 0


def test_of_equal_averages_the_earlier_round_is_taken() -> None:
    assert taken(path([0.40, 0.41, 0.42], [0.6, 0.65, 0.65]), 100) == 1


def test_a_round_exactly_one_standard_error_below_is_within() -> None:
    """.5 with 100 images: se is .05."""
    assert taken(path([0.45, 0.5], [0.7, 0.6]), 100) == 0
    assert taken(path([0.4499, 0.5], [0.7, 0.6]), 100) == 1


def test_a_limit_on_the_average_leaves_the_rounds_that_keep_it() -> None:
    of = path(WORST, AVERAGE)
    assert keeping_average(of, 0.02) == [0, 1]
    assert taken(of, 100, keeping_average(of, 0.02)) == 1
    assert keeping_average(of, 0.0) == [0]
    assert taken(of, 100, [0]) == 0


def errors_of(hard: torch.Tensor, offsets: torch.Tensor) -> torch.Tensor:
    """A class errs less the higher its offset is above the mean of all."""
    return torch.sigmoid(hard - (offsets - offsets.mean()))


HARD = torch.tensor([-2.0, 0.5, 3.0, -1.0], dtype=torch.float64)


def fitted(hard: torch.Tensor, start: torch.Tensor) -> list[Round]:
    return list(rounds_of(lambda offsets: errors_of(hard, offsets), start, rounds=12))


def test_the_first_rounds_are_the_formula() -> None:
    first, second, *_ = fitted(HARD, torch.zeros(4))
    errors = torch.sigmoid(HARD)
    assert not first.offsets.any()
    assert torch.allclose(second.offsets, errors - errors.mean())
    assert (first.worst, first.average) == pytest.approx((1 - errors.max().item(), 1 - errors.mean().item()))


def test_classes_in_another_order_have_their_offsets_in_that_order() -> None:
    order = torch.tensor([2, 0, 3, 1])
    plain, other = fitted(HARD, torch.zeros(4)), fitted(HARD[order], torch.zeros(4))
    for one, two in zip(plain, other, strict=True):
        assert torch.allclose(one.offsets[order], two.offsets, atol=1e-12)
        assert (one.worst, one.average) == pytest.approx((two.worst, two.average))
    assert taken(plain, 30) == taken(other, 30)


def test_a_constant_added_to_all_offsets_changes_nothing() -> None:
    plain, other = fitted(HARD, torch.zeros(4)), fitted(HARD, torch.full((4,), 0.7))
    for one, two in zip(plain, other, strict=True):
        assert torch.allclose(one.offsets + 0.7, two.offsets, atol=1e-6)
        assert (one.worst, one.average) == pytest.approx((two.worst, two.average))
    assert taken(plain, 30) == taken(other, 30)


def test_a_class_without_images_keeps_its_offset_and_has_no_say() -> None:
    def errors_with(offsets: torch.Tensor) -> torch.Tensor:
        return torch.tensor([0.2, math.nan, 0.6])

    *_, last = rounds_of(errors_with, torch.zeros(3), rounds=3)
    assert last.offsets.tolist() == pytest.approx([-0.6, 0.0, 0.6])
    assert (last.worst, last.average) == pytest.approx((0.4, 0.6))


def test_the_rate_may_fall() -> None:
    falling = list(rounds_of(lambda _: torch.tensor([0.0, 1.0]), torch.zeros(2), 3, lambda t: 1 / (1 + t)))
    assert falling[-1].offsets.tolist() == pytest.approx([-0.5 * 11 / 6, 0.5 * 11 / 6])
