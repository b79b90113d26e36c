"""PGD-7 against every attack library: on ResNet-18 with CIFAR's shape, and on the demo's network."""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, nn

from benchmarks import peers
from benchmarks.rows import FASTEST, Row, faster, main
from benchmarks.timing import interleaved
from cfol_fast import PGD, models

FORMATS = {"contiguous": torch.contiguous_format, "channels_last": torch.channels_last}


def measure(tiny: bool) -> list[Row]:
    small = ("resnet18@0.125", 4, 2) if tiny else ("resnet18", 64, 4)
    rows = question(
        "PGD-7, ResNet-18, batch {batch}", *small, channels=3, side=32, eps=8 / 255, target=1.25, tiny=tiny
    )
    batch, repetitions = (4, 2) if tiny else (128, 11)
    return rows + question(
        "PGD-7, demo network, batch {batch}",
        "demo-cnn",
        batch,
        repetitions,
        1,
        28,
        eps=0.1,
        target=1.5,
        tiny=tiny,
    )


def question(
    name: str,
    network: str,
    batch: int,
    repetitions: int,
    channels: int,
    side: int,
    eps: float,
    target: float,
    tiny: bool,
) -> list[Row]:
    torch.manual_seed(0)
    shape, step = (channels, side, side), eps / 4
    model = models.create(
        network, 10, image_size=side, in_channels=channels, mean=[0.4] * channels, std=[0.2] * channels
    )
    x, y = torch.rand(batch, *shape), torch.randint(0, 10, (batch,))
    found = best_formats(model, x, y, eps, step, tiny)
    ours = PGD(model.train(), eps=eps, step=step, steps=7)
    calls: dict[str, Callable[[], object]] = {"ours": lambda: ours(x, y)}
    timings = interleaved({**calls, **{peer: call for peer, (call, _) in found.items()}}, repetitions)
    fastest = min(found, key=lambda peer: timings[peer].best)
    return [
        faster(
            name.format(batch=batch),
            peer + FASTEST * (peer == fastest),
            timings["ours"],
            timings[peer],
            target,
            f"theirs {layout}",
        )
        for peer, (_, layout) in found.items()
    ]


def best_formats(
    model: nn.Module, x: Tensor, y: Tensor, eps: float, step: float, tiny: bool
) -> dict[str, tuple[Callable[[], object], str]]:
    """Each peer's call in the memory format that is faster for it; both are timed first."""
    calls: dict[tuple[str, str], Callable[[], object]] = {}
    for layout, memory_format in FORMATS.items():
        copied = copy.deepcopy(model).to(memory_format=memory_format)  # type: ignore[call-overload]
        images = x.contiguous(memory_format=memory_format)
        attacks = peers.pgd_attacks(copied, eps, step, 7, tuple(x.shape[1:]), 10, tiny)
        for peer, attack in attacks.items():
            calls[peer, layout] = partial(attack, images, y)
    best: dict[str, tuple[Callable[[], object], str]] = {}
    for peer in dict.fromkeys(peer for peer, _ in calls):
        race = interleaved({layout: calls[peer, layout] for layout in FORMATS}, 1)
        layout = min(race, key=lambda layout: race[layout].best)
        best[peer] = (calls[peer, layout], layout)
    return best


if __name__ == "__main__":
    main(measure)
