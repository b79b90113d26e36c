"""The first layer's input gradient, ReLU mask included: our op against torch's ops for the same, which call
oneDNN.
"""

from __future__ import annotations

import torch
from torch import Tensor

from benchmarks.rows import Row, faster, main
from benchmarks.timing import interleaved
from cfol_fast import ops

# Network: (batch, input channels, outputs, side) of its first layer.
LAYERS = {"the demo network": (128, 1, 16, 28), "ResNet-18": (64, 3, 64, 32)}


def in_torch(grad: Tensor, relu: Tensor, x: Tensor, weight: Tensor) -> Tensor:
    masked = torch.ops.aten.threshold_backward(grad, relu, 0)
    options = (None, [1, 1], [1, 1], [1, 1], False, [0, 0], 1, [True, False, False])
    return torch.ops.aten.convolution_backward(masked, x, weight, *options)[0]


def measure(tiny: bool) -> list[Row]:
    return [row for name, layer in LAYERS.items() for row in question(name, *layer, tiny)]


def question(name: str, batch: int, channels: int, outputs: int, side: int, tiny: bool) -> list[Row]:
    batch = 2 if tiny else batch
    torch.manual_seed(0)

    def image(depth: int) -> Tensor:
        return torch.randn(batch, depth, side, side).contiguous(memory_format=torch.channels_last)

    grad, relu, x, weight = (
        image(outputs),
        image(outputs).relu(),
        image(channels),
        torch.randn(outputs, channels, 3, 3),
    )
    torch.testing.assert_close(
        ops.input_gradient(grad, weight, (1, 1), relu), in_torch(grad, relu, x, weight), atol=1e-3, rtol=1e-4
    )
    timings = interleaved(
        {
            "ours": lambda: ops.input_gradient(grad, weight, (1, 1), relu),
            "torch": lambda: in_torch(grad, relu, x, weight),
            "contiguous": lambda: in_torch(grad.contiguous(), relu.contiguous(), x.contiguous(), weight),
        },
        2 if tiny else 15,
        at_least=0.0 if tiny else 0.02,
    )
    title = f"input gradient of the first layer of {name}, batch {batch}"
    return [
        faster(title, "threshold_backward + convolution_backward", timings["ours"], timings["torch"]),
        faster(title, "the same by way of contiguous copies", timings["ours"], timings["contiguous"]),
    ]


if __name__ == "__main__":
    main(measure)
