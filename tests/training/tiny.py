"""A run small enough to repeat many times: a few of the embedded images, a quarter of the demo's network, three steps an epoch."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from cfol_fast import data
from cfol_fast.runs.config import TrainConfig, assign
from cfol_fast.training import loop, parts

TIMES = ("seconds", "images_per_second")


def few_images(per_class: int = 20, test_per_class: int = 5) -> Callable[..., data.ImageData]:
    """A stand-in for `data.load` that keeps the first images of each class."""

    def first(images: data.ImageSet, count: int) -> data.ImageSet:
        chosen = [(images.labels == c).nonzero().flatten()[:count] for c in range(len(images.classes))]
        return images.subset(torch.cat(chosen).sort().values)

    def load(name: str, **options: Any) -> data.ImageData:
        whole = data.registry.load(name, **options)
        return dataclasses.replace(
            whole, train=first(whole.train, per_class), test=first(whole.test, test_per_class)
        )

    return load


class FewImages:
    """What `parts` sees instead of the data package."""

    def __init__(self, load: Callable[..., data.ImageData]) -> None:
        self.load = load

    def __getattr__(self, name: str) -> Any:
        return getattr(data, name)


def use_few_images() -> None:
    """For processes of their own, which pytest's monkeypatch does not reach."""
    parts.data = FewImages(few_images())  # type: ignore[assignment]


def tiny_config(out: Path | str, method: str = "cfol", **settings: Any) -> TrainConfig:
    config = TrainConfig(method=method, out=str(out), device="cpu")
    values = {
        "epochs": 2,
        "steps_per_epoch": 3,
        "batch_size": 16,
        "model.name": "demo-cnn@0.25",
        "attack.steps": 2,
        "validation.steps": 1,
        "test.steps": 2,
    }
    for key, value in {
        **values,
        **{key.replace("__", "."): value for key, value in settings.items()},
    }.items():
        assign(config, key, value)
    return config


def without_times(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: without_times(item) for key, item in value.items() if key not in TIMES}
    return [without_times(item) for item in value] if isinstance(value, list) else value


def outcome(run: Path) -> tuple[dict[str, dict[str, torch.Tensor]], list[Any], Any]:
    """What must be the same in two equal runs: weights of every checkpoint, metrics and result, times aside."""
    weights = {
        name: torch.load(run / "checkpoints" / f"{name}.pt", weights_only=True)["model"]
        for name in ("last", "best-average", "best-worst")
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


def stop_after(monkeypatch: Any, steps: int, number: int) -> None:
    """Sends this process the signal `number` in the run's step `steps`, counted from 1."""
    original, calls = loop.learning_rate, 0

    def counting(*args: Any) -> float:
        nonlocal calls
        calls += 1
        if calls == steps:
            os.kill(os.getpid(), number)
        return original(*args)

    monkeypatch.setattr(loop, "learning_rate", counting)
