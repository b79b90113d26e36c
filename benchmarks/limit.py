"""How near PGD is to what the machine allows: PGD-7 against its convolutions alone, each the fastest way
there is, in the same run.

Ways: both memory layouts, plain, with ReLU attached or with weights laid out beforehand, and for the gradient
of the first layer our own op, too. Everything else that an attack does (losses, sums, masks, moving pixels,
Python) is beyond the limit. An attack may be faster than it, where our convolutions by Winograd's sums are
faster than the libraries': they are ways of a second limit.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.rows import Row, at_most, main, seconds
from benchmarks.steps import DEMO, RESNET, Problem, tiny_of
from benchmarks.timing import Timing, interleaved
from cfol_fast import PGD, ops
from cfol_fast.frozen import heap
from cfol_fast.frozen.convolution import FrozenConvolution

LAYOUTS = {"nhwc": torch.channels_last, "nchw": torch.contiguous_format}
FORWARD, BACKWARD = "forward", "input gradient"
WINOGRAD = "Winograd's sums"
# As in cfol_fast.frozen.convolution: what our op is for.
FEW_CHANNELS = 4


class Layer(NamedTuple):
    """The shapes of one convolution."""

    x: tuple[int, ...]
    weight: tuple[int, ...]
    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]
    groups: int

    def __str__(self) -> str:
        (_, channels, height, width), (outputs, _, kernel, _) = self.x, self.weight
        stride = f" /{self.stride[0]}" if self.stride[0] > 1 else ""
        return f"{channels}->{outputs} {kernel}x{kernel} on {height}x{width}{stride}"


def layers_of(problem: Problem) -> Counter[Layer]:
    """The convolutions of the network, and how many there are of each shape."""
    found: Counter[Layer] = Counter()

    def note(module: nn.Module, inputs: tuple[Any, ...]) -> None:
        assert isinstance(module, nn.Conv2d)
        assert not isinstance(module.padding, str)
        shapes = tuple(inputs[0].shape), tuple(module.weight.shape)
        found[Layer(*shapes, module.stride, module.padding, module.dilation, module.groups)] += 1

    model = problem.model().eval()
    for module in model.modules():
        if isinstance(module, nn.Conv2d):
            module.register_forward_pre_hook(note)
    with torch.no_grad():
        model(problem.batch_of()[0])
    return found


def ways(layer: Layer) -> dict[tuple[Layer, str, str], Callable[[], object]]:
    """(layer, pass, way) -> a call."""
    torch.manual_seed(0)
    images, plain_weight, bias = torch.randn(layer.x), torch.randn(layer.weight), torch.randn(layer.weight[0])
    geometry = (layer.stride, layer.padding, layer.dilation)
    y = F.conv2d(images, plain_weight, bias, *geometry, layer.groups)
    calls: dict[tuple[Layer, str, str], Callable[[], object]] = {}
    for name, memory_format in LAYOUTS.items():
        x, weight, grad = (laid_out(each, memory_format) for each in (images, plain_weight, y))
        calls[layer, FORWARD, name] = partial(F.conv2d, x, weight, bias, *geometry, layer.groups)
        if torch.backends.mkldnn.is_available():
            fused = torch.ops.mkldnn._convolution_pointwise.default
            moved = (layer.padding, layer.stride, layer.dilation, layer.groups)
            options: tuple[Any, ...] = (*moved, "relu", [], "")
            calls[layer, FORWARD, f"{name} with ReLU"] = partial(fused, x, weight, bias, *options)
            if memory_format is torch.channels_last:
                packed = torch.ops.mkldnn._reorder_convolution_weight(weight, *moved, list(layer.x))
                calls[layer, FORWARD, f"{name} with ReLU, packed"] = partial(fused, x, packed, bias, *options)
        rest = (None, *geometry, False, [0, 0], layer.groups, [True, False, False])
        backward = torch.ops.aten.convolution_backward
        calls[layer, BACKWARD, name] = partial(backward, grad, x, weight, *rest)
    if layer.weight[1] <= FEW_CHANNELS and layer.groups == 1 and set(layer.stride + layer.dilation) == {1}:
        grad = laid_out(y, torch.channels_last)
        calls[layer, BACKWARD, "our op"] = partial(ops.input_gradient, grad, plain_weight, layer.padding)
    kernel = FrozenConvolution(
        plain_weight, bias, layer.stride, layer.padding, layer.dilation, layer.groups, True, own_gradient=True
    )
    if kernel.fits_winograd:
        x, grad = laid_out(images, torch.channels_last), laid_out(y, torch.channels_last)
        there, back = (kernel.taps(gradient) for gradient in (False, True))
        calls[layer, FORWARD, WINOGRAD] = partial(ops.winograd, x, there, bias, rectify=True)
        calls[layer, BACKWARD, WINOGRAD] = partial(ops.winograd, grad, back)
    return calls


def laid_out(tensor: Tensor, memory_format: torch.memory_format) -> Tensor:
    """`contiguous` would not do: with one channel both formats have the same strides."""
    return torch.empty_like(tensor, memory_format=memory_format).copy_(tensor)


def measure(tiny: bool) -> list[Row]:
    return [
        *question("PGD-7, ResNet-18", RESNET, 1.06, 5, tiny),
        *question("PGD-7, demo network", DEMO, 1.5, 9, tiny),
    ]


def question(name: str, problem: Problem, target: float, repetitions: int, tiny: bool) -> list[Row]:
    """By the libraries' convolutions, and, where a layer has them, by Winograd's sums, too."""
    problem = tiny_of(problem) if tiny else problem
    layers, (x, y) = layers_of(problem), problem.batch_of()
    attack = PGD(problem.model(), eps=problem.eps, step=problem.eps / 4, steps=problem.steps)
    calls: dict[Any, Callable[[], object]] = {"attack": lambda: attack(x, y)}
    for layer in layers:
        calls |= ways(layer)
    # Whatever the memory costs that the C library gives back and takes again is no part of a limit.
    with torch.no_grad(), heap.kept(x.device):
        timings = interleaved(calls, 2 if tiny else repetitions, at_least=0.0 if tiny else 0.02)
    whole, title = timings.pop("attack"), f"{title_of(name)}, batch {problem.batch}"
    alone = f"its convolutions alone, {problem.steps} x (forward + input gradient), each in its best layout"
    by_libraries = {name: timing for name, timing in timings.items() if name[-1] != WINOGRAD}
    rows = [limit(title, alone, problem, layers, whole, by_libraries, target)]
    if by_libraries != timings:
        rows.append(limit(title, f"{alone}, or by {WINOGRAD}", problem, layers, whole, timings, None))
    return rows


def limit(
    title: str,
    against: str,
    problem: Problem,
    layers: Counter[Layer],
    whole: Timing,
    timings: dict[Any, Timing],
    target: float | None,
) -> Row:
    wall, cpu, told = 0.0, 0.0, []
    for layer, times in layers.items():
        best = {direction: fastest(timings, layer, direction) for direction in (FORWARD, BACKWARD)}
        wall += problem.steps * times * sum(timing.best for _, timing in best.values())
        cpu += problem.steps * times * sum(timing.cpu_best for _, timing in best.values())
        passes = " + ".join(f"{seconds(timing.best)} ({way})" for way, timing in best.values())
        told.append(f"{times} x {layer}: {passes}")
    note = (
        f"CPU {whole.cpu_best / cpu:.2f}x, {len(whole.wall)} repetitions; forward + gradient:"
        f" {', '.join(told)}"
    )
    return at_most(title, against, whole.best / wall, target, note, whole.best, wall)


def title_of(name: str) -> str:
    """The limit comes first: a paragraph on PGD-7 against its peers does not explain a limit that was
    missed.
    """
    return f"the limit of {name}"


def fastest(timings: dict[Any, Timing], layer: Layer, direction: str) -> tuple[str, Timing]:
    found = {way: timing for (of, which, way), timing in timings.items() if (of, which) == (layer, direction)}
    way = min(found, key=lambda way: found[way].best)
    return way, found[way]


if __name__ == "__main__":
    main(measure)
