"""How many ops a training step dispatches: on a GPU each costs a kernel launch, on the CPU a few microseconds."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from itertools import product
from typing import Any

from torch.utils._python_dispatch import TorchDispatchMode

from benchmarks.rows import Row, at_most, main
from benchmarks.steps import OurStep, Problem, UsualStep


class Counted(TorchDispatchMode):
    """Counts the ops that start a kernel, backward passes included; views and allocations start none and are not counted."""

    def __init__(self) -> None:
        super().__init__()
        self.kernels: Counter[str] = Counter()
        self.others = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        if func.is_view or name in ("detach", "_unsafe_view") or name.startswith(("empty", "new_empty")):
            self.others += 1
        else:
            self.kernels[str(func.overloadpacket)] += 1
        return func(*args, **(kwargs or {}))


def dispatched(step: Callable[[], object]) -> Counter[str]:
    # The first step may trace or allocate.
    step()
    with Counted() as counted:
        step()
    return counted.kernels


def measure(tiny: bool) -> list[Row]:
    """On the CPU, and on the meta device, which takes the same path as a GPU without the arithmetic."""
    problem = Problem("resnet18@0.125" if tiny else "resnet18", batch=2, images=100)
    rows = []
    for network, device in product((problem.network, "demo-cnn"), ("cpu", "meta")):
        chosen = replace(problem, network=network, device=device)
        ours, usual = dispatched(OurStep(chosen)), dispatched(UsualStep(chosen))
        total, theirs = sum(ours.values()), sum(usual.values())
        most = ", ".join(f"{name.removeprefix('aten.')} {n}" for name, n in ours.most_common(4))
        where = "the path of a GPU (not run on one)" if device == "meta" else "on the CPU"
        note = f"{total:,} ops against {theirs:,}; ours most often: {most}"
        name = f"ops dispatched per training step, {network}, {where}"
        rows.append(at_most(name, "the usual way", total / theirs, 0.7, note))
    return rows


if __name__ == "__main__":
    main(measure)
