"""PGD-20 evaluation that leaves out examples already fooled, at 50 % robust accuracy, against PGD-20 on all
of them.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import partial

import torch
from torch import nn

from benchmarks import peers
from benchmarks.pgd import FORMATS
from benchmarks.rows import Row, faster, main
from benchmarks.timing import interleaved, winner
from cfol_fast import data, evaluate
from cfol_fast.runs.config import TrainConfig
from cfol_fast.training.images import load_images
from cfol_fast.training.parts import build

STEPS = 20


def trained(steps: int) -> nn.Module:
    """The demo's network after a little adversarial training."""
    config = TrainConfig(
        method="erm",
        epochs=1,
        steps_per_epoch=steps,
        data={"name": "fashion-mini", "holdout": "none"},
        optimizer={"lr": 0.05, "schedule": "constant"},
    )
    trainer = build(config, load_images(config))
    batches = trainer.state.batches.feed(steps)
    for _ in range(steps):
        trainer.take_step(batches)
    return trainer.step.model.eval()


def radius_of_half(model: nn.Module, x: torch.Tensor, y: torch.Tensor, rounds: int) -> float:
    """The eps at which every second example withstands the attack, by bisection."""
    low, high = 0.0, 0.5
    for _ in range(rounds):
        middle = (low + high) / 2
        robust = evaluate(model, x, y, attack={"eps": middle, "steps": STEPS}, active_set=True).robust
        assert robust is not None
        low, high = (middle, high) if robust.average > 0.5 else (low, middle)
    return (low + high) / 2


def torchattacks_evaluation(
    model: nn.Module, memory_format: torch.memory_format, eps: float, step: float
) -> Callable[[torch.Tensor, torch.Tensor], object]:
    """Their PGD in our evaluation: on a copy in this layout, without gradients for weights."""
    copied = copy.deepcopy(model).eval().requires_grad_(False).to(memory_format=memory_format)  # type: ignore[call-overload]
    attack = peers.torchattacks_pgd(copied, eps, step, STEPS)

    # The evaluation has switched gradients off.
    @torch.enable_grad()
    def theirs(x: torch.Tensor, y: torch.Tensor) -> object:
        return attack(x.contiguous(memory_format=memory_format), y)

    return lambda x, y: evaluate(copied, x, y, attack=theirs)


def image_passes(model: nn.Module, evaluation: Callable[[], object]) -> tuple[int, int]:
    """How many images went through the network and back, and how many through it alone.

    A model with a hook runs as it is, unfolded.
    """
    counted = {True: 0, False: 0}

    def note(module: nn.Module, inputs: object, logits: torch.Tensor) -> None:
        counted[logits.requires_grad] += len(logits)

    with model.register_forward_hook(note):
        evaluation()
    return counted[True], counted[False]


def account(active: tuple[int, int], everything: tuple[int, int]) -> str:
    """Why the active set cannot be faster: the way back is taken to cost as much as the way there."""
    bound = (2 * everything[0] + everything[1]) / (2 * active[0] + active[1])
    return (
        f"{active[0]:,} instead of {everything[0]:,} image passes forward and back, {active[1]:,} instead of"
        f" {everything[1]:,} forward alone, which bounds the ratio to the same without at {bound:.2f}x"
    )


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
    calls: dict[str, Callable[[], object]] = {
        "active": lambda: evaluate(model, x, y, attack=attack, active_set=True),
        "all": lambda: evaluate(model, x, y, attack=attack),
    }
    if peers.require(("torchattacks",), tiny):
        ways = {
            layout: torchattacks_evaluation(model, chosen, eps, step) for layout, chosen in FORMATS.items()
        }
        best = winner({layout: partial(way, x[:256], y[:256]) for layout, way in ways.items()}, 2)
        calls["torchattacks"] = partial(ways[best], x, y)
    robust = {
        name: evaluate(model, x, y, attack=attack, active_set=name == "active").robust
        for name in ("active", "all")
    }
    reached = ", ".join(f"{name} {value.average:.1%}" for name, value in robust.items() if value is not None)
    timings = interleaved(calls, 2 if tiny else 7)
    passes = account(*(image_passes(model, calls[name]) for name in ("active", "all")))
    note = f"demo network, {count:,} images, eps {eps:.3f}; robust accuracy {reached}; {passes}"
    name = "PGD-20 evaluation with the active set, time per image"
    targets = {"all": ("the same without", 1.6), "torchattacks": ("torchattacks", 2)}
    return [
        faster(name, targets[who][0], timings["active"], timings[who], targets[who][1], note, per=count)
        for who in calls
        if who != "active"
    ]


if __name__ == "__main__":
    main(measure)
