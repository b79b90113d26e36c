"""Run folders as training leaves them, with made-up but consistent numbers: no test here needs a trained
model.
"""

from __future__ import annotations

import base64
import json
import math
import random
from pathlib import Path
from typing import Any

from cfol_fast.data.embedded_images import CLASSES as FASHION
from cfol_fast.runs.accuracy import wilson
from cfol_fast.runs.metrics import tail_size

# Robust accuracy by class as the demo's prototype left it: (ERM-AT, CFOL-AT).
ROBUST = {
    "erm": [0.63, 0.90, 0.55, 0.76, 0.58, 0.81, 0.10, 0.82, 0.88, 0.90],
    "cfol": [0.52, 0.88, 0.48, 0.68, 0.47, 0.79, 0.39, 0.80, 0.85, 0.87],
    "lcvar": [0.60, 0.89, 0.54, 0.74, 0.57, 0.80, 0.16, 0.81, 0.88, 0.89],
    "fol": [0.59, 0.89, 0.53, 0.73, 0.55, 0.80, 0.14, 0.81, 0.87, 0.89],
}
TITLES = {"erm": "ERM-AT", "cfol": "CFOL-AT", "lcvar": "LCVaR-AT", "fol": "FOL-AT"}


def accuracy(
    names: list[str], shares: list[float], count: int, rng: random.Random, confusion: bool = True
) -> dict[str, Any]:
    """An R with whole numbers of right examples, so that everything in it fits together."""
    right = [min(count, max(0, round(share * count))) for share in shares]
    per_class = [number / count for number in right]
    order = sorted(range(len(names)), key=lambda i: per_class[i])
    lowest = order[: tail_size(len(names))]
    value: dict[str, Any] = {
        "average": sum(right) / (count * len(names)),
        "class_average": sum(per_class) / len(names),
        "tail": sum(per_class[i] for i in lowest) / len(lowest),
        "worst": per_class[order[0]],
        "worst_class": names[order[0]],
        "per_class": dict(zip(names, per_class, strict=True)),
        "interval": {name: list(wilson(share, count)) for name, share in zip(names, per_class, strict=True)},
        "count": dict.fromkeys(names, count),
    }
    if confusion:
        matrix = []
        for i in range(len(names)):
            # A class is mostly taken for a few neighbours, and for the classes the model likes.
            likes = [0.0 if j == i else rng.random() ** 6 + 0.02 for j in range(len(names))]
            row = [0] * len(names)
            row[i] = right[i]
            for j in rng.choices(range(len(names)), likes, k=count - right[i]):
                row[j] += 1
            matrix.append(row)
        value["confusion"] = matrix
    return value


def gallery(
    names: list[str], rng: random.Random, worst: str, size: int = 28, channels: int = 1, examples: int = 6
) -> dict[str, Any]:
    items = []
    for number in range(examples):
        clean, attacked = bytearray(), bytearray()
        for y in range(size):
            for x in range(size):
                inside = (
                    abs(x - size / 2) < size * (0.22 + 0.1 * math.sin(number + y / 5)) and 3 < y < size - 3
                )
                for channel in range(channels):
                    value = (150 + 8 * number + 20 * math.sin(x / 3 + channel)) if inside else 6
                    clean.append(int(value))
                    sign = 1 if math.sin(x * (0.7 + 0.1 * number)) + math.cos(y * 0.9) > 0 else -1
                    attacked.append(min(255, max(0, int(value) + 25 * sign)))
        other = rng.choice([name for name in names if name != worst])
        items.append(
            {
                "index": 100 + number,
                "clean": base64.b64encode(clean).decode(),
                "adversarial": base64.b64encode(attacked).decode(),
                "predicted": other,
                "confidence": round(rng.uniform(0.4, 0.97), 4),
                "clean_predicted": worst,
            }
        )
    return {"format": 1, "class": worst, "shape": [size, size, channels], "examples": items}


def class_names(number: int) -> list[str]:
    return FASHION if number == 10 else [f"class-{i:03d}" for i in range(number)]


def final_shares(method: str, classes: int, rng: random.Random) -> list[float]:
    if classes == 10:
        return [min(1.0, max(0.0, share + rng.gauss(0, 0.012))) for share in ROBUST[method]]
    flat = 0.55 if method == "cfol" else 1.0
    # Which classes are hard is a property of the data set, not of the seed.
    hard = random.Random(7)
    base = [0.02 + 0.75 * hard.betavariate(1.4, 2.2) for _ in range(classes)]
    middle = sum(base) / classes
    return [
        min(1.0, max(0.0, middle + flat * (share - middle) + rng.gauss(0, 0.02) - 0.02 * (flat < 1)))
        for share in base
    ]


def make_run(
    folder: Path,
    method: str = "cfol",
    *,
    seed: int = 0,
    classes: int = 10,
    epochs: int = 12,
    stopped: int | None = None,
    dataset: str | None = None,
    params: dict[str, Any] | None = None,
    holdout: str = "0.2",
    names: list[str] | None = None,
) -> Path:
    """Write a run folder. `stopped`: the epoch after which it was killed, so that there is no result.json."""
    rng = random.Random(f"{method} {seed} {classes}")
    names = names or class_names(classes)
    dataset = dataset or {10: "fashion-mini", 43: "gtsrb", 100: "cifar100", 200: "tiny-imagenet"}[classes]
    count = {10: 300, 43: 20, 100: 100, 200: 50}[classes]
    robust = final_shares(method, classes, rng)
    clean = [min(1.0, 0.6 * share + 0.38 + rng.gauss(0, 0.01)) for share in robust]
    folder.mkdir(parents=True)
    values = {"gamma": 0.5, "eta": 1e-4} if method == "cfol" else {"alpha": 0.5} if method == "lcvar" else {}
    config = {
        "method": method,
        "params": {**values, **(params or {})},
        "data": {"name": dataset, "root": None, "holdout": holdout, "augment": True},
        "model": {"name": "demo-cnn" if classes == 10 else "resnet18", "channels_last": True},
        "optimizer": {"lr": 0.05, "momentum": 0.9, "weight_decay": 5e-4, "schedule": "one-cycle"},
        "attack": {"kind": "pgd", "eps": 0.1 if classes == 10 else 8 / 255, "steps": 7, "norm": "linf"},
        "epochs": epochs,
        "batch_size": 128,
        "seed": seed,
        "device": "cpu",
        "precision": "float32",
        "out": str(folder),
    }
    (folder / "config.json").write_text(json.dumps(config, indent=2))
    rows = _metrics(method, names, robust, clean, epochs, stopped or epochs, count, rng)
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    if stopped is None:
        _write_result(folder, config, names, robust, clean, count, rng)
    return folder


def _metrics(
    method: str,
    names: list[str],
    robust: list[float],
    clean: list[float],
    epochs: int,
    done: int,
    count: int,
    rng: random.Random,
) -> list[dict[str, Any]]:
    k = len(names)
    rows: list[dict[str, Any]] = []
    for epoch in range(1, done + 1):
        t = epoch / epochs
        grown = 1 - math.exp(-3.2 * t)
        p = None
        if method == "cfol":
            pull = [math.exp(2.2 * t * (1 - share)) for share in robust]
            p = [0.5 / k + 0.5 * value / sum(pull) for value in pull]
        now = [min(1.0, max(0.0, share * grown + rng.gauss(0, 0.02))) for share in robust]
        error = 1 - sum(now) / k
        rows.append(
            {
                "kind": "train",
                "epoch": epoch,
                "step": epoch * 32,
                "lr": 0.05 * math.sin(math.pi * min(0.98, t)),
                "loss": 0.4 + 1.6 * error,
                "robust_error": error,
                "class_error": [1 - share for share in now],
                "p": p,
                "images_per_second": 2400 + rng.random() * 200,
                "seconds": 12.0 * epoch,
            }
        )
        rows.append(
            {
                "kind": "validation",
                "epoch": epoch,
                "step": epoch * 32,
                "split": "holdout",
                "clean": accuracy(
                    names, [min(1.0, c * (0.5 + 0.5 * grown)) for c in clean], count, rng, confusion=False
                ),
                "robust": accuracy(names, now, count, rng, confusion=False),
            }
        )
    return rows


def _write_result(
    folder: Path,
    config: dict[str, Any],
    names: list[str],
    robust: list[float],
    clean: list[float],
    count: int,
    rng: random.Random,
) -> None:
    both = {"clean": accuracy(names, clean, count, rng), "robust": accuracy(names, robust, count, rng)}
    kept = {}
    for name, epoch, shift in (
        ("best-average", config["epochs"] - 1, 0.0),
        ("best-worst", config["epochs"] - 3, -0.02),
        ("last", config["epochs"], -0.01),
    ):
        kept[name] = {
            "epoch": epoch,
            "clean": (
                both["clean"]
                if not shift
                else accuracy(names, [max(0, c + shift) for c in clean], count, rng)
            ),
            "robust": (
                both["robust"]
                if not shift
                else accuracy(names, [max(0, r + shift) for r in robust], count, rng)
            ),
        }
    result = {
        "format": 1,
        "method": config["method"],
        "title": TITLES[config["method"]],
        "dataset": config["data"]["name"],
        "classes": names,
        "model": config["model"]["name"],
        "seed": config["seed"],
        "holdout": {"0.2": "20%"}.get(config["data"]["holdout"], config["data"]["holdout"]),
        "finished": True,
        "test": both,
        "checkpoints": kept,
        "attack": {"kind": "pgd", "eps": config["attack"]["eps"], "steps": 20, "norm": "linf", "restarts": 1},
        "versions": {"cfol_fast": "0.1.0", "torch": "2.14.1", "torchvision": "0.29.1", "python": "3.11.7"},
        "seconds": 171.3,
    }
    (folder / "result.json").write_text(json.dumps(result, indent=2))
    worst = both["robust"]["worst_class"]
    (folder / "gallery.json").write_text(
        json.dumps(gallery(names, rng, worst, channels=1 if len(names) == 10 else 3))
    )


def change(path: Path, *keys: Any, to: Any) -> None:
    """Set one value deep inside a JSON file."""
    tree = json.loads(path.read_text())
    place = tree
    for key in keys[:-1]:
        place = place[key]
    place[keys[-1]] = to
    path.write_text(json.dumps(tree))
