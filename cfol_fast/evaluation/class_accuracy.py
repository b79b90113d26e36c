"""What a classifier got right, from its predictions, as tensors.

All figures are those of `runs.accuracy.Accuracy`.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from cfol_fast.errors import InputError
from cfol_fast.runs import accuracy
from cfol_fast.runs.accuracy import Z95, Accuracy
from cfol_fast.runs.metrics import FLOOR, TAIL, tail_mean


class ClassAccuracy:
    """labels, predictions: (N,) int64; classes: the names of the k classes.

    A class without examples has accuracy NaN (null in JSON) and takes no part in `class_average`, `tail` and
    `worst`.
    """

    def __init__(
        self, labels: Tensor, predictions: Tensor, classes: Sequence[str], floor: float = FLOOR
    ) -> None:
        self.classes = list(classes)
        k = len(self.classes)
        labels, predictions = labels.cpu(), predictions.cpu()
        for what, found in (("labels", labels), ("predictions", predictions)):
            if len(found) and not (int(found.min()) >= 0 and int(found.max()) < k):
                raise InputError(
                    f"the {what} must be 0..{k - 1} for {k} classes, got"
                    f" {int(found.min())}..{int(found.max())}"
                )
        if labels.shape != predictions.shape:
            raise InputError(f"there are {len(predictions)} predictions for {len(labels)} labels")
        # (N,) int64 each, in the order of the images, and (N,) bool
        self.labels, self.predictions = labels, predictions
        self.correct = labels == predictions
        # (k, k) int64: a row per true class, a column per prediction
        self.confusion = torch.bincount(labels * k + predictions, minlength=k * k).view(k, k)
        # (k,) int64 each
        self.counts = self.confusion.sum(1)
        self.hits = self.confusion.diagonal().clone()
        # Below it a class counts as failing.
        self.floor = floor
        # (k,) float64; 0/0 is NaN
        self.per_class = self.hits.double() / self.counts

    @cached_property
    def record(self) -> Accuracy:
        """The figures without tensors, as files hold them."""
        return Accuracy.from_confusion(self.classes, self.confusion.tolist(), self.floor)

    def metric(self, key: str) -> float:
        """Any figure by its key, as JSON has it: `cfol_fast.runs.metrics.METRICS`."""
        return self.record.metric(key)

    @property
    def average(self) -> float:
        """Over the examples."""
        return self.record.average

    @property
    def class_average(self) -> float:
        """Every class counts the same."""
        return self.record.class_average

    def tail(self, fraction: float = TAIL) -> float:
        """The mean accuracy of the ceil(fraction * k) worst classes."""
        return tail_mean(self.record.per_class.values(), fraction)

    @property
    def worst(self) -> float:
        return self.record.worst

    @property
    def worst_class(self) -> str:
        return self.record.worst_class

    @property
    def worst_index(self) -> int:
        return self.classes.index(self.worst_class)

    @property
    def present(self) -> Tensor:
        """(k,) bool: the classes that have examples."""
        return self.counts > 0

    @property
    def intervals(self) -> Tensor:
        """(k, 2) float64: the 95 % Wilson interval of each class, NaN for one without examples."""
        return wilson(self.hits, self.counts)

    def __repr__(self) -> str:
        if not len(self.correct):
            return "ClassAccuracy(no examples)"
        worst = f"worst {self.worst:.1%} ({self.record.worst_in_words})"
        return (
            f"ClassAccuracy(average {self.average:.1%}, 20 % tail {self.tail():.1%}, {worst},"
            f" {len(self.correct)} examples)"
        )

    def to_json(self) -> dict[str, Any]:
        """See docs/evaluation-format.md."""
        return self.record.to_json()


def wilson(hits: Tensor, counts: Tensor, z: float = Z95) -> Tensor:
    """hits, counts: (k,) -> (k, 2) float64: the Wilson interval of each proportion, NaN where there is
    nothing to count.
    """
    pairs = zip(hits.tolist(), counts.tolist(), strict=True)
    rows = [accuracy.wilson(right / n, int(n), z) if n else (torch.nan, torch.nan) for right, n in pairs]
    return torch.tensor(rows, dtype=torch.float64).view(-1, 2)
