"""What the GPU self-test says of `--graph on`: captured steps against eager ones, from the same start, with
--deterministic.

It runs in a process of its own (`python -m tools.graph_check`): cuBLAS must not have been used before, and a
capture that goes wrong can leave a process without a working GPU.
"""

from __future__ import annotations

import json
import subprocess
import sys
from contextlib import closing
from typing import Any

import torch

from cfol_fast.machine import computing
from cfol_fast.runs.config import TrainConfig
from cfol_fast.training.capture import WARM_UP
from cfol_fast.training.images import load_images
from cfol_fast.training.parts import build

STEPS = 20
# So many times as fast as eager steps, a graph is worth the memory that it holds.
WORTH_IT = 1.05


def example() -> TrainConfig:
    """CFOL-AT as the paper trains it, but for the images, which are the embedded ones."""
    return TrainConfig(
        device="cuda", deterministic=True, epochs=1, steps_per_epoch=STEPS, model={"name": "resnet18"}
    )


def compare(config: TrainConfig) -> dict[str, Any]:
    """Whether the captured steps of a run give the eager ones' state bit for bit, how fast both are, and what
    to do.
    """
    with computing(config.precision, deterministic=True):
        (eager, slow), (graph, fast) = (
            _take_steps(config.with_settled({"graph": on})) for on in (False, True)
        )
    different = sorted(name for name in eager if not torch.equal(eager[name], graph[name]))
    times = slow / fast if fast > 0 else 0.0
    return {
        "steps": config.steps_per_epoch,
        "different": different,
        "eager_seconds_per_step": slow,
        "graph_seconds_per_step": fast,
        "recommended": not different and times >= WORTH_IT,
        "advice": advice(different, times),
    }


def advice(different: list[str], times: float) -> str:
    if different:
        return (
            f"--graph on: do not use it here, {len(different)} tensors differ from eager steps, such as"
            f" {different[0]}; please report it"
        )
    if times >= WORTH_IT:
        return f"--graph on: recommended, the same state bit for bit and {times:.2f} times as fast"
    return f"--graph on: the same state bit for bit, but not faster ({times:.2f} times)"


def _take_steps(config: TrainConfig) -> tuple[dict[str, torch.Tensor], float]:
    """The state after the steps, by name, and the seconds of one of those behind the warm-up."""
    from cfol_fast.progress import Stopwatch

    trainer = build(config, load_images(config))
    steps, device = trainer.length.steps, trainer.step.device
    clock = Stopwatch()
    with closing(trainer.state.batches.feed(steps)) as batches:
        for _ in range(steps):
            trainer.take_step(batches)
            if trainer.position.step == WARM_UP + 1:
                _settle(device)
                clock.lap()
    _settle(device)
    seconds = clock.lap() / max(1, steps - WARM_UP - 1)
    state = trainer.state.whole().to_state()
    found = dict(_tensors({name: state[name] for name in ("model", "sampler", "attack", "source", "step")}))
    return {name: tensor.cpu() for name, tensor in found.items()}, seconds


def _settle(device: torch.device) -> None:
    if device.type == "cuda":  # pragma: no cover
        torch.cuda.synchronize(device)


def _tensors(tree: Any, prefix: str = "") -> list[tuple[str, torch.Tensor]]:
    if isinstance(tree, torch.Tensor):
        return [(prefix, tree)]
    items = tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list) else ()
    return [leaf for key, item in items for leaf in _tensors(item, f"{prefix}.{key}" if prefix else str(key))]


def in_a_process() -> dict[str, Any]:
    """`compare(example())` of a new process, or how that ended."""
    done = subprocess.run(
        [sys.executable, "-m", "tools.graph_check"], capture_output=True, text=True, check=False
    )
    lines = done.stdout.splitlines()
    if done.returncode != 0 or not lines:
        return {
            "recommended": False,
            "trouble": f"status {done.returncode}; its last words: {done.stderr[-2000:]}",
            "advice": "--graph on: do not use it here, the comparison failed; please send the report back",
        }
    return json.loads(lines[-1])


if __name__ == "__main__":
    print(json.dumps(compare(example())))
