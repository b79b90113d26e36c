"""The example bandit (FOL): draw 128 and update with 128 losses, over 50 thousand to 5 million examples."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch

from benchmarks.bandits import ArrayTree, PythonTree, TensorTree, TorchExampleBandit
from benchmarks.rows import Row, at_most, faster, main
from benchmarks.timing import interleaved
from cfol_fast import ExampleSampler

BATCH = 128
TREES: dict[str, tuple[type[ArrayTree] | type[PythonTree], str]] = {
    "tensor": (TensorTree, "a tree in Python, on a torch tensor"),
    "array": (ArrayTree, "a tree in Python, on a numpy array (prioritised replay's)"),
    "lists": (PythonTree, "a tree in Python, on lists (the fastest we could write)"),
}


def contestants(n: int) -> dict[str, Callable[[], object]]:
    loss = (torch.arange(BATCH) % 2).float()
    listed = loss.tolist()
    ours, batched = ExampleSampler(n), TorchExampleBandit(n)

    def native() -> None:
        ours.update(ours.draw(BATCH), loss)

    def empty() -> None:
        ours.update(ours.draw(0), loss[:0])

    def torch_ops() -> None:
        idx, p = batched.draw(BATCH)
        batched.update(idx, loss, p)

    def python(tree: ArrayTree | PythonTree) -> None:
        idx, p = tree.draw(BATCH)
        tree.update(idx, listed, p)

    return {
        "ours": native,
        "empty": empty,
        "torch": torch_ops,
        **{who: partial(python, make(n)) for who, (make, _) in TREES.items()},
    }


def measure(tiny: bool) -> list[Row]:
    sizes = (1_000, 4_000) if tiny else (50_000, 500_000, 5_000_000)
    calls = {(n, who): call for n in sizes for who, call in contestants(n).items()}
    timings = interleaved(calls, 2 if tiny else 7, at_least=0.0 if tiny else 0.02)
    rows = []
    for n in sizes:
        name = f"example bandit, draw + update of {BATCH}, N = {n:,}"
        first = n == sizes[0]
        rows.append(
            faster(
                name,
                "torch.multinomial over N",
                timings[n, "ours"],
                timings[n, "torch"],
                3 if first else None,
            )
        )
        rows += [
            faster(name, against, timings[n, "ours"], timings[n, who], 300 if first else None)
            for who, (_, against) in TREES.items()
        ]
        if first:
            floor = "the same calls with nothing to draw or update: what Python and torch's dispatcher take"
            rows.append(faster(name, floor, timings[n, "ours"], timings[n, "empty"]))
    few, many = timings[sizes[0], "ours"].best, timings[sizes[-1], "ours"].best
    note = "ours is the larger, theirs the smaller"
    growth = f"example bandit, growth to N = {sizes[-1]:,}"
    return [*rows, at_most(growth, f"itself at N = {sizes[0]:,}", many / few, 3, note, many, few)]


if __name__ == "__main__":
    main(measure)
