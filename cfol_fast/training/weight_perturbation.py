"""Adversarial weight perturbation (Wu et al., NeurIPS 2020): the step's gradient is taken at weights that
were moved against the model.

Each layer moves by `gamma` times its own norm, along the gradient of the step's loss. One more pass forwards
and backwards per step. What the sampler, the class errors and the policies are told comes from the moved
weights: other figures would cost one pass more.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

# A layer without a gradient stays where it is.
TINY = 1e-12


class WeightPerturbation:
    """`perturb` before the step's own passes, `restore` before the optimiser moves the weights.

    The weights come back from a copy: adding and subtracting would leave rounding behind. So do the buffers:
    the extra pass would move BatchNorm's statistics. Biases and BatchNorm's factors are not moved, as in the
    release, and neither are frozen weights.
    """

    def __init__(self, model: nn.Module, gamma: float) -> None:
        self.gamma = gamma
        self.weights = [each for each in model.parameters() if each.dim() > 1 and each.requires_grad]
        self.buffers = list(model.buffers())
        self._kept = [torch.empty_like(tensor) for tensor in (*self.weights, *self.buffers)]

    def perturb(self, loss: Callable[[], Tensor]) -> None:
        """loss: computes the step's loss at the weights as they are."""
        self.perturb_along(lambda weights: torch.autograd.grad(loss(), weights, allow_unused=True))

    def perturb_along(self, gradients: Callable[[list[nn.Parameter]], Sequence[Tensor | None]]) -> None:
        """gradients: computes those of the step's loss with respect to the weights it is given, as
        they are.
        """
        with torch.no_grad():
            for kept, tensor in zip(self._kept, (*self.weights, *self.buffers), strict=True):
                kept.copy_(tensor)
        found = gradients(self.weights)
        with torch.no_grad():
            for weight, gradient in zip(self.weights, found, strict=True):
                if gradient is not None:
                    weight.add_(gradient * (self.gamma * weight.norm() / (gradient.norm() + TINY)))
            # It holds the weights in bfloat16 as they were: the passes that follow would not see them move.
            torch.clear_autocast_cache()
            for kept, buffer in zip(self._kept[len(self.weights) :], self.buffers, strict=True):
                buffer.copy_(kept)

    def restore(self) -> None:
        with torch.no_grad():
            for kept, weight in zip(self._kept, self.weights, strict=False):
                weight.copy_(kept)
