"""`WorstClassAccuracy` and `TailAccuracy`: torchmetrics metrics, for loops that log with those.

Needs the extra [metrics].

Both count hits per class, which processes sum before anything is divided: under DDP they are those of all
examples together, where a mean of each process's worst class would be something else.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from cfol_fast.errors import InputError
from cfol_fast.runs.metrics import TAIL, tail_size

try:
    from torchmetrics import Metric
except ImportError as error:
    raise ImportError(
        "WorstClassAccuracy and TailAccuracy need torchmetrics: pip install torchmetrics"
    ) from error


class _ClassMetric(Metric):
    """Counts examples and hits per class."""

    is_differentiable = False
    higher_is_better = True
    full_state_update = False
    plot_lower_bound, plot_upper_bound = 0.0, 1.0

    counts: Tensor
    hits: Tensor
    _sizes: Tensor

    def __init__(self, num_classes: int, **options: Any) -> None:
        super().__init__(**options)
        if num_classes < 1:
            raise InputError(f"num_classes must be at least 1, got {num_classes}")
        self.num_classes = num_classes
        for name in ("counts", "hits"):
            self.add_state(name, torch.zeros(num_classes, dtype=torch.int64), dist_reduce_fx="sum")

    def update(self, preds: Tensor, target: Tensor) -> None:
        """preds: (B, k) logits or (B,) classes; target: (B,) classes, below num_classes."""
        if preds.dim() == 2:
            if preds.shape[1] != self.num_classes:
                raise InputError(
                    f"the metric is for {self.num_classes} classes, the predictions have {preds.shape[1]}"
                )
            preds = preds.argmax(dim=1)
        if preds.shape != target.shape or target.dim() != 1:
            raise InputError(
                f"expected predictions (B,) or (B, {self.num_classes}) and targets (B,), got"
                f" {tuple(preds.shape)} and {tuple(target.shape)}"
            )
        self.counts.index_add_(0, target, torch.ones_like(target))
        self.hits.index_add_(0, target, (preds == target).to(torch.int64))

    @property
    def per_class(self) -> Tensor:
        """(k,) of this process; NaN for a class without examples."""
        return self.hits / self.counts

    def _ranked(self) -> tuple[Tensor, Tensor]:
        """(k,) accuracies, the worst first and those without examples last; and how many have examples."""
        present = self.counts > 0
        return torch.where(present, self.per_class, torch.inf).sort().values, present.sum()


class WorstClassAccuracy(_ClassMetric):
    """The accuracy of the class with the lowest; classes without examples do not count.

    NaN without any example.
    """

    def compute(self) -> Tensor:
        worst = self._ranked()[0][0]
        return torch.where(worst.isinf(), torch.nan, worst)


class TailAccuracy(_ClassMetric):
    """The mean accuracy of the worst `fraction` of the classes that have examples, rounded up as in the
    paper.
    """

    def __init__(self, num_classes: int, fraction: float = TAIL, **options: Any) -> None:
        super().__init__(num_classes, **options)
        # By the number of classes that have examples, so that nothing has to be read back.
        sizes = [0, *(tail_size(present, fraction) for present in range(1, num_classes + 1))]
        self.register_buffer("_sizes", torch.tensor(sizes), persistent=False)

    def compute(self) -> Tensor:
        ranked, present = self._ranked()
        size = self._sizes[present]
        tail = torch.arange(self.num_classes, device=ranked.device) < size
        # 0/0 is NaN: no example.
        return torch.where(tail, ranked, 0.0).sum() / size
