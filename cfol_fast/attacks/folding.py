"""BatchNorm in eval mode after a convolution is one affine map per channel: folded into weight and bias, for all layers at once.

A network has dozens of such layers with a few numbers each, and every training step folds them again. Taken one by one they would be
seven small kernels a layer; here the numbers of all layers go through one op at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn


def fold(convolutions: Sequence[nn.Conv2d], norms: Sequence[nn.Module]) -> list[tuple[Tensor, Tensor]]:
    """(weight, bias) of scale * (w x + b - mean) + shift as a convolution, for each pair of a convolution and the BatchNorm after it."""
    if not norms:
        return []
    means, variances, epsilons, factors, offsets = zip(*map(_parts, norms), strict=True)
    scales = torch._foreach_add(variances, epsilons)
    torch._foreach_rsqrt_(scales)
    _where_given(torch._foreach_mul_, scales, factors)
    shifts = torch._foreach_neg(means)
    _where_given(torch._foreach_add_, shifts, [conv.bias for conv in convolutions])
    torch._foreach_mul_(shifts, scales)
    _where_given(torch._foreach_add_, shifts, offsets)
    return [
        (conv.weight.detach() * scale.view(-1, 1, 1, 1), shift)
        for conv, scale, shift in zip(convolutions, scales, shifts, strict=True)
    ]


def cast(tensors: Sequence[Tensor], dtype: torch.dtype) -> list[Tensor]:
    """All of them in another precision, by one op."""
    made = [torch.empty_like(tensor, dtype=dtype) for tensor in tensors]
    if made:
        torch._foreach_copy_(made, list(tensors))
    return made


def _parts(norm: nn.Module) -> tuple[Tensor, Tensor, float, Tensor | None, Tensor | None]:
    assert isinstance(norm, nn.modules.batchnorm._BatchNorm)
    assert norm.running_mean is not None
    assert norm.running_var is not None
    return norm.running_mean, norm.running_var, norm.eps, norm.weight, norm.bias


def _where_given(
    op_: Callable[[list[Tensor], list[Tensor]], Any],
    values: Sequence[Tensor],
    others: Sequence[Tensor | None],
) -> None:
    """op_(value, other) for each value that has another; changes the values."""
    pairs = [
        (value, other.detach()) for value, other in zip(values, others, strict=True) if other is not None
    ]
    if pairs:
        op_([value for value, _ in pairs], [other for _, other in pairs])
