"""From a recipe to runs: which configurations it needs, in which folders they live, which are missing, and
what they cost.

A run is known by the hash of its completed configuration without what only says where it is carried out. So
two recipes that need the same run share its folder, however each of them spelled the settings, and a
reproduction that was interrupted, or starts again with another recipe, trains only what is not there yet.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache
from itertools import zip_longest
from pathlib import Path
from typing import Any

from cfol_fast import data as data_sets
from cfol_fast import methods
from cfol_fast.errors import InputError
from cfol_fast.models import check_named
from cfol_fast.recipes.recipe import SCALES, Block, Entry, Recipe
from cfol_fast.runs.config import TrainConfig, settings
from cfol_fast.runs.defaults import holdout_fraction
from cfol_fast.runs.identity import identity
from cfol_fast.runs.open_settings import merged
from cfol_fast.runs.toml_files import read_toml
from cfol_fast.user_input import parse_number

# In multiply-adds of one forward pass: a pass forward is 1, backward to the pixels 1, to the weights as well
# 2.
ATTACK_STEP, TRAINING_STEP = 2.0, 3.0


@cache
def scales() -> dict[str, Any]:
    """How the paper's settings are translated at each scale, and the figures behind the estimate of
    the cost.
    """
    return read_toml(Path(__file__).with_name("scales.toml"))


@dataclass(frozen=True)
class Job:
    """One training run.

    `settings` is what tells it from the defaults, and what its name's hash is made of.
    """

    name: str
    config: TrainConfig = field(compare=False, hash=False)
    settings: dict[str, Any] = field(compare=False, hash=False)

    def folder(self, out: Path) -> Path:
        return out / "runs" / self.name

    def finished(self, out: Path) -> bool:
        return (self.folder(out) / "result.json").exists()

    def evaluation_file(self, out: Path, attack: Mapping[str, Any], checkpoint: str) -> Path:
        """Where the evaluation of one of the run's checkpoints under another attack is kept: beside
        the run.
        """
        return self.folder(out) / f"eval-{_evaluation_name(attack, checkpoint)}.json"


@dataclass(frozen=True)
class Cell:
    """What one column of one block shows: runs over seeds, or a checkpoint given by path."""

    block: Block
    entry: Entry
    jobs: list[Job]
    # The test attack, when it is not the runs' own.
    attack: dict[str, Any] | None
    checkpoint: Path | None = None
    shown: bool = True

    @property
    def absent(self) -> bool:
        """True for a column that needs a checkpoint which was not given."""
        return not self.jobs and self.checkpoint is None

    def pretrained_file(self, out: Path) -> Path:
        """Where the evaluation of the given checkpoint is kept, named by the checkpoint's path, size and
        time.
        """
        assert self.checkpoint is not None
        path = self.checkpoint.expanduser().resolve()
        state = path.stat()
        what = {"path": str(path), "size": state.st_size, "time": state.st_mtime_ns, "block": self.block.name}
        name = _evaluation_name(self.attack or {}, json.dumps(what))
        return out / "runs" / f"pretrained-{self.entry.name}-{name}.json"


def _evaluation_name(attack: Mapping[str, Any], what: str) -> str:
    text = json.dumps([dict(attack), what], sort_keys=True)
    return f"{attack.get('kind', 'pgd')}-{hashlib.sha256(text.encode()).hexdigest()[:8]}"


@dataclass(frozen=True)
class Plan:
    recipe: Recipe
    scale: str
    cells: list[Cell]
    root: str | None

    def jobs(self) -> list[Job]:
        """Every run once, in the order of the table; a seed of every column comes before the next seed of
        any.
        """
        by_seed = zip_longest(*(cell.jobs for cell in self.cells))
        return unique(job for column in by_seed for job in column if job is not None)

    def missing(self, out: Path) -> list[Job]:
        return [job for job in self.jobs() if not job.finished(out)]

    def empty_columns(self) -> list[str]:
        """A sentence on each column that stays empty because its checkpoint was not given."""
        return [
            f"{cell.entry.title} of {self.recipe.name}, which needs {cell.entry.pretrained.hint}"
            for cell in self.cells
            if cell.absent and cell.entry.pretrained is not None
        ]

    def cell(self, block: str, entry: str) -> Cell | None:
        return next((c for c in self.cells if (c.block.name, c.entry.name) == (block, entry)), None)

    def cost(self) -> str:
        """How long the runs take, roughly: counted arithmetic at the paper's scale, the cap of a mini run
        otherwise.
        """
        configs = [job.config for job in self.jobs()]
        if self.scale == "mini":
            minutes = scale_rules("mini", self.root)["minutes_per_run"] * sum(map(_stages, configs))
            return f"about {minutes:.0f} min on two cores"
        hours = sum(map(gpu_hours, configs))
        return f"about {hours:.0f} GPU hours" if hours >= 10 else f"about {hours:.1f} GPU hours"


def unique(jobs: Iterable[Job]) -> list[Job]:
    """Each run once, in the order of its first mention."""
    found: dict[str, Job] = {}
    for job in jobs:
        found.setdefault(job.name, job)
    return list(found.values())


def plan(
    recipe: Recipe,
    scale: str = "paper",
    data: str | Path | None = None,
    checkpoints: Mapping[str, Path] | None = None,
    device: str = "auto",
    download: bool = False,
) -> Plan:
    """Which runs `recipe` needs at `scale`.

    `data`: the folder with the data sets, or at the mini scale a folder of images.
    """
    if scale not in SCALES:
        raise InputError(f"the scale must be one of {', '.join(SCALES)}, got {scale!r}")
    given = dict(checkpoints or {})
    takers = [entry.name for entry in recipe.entries if entry.pretrained]
    for name in given:
        if name not in takers:
            known = f"it takes one for {', '.join(takers)}" if takers else "it takes none"
            raise InputError(f"recipe {recipe.name} has no column {name!r} that takes a checkpoint: {known}")
    root = None if data is None else str(data)

    def runs(block: Block, entry: Entry) -> list[Job]:
        found = []
        for seed in recipe.seeds_at(scale):
            given = configure(recipe, block, entry, scale, root) | {"seed": seed, "device": device}
            given["data.download"] = download and can_fetch(given.get("data.name"))
            found.append(job(TrainConfig(given)))
        return found

    cells = []
    hidden = [recipe.reference] if recipe.reference and scale == "mini" else []
    for block in recipe.blocks:
        attack = block.attack or recipe.attack
        if attack is not None:
            attack = _scaled_attack(attack, scale_rules(scale, root))
        for entry in [*recipe.shown(scale), *hidden]:
            checkpoint = given.get(entry.name) if entry.pretrained else None
            not_trained = entry.pretrained and entry.pretrained.required and scale == "paper"
            jobs = [] if checkpoint is not None or not_trained else runs(block, entry)
            cells.append(Cell(block, entry, jobs, attack, checkpoint, entry not in hidden))
    return Plan(recipe, scale, cells, root)


def scale_rules(scale: str, root: str | None) -> dict[str, Any]:
    """How settings are translated at this scale (`scales.toml`)."""
    rules: dict[str, Any] = scales()["mini-folder" if scale == "mini" and root else scale]
    return rules


def configure(recipe: Recipe, block: Block, entry: Entry, scale: str, root: str | None) -> dict[str, Any]:
    """The settings of one column; those that follow others are open."""
    rules = scale_rules(scale, root)
    # The paper's precision, on every device.
    given = merged({"precision": "float32"}, recipe.run, block.run, entry.run)
    if "eta_as_for" in rules:
        _scale_eta(given, rules["eta_as_for"])
    if scale == "mini":
        # The step size follows the radius, as the paper scales it for 12/255.
        given.pop("attack.step", None)
    if "attack.eps" in given:
        given["attack.eps"] = _times(given["attack.eps"], rules["eps_times"])
    minis = [recipe.mini, block.mini, entry.mini] if scale == "mini" else []
    given = merged(given, rules["run"], *minis, {"data.root": root})
    check_named(given.get("model.name"), None, f"recipe {recipe.name}")
    return given


def can_fetch(dataset: str | None) -> bool:
    """Whether the data set can be downloaded; a reproduction downloads what it can."""
    return dataset in data_sets.names() and data_sets.spec(dataset).can_fetch


def _scale_eta(given: dict[str, Any], dataset: str) -> None:
    """A bandit's step size grows by what its default for `dataset` is of its default for the paper's data
    sets.
    """
    method = methods.get(given.get("method", settings()["method"].default))
    if "baseline" in method.defaults:
        # The paper's bandit, also on a folder of images.
        given.setdefault("params.baseline", method.defaults["baseline"])
    paper, here = method.params().get("eta"), method.params(None, dataset).get("eta")
    # Without a number for this data set the step size follows the length of the run, as everywhere.
    if not isinstance(paper, (int, float)) or not isinstance(here, (int, float)):
        return
    eta = given.get("params.eta", paper)
    if isinstance(eta, (int, float)):
        given["params.eta"] = _times(eta, here / paper)


def _times(value: float, factor: float) -> float:
    """A product without the noise of its last digits, so that 2e-6 * 50 is the run with 1e-4."""
    return float(f"{value * factor:.12g}")


def _scaled_attack(attack: dict[str, Any], rules: dict[str, Any]) -> dict[str, Any]:
    attack = dict(attack)
    for key in ("eps", "step"):
        if key in attack:
            value = attack[key]
            attack[key] = _times(parse_number(value) if isinstance(value, str) else value, rules["eps_times"])
    if attack.get("kind") == "autoattack" and "autoattack_images_per_class" in rules:
        attack["images_per_class"] = rules["autoattack_images_per_class"]
        if "autoattack_images_seed" in rules:
            attack["images_seed"] = rules["autoattack_images_seed"]
    return attack


def job(config: TrainConfig) -> Job:
    """The run of a configuration: identified, named."""
    named_by = identity(config)
    text = json.dumps(named_by, sort_keys=True)
    short = hashlib.sha256(text.encode()).hexdigest()[:10]
    return Job(f"{config.data.name}-{config.method}-seed{config.seed}-{short}", config, named_by)


def gpu_hours(config: TrainConfig) -> float:
    """Of one run at the assumed speed (`scales.toml`: [cost]); an order of magnitude, not a measurement."""
    cost = scales()["cost"]
    area = (cost["side"].get(config.data.name, 32) / 32) ** 2
    macs = cost["giga_macs"].get(config.model.name, cost["giga_macs"]["resnet18"]) * 1e9 * area
    images = cost["images"].get(config.data.name, 50000)
    held_out = images * (holdout_fraction(config.data.holdout) or 0.0)
    attack = ATTACK_STEP * config.attack.steps if config.attack.kind != "none" else 0.0
    training = (images - held_out) * (TRAINING_STEP + attack)
    validating = max(held_out, 1000) * (1 + ATTACK_STEP * config.validation.steps) / config.validation.every
    passes = _stages(config) * config.epochs * (training + validating)
    return passes * macs * 2 / (cost["tflops"] * 1e12) / 3600


def _stages(config: TrainConfig) -> int:
    return methods.get(config.method).stages
