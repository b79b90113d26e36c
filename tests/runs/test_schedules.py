"""Learning rates, literal cases."""

import pytest

from cfol_fast.runs.schedules import learning_rate
from cfol_fast.runs.setting_groups import OptimizerConfig


def rates(config: OptimizerConfig, steps: list[int], per_epoch: int, epochs: int) -> list[float]:
    return [learning_rate(config, step, per_epoch, epochs) for step in steps]


def test_the_papers_schedule_divides_by_ten_at_100_and_150():
    config = OptimizerConfig(lr=0.1, schedule="steps")
    steps = [0, 999, 1000, 1499, 1500, 1999]
    assert rates(config, steps, 10, 200) == pytest.approx([0.1, 0.1, 0.01, 0.01, 0.001, 0.001])


def test_milestones_can_be_given():
    config = OptimizerConfig(lr=1.0, schedule="steps", milestones=(1, 2), decay=0.5)
    assert rates(config, [0, 1, 2, 3], 1, 4) == [1.0, 0.5, 0.25, 0.25]


def test_one_cycle_climbs_to_its_peak_and_falls_to_nothing():
    config = OptimizerConfig(lr=0.05, schedule="one-cycle", warmup=0.3)
    values = rates(config, list(range(100)), 10, 10)
    assert values[0] == pytest.approx(0.05 / 25)
    assert max(values) == values[30] == pytest.approx(0.05)
    assert values[:31] == sorted(values[:31])
    assert values[30:] == sorted(values[30:], reverse=True)
    assert values[-1] == pytest.approx(0.05 / 1e5)


def test_one_cycle_of_a_single_step_is_finite():
    assert learning_rate(OptimizerConfig(lr=0.05, schedule="one-cycle"), 0, 1, 1) > 0


def test_constant_is_constant():
    assert rates(OptimizerConfig(lr=0.3, schedule="constant"), [0, 5, 99], 10, 10) == [0.3] * 3


def test_cosine_falls_from_its_peak_to_nearly_nothing():
    values = rates(OptimizerConfig(lr=0.2, schedule="cosine"), [0, 25, 50, 75, 99], 10, 10)
    assert values == pytest.approx([0.2, 0.17071, 0.1, 0.029289, 0.0000493], abs=1e-5)
