"""A recipe is a file: which runs, what is compared, which figures. This module reads and checks such files.

`run` tables hold keys of the training configuration (`"data.name"`, `gamma`, ...), as --set takes them; a
run's settings are the recipe's, then the block's, then the entry's. `mini` tables are applied last, at the
mini scale only.
"""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from cfol_fast.errors import InputError
from cfol_fast.recipes import paper
from cfol_fast.runs import checkpoints
from cfol_fast.runs.json_files import check_shape, shape_of
from cfol_fast.runs.metrics import METRICS
from cfol_fast.runs.toml_files import read_toml
from cfol_fast.user_input import did_you_mean

SCALES = ("paper", "mini")
KINDS = ("clean", "robust")
CHECKPOINTS = (*checkpoints.BEST, checkpoints.LAST, checkpoints.EMA + checkpoints.LAST)
FIGURES = ("bars", "sorted", "distribution", "epochs")
FOLDER = Path(__file__).parent / "files"


def paper_metrics() -> list[str]:
    """What a recipe shows that names no metrics: those of the paper's tables."""
    return [f"{kind}.{key}" for kind in KINDS for key, metric in METRICS.items() if metric.paper]


@dataclass(frozen=True)
class Pretrained:
    """A column that may come from a checkpoint given by path instead of a run.

    required: at the paper's scale it is not trained here; without a checkpoint the column stays empty, which
    is said beforehand.
    normalize: what its images were normalised with ("imagenet", "dataset", "none"), where the file has no
    such layer.
    """

    model: str
    hint: str
    required: bool = False
    normalize: str | None = None


@dataclass(frozen=True)
class Entry:
    """One column (or row) of the table: a method with its settings.

    `scale`: it is shown at this scale only.
    """

    name: str
    title: str
    run: dict[str, Any] = field(default_factory=dict)
    mini: dict[str, Any] = field(default_factory=dict)
    scale: str | None = None
    pretrained: Pretrained | None = None


@dataclass(frozen=True)
class Block:
    """One group of the table: a data set, or a radius.

    attack: replaces the test attack of its runs. mini_title: for a title with a number that the mini scale
    changes.
    """

    name: str
    title: str
    run: dict[str, Any] = field(default_factory=dict)
    mini: dict[str, Any] = field(default_factory=dict)
    attack: dict[str, Any] | None = None
    mini_title: str | None = None

    def title_at(self, scale: str) -> str:
        return self.mini_title if scale == "mini" and self.mini_title else self.title


@dataclass(frozen=True)
class Claim:
    """An ordering that the paper reports; a mini table says whether it shows it too."""

    better: str
    than: str
    metric: str

    @property
    def key(self) -> str:
        return f"{self.better} > {self.than}: {self.metric}"


@dataclass(frozen=True)
class Count:
    """How many of the worst classes are improved on average (the paper's 123 classes of Tiny ImageNet)."""

    better: str
    than: str
    of: str = "robust"


@dataclass(frozen=True)
class Figure:
    """A picture with one panel per (entry, "clean" | "robust" | "p"). order: bars stand in the order of this
    entry's accuracies.
    """

    name: str
    kind: str
    title: str
    panels: list[list[str]]
    order: str | None = None


@dataclass(frozen=True)
class Recipe:
    """A table or figure of the paper, or one of the user's own.

    source: the name or file that `load_recipe` takes. layout: entries are "columns", as in most of the
    paper's tables, or "rows".
    parameters: of the method, shown in a column each ("rows" only). numbers: the tables of paper.toml in
    which the paper's numbers are looked up. reference: an ERM run that is not shown and tells whether a mini
    table is valid.
    """

    name: str
    title: str
    blocks: list[Block]
    entries: list[Entry]
    source: str
    run: dict[str, Any] = field(default_factory=dict)
    mini: dict[str, Any] = field(default_factory=dict)
    attack: dict[str, Any] | None = None
    checkpoint: str = "best-average"
    seeds: dict[str, list[int]] = field(default_factory=dict)
    metrics: list[str] = field(default_factory=paper_metrics)
    layout: str = "columns"
    parameters: list[str] = field(default_factory=list)
    numbers: list[str] = field(default_factory=list)
    reference: Entry | None = None
    claims: list[Claim] = field(default_factory=list)
    counts: list[Count] = field(default_factory=list)
    figures: list[Figure] = field(default_factory=list)
    footnotes: list[str] = field(default_factory=list)
    mini_footnotes: list[str] = field(default_factory=list)

    def shown(self, scale: str) -> list[Entry]:
        return [entry for entry in self.entries if entry.scale in (None, scale)]

    def seeds_at(self, scale: str) -> list[int]:
        return self.seeds.get(scale, [0])


def list_recipes() -> list[str]:
    """The names of the recipes that come with the package: in the order of the paper's numbers, then
    by name.
    """
    order = {name: i for i, name in enumerate(paper.tables())}
    found = [path.stem for path in FOLDER.glob("*.toml")]
    return sorted(found, key=lambda name: (order.get(name, len(order)), name))


def load_recipe(name: str | Path) -> Recipe:
    """A recipe by name, or from a file of one's own (a path that ends in .toml)."""
    if str(name).endswith(".toml"):
        return read_recipe(Path(name), str(name))
    if name not in (known := list_recipes()):
        raise InputError(f"no recipe is called {str(name)!r}{did_you_mean(str(name), [*known, 'all'])}")
    return read_recipe(FOLDER / f"{name}.toml", str(name))


def read_recipe(path: Path, source: str) -> Recipe:
    """The recipe in a TOML file; every complaint names the file."""
    recipe = _recipe(path.stem, source, read_toml(path), str(path))
    _check(recipe, str(path))
    return recipe


T = TypeVar("T")


def build(kind: type[T], tree: Any, where: str, **given: Any) -> T:
    """A dataclass from a table of a TOML file; names and types are checked. given: fields that are made
    already.
    """
    if not isinstance(tree, Mapping):
        raise InputError(f"{where}: expected a table, got {tree!r}")
    fields = {item.name: item for item in dataclasses.fields(kind)}  # type: ignore[arg-type]
    allowed = [name for name in fields if name not in given]
    for key in tree:
        if key not in allowed:
            raise InputError(f"{where}: unknown key {key!r}{did_you_mean(key, allowed)}")
    hints = typing.get_type_hints(kind)
    for key, value in tree.items():
        check_shape(value, shape_of(hints[key]), f"{where}: {key}")
    values = {**tree, **given}
    for name, item in fields.items():
        needed = item.default is dataclasses.MISSING and item.default_factory is dataclasses.MISSING
        if needed and name not in values:
            raise InputError(f"{where}: {name} is missing")
    return kind(**values)


def _entry(tree: Any, where: str) -> Entry:
    given = {}
    if isinstance(tree, Mapping) and "pretrained" in tree:
        given["pretrained"] = build(Pretrained, tree["pretrained"], f"{where}, pretrained")
        tree = {key: value for key, value in tree.items() if key != "pretrained"}
    return build(Entry, tree, where, **given)


def _recipe(name: str, source: str, tree: dict[str, Any], where: str) -> Recipe:
    for key in ("blocks", "entries", "claims", "counts", "figures"):
        check_shape(tree.get(key, []), [{str: object}], f"{where}: {key}")

    def many(key: str, kind: type[T]) -> list[T]:
        return [build(kind, item, f"{where}, {key} {i + 1}") for i, item in enumerate(tree.get(key, []))]

    given: dict[str, Any] = {
        "name": name,
        "source": source,
        "blocks": many("blocks", Block),
        "entries": [
            _entry(item, f"{where}, entries {i + 1}") for i, item in enumerate(tree.get("entries", []))
        ],
        "claims": many("claims", Claim),
        "counts": many("counts", Count),
        "figures": many("figures", Figure),
    }
    if "reference" in tree:
        given["reference"] = _entry(tree["reference"], f"{where}, reference")
    rest = {key: value for key, value in tree.items() if key in ("name", "source") or key not in given}
    rest.setdefault("numbers", [name])
    return build(Recipe, rest, where, **given)


def _check(recipe: Recipe, where: str) -> None:
    def one_of(value: Any, allowed: Sequence[str], what: str) -> None:
        if value not in allowed:
            raise InputError(f"{where}: {what} must be one of {', '.join(allowed)}, got {value!r}")

    if not recipe.blocks or not recipe.entries:
        raise InputError(f"{where}: a recipe needs at least one block and one entry")
    for what, items in (("block", recipe.blocks), ("entry", recipe.entries), ("figure", recipe.figures)):
        names = [item.name for item in items]
        if len(set(names)) < len(names):
            raise InputError(f"{where}: two of the {what} names are equal: {', '.join(names)}")
    entries = [entry.name for entry in recipe.entries]
    one_of(recipe.checkpoint, CHECKPOINTS, "checkpoint")
    one_of(recipe.layout, ("columns", "rows"), "layout")
    known_metrics = [f"{kind}.{key}" for kind in KINDS for key in METRICS]
    for metric in recipe.metrics:
        one_of(metric, known_metrics, "a metric")
    for scale, seeds in recipe.seeds.items():
        one_of(scale, SCALES, "seeds are given for a scale, which")
        if not seeds or any(not isinstance(seed, int) or seed < 0 for seed in seeds):
            raise InputError(f"{where}: seeds must be whole numbers from 0 up, got {seeds!r}")
        if len(set(seeds)) < len(seeds):
            raise InputError(f"{where}: each seed counts once, got {seeds!r}")
    for entry in recipe.entries:
        one_of(entry.scale or "paper", SCALES, f"scale of entry {entry.name}")
    for claim in recipe.claims:
        one_of(claim.better, entries, "a claim's 'better'")
        one_of(claim.than, entries, "a claim's 'than'")
        one_of(claim.metric, recipe.metrics, "a claim's metric")
    for count in recipe.counts:
        one_of(count.better, entries, "a count's 'better'")
        one_of(count.than, entries, "a count's 'than'")
    for figure in recipe.figures:
        one_of(figure.kind, FIGURES, f"kind of figure {figure.name}")
        for panel in figure.panels:
            if len(panel) != 2:
                raise InputError(f"{where}: a panel of figure {figure.name} is [entry, what], got {panel!r}")
            one_of(panel[0], entries, f"an entry of figure {figure.name}")
            one_of(panel[1], ("clean", "robust", "p"), f"what figure {figure.name} shows")
