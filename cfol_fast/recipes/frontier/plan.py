"""Which runs the fair table needs: rows and scales from `rows.toml`, the settings that are tried, and those
that are used.

A method's setting, and the rival, are chosen on the hold-out of a seed that the table does not use. No test
figure takes part: the search's runs end with a test of one step, of which nothing is read.
"""

from __future__ import annotations

import dataclasses
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from cfol_fast.data import default_augmentation, is_own
from cfol_fast.data.content import content_of
from cfol_fast.errors import InputError
from cfol_fast.methods import METHODS
from cfol_fast.methods import get as get_method
from cfol_fast.policies.policy import Need
from cfol_fast.recipes.planning import Job, can_fetch, job
from cfol_fast.recipes.recipe import build
from cfol_fast.runs.config import TrainConfig
from cfol_fast.runs.open_settings import merged
from cfol_fast.runs.toml_files import read_toml
from cfol_fast.training.offset_path import ROUNDS

FILE = Path(__file__).with_name("rows.toml")
# A setting that becomes a level for each class, between two numbers, by ERM's accuracy on the hold-out.
BY_ERM = "alpha_by_erm"
ERM, CFOL = "erm", "cfol"
# Settings that a command says by options of their own, and those that follow from the others.
SAID = ("method", "data.name", "data.root", "seed")
DERIVED = ("attack.kind", "attack.step", "test.eps", "test.step", "optimizer.milestones")
Settings = dict[str, Any]


@dataclass(frozen=True)
class Row:
    """One method. base: what it is built on, "AT" or "TRADES". rival: it may be the best rival of CFOL. grid:
    the settings tried.

    origin: where these come from.
    """

    name: str
    base: str
    rival: bool = False
    method: str = ""
    run: dict[str, Any] = field(default_factory=dict)
    grid: list[dict[str, Any]] = field(default_factory=lambda: [{}])
    origin: str = ""

    @property
    def searched(self) -> bool:
        """Whether the search has runs of it: there is something to choose, or it may be chosen as the
        rival.
        """
        return self.rival or len(self.grid) > 1

    @property
    def title(self) -> str:
        return METHODS[self.method or self.name].title


@dataclass(frozen=True)
class Scale:
    """settings_from: the scale whose chosen settings, ranking and best rival are used. fewer_seeds: of the
    rows that are neither erm, cfol nor the best rival; more_rows: how many of these there are, None for all.
    eta_times: by which the step sizes of these rows are multiplied here. seen: what was known when the
    comparisons were declared. minutes_per_run: on one core, for --list.
    """

    title: str
    seeds: list[int]
    run: dict[str, Any] = field(default_factory=dict)
    fewer_seeds: list[int] | None = None
    more_rows: int | None = None
    settings_from: str | None = None
    eta_times: dict[str, float] = field(default_factory=dict)
    seen: str = ""
    minutes_per_run: float = 0.0


@dataclass(frozen=True)
class Table:
    """The file, read. run: of every row at every scale. autoattack: rows that are tested with it, beside the
    best rival.
    """

    title: str
    search_seed: int
    rows: list[Row]
    scales: dict[str, Scale]
    run: dict[str, Any] = field(default_factory=dict)
    autoattack: list[str] = field(default_factory=list)

    def row(self, name: str) -> Row:
        return next(row for row in self.rows if row.name == name)

    def base_of(self, row: Row) -> Row:
        """The first row on the same base, which prices are measured from."""
        return next(other for other in self.rows if other.base == row.base)


def read(path: Path = FILE) -> Table:
    tree, where = read_toml(path), str(path)
    rows = [build(Row, item, f"{where}, rows {i + 1}") for i, item in enumerate(tree.pop("rows", []))]
    scales = {name: build(Scale, item, f"{where}, {name}") for name, item in tree.pop("scales", {}).items()}
    table = build(Table, tree, where, rows=rows, scales=scales)
    names = [row.name for row in rows]
    if len(set(names)) < len(names) or ERM not in names or not scales:
        raise InputError(
            f"{where}: rows must have names of their own, {ERM} among them, and there must be a scale"
        )
    for row in rows:
        get_method(row.method or row.name)
    for name, scale in scales.items():
        for seeds in (scale.seeds, scale.fewer_seeds or []):
            if len(set(seeds)) < len(seeds):
                raise InputError(f"{where}, {name}: each seed counts once, got {seeds!r}")
        if not set(scale.fewer_seeds or []) <= set(scale.seeds):
            raise InputError(
                f"{where}, {name}: fewer_seeds {scale.fewer_seeds} must be among seeds {scale.seeds}: rows"
                " are paired by seed"
            )
        if strange := [row for row in scale.eta_times if row not in names]:
            raise InputError(f"{where}, {name}: eta_times names {strange[0]!r}, and there is no such row")
    if table.search_seed in {seed for scale in scales.values() for seed in scale.seeds}:
        raise InputError(
            f"{where}: search_seed {table.search_seed} is a seed of the table too: settings need one of"
            " their own"
        )
    return table


@dataclass(frozen=True)
class Place:
    """Where the runs of a scale are carried out. data: a folder with CIFAR-10's own files, or of images."""

    table: Table
    scale: Scale
    data: Path | None = None
    device: str = "auto"
    download: bool = False

    def run(self, row: Row, settings: Settings, seed: int, **more: Any) -> Job:
        """The run of a row with these settings. more: fields set last, such as test__steps."""
        used = dict(settings)
        if "eta" in used:
            used["eta"] = float(f"{used['eta'] * self.scale.eta_times.get(row.name, 1.0):.6g}")
        start = {
            "method": row.method or row.name,
            "seed": seed,
            "device": self.device,
            "precision": "float32",
        }
        last = {key.replace("__", "."): value for key, value in more.items()}
        given = merged(start, self.table.run, self.scale.run, row.run, used, last)
        name = given.get("data.name")
        if name != "fashion-mini":
            given = merged(given, {"data.root": None if self.data is None else str(self.data)})
        if name == "cifar10" and _is_folder_of_images(self.data):
            # Named by its images, not by where they lie: its runs go on, and are kept, anywhere. A folder's
            # own augmentation is another one.
            name, as_cifar10 = "folder", {"data.augment": "paper"}
            given = {**as_cifar10, **given, "data.name": name, "data.content": _content_of(self.data)}
        given["data.download"] = self.download and can_fetch(name)
        return job(TrainConfig(given))

    def search_run(self, row: Row, settings: Settings) -> Job:
        """One step of the final test, and no average of the weights: what is chosen by is the
        hold-out alone.
        """
        return self.run(row, settings, self.table.search_seed, test__steps=1, ema__decay=0.0)


@cache
def _content_of(folder: Path | None) -> str:
    """Reading 60,000 files takes seconds, and every run of a table asks."""
    return content_of(folder)


def _is_folder_of_images(data: Path | None) -> bool:
    """Whether a copy of CIFAR-10 is a folder of images, train/<class>/..., instead of its own files."""
    return data is not None and (data.expanduser() / "train").is_dir()


def resolve(settings: Settings, erm_accuracies: Mapping[str, float] | None) -> Settings:
    """Settings as a run takes them: class levels in the place of the two numbers between which they lie."""
    if BY_ERM not in settings:
        return settings
    if erm_accuracies is None:
        raise InputError(f"{BY_ERM} needs the hold-out accuracies of a run of {ERM}")
    low, high = settings[BY_ERM]
    levels = [round(low + (high - low) * accuracy, 4) for accuracy in erm_accuracies.values()]
    return {**{key: value for key, value in settings.items() if key != BY_ERM}, "alpha": levels}


def rows_and_seeds(table: Table, scale: Scale, ranking: list[str], rival: str | None) -> dict[str, list[int]]:
    """The rows of a scale and the seeds of each, in the file's order. ranking: the other scale's rivals, the
    best first.

    erm, cfol and the best rival have all seeds; of the others those that AutoAttack tests come first, then
    the best rivals.
    """
    if scale.fewer_seeds is None:
        return {row.name: scale.seeds for row in table.rows}
    full = [name for name in (ERM, CFOL, rival) if name is not None]
    others = [*table.autoattack, *ranking, *(row.name for row in table.rows)]
    others = [name for name in dict.fromkeys(others) if name not in full]
    chosen = {*full, *others[: scale.more_rows]}
    return {
        row.name: scale.seeds if row.name in full else scale.fewer_seeds
        for row in table.rows
        if row.name in chosen
    }


def outline(table: Table, scale: Scale) -> tuple[int, str]:
    """How many runs a scale has, and what they cost, roughly."""
    found = sum(map(len, rows_and_seeds(table, scale, [], None).values()))
    if scale.fewer_seeds is not None:
        # The best rival is not known here, and has all seeds.
        found += len(scale.seeds)
    if scale.settings_from is None:
        found += sum(len(row.grid) for row in table.rows if row.searched)
    hours = found * scale.minutes_per_run / 60
    return found, f"about {hours:.0f} core hours" if hours else "for GPUs"


def passes(config: TrainConfig, training: int, holdout: int, levels: bool = False) -> dict[str, int]:
    """Images times passes of one run: forward, and backward, in training; and all of those that the hold-out
    takes.

    A step of the attack is a pass forward and one back to the pixels. TRADES has a clean pass before the
    attack and trains on the clean and the attacked image. holdout: its images, each tested clean and under
    attack after every epoch. offsets: these tests again, once for each round of the fit. levels: with the run
    of erm that lhcvar's come from.
    """
    method = get_method(config.method)
    epochs, steps = config.epochs, config.attack.steps
    per_epoch = (config.steps_per_epoch or -(-training // config.batch_size)) * config.batch_size
    drawn = method.stages * epochs * per_epoch
    both = 2 if config.attack.kind == "trades" else 1
    forward = drawn * (both - 1 + steps + both)
    backward = drawn * (steps + both)
    a_test = holdout * (2 + 2 * config.validation.steps)
    tests = method.stages * (epochs // config.validation.every)
    held = tests * a_test * (2 if config.ema.decay else 1)
    if Need.HOLDOUT_LOSSES in method.policy.needs:
        held += epochs * holdout * (1 + 2 * steps + 2)
    if levels:
        # Of the search's seed, which keeps no average of the weights.
        forward, backward, held = (
            forward + drawn * (steps + 1),
            backward + drawn * (steps + 1),
            held + tests * a_test,
        )
    return {"forward": forward, "backward": backward, "holdout": held, "offsets": (ROUNDS + 1) * a_test}


def command(job_: Job, data: Path | None, more: Sequence[str] = (), out: str = "") -> str:
    """The command that trains one run, anywhere: to the same name, and so the same run. more, out: of one
    that is not known yet.
    """
    config, words = job_.config, ["cfol-fast", "train", job_.config.method]
    words += ["--dataset", config.data.name]
    if config.data.name != "fashion-mini":
        words += ["--data", str(data or "DATA")]
    # A run's name leaves out seven steps and float32, which are not every method's and every device's
    # defaults.
    settings = {**job_.settings, "attack.steps": config.attack.steps, "precision": "float32"}
    if config.data.augment != default_augmentation(is_own(config.data.name, config.data.root)):
        settings["data.augment"] = config.data.augment
    for key, value in settings.items():
        if key not in (*SAID, *DERIVED) and value != _default(config, key):
            words += ["--set", f"{key.removeprefix('params.')}={_setting(key, value)}"]
    return shlex.join([*words, *more, "--seed", str(config.seed), "--out", out or f"runs/{job_.name}"])


def _setting(key: str, value: Any) -> str:
    if key == "attack.eps" and abs(value * 255 - round(value * 255)) < 1e-6:
        # Settings of a name have twelve digits, and 8/255 has more.
        return f"{round(value * 255)}/255"
    return f"[{','.join(map(str, value))}]" if isinstance(value, list) else str(value)


def _default(config: TrainConfig, key: str) -> Any:
    """A method's parameter at its default need not be said."""
    method = get_method(config.method)
    known = method.params(None, config.data.name)
    return (
        known.get(key.removeprefix("params."), dataclasses.MISSING)
        if key.startswith("params.")
        else dataclasses.MISSING
    )
