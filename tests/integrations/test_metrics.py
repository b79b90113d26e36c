"""WorstClassAccuracy and TailAccuracy with torchmetrics: the figures of an evaluation, on one process and on
two.
"""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch

import cfol_fast as cf
from cfol_fast.errors import InputError
from cfol_fast.evaluation import ClassAccuracy
from tests.integrations.forked import on_two_ranks

# Classes 0 to 3 with accuracies 1, 1/2, 3/4 and none; class 4 has no examples.
TARGET = torch.tensor([0, 1, 1, 2, 2, 2, 2, 3])
PREDICTED = torch.tensor([0, 1, 0, 2, 2, 2, 4, 0])


def test_the_worst_class_and_the_tail_by_hand() -> None:
    worst, tail, half = cf.WorstClassAccuracy(5), cf.TailAccuracy(5), cf.TailAccuracy(5, fraction=0.5)
    for metric in (worst, tail, half):
        metric.update(PREDICTED[:3], TARGET[:3])
        metric.update(PREDICTED[3:7], TARGET[3:7])
    assert worst.compute() == 0.5
    # Three classes have examples: 20 % of them is one class, and half of them two.
    assert tail.compute() == 0.5
    assert half.compute() == 0.625
    worst.update(PREDICTED[7:], TARGET[7:])
    assert worst.compute() == 0.0
    assert worst.per_class[:4].tolist() == [1.0, 0.5, 0.75, 0.0]
    assert math.isnan(worst.per_class[4])


@pytest.mark.parametrize("k", [3, 15, 40])
def test_they_are_the_figures_of_an_evaluation(k: int) -> None:
    generator = torch.Generator().manual_seed(k)
    target = torch.randint(k, (20 * k,), generator=generator)
    logits = torch.randn(20 * k, k, generator=generator)
    logits[torch.arange(len(target)), target] += 2
    record = ClassAccuracy(target, logits.argmax(1), [str(c) for c in range(k)])
    assert cf.WorstClassAccuracy(k)(logits, target).item() == pytest.approx(record.worst)
    assert cf.TailAccuracy(k)(logits, target).item() == pytest.approx(record.tail())


def test_without_an_example_there_is_no_figure() -> None:
    for metric in (cf.WorstClassAccuracy(2), cf.TailAccuracy(2)):
        metric.update(torch.empty(0, dtype=torch.int64), torch.empty(0, dtype=torch.int64))
        assert math.isnan(metric.compute())


def test_a_reset_metric_begins_anew() -> None:
    metric = cf.WorstClassAccuracy(2)
    assert metric(torch.tensor([1, 1]), torch.tensor([0, 1])) == 0
    metric.reset()
    assert metric(torch.tensor([0, 1]), torch.tensor([0, 1])) == 1


def test_logits_of_another_number_of_classes_are_refused() -> None:
    with pytest.raises(InputError, match="for 3 classes, the predictions have 4"):
        cf.WorstClassAccuracy(3).update(torch.zeros(2, 4), torch.tensor([0, 1]))


def count_on(rank: int) -> None:
    """Each process gets one class wrong half the time; together no class is below three quarters."""
    target, predicted = torch.tensor([0, 0, 1, 1]), torch.tensor([1 - rank, 0, 1 - rank, 1])
    for metric in (cf.WorstClassAccuracy(2), cf.TailAccuracy(2)):
        metric.update(predicted, target)
        assert metric.per_class.min() == 0.5
        assert metric.compute() == 0.75


def test_two_processes_count_together(tmp_path: Path) -> None:
    on_two_ranks(count_on, tmp_path)
