"""The class bandit: draw 128 and update with 128 losses, from 10 to 10,000 classes."""

from __future__ import annotations

from collections.abc import Callable

import torch

from benchmarks.bandits import ListBandit, LoopBandit, TorchBandit
from benchmarks.rows import Row, at_most, faster, main
from benchmarks.timing import interleaved
from cfol_fast import ClassSampler

BATCH = 128
# k: (target against torch, target against Python)
TARGETS: dict[int, tuple[float | None, float | None]] = {
    10: (2, 300),
    100: (None, None),
    1000: (None, None),
    10000: (2, None),
}


def contestants(k: int) -> dict[str, Callable[[], object]]:
    labels = torch.arange(50_000) % k
    y = torch.arange(BATCH) % k
    loss = (torch.arange(BATCH) % 2).float()
    ours, batched, loop = ClassSampler(labels, num_classes=k), TorchBandit(labels, k), LoopBandit(labels, k)
    lists, listed = ListBandit(labels, k), (y.tolist(), loss.tolist())

    def native() -> None:
        ours.draw(BATCH)
        ours.update(y, loss)

    def torch_ops() -> None:
        _, p = batched.draw(BATCH)
        batched.update(y, loss, p)

    def python() -> None:
        loop.draw(BATCH)
        loop.update(y, loss)

    def plain() -> None:
        lists.draw(BATCH)
        lists.update(*listed)

    return {"ours": native, "torch": torch_ops, "python": python, "lists": plain}


def measure(tiny: bool) -> list[Row]:
    sizes = (10, 20) if tiny else tuple(TARGETS)
    calls = {(k, who): call for k in sizes for who, call in contestants(k).items()}
    timings = interleaved(calls, 2 if tiny else 9, at_least=0.0 if tiny else 0.02)
    rows = []
    for k in sizes:
        name = f"class bandit, draw + update of {BATCH}, k = {k:,}"
        batched, loop = TARGETS.get(k, (None, None))
        rows.append(faster(name, "batched in torch", timings[k, "ours"], timings[k, "torch"], batched))
        rows.append(faster(name, "one at a time in Python", timings[k, "ours"], timings[k, "python"], loop))
        fastest = "in Python on lists, p once a batch (the fastest we could write)"
        rows.append(faster(name, fastest, timings[k, "ours"], timings[k, "lists"], loop))
    few, many = timings[sizes[0], "ours"].best, timings[sizes[-2 if len(sizes) > 2 else -1], "ours"].best
    larger = sizes[-2 if len(sizes) > 2 else -1]
    rows.append(
        at_most(
            f"class bandit, growth to k = {larger:,}",
            f"itself at k = {sizes[0]}",
            many / few,
            2,
            "ours is the larger, theirs the smaller",
            many,
            few,
        )
    )
    return rows


if __name__ == "__main__":
    main(measure)
