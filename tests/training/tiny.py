"""A run small enough to repeat many times: a few of the embedded images, a quarter of the demo's network,
three steps per epoch.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import json
import os
import signal
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import torch

from cfol_fast import data
from cfol_fast.errors import Stopped
from cfol_fast.runs.config import TrainConfig
from cfol_fast.runs.run_folder import Resume
from cfol_fast.training import Run, train, trainer
from cfol_fast.training.images import load_images
from cfol_fast.training.parts import build
from cfol_fast.training.trainer import Trainer

TINY = {
    "device": "cpu",
    "epochs": 2,
    "steps_per_epoch": 3,
    "batch_size": 16,
    "model.name": "demo-cnn@0.25",
    "attack.steps": 2,
    "validation.steps": 1,
    "test.steps": 2,
}
TIMES = ("seconds", "images_per_second")
# A sampler that learns, and an objective with an attack of its own.
QUICK = ("cfol", "trades")


def each(methods: Iterable[str], quick: Sequence[str] = QUICK) -> list[Any]:
    """The parameters of a test over methods: `make check` runs it with the quick ones, `make test`
    with all.
    """
    return [pytest.param(name, marks=() if name in quick else pytest.mark.slow) for name in methods]


# Of what is embedded: reading it takes a fifth of a tiny run.
load_once = functools.cache(data.registry.load)


def few_images(per_class: int = 20, test_per_class: int = 5) -> Callable[..., data.ImageData]:
    """A stand-in for `data.load` that keeps the first images of each class."""

    def first(images: data.ImageSet, count: int) -> data.ImageSet:
        chosen = [(images.labels == c).nonzero().flatten()[:count] for c in range(len(images.classes))]
        return images.subset(torch.cat(chosen).sort().values)

    def load(name: str, **options: Any) -> data.ImageData:
        load_whole = data.registry.load if options.get("root") else load_once
        whole = load_whole(name, **options)
        return dataclasses.replace(
            whole, train=first(whole.train, per_class), test=first(whole.test, test_per_class)
        )

    return load


def use_few_images() -> None:
    """For processes of their own, which pytest's monkeypatch does not reach."""
    data.load = few_images()


def tiny_config(out: Path | str, method: str = "cfol", **settings: Any) -> TrainConfig:
    """settings: attack__steps=2 sets attack.steps."""
    return TrainConfig(TINY, by_path(settings), method=method, out=str(out))


def by_path(settings: Mapping[str, Any]) -> dict[str, Any]:
    """{"attack__steps": 2} as {"attack.steps": 2}."""
    return {key.replace("__", "."): value for key, value in settings.items()}


def run(out: Path, method: str = "cfol", resume: Resume = False, **settings: Any) -> Run:
    return train(tiny_config(out, method, **settings), resume=resume, quiet=True)


def run_until(monkeypatch: Any, steps: int, out: Path, method: str = "cfol", **settings: Any) -> Stopped:
    """A run that is asked to stop in its step `steps`, counted from 1."""
    with monkeypatch.context() as patch:
        signal_in_call(patch, steps, trainer, "learning_rate")
        return stopped_run(out, method, **settings)


def stopped_run(out: Path, method: str = "cfol", **settings: Any) -> Stopped:
    with pytest.raises(Stopped) as stopped:
        run(out, method, **settings)
    return stopped.value


def signal_in_call(monkeypatch: Any, call: int, module: Any, name: str, number: int = signal.SIGTERM) -> None:
    """Sends this process a signal in the given call, counted from 1, of a function."""
    original, calls = getattr(module, name), itertools.count(1)

    def counting(*args: Any, **options: Any) -> Any:
        if next(calls) == call:
            os.kill(os.getpid(), number)
        return original(*args, **options)

    monkeypatch.setattr(module, name, counting)


def new_trainer(out: Path | str, method: str = "cfol", **settings: Any) -> Trainer:
    """A trainer at its start."""
    # The meta device, on which every read-back raises, is for tests alone: no command takes it.
    device = settings.pop("device", "cpu")
    config = tiny_config(out, method, **settings).with_settled({"device": str(device)})
    return build(config, load_images(config))


def take_steps(trainer: Trainer, count: int) -> Trainer:
    with closing(trainer.state.batches.feed(count)) as batches:
        for _ in range(count):
            trainer.take_step(batches)
    return trainer


def without_times(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: without_times(item) for key, item in value.items() if key not in TIMES}
    return [without_times(item) for item in value] if isinstance(value, list) else value


def outcome(run: Path) -> tuple[dict[str, dict[str, torch.Tensor]], list[Any], Any]:
    """What must be the same in two equal runs: weights of every checkpoint, metrics and result, times
    aside.
    """
    weights = {
        name: torch.load(run / "checkpoints" / f"{name}.pt", weights_only=True)["model"]
        for name in ("last", "best-average", "best-worst", "ema-last", "ema-best-average", "ema-best-worst")
        if (run / "checkpoints" / f"{name}.pt").exists()
    }
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return weights, without_times(rows), without_times(json.loads((run / "result.json").read_text()))


def assert_same_outcome(run: Path, other: Path) -> None:
    (weights, rows, result), (other_weights, other_rows, other_result) = outcome(run), outcome(other)
    assert weights.keys() == other_weights.keys()
    for name, tensors in weights.items():
        for key, tensor in tensors.items():
            assert torch.equal(tensor, other_weights[name][key]), f"{name}: {key} differs"
    assert rows == other_rows
    assert result == other_result
