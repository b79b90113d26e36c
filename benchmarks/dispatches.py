"""How many kernels a training step starts: counted by op, on the CPU as dispatches, on the path of a GPU as
kernel launches.

And with `--graph on`, where a step is a replay of what was captured: what the host starts then.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from itertools import product
from typing import Any
from unittest import mock

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from benchmarks.rows import Row, at_most, main
from benchmarks.steps import OurStep, Problem, UsualStep
from cfol_fast.frozen import cudnn
from cfol_fast.training.capture import WARM_UP, CapturedStep

# Launches of the native ops that have more than one (csrc/cuda): most advance a random state by a kernel of
# its own.
LAUNCHES = {
    "cfol_fast.exp3_draw": 3,
    "cfol_fast.exp3_update": 3,
    "cfol_fast.sum_tree_draw": 2,
    "cfol_fast.sum_tree_update": 4,
    "cfol_fast.gather_augment": 2,
    "cfol_fast.pgd_start": 2,
}

# cuDNN's, each one launch (frozen/cudnn.py).
FUSED = (torch.ops.aten.cudnn_convolution_relu.default, torch.ops.aten.cudnn_convolution_add_relu.default)


class Counted(TorchDispatchMode):
    """Counts the ops that start a kernel, backward passes included; views and allocations start none and are
    not counted.

    launches: count kernel launches as on a GPU, where cuDNN adds a bias by a launch of its own.
    """

    only_watches = True

    def __init__(self, launches: bool = False) -> None:
        super().__init__()
        self.launches = launches
        self.kernels: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        starts_none = func.is_view or name in ("detach", "_unsafe_view") or func.namespace == "profiler"
        if not starts_none and not name.startswith(("empty", "new_empty")):
            self.kernels[str(func.overloadpacket)] += self._launches_of(func, args) if self.launches else 1
        if func in FUSED:
            # Only a GPU has it; the shape is what the step goes on with.
            x, weight = args[:2]
            return torch.conv2d(x, weight, None, *args[-4:])
        return func(*args, **(kwargs or {}))

    def _launches_of(self, func: Any, args: Any) -> int:
        packet = str(func.overloadpacket)
        if packet == "aten.convolution":
            return 1 if args[2] is None else 2
        return LAUNCHES.get(packet, 1)


def dispatched(step: Callable[[], object], launches: bool = False, fused: bool = False) -> Counter[str]:
    """fused: as where the trial of cuDNN's fused convolutions succeeds."""
    answer = (lambda device, dtype: True) if fused else cudnn.fuses
    with mock.patch.object(cudnn, "fuses", answer):
        # The first step may trace or allocate.
        with Counted(launches):
            step()
        with Counted(launches) as counted:
            step()
    return counted.kernels


class Replayed:
    """Stands for torch.cuda.CUDAGraph: what is counted is how often it is started."""

    def __init__(self) -> None:
        self.replays = 0

    def replay(self) -> None:
        self.replays += 1


def with_graph(step: OurStep) -> tuple[int, int]:
    """(replays, launches beside them) of one step of the loop under `--graph on`, after its warm-up and its
    capture.
    """
    cuda: dict[str, Any] = {
        "CUDAGraph": Replayed,
        "graph": lambda graph, **options: nullcontext(),
        "Stream": lambda device: mock.Mock(),
        "current_stream": mock.Mock(),
        "stream": lambda stream: nullcontext(),
        "device": lambda device: nullcontext(),
    }
    with mock.patch.multiple(torch.cuda, **cuda):
        trainer = step.trainer
        graph = trainer.state.captured = CapturedStep(trainer.step, trainer.state.batches)
        for _ in range(WARM_UP + 1):
            step()
        before = graph._graph.replays
        with Counted(launches=True) as counted:
            step()
        return graph._graph.replays - before, sum(counted.kernels.values())


def measure(tiny: bool) -> list[Row]:
    """On the CPU, and on the meta device, which takes the same path as a GPU without the arithmetic.

    There twice: with what cuDNN fuses, and as where its trial fails; which it is, only that GPU knows.
    Counted, not measured on one.
    """
    problem = Problem("resnet18@0.125" if tiny else "resnet18", batch=2, images=100)
    rows = []
    for network, device in product((problem.network, "demo-cnn"), ("cpu", "meta")):
        chosen, on_gpu = replace(problem, network=network, device=device), device == "meta"
        ours = dispatched(OurStep(chosen), on_gpu, fused=on_gpu)
        usual = sum(dispatched(UsualStep(chosen), on_gpu).values())
        total = sum(ours.values())
        most = ", ".join(f"{name.removeprefix('aten.')} {n}" for name, n in ours.most_common(4))
        what = "kernel launches" if on_gpu else "ops dispatched"
        where = "the path of a GPU (counted, not run on one)" if on_gpu else "on the CPU"
        note = f"{total:,} {what} against {usual:,}; ours most often: {most}"
        if on_gpu:
            unfused = sum(dispatched(OurStep(chosen), launches=True).values())
            note = (
                f"with cuDNN's convolution (+ sum) + ReLU as one launch each: {note}; "
                f"without: {unfused:,}, {unfused / usual:.2f}x"
            )
        name = f"{what} per training step, {network}, {where}"
        rows.append(at_most(name, "the usual way", total / usual, 0.7, note))
        if on_gpu:
            replays, others = with_graph(OurStep(replace(chosen, device="cpu")))
            note = (
                f"{replays} replay and {others} launches beside it, against {total:,} launches without the"
                f" graph and {usual:,} of the usual way; a learning rate that changes in every step is one"
                " launch more"
            )
            name = (
                f"starts by the host per training step with --graph on, {network}, the path of a GPU"
                " (counted, not run on one)"
            )
            rows.append(at_most(name, "one replay", float(replays + others), 1, note))
    return rows


if __name__ == "__main__":
    main(measure)
