"""Accuracy class by class: counts, means, the tail, the worst class, and how sure each figure is."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

Z95 = 1.959963984540054  # the 97.5 % quantile of the normal distribution
TAIL = 0.2


class ClassAccuracy:
    """What a classifier got right, from its predictions.

    labels, predictions: (N,) int64; classes: the names of the k classes. A class without examples has accuracy NaN (null in
    JSON) and takes no part in `class_average`, `tail` and `worst`.
    """

    def __init__(self, labels: Tensor, predictions: Tensor, classes: Sequence[str]) -> None:
        self.classes = list(classes)
        k = len(self.classes)
        labels, predictions = labels.cpu(), predictions.cpu()
        self.correct = labels == predictions  # (N,) bool
        self.confusion = torch.bincount(labels * k + predictions, minlength=k * k).view(
            k, k
        )  # (true, predicted)
        self.counts = self.confusion.sum(1)  # (k,) int64
        self.hits = self.confusion.diagonal().clone()  # (k,) int64
        self.per_class = self.hits.double() / self.counts  # (k,) float64; 0/0 is NaN

    @property
    def average(self) -> float:
        """Over the examples."""
        return int(self.hits.sum()) / int(self.counts.sum())

    @property
    def present(self) -> Tensor:
        """(k,) bool: the classes that have examples."""
        return self.counts > 0

    @property
    def class_average(self) -> float:
        """Every class counts the same."""
        return float(self.per_class[self.present].mean())

    def tail(self, fraction: float = TAIL) -> float:
        """The mean accuracy of the ceil(fraction * k) worst classes."""
        if not 0 < fraction <= 1:
            raise ValueError(f"the tail's fraction must be in (0, 1], got {fraction}")
        accuracies = self.per_class[self.present].sort().values
        # 0.2 * 15 is a little more than 3 in floating point
        return float(accuracies[: math.ceil(fraction * len(accuracies) - 1e-9)].mean())

    @property
    def worst_index(self) -> int:
        return int(self.per_class.nan_to_num(nan=math.inf).argmin())

    @property
    def worst(self) -> float:
        return float(self.per_class[self.worst_index])

    @property
    def worst_class(self) -> str:
        return self.classes[self.worst_index]

    @property
    def intervals(self) -> Tensor:
        """(k, 2): the 95 % Wilson interval of each class."""
        return wilson(self.hits, self.counts)

    def to_json(self) -> dict[str, Any]:
        """Accuracies from 0 to 1; `interval` is the 95 % Wilson interval, `confusion` has a row for each true class."""

        def named(values: list[Any]) -> dict[str, Any]:
            return dict(zip(self.classes, values, strict=True))

        present = self.present.tolist()
        return {
            "average": self.average,
            "class_average": self.class_average,
            "tail": self.tail(),
            "worst": self.worst,
            "worst_class": self.worst_class,
            "per_class": named(
                [a if p else None for a, p in zip(self.per_class.tolist(), present, strict=True)]
            ),
            "interval": named(
                [i if p else None for i, p in zip(self.intervals.tolist(), present, strict=True)]
            ),
            "count": named(self.counts.tolist()),
            "confusion": self.confusion.tolist(),
        }


def wilson(hits: Tensor, counts: Tensor, z: float = Z95) -> Tensor:
    """The score interval of a proportion (Wilson, 1927): it keeps its coverage at 0, at 1 and for few examples.

    hits, counts: (k,) -> (k, 2) float64; NaN where there is nothing to count.
    """
    n, p = counts.double(), hits.double() / counts
    centre = (p + z * z / (2 * n)) / (1 + z * z / n)
    half = z / (1 + z * z / n) * (p * (1 - p) / n + z * z / (4 * n * n)).sqrt()
    return torch.stack([(centre - half).clamp(min=0), (centre + half).clamp(max=1)], dim=1)
