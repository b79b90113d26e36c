"""`reproduce`: plan, check everything, train what is missing, test, and write the table and the figures."""

from __future__ import annotations

import logging
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from cfol_fast import atomic, models
from cfol_fast.data import ImageData
from cfol_fast.data import load as load_data
from cfol_fast.errors import InputError
from cfol_fast.progress import printed
from cfol_fast.recipes import evaluating, figures, render, runner, table
from cfol_fast.recipes.page import write_page
from cfol_fast.recipes.planning import Plan, plan, unique
from cfol_fast.recipes.recipe import load_recipe
from cfol_fast.reporting import picture_files
from cfol_fast.runs.config import TrainConfig
from cfol_fast.runs.json_files import made_from

logger = logging.getLogger(__name__)


def default_out(scale: str) -> Path:
    return Path("reproduction") / scale


@printed()
def reproduce(
    names: str | Path | Sequence[str | Path],
    scale: str = "paper",
    out: str | Path | None = None,
    data: str | Path | None = None,
    parallel: int | None = None,
    *,
    checkpoints: Mapping[str, str | Path] | None = None,
    device: str = "auto",
    download: bool = False,
    force: bool = False,
    quiet: bool = False,
) -> list[Path]:
    """Carries out recipes (names, or files of one's own) and returns the folder of each, with table.md, .tex,
    .json and figures.

    Runs are shared through `out`/runs; what is there already is not trained again. parallel: so many runs at
    a time, 0 for one per GPU. checkpoints: column -> file, for recipes that compare with a model from
    elsewhere. force: continue interrupted runs although the thread count or the instructions changed. quiet:
    no lines of the runs.
    """
    chosen = [names] if isinstance(names, (str, Path)) else list(names)
    folder = Path(out).expanduser() if out is not None else default_out(scale)
    given = {name: Path(path) for name, path in (checkpoints or {}).items()}
    plans = [
        plan(load_recipe(name), scale, data, checkpoints_for(name, given, len(chosen)), device, download)
        for name in chosen
    ]
    takers = {entry.name for item in plans for entry in item.recipe.entries if entry.pretrained}
    if stray := [name for name in given if name not in takers]:
        raise InputError(f"none of the recipes has a column {stray[0]!r} that takes a checkpoint")
    loader = Loader()
    environments = runner.workers(parallel, device)
    for item in plans:
        check(item, folder, loader)
    _make(folder / "runs")
    jobs = unique(job for item in plans for job in item.jobs())
    missing = [job for job in jobs if not job.finished(folder)]
    logger.info(
        f"{len(jobs)} runs, {len(jobs) - len(missing)} of them finished already; in {folder / 'runs'}"
    )
    for item in plans:
        for text in item.empty_columns():
            logger.info(f"without {text}")
    if environments:
        # All recipes' runs together, so that no GPU waits for the end of a table.
        runner.run_all(jobs, folder, environments, force, quiet)
    written = []
    for name, item in zip(chosen, plans, strict=True):
        runner.run_all(item.jobs(), folder, [], force, quiet)
        evaluating.evaluate_all(item, folder, device, loader)
        written.append(write(item, folder, command_line(name, scale, folder, data, given)))
        logger.info(f"{item.recipe.name}: {written[-1] / 'table.md'}")
    return written


def checkpoints_for(name: str | Path, given: dict[str, Path], count: int) -> dict[str, Path]:
    """Among several recipes a checkpoint goes to those that have such a column; to a single one all go, and
    it may object.
    """
    if count == 1:
        return given
    takers = {entry.name for entry in load_recipe(name).entries if entry.pretrained}
    return {key: path for key, path in given.items() if key in takers}


class Loader:
    """Data sets by what is asked of them, read once; several runs and checks want the same one."""

    def __init__(self) -> None:
        self._found: dict[tuple[Any, ...], ImageData] = {}

    def __call__(self, config: TrainConfig) -> ImageData:
        wanted = config.data
        of_files = (wanted.size, wanted.skip_corrupt, wanted.white, wanted.cache, wanted.holdout_groups)
        key = (wanted.name, wanted.root, *of_files)
        if key not in self._found:
            self._found[key] = load_data(
                wanted.name,
                root=wanted.root,
                download=wanted.download,
                size=wanted.size,
                skip_corrupt=wanted.skip_corrupt,
                holdout_groups=wanted.holdout_groups,
                white=wanted.white,
                cache=wanted.cache,
            )
        return self._found[key]


def check(item: Plan, out: Path, load: Loader) -> None:
    """Everything that could stop the recipe half-way is tried here: data, models, checkpoints, packages.

    Writes nothing.
    """
    for job in item.jobs():
        if job.finished(out):
            continue
        try:
            bundle = load(job.config)
        except (InputError, FileNotFoundError) as error:
            way_out = (
                "" if item.root else " (--data DIR says where it is, --download fetches what can be fetched)"
            )
            needed = f"recipe {item.recipe.name} needs the data set {job.config.data.name}"
            raise InputError(f"{needed}: {error}{way_out}") from None
        models.create(job.config.model.name, len(bundle.classes), bundle.size[0], bundle.channels)
    evaluating.check(item, out, load)


def _make(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"cannot write to {folder.parent}: {error.strerror or error}") from None


def command_line(
    name: str | Path, scale: str, out: Path, data: str | Path | None, given: Mapping[str, Path]
) -> str:
    """The command that makes this table, for its foot."""
    words = ["cfol-fast", "reproduce", str(name), "--scale", scale, "--out", str(out)]
    words += ["--data", str(data)] if data is not None else []
    for column, path in given.items():
        words += ["--checkpoint", f"{column}={path}"]
    return shlex.join(words)


def write(item: Plan, out: Path, command: str) -> Path:
    """Table, figures and page of a recipe whose runs are all there."""
    folder = out / item.recipe.name
    folder.mkdir(parents=True, exist_ok=True)
    with made_from(out / "runs"):
        made = table.build(item, out, command)
        drawn = figures.build(item.recipe.figures, made, out)
    made["figures"] = [figure.key for figure in drawn]
    atomic.write_json(folder / table.NAME, made)
    atomic.write_text(folder / "table.md", render.markdown(made))
    atomic.write_text(folder / "table.tex", render.latex(made))
    for figure in drawn:
        picture_files.write(figure, folder / f"{figure.key}.svg")
    write_page(folder)
    return folder
