"""`cfol-fast reproduce frontier`: search the settings, train the seeds, fit offsets, run AutoAttack, write
the table.

Every step leaves its result in a file and skips what is there, so that the same command continues wherever it
was stopped.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cfol_fast import atomic
from cfol_fast.errors import InputError
from cfol_fast.progress import printed
from cfol_fast.recipes import evaluating, runner
from cfol_fast.recipes.frontier import facts, keeping, plan, writing
from cfol_fast.recipes.frontier.keeping import Carrier
from cfol_fast.recipes.frontier.plan import CFOL, ERM, Place, Row, Settings
from cfol_fast.recipes.planning import Job
from cfol_fast.recipes.reproduction import Loader
from cfol_fast.runs.json_files import made_from, read_object
from cfol_fast.runs.metrics import SELECTION
from cfol_fast.runs.run_folder import is_old

logger = logging.getLogger(__name__)

NAME = "frontier"
SEARCHED = {
    "row!": str,
    "settings!": {str: object},
    "chosen!": bool,
    "holdout!": {"average!": float, "tail!": float, "worst!": float},
}
FACTS = "frontier.json"
AUTOATTACK_IMAGES_PER_CLASS = 100


@printed()
def reproduce_frontier(
    scale: str,
    out: str | Path | None = None,
    data: str | Path | None = None,
    parallel: int | None = None,
    *,
    settings: str | Path | None = None,
    device: str = "auto",
    download: bool = False,
    force: bool = False,
    quiet: bool = False,
    rows: Path = plan.FILE,
    take: str | Path | None = None,
) -> Path | None:
    """Carries out the fair table at a scale and returns its folder, with frontier.json, table.md, the plot
    and report.html.

    At the paper's scale the commands are printed and nothing is trained: None. settings: a frontier.json of
    the mini scale, whose chosen settings and best rival the small scale takes over. rows: a table of one's
    own. take: a file of `keep_finished`, whose runs are not trained again.
    """
    place = _place(rows, scale, data, device, download)
    if scale == "paper":
        for line in commands(place):
            logger.info(line)
        return None
    folder = _folder(out, scale)
    carrier = Carrier(place, folder, runner.workers(parallel, device), force, quiet)
    taken = _taken_over(settings, folder, place.scale.settings_from)
    load = Loader()
    _check_data(place, load)
    (folder / "runs").mkdir(parents=True, exist_ok=True)
    if take is not None:
        keeping.take(Path(take).expanduser(), folder)
    # Whoever has one of its results had it, or took it over.
    had = [path for path in (folder / "runs").glob("*/eval-autoattack-*.json") if not is_old(path.parent)]
    needed = _attacked(place.table, None) and not had
    if needed and not evaluating.has_autoattack():
        raise InputError(f"{NAME} needs AutoAttack: pip install pyautoattack")
    with made_from(folder / "runs"):
        made = _choose(carrier, taken)
        carrier.train(_by_seed(made.jobs), "table", offsets=True)
        attacked = _autoattack(carrier, made, load)
        budgets = {
            name: _budget(of_row[0], load, plan.BY_ERM in made.settings[name])
            for name, of_row in made.jobs.items()
        }
        found = facts.build(
            place.table,
            scale,
            folder,
            made.jobs,
            made.settings,
            made.search,
            made.rivals,
            made.rival,
            budgets,
            attacked,
            _command(scale, data),
        )
    target = folder / NAME
    target.mkdir(parents=True, exist_ok=True)
    atomic.write_json(target / FACTS, found)
    writing.write(found, target, folder / "runs")
    logger.info(f"{NAME}: {target / 'table.md'}")
    return target


@printed()
def keep_finished(
    scale: str,
    file: str | Path,
    out: str | Path | None = None,
    data: str | Path | None = None,
    *,
    settings: str | Path | None = None,
    rows: Path = plan.FILE,
) -> int:
    """Writes what the table needs of its finished runs to one file, also while others are trained, and
    returns their number.

    `reproduce_frontier(take=file)` goes on with them anywhere. A run that is in the file and not in the
    folder stays in the file.
    """
    place, folder = _place(rows, scale, data), _folder(out, scale)
    if scale == "paper":
        raise InputError("at the paper's scale nothing is trained here: there are no runs to keep")
    with made_from(folder / "runs"):
        carrier = keeping.Noting(place, folder, [], force=False, quiet=True)
        with contextlib.suppress(keeping.Unfinished):
            made = _choose(carrier, _taken_over(settings, folder, place.scale.settings_from))
            for name, of_row in made.jobs.items():
                shown = name in (ERM, CFOL, made.rival)
                open_attack = (
                    name in _attacked(place.table, made.rival)
                    and not _attack_file(of_row[0], folder).exists()
                )
                carrier.note(of_row[:1], offsets=True, pictures=shown, checkpoint=open_attack)
                carrier.note(of_row[1:], offsets=True, pictures=shown)
        return carrier.write(Path(file).expanduser())


def _place(
    rows: Path, scale: str, data: str | Path | None, device: str = "auto", download: bool = False
) -> Place:
    table = plan.read(rows)
    if scale not in table.scales:
        raise InputError(f"the scale must be one of {', '.join(table.scales)}, got {scale!r}")
    return Place(table, table.scales[scale], None if data is None else Path(data), device, download)


def _folder(out: str | Path | None, scale: str) -> Path:
    return Path(out).expanduser() if out is not None else Path("reproduction") / scale


@dataclass(frozen=True)
class Chosen:
    """What the search found, and the table's runs that follow from it, by row."""

    search: list[dict[str, Any]]
    rivals: list[tuple[str, float]]
    rival: str | None
    settings: dict[str, Settings]
    jobs: dict[str, list[Job]]


def _choose(carrier: Carrier, taken: list[dict[str, Any]] | None) -> Chosen:
    """taken: what another scale found, in the place of a search."""
    place, table = carrier.place, carrier.place.table
    search = taken if taken is not None else _search(carrier)
    rivals = facts.rank_rivals(table, search)
    rival = next((name for name, _ in rivals), None)
    seeds = plan.rows_and_seeds(table, place.scale, [name for name, _ in rivals], rival)
    chosen = {item["row"]: dict(item["settings"]) for item in search if item["chosen"]}
    chosen = {name: chosen.get(name, {}) for name in seeds}
    erm = _erm_accuracies(carrier, list(chosen.values()))
    jobs = {
        name: [place.run(table.row(name), plan.resolve(chosen[name], erm), seed) for seed in of_row]
        for name, of_row in seeds.items()
    }
    return Chosen(search, rivals, rival, chosen, jobs)


def _by_seed(jobs: Mapping[str, Sequence[Job]]) -> list[Job]:
    """A seed of every row before the next seed of any: what is there at any time can be compared."""
    most = max(len(of_row) for of_row in jobs.values())
    return [of_row[i] for i in range(most) for of_row in jobs.values() if i < len(of_row)]


def _search(carrier: Carrier) -> list[dict[str, Any]]:
    """Every setting of every row on the search's own seed, with what its hold-out says; the best worst class
    is chosen.
    """
    place = carrier.place
    erm = _erm_accuracies(carrier, [settings for row in place.table.rows for settings in row.grid])
    tried: list[tuple[Row, Settings, Job]] = [
        (row, settings, place.search_run(row, plan.resolve(settings, erm)))
        for row in place.table.rows
        for settings in (row.grid if row.searched else [])
    ]
    carrier.train([job for _, _, job in tried], f"search (seed {place.table.search_seed})")
    found: list[dict[str, Any]] = []
    for row, settings, job in tried:
        held = facts.holdout(job.folder(carrier.out))
        figures = {metric: round(held.metric(metric), 6) for metric in ("average", *SELECTION)}
        epoch = facts.tested_epoch(job.folder(carrier.out))
        found.append(
            {"row": row.name, "settings": settings, "run": job.name, "epoch": epoch, "holdout": figures}
        )
    facts.choose(found)
    return found


def _erm_accuracies(carrier: Carrier, settings: Sequence[Mapping[str, Any]]) -> dict[str, float] | None:
    """Of each class, on the hold-out of the search's seed; None where no setting asks for them."""
    if not any(plan.BY_ERM in one for one in settings):
        return None
    job = carrier.place.search_run(carrier.place.table.row(ERM), {})
    carrier.train([job], f"class levels (by {ERM}, seed {carrier.place.table.search_seed})")
    return facts.holdout(job.folder(carrier.out)).per_class


def _taken_over(settings: str | Path | None, out: Path, scale: str | None) -> list[dict[str, Any]] | None:
    """What another scale tried and chose: from the file that was given, beside this reproduction, or from the
    kept results.
    """
    if scale is None:
        return None
    places = [Path(settings).expanduser()] if settings is not None else []
    places += [] if places else [out.parent / scale / NAME / FACTS, Path("results") / scale / FACTS]
    for path in places:
        if path.is_file():
            with made_from(path):
                found = read_object(path, {"kind!": str, "search!": [SEARCHED]})
                if found["kind"] != NAME:
                    raise InputError(f"{path} is not the facts of a frontier")
                return list(found["search"])
    looked = " or ".join(map(str, places))
    raise InputError(
        f"the settings come from the {scale} scale, and {looked} is not there: "
        f"cfol-fast reproduce {NAME} --scale {scale} first, or --settings FILE"
    )


def _check_data(place: Place, load: Loader) -> None:
    job = place.run(place.table.rows[0], {}, 0)
    try:
        load(job.config)
    except (InputError, FileNotFoundError) as error:
        way_out = "" if place.data else " (--data DIR: a folder with CIFAR-10's own files, or of images)"
        raise InputError(f"{NAME} needs the data set {job.config.data.name}: {error}{way_out}") from None


ATTACK = {"kind": "autoattack", "images_per_class": AUTOATTACK_IMAGES_PER_CLASS, "images_seed": 0}


def _attacked(table: plan.Table, rival: str | None) -> list[str]:
    """The rows that AutoAttack tests: those that are named, and the best rival."""
    return list(dict.fromkeys([*table.autoattack, *([rival] if rival else [])]))


def _attack_file(job: Job, out: Path) -> Path:
    return job.evaluation_file(out, ATTACK, facts.RULE)


def _autoattack(carrier: Carrier, made: Chosen, load: Loader) -> dict[str, dict[str, Any]]:
    """The first seed's best-average checkpoint of each."""
    found = {}
    for name in _attacked(carrier.place.table, made.rival):
        if name in made.jobs:
            file = evaluating.evaluate_run(
                made.jobs[name][0], carrier.out, ATTACK, facts.RULE, carrier.place.device, load
            )
            found[name] = read_object(file)
    return found


def _budget(job: Job, load: Loader, levels: bool) -> dict[str, int]:
    """Of one run, in images times passes. levels: with the run that its class levels come from."""
    config = job.config
    images = config.data.images or len(load(config).train)
    held = round(images * float(config.data.holdout))
    return plan.passes(config, images - held, held, levels)


def commands(place: Place) -> Iterator[str]:
    """What to run on a GPU: one command for each run, the settings to choose from first."""
    table, seeds = place.table, place.scale.seeds
    yield f"# {table.title}: {place.scale.title}"
    yield (
        f"# First the settings, on seed {table.search_seed} (choose by the hold-out's worst class at the best"
        f" average; the best of {', '.join(row.name for row in table.rows if row.rival)} is the rival):"
    )
    if any(plan.BY_ERM in settings for row in table.rows for settings in row.grid):
        yield (
            "# LEVELS: one for each class, [l,l,...], low + (high - low) * its accuracy under attack on this"
            " run's hold-out"
        )
        yield plan.command(place.search_run(table.row(ERM), {}), place.data)
    for row in table.rows:
        for settings in row.grid if row.searched else []:
            yield _said(place, row, settings, None)[0]
    yield f"# Then seeds {', '.join(map(str, seeds))} of each row; shown with the middle of its settings:"
    for row in table.rows:
        for seed in seeds:
            line, run = _said(place, row, row.grid[len(row.grid) // 2], seed)
            yield line
            yield f"cfol-fast offsets {run}"
    yield (
        f"# AutoAttack on {AUTOATTACK_IMAGES_PER_CLASS} images of each of the ten classes; RIVAL: the rival's"
        f" run of seed {seeds[0]}"
    )
    runs = [
        _said(place, row, row.grid[len(row.grid) // 2], seeds[0])[1]
        for row in map(table.row, table.autoattack)
    ]
    for run in [*runs, *(["runs/RIVAL"] if any(row.rival for row in table.rows) else [])]:
        yield (
            f"cfol-fast eval {run} --checkpoint {facts.RULE} --attack autoattack --limit"
            f" {10 * AUTOATTACK_IMAGES_PER_CLASS} --json {run}/eval-autoattack.json"
        )


def _said(place: Place, row: Row, settings: Settings, seed: int | None) -> tuple[str, str]:
    """The command and the folder of a run; seed None: of the search.

    Class levels, which a run of erm must tell, stay LEVELS.
    """
    known = {key: value for key, value in settings.items() if key != plan.BY_ERM}
    job = place.search_run(row, known) if seed is None else place.run(row, known, seed)
    if known == settings:
        return plan.command(job, place.data), f"runs/{job.name}"
    low, high = settings[plan.BY_ERM]
    out = f"runs/{row.name}-seed{job.config.seed}-low{low:g}-high{high:g}"
    return plan.command(job, place.data, ["--set", "alpha=LEVELS"], out), out


def _command(scale: str, data: str | Path | None) -> str:
    """As a reader repeats it, wherever the data is there."""
    return " ".join(
        ["cfol-fast", "reproduce", NAME, "--scale", scale, *(["--data", "DIR"] if data is not None else [])]
    )


def dry_run(scale: str, out: Path | None, data: Path | None) -> Iterator[str]:
    """Which runs of the search are there; those of the table follow from what it chooses."""
    place, folder = _place(plan.FILE, scale, data), _folder(out, scale)
    table = place.table
    if place.scale.settings_from is not None:
        yield (
            f"no search: settings and rows come from the {place.scale.settings_from} scale; then"
            f" {plan.outline(table, place.scale)[0]} runs, in {folder / 'runs'}"
        )
        return
    count = missing = 0
    for row in table.rows:
        for settings in row.grid if row.searched else []:
            if plan.BY_ERM in settings:
                yield f"later    {row.name} {settings}: the levels follow from a run of {ERM}"
                continue
            job = place.search_run(row, settings)
            count, missing = count + 1, missing + (not job.finished(folder))
            yield f"{'there  ' if job.finished(folder) else 'missing'}  {job.name}  {settings}"
    yield (
        f"{count} runs of the search, {missing} missing, in {folder / 'runs'}; then the seeds of"
        f" {len(table.rows)} rows"
    )
