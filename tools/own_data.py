"""Measures what a folder of one's own is trained with by default: augmentation, learning rate and epochs on
three folders.

Usage: python -m tools.own_data FOLDERS [--gtsrb DIR] [--cifar100 DIR] [--results results/own-data.json]
[--page docs/own-data.md]

Makes the folders below FOLDERS if they are not there, trains the runs of GRID that the results do not have
yet, and writes the table into the page. --gtsrb and --cifar100: the data sets as PNG files, train/<class>/
and test/<class>/, GTSRB's training files named <sign>_<frame>. Without them their runs are left out. A run
takes 2 to 8 minutes of one core.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import subprocess
import sys
import tempfile
from itertools import groupby
from pathlib import Path
from typing import Any

from PIL import Image

from cfol_fast import atomic, data
from cfol_fast.runs.config import TrainConfig

ROOT = Path(__file__).resolve().parents[1]
SETTINGS = ("data", "model", "augment", "lr", "epochs", "method")
DEMO, RESIDUAL = "demo-cnn", "resnet18@0.125"
SETS = {
    "gtsrb": "GTSRB: of each physical sign 3 of its 30 frames, in the test part 60 images a class at most",
    "cifar100": "CIFAR-100: every fourth class, 150 training images of each",
    "fashion-mnist": "Fashion-MNIST: of the embedded images 400 and 250 of each class",
}
BEGIN, END = "<!-- made by tools/own_data.py from results/own-data.json -->", "<!-- end -->"


def grid() -> list[dict[str, Any]]:
    """Coordinate by coordinate, not the full product: the augmentation, then the epochs, then the rate."""
    found = []
    for model, rate, rates in ((DEMO, 0.02, (0.05,)), (RESIDUAL, 0.05, (0.1,))):
        for name in SETS:
            for augment in data.AUGMENTATIONS:
                found.append((name, model, augment, rate, 10))
            for augment in ("none", "crop"):
                found.append((name, model, augment, rate, 30))
            found += [(name, model, augment, other, 10) for other in rates for augment in ("none", "crop")]
    return [dict(zip(SETTINGS, (*row, "erm"), strict=True)) for row in found]


def make_folders(target: Path, raw: dict[str, Path | None]) -> list[str]:
    """The names of the folders that are there, made where they were not."""
    made = []
    for name in SETS:
        if not (target / name).is_dir():
            if name == "fashion-mnist":
                _embedded(target / name)
            elif raw[name] is None:
                continue
            else:
                _part_of(name, Path(str(raw[name])), target / name)
        made.append(name)
    return made


def _evenly(files: list[Path], most: int) -> list[Path]:
    return files if len(files) <= most else [files[i * len(files) // most] for i in range(most)]


def _part_of(name: str, raw: Path, target: Path) -> None:
    classes = sorted(folder.name for folder in (raw / "train").iterdir())
    for kind in classes if name == "gtsrb" else classes[::4]:
        train, test = (sorted((raw / part / kind).iterdir()) for part in ("train", "test"))
        if name == "gtsrb":
            train = [file for file in train if int(re.fullmatch(r"\d+_(\d+)", file.stem)[1]) % 9 == 4]  # type: ignore[index]
        else:
            train = _evenly(train, 150)
        for part, files in (("train", train), ("test", _evenly(test, 60 if name == "gtsrb" else 100))):
            (target / part / kind).mkdir(parents=True)
            for file in files:
                shutil.copyfile(file, target / part / kind / file.name)


def _embedded(target: Path) -> None:
    found = data.load("fashion-mini")
    for part, images, most in (("train", found.train, 400), ("test", found.test, 250)):
        for c, kind in enumerate(found.classes):
            folder = target / part / kind.replace("/", " or ")
            folder.mkdir(parents=True)
            for i in (images.labels == c).nonzero().flatten()[:most].tolist():
                assert not isinstance(images, data.BetonSet)
                Image.fromarray(images.image(i).squeeze(-1).numpy()).save(folder / f"{i:05d}.png")


def train(settings: dict[str, Any], folder: Path) -> dict[str, Any]:
    """The settings with what the run's result says; the class average, since GTSRB's classes differ
    in size.
    """
    with tempfile.TemporaryDirectory() as place:
        out = Path(place) / "run"
        options = [
            *("--dataset", "folder", "--data", str(folder), "--model", settings["model"], "--out", str(out)),
            *("--augment", settings["augment"], "--lr", str(settings["lr"])),
            *("--epochs", str(settings["epochs"]), "--device", "cpu", "--threads", "1", "--quiet"),
            *("--set", f"validation.every={max(1, settings['epochs'] // 6)}"),
        ]
        command = [sys.executable, "-m", "cfol_fast", "train", settings["method"], *options]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        return settings | outcome(out)


def outcome(run: Path) -> dict[str, Any]:
    result = json.loads((run / "result.json").read_text())
    rows = map(json.loads, (run / "metrics.jsonl").read_text().splitlines())
    loss = [row["loss"] for row in rows if row["kind"] == "train"][-1]
    robust, clean = (result["test"][kind]["class_average"] for kind in ("robust", "clean"))
    return {"robust": round(robust, 4), "clean": round(clean, 4), "loss": round(loss, 3)}


def plain(name: str, model: str) -> dict[str, Any]:
    """What the plain command sets by itself."""
    done = TrainConfig(method="erm", data={"name": "folder"}, model={"name": model})
    chosen = (name, model, done.data.augment, done.optimizer.lr, done.epochs, "erm")
    return dict(zip(SETTINGS, chosen, strict=True))


def table(runs: list[dict[str, Any]]) -> str:
    """A line for each run, the best of its images and network first; the plain command's in bold."""
    lines = [
        "| images | network | augmentation | rate | epochs | under attack, % | clean, % |",
        "|---|---|---|---:|---:|---:|---:|",
    ]

    def block(run: dict[str, Any]) -> tuple[int, str, str]:
        return list(SETS).index(run["data"]), run["model"], run["method"]

    for (_, model, _), group in groupby(sorted(runs, key=block), block):
        for run in sorted(group, key=lambda run: -run["robust"]):
            default = plain(run["data"], model)
            is_plain = all(run[key] == default[key] for key in SETTINGS)
            numbers = [f"{100 * run[kind]:.1f}" for kind in ("robust", "clean")]
            cells = [*(str(run[key]) for key in SETTINGS[:-1]), *numbers]
            lines.append("| " + " | ".join(f"**{cell}**" if is_plain else cell for cell in cells) + " |")
    return "\n".join(lines)


def gaps(runs: list[dict[str, Any]]) -> dict[tuple[str, str], float]:
    """By images and network, how far the plain command is below the best run; those that it was not measured
    on are missing.
    """
    found = {}
    for run in runs:
        place = run["data"], run["model"]
        if all(run[key] == value for key, value in plain(*place).items()):
            best = max(other["robust"] for other in runs if (other["data"], other["model"]) == place)
            found[place] = best - run["robust"]
    return found


def with_table(page: str, runs: list[dict[str, Any]]) -> str:
    before, rest = page.split(BEGIN)
    return f"{before}{BEGIN}\n{table(runs)}\n{END}{rest.split(END, 1)[1]}"


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folders", type=Path)
    parser.add_argument("--gtsrb", type=Path)
    parser.add_argument("--cifar100", type=Path)
    parser.add_argument("--results", type=Path, default=ROOT / "results" / "own-data.json")
    parser.add_argument("--page", type=Path, default=ROOT / "docs" / "own-data.md")
    args = parser.parse_args(arguments)
    known: dict[str, Any] = {"format": 1, "runs": []}
    if args.results.exists():
        known = json.loads(args.results.read_text())
    known["sets"] = SETS
    names = make_folders(args.folders, {"gtsrb": args.gtsrb, "cifar100": args.cifar100})
    for settings in grid():
        have = any(all(run[key] == value for key, value in settings.items()) for run in known["runs"])
        if not have and settings["data"] in names:
            known["runs"].append(train(settings, args.folders / settings["data"]))
            atomic.write_json(args.results, known)
            print(known["runs"][-1], flush=True)
    atomic.write_text(args.page, with_table(args.page.read_text(), known["runs"]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
