"""PGD-20 evaluation that leaves out examples already fooled, at 50 % robust accuracy, against PGD-20 on all of them."""

from __future__ import annotations

import torch
from torch import nn

from benchmarks import peers
from benchmarks.rows import Row, faster, main
from benchmarks.timing import interleaved
from cfol_fast import data, evaluate
from cfol_fast.training.config import TrainConfig
from cfol_fast.training.defaults import complete
from cfol_fast.training.parts import build

STEPS = 20


def trained(steps: int) -> nn.Module:
    """The demo's network after a little adversarial training."""
    config = TrainConfig(method="erm", epochs=1, steps_per_epoch=steps)
    config.data.name, config.data.holdout = "fashion-mini", "none"
    parts = build(complete(config))
    for number, (_, x, y) in enumerate(parts.splits.source.feed(parts.queue.draw, steps)):
        idx, ticket = parts.queue.take()
        parts.step(number, 0.05, idx, x, y, ticket)
    return parts.model.eval()


def radius_of_half(model: nn.Module, x: torch.Tensor, y: torch.Tensor, rounds: int) -> float:
    """The eps at which every second example withstands the attack, by bisection."""
    low, high = 0.0, 0.5
    for _ in range(rounds):
        middle = (low + high) / 2
        robust = evaluate(model, x, y, attack={"eps": middle, "steps": STEPS}, active_set=True).robust
        assert robust is not None
        low, high = (middle, high) if robust.average > 0.5 else (low, middle)
    return (low + high) / 2


def measure(tiny: bool) -> list[Row]:
    count = 64 if tiny else 1500
    model = trained(2 if tiny else 120)
    source = data.ResidentSource(
        data.load("fashion-mini").test.subset(torch.arange(0, 3000, 3000 // count)[:count])
    )
    x, y = (torch.cat(parts) for parts in list(zip(*source.batches(500), strict=True))[1:])
    eps = radius_of_half(model, x[:500], y[:500], 2 if tiny else 8)
    step = 2.5 * eps / STEPS
    attack = {"eps": eps, "step": step, "steps": STEPS}
    calls = {
        "active": lambda: evaluate(model, x, y, attack=attack, active_set=True),
        "all": lambda: evaluate(model, x, y, attack=attack),
    }
    if peers.require(("torchattacks",), tiny):
        other = peers.torchattacks_pgd(model, eps, step, STEPS)

        @torch.enable_grad()  # which the evaluation has switched off
        def theirs(x: torch.Tensor, y: torch.Tensor) -> object:
            return other(x, y)

        calls["torchattacks"] = lambda: evaluate(model, x, y, attack=theirs)
    robust = {
        name: evaluate(model, x, y, attack=attack, active_set=name == "active").robust
        for name in ("active", "all")
    }
    reached = ", ".join(f"{name} {value.average:.1%}" for name, value in robust.items() if value is not None)
    timings = interleaved(calls, 2 if tiny else 7)
    note = f"demo network, {count:,} images, eps {eps:.3f}; robust accuracy {reached}"
    name = "PGD-20 evaluation with the active set"
    targets = {"all": ("the same without", 1.5), "torchattacks": ("torchattacks", 2)}
    return [
        faster(name, targets[who][0], timings["active"], timings[who], targets[who][1], note, per=count)
        for who in calls
        if who != "active"
    ]


if __name__ == "__main__":
    main(measure)
