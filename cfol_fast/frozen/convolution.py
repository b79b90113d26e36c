"""The convolution of a frozen network: constant weights, BatchNorm and bias inside, ReLU attached, input
gradients only.

Nearly all of an attack's time is spent here. On the CPU there are several ways to compute a layer: in one
memory layout or the other, with ReLU applied while the result is in registers or after it, with weights that
oneDNN has laid out beforehand, and by ops of our own: 3x3 kernels by `ops.winograd`, with fewer than half of
the multiplications, and, for the gradient of a first layer, whose few input channels leave oneDNN's vector
registers mostly empty, `ops.input_gradient`. Which is fastest differs from one processor and one layer to the
next, so they race (`frozen.autotune`). On a GPU all convolutions are cuDNN's: the CUDA kernels of our ops
give the same numbers and are tested, but nothing here calls them.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch._subclasses import FakeTensor
from torch.autograd.function import once_differentiable

from cfol_fast import ops
from cfol_fast._host import instruction_set
from cfol_fast.frozen import cudnn
from cfol_fast.frozen.autotune import RACE_WORK, Deciding, choices
from cfol_fast.machine import cpu_bfloat16

# Without a race: below this many output pixels oneDNN's blocked kernels, which it takes for contiguous
# tensors, beat those for channels_last on the processor with AVX-512 that was measured first; from 8x8 on
# they are equal or slower.
FEW_PIXELS = 16
# Up to this many input channels our op may be faster than oneDNN's backward pass:
# benchmarks/input_gradient.py.
FEW_CHANNELS = 4
# Above this many output pixels maps that are in channels_last stay so: to lay them out anew has never paid,
# on any processor.
MANY_PIXELS = 64
# More images than `RACE_WORK` takes do not race, unless their output has fewer pixels than this: then what is
# raced is mostly how the weights are read. With 4 images of 4x4 pixels the way won that takes twice as long
# for 128 of them; from 16 on the order is that of 128.
RACE_PIXELS = 256

FORMATS = {"channels_last": torch.channels_last, "contiguous": torch.contiguous_format}
# (layout, kernel): the convolution with bias and ReLU in one kernel, the same with weights laid out
# beforehand, one after the other. Weights laid out beforehand make oneDNN take its kernels for channels_last.
FORWARD = {
    f"{layout} {kernel}": (layout, kernel)
    for layout, kernel in (
        ("channels_last", "fused"),
        ("channels_last", "packed"),
        ("channels_last", "plain"),
        ("contiguous", "fused"),
        ("channels_last", "winograd"),
    )
}
# Ways back besides FORMATS: `ops.input_gradient`, and the convolution by Winograd that the gradient of one
# is.
OWN, WINOGRAD = "own", "winograd"
# Elsewhere our kernels make Winograd's sums number by number: it can be pinned, but does not race.
WINOGRAD_IS_FAST = instruction_set != "SSE2"
# With fewer tiles of 2x2 outputs an attack of a few steps hardly gains what it costs to transform the taps.
WINOGRAD_TILES = 16

_fused_op = torch.ops.mkldnn._convolution_pointwise.default if torch.backends.mkldnn.is_available() else None


class FrozenConvolution(Deciding):
    """The weights of one convolution for the time of one attack.

    own_gradient: the gradient of the output has no other user, so it may be masked in place.
    """

    __slots__ = (
        "_described",
        "_formats",
        "_packed",
        "_taps",
        "bias",
        "dilation",
        "groups",
        "own_gradient",
        "padding",
        "relu",
        "stride",
        "weight",
    )

    def __init__(
        self,
        weight: Tensor,
        bias: Tensor | None,
        stride: tuple[int, ...],
        padding: tuple[int, ...],
        dilation: tuple[int, ...],
        groups: int,
        relu: bool,
        own_gradient: bool,
    ) -> None:
        super().__init__()
        self.weight, self.bias = weight, bias
        self.stride, self.padding, self.dilation, self.groups = stride, padding, dilation, groups
        self.relu, self.own_gradient = relu, own_gradient
        self._formats: dict[torch.memory_format, Tensor] = {}
        self._packed: dict[torch.Size, Tensor] = {}
        self._taps: dict[bool, Tensor] = {}
        self._described: dict[torch.Size, tuple[str, int]] = {}

    def weight_in(self, memory_format: torch.memory_format) -> Tensor:
        if memory_format not in self._formats:
            # `contiguous` would not do: with one input channel both formats have the same strides, and oneDNN
            # would take the other.
            laid_out = torch.empty_like(self.weight, memory_format=memory_format)
            self._formats[memory_format] = laid_out.copy_(self.weight)
        return self._formats[memory_format]

    def packed_weight(self, x: Tensor) -> Tensor:
        """The weights as oneDNN's kernel for such inputs reads them."""
        size = x.shape[1:]
        if size not in self._packed:
            weight = self.weight_in(torch.channels_last)
            self._packed[size] = torch.ops.mkldnn._reorder_convolution_weight(
                weight, self.padding, self.stride, self.dilation, self.groups, list(x.shape)
            )
        return self._packed[size]

    def taps(self, gradient: bool) -> Tensor:
        """What `ops.winograd` multiplies with, for the layer or for its gradient."""
        if gradient not in self._taps:
            self._taps[gradient] = ops.winograd_taps(self.weight, gradient)
        return self._taps[gradient]

    def choose(
        self,
        race: str,
        names: Sequence[str],
        run: Callable[[str], object],
        others: Iterable[str],
        gradient: bool,
    ) -> str:
        """As `Choices.choose`. The taps are made before a race and thrown away if they are not wanted: they
        are made once an attack, and would lose it."""
        if names[-1].endswith(WINOGRAD) and choices().known(race) is None and choices().may_race:
            self.taps(gradient)
        way = choices().choose(race, names, run, others)
        if not way.endswith(WINOGRAD):
            self._taps.pop(gradient, None)
        return way

    def described(self, x: Tensor) -> tuple[str, int]:
        """The layer, its input and the threads, in words, and how many of the images race.

        Batches from that many images on share a choice, and smaller ones do by powers of two: an active set
        has nearly every size.
        """
        if x.shape not in self._described:
            threads = torch.get_num_threads()
            pixels = max(1, self.output_pixels(x))
            work = math.ceil(RACE_WORK * threads / (2 * self.weight.numel() * pixels))
            enough = max(threads, work, 2 * math.ceil(RACE_PIXELS / pixels) - 1)
            images = 2 ** (min(len(x), enough).bit_length() - 1)
            sizes = zip(("kernel", "stride", "padding", "dilation"), self._geometry(), strict=True)
            words = (
                f"{images} x {_by(x.shape[1:])} -> {len(self.weight)}",
                *(f"{name} {_by(size)}" for name, size in sizes),
                f"groups {self.groups}, {str(x.dtype).removeprefix('torch.')}, threads {threads}",
            )
            self._described[x.shape] = ", ".join(words), images
        return self._described[x.shape]

    def _geometry(self) -> tuple[tuple[int, ...], ...]:
        return tuple(self.weight.shape[2:]), self.stride, self.padding, self.dilation

    @property
    def has_few_channels(self) -> bool:
        """Whether `ops.input_gradient` fits this layer."""
        plain = self.groups == 1 and set(self.stride) == set(self.dilation) == {1}
        fits = all(pad < size for pad, size in zip(self.padding, self.weight.shape[2:], strict=True))
        return plain and fits and self.weight.shape[1] <= FEW_CHANNELS

    @property
    def fits_winograd(self) -> bool:
        """Whether `ops.winograd` can compute this layer and its gradient."""
        plain = self.groups == 1 and set(self.stride) == set(self.dilation) == set(self.padding) == {1}
        lanes = all(channels % ops.WINOGRAD_LANES == 0 for channels in self.weight.shape[:2])
        kernel = tuple(self.weight.shape[2:]) == (3, 3)
        return plain and lanes and kernel and self.weight.dtype == torch.float32

    def races_winograd(self, x: Tensor, images: int) -> bool:
        """Whether `ops.winograd` may be the fastest way for so many images."""
        tiles = images * math.prod(-(-size // 2) for size in x.shape[2:])
        return self.fits_winograd and WINOGRAD_IS_FAST and tiles >= WINOGRAD_TILES

    def needs_contiguous(self, x: Tensor) -> bool:
        """Where oneDNN's kernels for channels_last are broken, in plain torch too: seen on a processor with
        AVX-512.

        With results that see padding alone they end the process; with one channel and results of width 1 at a
        stride they are wrong.
        """
        reach = [
            dilation * (size - 1) for size, dilation in zip(self.weight.shape[2:], self.dilation, strict=True)
        ]
        if any(pad > most for pad, most in zip(self.padding, reach, strict=True)):
            return True
        return x.shape[1] == 1 and self.stride[1] > 1 and self._output_size(x)[1] == 1

    def output_shape(self, x: Tensor) -> tuple[int, ...]:
        return len(x), len(self.weight), *self._output_size(x)

    def output_pixels(self, x: Tensor) -> int:
        return math.prod(self._output_size(x))

    def _output_size(self, x: Tensor) -> tuple[int, ...]:
        return tuple(
            (size + 2 * pad - dilation * (kernel - 1) - 1) // stride + 1
            for size, pad, dilation, kernel, stride in zip(
                x.shape[2:], self.padding, self.dilation, self.weight.shape[2:], self.stride, strict=True
            )
        )


def convolution(x: Tensor, layer: FrozenConvolution) -> Tensor:
    """x: (B, C, H, W) -> convolution, bias and, if the layer has it, ReLU."""
    if x.dtype != layer.weight.dtype:
        x = x.to(layer.weight.dtype)
    if _runs_fused(x):
        return _FusedConvolution.apply(x, layer)
    if cudnn.runs(x, layer):
        return cudnn.ConvolutionReLU.apply(x, layer)
    y = F.conv2d(x, layer.weight, layer.bias, layer.stride, layer.padding, layer.dilation, layer.groups)
    return F.relu_(y) if layer.relu else y


def convolution_add_relu(
    x: Tensor, layer: FrozenConvolution, other: Tensor, first: bool, in_place: bool
) -> Tensor:
    """The end of a residual block: the convolution's result and another one, added, with ReLU.

    first: the convolution comes first in the sum; in_place: the sum takes the place of what comes first.
    """
    if x.dtype == layer.weight.dtype and cudnn.adds(x, layer, other):
        return cudnn.ConvolutionAddReLU.apply(x, layer, other)
    y = convolution(x, layer)
    one, two = (y, other) if first else (other, y)
    return torch.relu_(operator.iadd(one, two) if in_place else one + two)


def _runs_fused(x: Tensor) -> bool:
    """Whether the layer runs on oneDNN and our op: on the CPU, outside of torch.compile, in a precision this
    CPU has there.
    """
    return (
        _fused_op is not None
        and x.device.type == "cpu"
        and x.dtype in (torch.float32, torch.bfloat16)
        and x.dim() == 4
        and x.numel() > 0
        # What takes no time cannot race.
        and not isinstance(x, FakeTensor)
        and not torch.compiler.is_compiling()
        and (x.dtype == torch.float32 or cpu_bfloat16().fused)
    )


class _FusedConvolution(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, layer: FrozenConvolution) -> Tensor:
        arrived = _layout(x)
        way, layout = layer.decided((x.shape, arrived), lambda: _forward_way(layer, x, arrived))
        y = _forward(way, x, layer, layout)
        ctx.layer, ctx.arrived, ctx.layout = layer, arrived, layout
        ctx.save_for_backward(x, *([y] if layer.relu else []))
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:  # type: ignore[override]
        layer: FrozenConvolution = ctx.layer
        x, *rest = ctx.saved_tensors
        case = x.shape, ctx.arrived, ctx.layout, _layout(grad)
        way = layer.decided(case, lambda: _backward_way(ctx, grad, x, *rest))
        return _backward(way, layer, grad, x, *rest), None


def _forward_way(layer: FrozenConvolution, x: Tensor, arrived: str) -> tuple[str, str]:
    """(one of FORWARD, the layout of its result), by a race where nobody has decided yet."""
    described, images = layer.described(x)
    shape = layer.output_shape(x)
    dtype, threads = str(x.dtype).removeprefix("torch."), torch.get_num_threads()
    # Maps of one shape have one layout, whichever layers they come from: a sum of two layouts takes 20 times
    # as long.
    maps = f"layout of {_by(shape[1:])}, {dtype}, threads {threads}"
    layout = choices().known(maps)
    # What stands in a file may be anything.
    layout = layout if layout in FORMATS else None
    names = _forward_ways(layer, x, images)
    way = layer.choose(
        f"forward, {described}, from {arrived} to {layout or 'any'}",
        names,
        # With ReLU, whether the layer has it or not: so both kinds share the choice.
        lambda name: _forward(name, x[:images], layer, layout or FORWARD[name][0], relu=True),
        _others(FORWARD, layer, x),
        gradient=False,
    )
    if layout is None:
        layout = FORWARD[way][0]
        choices().settle(maps, layout)
        # From now on it is asked for by this name, and must not change.
        choices().settle(f"forward, {described}, from {arrived} to {layout}", way)
    return way, layout


def _backward_way(ctx: Any, grad: Tensor, x: Tensor, *rest: Tensor) -> str:
    """`OWN`, `WINOGRAD` or one of FORMATS, by a race where nobody has decided yet."""
    layer: FrozenConvolution = ctx.layer
    described, images = layer.described(x)
    own = [OWN] if layer.has_few_channels and grad.dtype == torch.float32 else []
    winograd = [WINOGRAD] if layer.races_winograd(x, images) else []
    names = list(dict.fromkeys((*own, ctx.layout, *FORMATS, *winograd)))
    if ctx.layout == ctx.arrived == "channels_last" and layer.output_pixels(x) > MANY_PIXELS:
        names.remove("contiguous")
    if layer.needs_contiguous(x):
        names = ["contiguous"]
    # Our op has the mask of the ReLU inside.
    relu = " with relu" if own and layer.relu else ""
    return layer.choose(
        f"backward{relu}, {described}, from {_layout(grad)} and {ctx.layout} to {ctx.arrived}",
        names,
        # Where the gradient is masked in place, it does not matter how often.
        lambda name: _backward(name, layer, *(part[:images] for part in (grad, x, *rest))),
        _others((*FORMATS, WINOGRAD), layer, x),
        gradient=True,
    )


def _others(ways: Iterable[str], layer: FrozenConvolution, x: Tensor) -> tuple[str, ...]:
    """Those of the ways that need not race, but can be pinned."""
    if layer.needs_contiguous(x):
        return ()
    return tuple(way for way in ways if not way.endswith(WINOGRAD) or layer.fits_winograd)


def _forward_ways(layer: FrozenConvolution, x: Tensor, images: int) -> tuple[str, ...]:
    """Those of FORWARD that may be the fastest, the usual one first."""
    if layer.needs_contiguous(x):
        return ("contiguous fused",)
    pixels = layer.output_pixels(x)
    usual = "contiguous fused" if pixels <= FEW_PIXELS else "channels_last fused"
    # The same kernel that is fused, and no more weights to lay out.
    names = [usual, "channels_last packed", "channels_last plain"]
    if pixels <= MANY_PIXELS or _layout(x) == "contiguous":
        names.append("contiguous fused")
    if layer.races_winograd(x, images):
        names.append("channels_last winograd")
    return tuple(dict.fromkeys(names))


def _forward(way: str, x: Tensor, layer: FrozenConvolution, layout: str, relu: bool | None = None) -> Tensor:
    """The layer in one of the ways of FORWARD, returned in `layout`. relu: in place of the layer's own."""
    relu = layer.relu if relu is None else relu
    inside, kernel = FORWARD[way]
    memory_format = FORMATS[inside]
    if kernel == WINOGRAD:
        y = ops.winograd(x, layer.taps(gradient=False), layer.bias, relu)
        return y.contiguous(memory_format=FORMATS[layout])
    x = x.contiguous(memory_format=memory_format)
    weight = layer.packed_weight(x) if kernel == "packed" else layer.weight_in(memory_format)
    geometry = layer.stride, layer.padding, layer.dilation
    if kernel == "plain":
        y = F.conv2d(x, weight, layer.bias, *geometry, layer.groups)
        y = F.relu_(y) if relu else y
    else:
        assert _fused_op is not None
        after = "relu" if relu else "none"
        y = _fused_op(
            x, weight, layer.bias, layer.padding, layer.stride, layer.dilation, layer.groups, after, [], ""
        )
    return y.contiguous(memory_format=FORMATS[layout])


def _backward(way: str, layer: FrozenConvolution, grad: Tensor, x: Tensor, y: Tensor | None = None) -> Tensor:
    """The gradient of x, by an op of ours or by oneDNN in one of the layouts, returned in the layout of x.

    y: the output of the ReLU, where the layer has it.
    """
    arrived = FORMATS[_layout(x)]
    if way == OWN:
        found = ops.input_gradient(grad, layer.weight_in(torch.contiguous_format), layer.padding, y)
        return found.contiguous(memory_format=arrived)
    if way == WINOGRAD:
        found = ops.winograd(grad, layer.taps(gradient=True), relu_output=y)
        return found.contiguous(memory_format=arrived)
    if y is not None:
        mask = torch.ops.aten.threshold_backward
        # With two different layouts the mask takes 20 times as long; a copy into one layout costs a tenth of
        # that.
        given, grad = grad, grad.contiguous(memory_format=FORMATS[_layout(y)])
        if layer.own_gradient or grad is not given:
            grad = mask.grad_input(grad, y, 0, grad_input=grad)
        else:
            grad = mask(grad, y, 0)
    memory_format = FORMATS[way]
    if memory_format is not arrived:
        # What stands in x is not needed for its gradient, only its shape and layout.
        x = torch.empty_like(x, memory_format=memory_format)
    found = torch.ops.aten.convolution_backward(
        grad.contiguous(memory_format=memory_format),
        x,
        layer.weight_in(memory_format),
        None,
        layer.stride,
        layer.padding,
        layer.dilation,
        False,
        [0, 0],
        layer.groups,
        [True, False, False],
    )[0]
    return found.contiguous(memory_format=arrived)


def _layout(x: Tensor) -> str:
    """Of maps with one channel or one pixel, which are in both, channels_last."""
    return "channels_last" if x.is_contiguous(memory_format=torch.channels_last) else "contiguous"


def _by(sizes: tuple[int, ...] | torch.Size) -> str:
    return "x".join(map(str, sizes))
