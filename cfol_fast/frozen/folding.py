"""BatchNorm in eval mode after a convolution is one affine map per channel: folded into weight and bias, for
all layers at once.

A network has dozens of such layers with a few numbers each, and every training step folds them again. Taken
one by one they would be seven small kernels a layer; here the numbers of all layers go through one op at a
time, and the results into memory that stays.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Any

import torch
from torch import Tensor, nn


class StaticWeights:
    """The memory for the folded weights of one network, allocated once and written in place at every attack.

    norms: the BatchNorm after each convolution, or None. dtype: what the weights are cast to after folding,
    or None.
    """

    def __init__(
        self, convolutions: Sequence[nn.Conv2d], norms: Sequence[nn.Module | None], dtype: torch.dtype | None
    ) -> None:
        self._folded: dict[int, tuple[Tensor, Tensor]] = {}
        for place, (conv, norm) in enumerate(zip(convolutions, norms, strict=True)):
            if norm is not None:
                mean, variance = _parts(norm)[:2]
                weight = _like(conv.weight, torch.result_type(conv.weight, variance))
                self._folded[place] = weight, torch.empty_like(mean)
        self._copies: dict[int, tuple[Tensor, Tensor | None]] = {}
        for place, conv in enumerate(convolutions):
            in_order = conv.weight.is_contiguous(memory_format=torch.channels_last)
            if dtype is not None:
                has_bias = place in self._folded or conv.bias is not None
                bias = conv.weight.new_empty(conv.out_channels, dtype=dtype) if has_bias else None
                self._copies[place] = _like(conv.weight, dtype), bias
            elif place not in self._folded and not in_order:
                bias = None if conv.bias is None else torch.empty_like(conv.bias)
                self._copies[place] = _like(conv.weight, conv.weight.dtype), bias

    @staticmethod
    def key(
        convolutions: Sequence[nn.Conv2d], norms: Sequence[nn.Module | None], dtype: torch.dtype | None
    ) -> Hashable:
        """Networks with the same key fit into the same memory.

        Work of two CUDA streams is not in order, so they do not share it.
        """
        weights = [(c.weight.shape, c.weight.stride(), c.weight.dtype, c.bias is None) for c in convolutions]
        scales = [None if norm is None else _parts(norm)[1].dtype for norm in norms]
        device = convolutions[0].weight.device if convolutions else None
        on_gpu = device is not None and device.type == "cuda" and torch.cuda.is_initialized()
        stream = torch.cuda.current_stream(device).cuda_stream if on_gpu else 0
        return (*weights, *scales, device, stream, dtype, torch.is_inference_mode_enabled())

    def fill(
        self, convolutions: Sequence[nn.Conv2d], norms: Sequence[nn.Module | None]
    ) -> list[tuple[Tensor, Tensor | None]]:
        """(weight, bias) of each convolution with the BatchNorm after it, as they are now."""
        made = [(c.weight.detach(), None if c.bias is None else c.bias.detach()) for c in convolutions]
        places = list(self._folded)
        fold(
            [convolutions[place] for place in places],
            [norm for norm in norms if norm is not None],
            list(self._folded.values()),
        )
        for place in places:
            made[place] = self._folded[place]
        pairs = [
            (copy, tensor)
            for place, copies in self._copies.items()
            for copy, tensor in zip(copies, made[place], strict=True)
            if copy is not None and tensor is not None
        ]
        if pairs:
            torch._foreach_copy_([copy for copy, _ in pairs], [tensor for _, tensor in pairs])
        for place, copies in self._copies.items():
            made[place] = copies
        return made


def fold(
    convolutions: Sequence[nn.Conv2d], norms: Sequence[nn.Module], into: Sequence[tuple[Tensor, Tensor]]
) -> None:
    """Writes (weight, bias) of scale * (w x + b - mean) + shift as a convolution, for each convolution and
    the BatchNorm after it.
    """
    if not norms:
        return
    means, variances, epsilons, factors, offsets = zip(*map(_parts, norms), strict=True)
    scales = torch._foreach_add(variances, epsilons)
    torch._foreach_rsqrt_(scales)
    _where_given(torch._foreach_mul_, scales, factors)
    shifts = [bias for _, bias in into]
    torch._foreach_copy_(shifts, means)
    torch._foreach_neg_(shifts)
    _where_given(torch._foreach_add_, shifts, [conv.bias for conv in convolutions])
    torch._foreach_mul_(shifts, scales)
    _where_given(torch._foreach_add_, shifts, offsets)
    # Not one op for all: where the shapes differ torch would take the list apart, and do it in two passes
    # over the weights.
    for conv, scale, (weight, _) in zip(convolutions, scales, into, strict=True):
        torch.mul(conv.weight.detach(), scale.view(-1, 1, 1, 1), out=weight)


def _like(weight: Tensor, dtype: torch.dtype) -> Tensor:
    return torch.empty_like(
        weight, dtype=dtype, memory_format=torch.channels_last, requires_grad=False
    ).detach()


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
