"""`cfol-fast reproduce frontier`: search the settings, train the seeds, fit offsets, run AutoAttack, write the table.

Every step leaves its result in a file and skips what is there, so that the same command continues wherever it was stopped.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from cfol_fast import atomic
from cfol_fast.errors import InputError
from cfol_fast.recipes import evaluating, runner
from cfol_fast.recipes.frontier import facts, plan, writing
from cfol_fast.recipes.frontier.plan import ERM, Place, Row, Settings
from cfol_fast.recipes.planning import Job
from cfol_fast.recipes.reproduction import Loader
from cfol_fast.runs.json_files import made_from, read_object

NAME = "frontier"
FACTS = "frontier.json"


@dataclass
class Carrier:
    """How runs are carried out, and where they go."""

    place: Place
    out: Path
    environments: list[dict[str, str]]
    force: bool
    quiet: bool
    say: runner.Say

    def train(self, jobs: Sequence[Job], what: str, offsets: bool = False) -> None:
        missing = sum(not job.finished(self.out) for job in jobs)
        self.say(f"{what}: {len(jobs)} runs, {len(jobs) - missing} of them there already")
        runner.run_all(jobs, self.out, self.environments, self.force, self.quiet, self.say, offsets)


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
    say: runner.Say = print,
    rows: Path = plan.FILE,
) -> Path | None:
    """Carries out the fair table at a scale and returns its folder, with frontier.json, table.md, the plot and report.html.

    At the paper's scale the commands are printed and nothing is trained: None. settings: a frontier.json of the mini scale, whose
    chosen settings and best rival the small scale takes over. rows: a table of one's own.
    """
    table = plan.read(rows)
    if scale not in table.scales:
        raise InputError(f"the scale must be one of {', '.join(table.scales)}, got {scale!r}")
    place = Place(table, table.scales[scale], None if data is None else Path(data), device, download)
    if scale == "paper":
        print_commands(place, say)
        return None
    folder = Path(out).expanduser() if out is not None else Path("reproduction") / scale
    carrier = Carrier(place, folder, runner.workers(parallel, device), force, quiet, say)
    taken = None
    if place.scale.settings_from is not None:
        taken = _taken_over(settings, folder, place.scale.settings_from)
    load = Loader()
    _check_data(place, load)
    (folder / "runs").mkdir(parents=True, exist_ok=True)
    ranking = [item["name"] for item in taken["rivals"]] if taken else []
    seeds = plan.rows_and_seeds(table, place.scale, ranking, taken["rival"] if taken else None)
    with made_from(folder / "runs"):
        search = list(taken["search"]) if taken else _search(carrier)
        chosen = {item["row"]: dict(item["settings"]) for item in search if item["chosen"]}
        chosen = {name: chosen.get(name, {}) for name in seeds}
        erm = _erm_accuracies(carrier, list(chosen.values()))
        jobs = {
            name: [place.run(table.row(name), plan.resolve(chosen[name], erm), seed) for seed in of_row]
            for name, of_row in seeds.items()
        }
        carrier.train(_by_seed(jobs), "table", offsets=True)
        rivals = facts.rank_rivals(table, jobs, folder)
        rival = taken["rival"] if taken else next((name for name, _ in rivals), None)
        attacked = _autoattack(carrier, jobs, rival, load)
        budgets = {name: _budget(of_row[0], place, load) for name, of_row in jobs.items()}
        made = facts.build(
            table,
            scale,
            folder,
            jobs,
            chosen,
            search,
            rivals,
            rival,
            budgets,
            attacked,
            _command(scale, folder, data),
        )
    target = folder / NAME
    target.mkdir(parents=True, exist_ok=True)
    atomic.write_json(target / FACTS, made)
    writing.write(made, target, folder / "runs")
    say(f"{NAME}: {target / 'table.md'}")
    return target


def _by_seed(jobs: Mapping[str, Sequence[Job]]) -> list[Job]:
    """A seed of every row before the next seed of any: what is there at any time can be compared."""
    most = max(len(of_row) for of_row in jobs.values())
    return [of_row[i] for i in range(most) for of_row in jobs.values() if i < len(of_row)]


def _search(carrier: Carrier) -> list[dict[str, Any]]:
    """Every setting of every row on the search's own seed, with what its hold-out says; the best worst class is chosen."""
    place = carrier.place
    erm = _erm_accuracies(carrier, [settings for row in place.table.rows for settings in row.grid])
    tried: list[tuple[Row, Settings, Job]] = [
        (row, settings, place.search_run(row, plan.resolve(settings, erm)))
        for row in place.table.rows
        for settings in (row.grid if len(row.grid) > 1 else [])
    ]
    carrier.train([job for _, _, job in tried], f"search (seed {place.table.search_seed})")
    found: list[dict[str, Any]] = []
    for row, settings, job in tried:
        held = facts.holdout(job.folder(carrier.out))
        figures = {metric: round(facts.statistic(held, metric), 6) for metric in ("average", "tail", "worst")}
        found.append({"row": row.name, "settings": settings, "run": job.name, "holdout": figures})
    for name in {item["row"] for item in found}:
        of_row = [item for item in found if item["row"] == name]
        best = max(of_row, key=lambda item: (item["holdout"]["worst"], item["holdout"]["average"]))
        for item in of_row:
            item["chosen"] = item is best
    return found


def _erm_accuracies(carrier: Carrier, settings: Sequence[Mapping[str, Any]]) -> dict[str, float] | None:
    """Of each class, on the hold-out of the search's seed; None where no setting asks for them."""
    if not any(plan.BY_ERM in one for one in settings):
        return None
    job = carrier.place.search_run(carrier.place.table.row(ERM), {})
    carrier.train([job], f"class levels (by {ERM}, seed {carrier.place.table.search_seed})")
    return facts.holdout(job.folder(carrier.out)).per_class


def _taken_over(settings: str | Path | None, out: Path, scale: str) -> dict[str, Any]:
    """What another scale chose: from the file that was given, beside this reproduction, or from the kept results."""
    places = [Path(settings).expanduser()] if settings is not None else []
    places += [] if places else [out.parent / scale / NAME / FACTS, Path("results") / scale / FACTS]
    for path in places:
        if path.is_file():
            with made_from(path):
                found = read_object(
                    path,
                    {"kind!": str, "search!": [{"row!": str, "settings!": {str: object}, "chosen!": bool}]},
                )
                if found["kind"] != NAME:
                    raise InputError(f"{path} is not the facts of a frontier")
                return {key: found[key] for key in ("search", "rivals", "rival")}
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


def _autoattack(
    carrier: Carrier, jobs: Mapping[str, Sequence[Job]], rival: str | None, load: Loader
) -> dict[str, dict[str, Any]]:
    """The first seed's best-average checkpoint of the named rows and the best rival."""
    attack = {
        "kind": "autoattack",
        "images_per_class": carrier.place.scale.autoattack_images_per_class,
        "images_seed": 0,
    }
    names = dict.fromkeys([*carrier.place.table.autoattack, *([rival] if rival else [])])
    found = {}
    for name in names:
        if name in jobs:
            file = evaluating.evaluate_run(
                jobs[name][0], carrier.out, attack, facts.RULE, carrier.place.device, load, carrier.say
            )
            found[name] = read_object(file)
    return found


def _budget(job: Job, place: Place, load: Loader) -> dict[str, int]:
    """Of one run, in images times passes."""
    config = job.config
    images = config.data.images or len(load(config).train)
    held = round(images * float(config.data.holdout))
    return plan.passes(config, images - held, held)


def print_commands(place: Place, say: runner.Say) -> None:
    """What to run on a GPU: one command for each run, the settings to choose from first."""
    table = place.table
    say(f"# {table.title}: {place.scale.title}")
    say(
        f"# First the settings, on seed {table.search_seed} (choose by the hold-out's worst class at the best average):"
    )
    for row in table.rows:
        for settings in row.grid if len(row.grid) > 1 else []:
            if plan.BY_ERM in settings:
                say(f"# {row.name} with {settings}: one level for each class, by {ERM}'s hold-out accuracies")
                continue
            say(plan.command(place.search_run(row, settings), place.data))
    say(
        f"# Then seeds {', '.join(map(str, place.scale.seeds))} of each row; shown with the middle of its settings:"
    )
    for row in table.rows:
        settings = row.grid[len(row.grid) // 2]
        if plan.BY_ERM in settings:
            continue
        for seed in place.scale.seeds:
            job = place.run(row, settings, seed)
            say(plan.command(job, place.data))
            say(f"cfol-fast offsets runs/{job.name}")
    for name in table.autoattack:
        row = table.row(name)
        job = place.run(row, row.grid[len(row.grid) // 2], place.scale.seeds[0])
        say(f"cfol-fast eval runs/{job.name} --attack autoattack --json runs/{job.name}/eval-autoattack.json")


def _command(scale: str, out: Path, data: str | Path | None) -> str:
    words = ["cfol-fast", "reproduce", NAME, "--scale", scale, "--out", str(out)]
    return shlex.join([*words, *(["--data", str(data)] if data is not None else [])])


def dry_run(scale: str, out: Path | None, data: Path | None, say: runner.Say = print) -> None:
    """Which runs of the search are there; those of the table follow from what it chooses."""
    table = plan.read()
    place = replace(Place(table, table.scales[scale]), data=data)
    folder = out or Path("reproduction") / scale
    count = missing = 0
    for row in table.rows if place.scale.settings_from is None else []:
        for settings in row.grid if len(row.grid) > 1 else []:
            if plan.BY_ERM in settings:
                say(f"later    {row.name} {settings}: the levels follow from a run of {ERM}")
                continue
            job = place.search_run(row, settings)
            count, missing = count + 1, missing + (not job.finished(folder))
            say(f"{'there  ' if job.finished(folder) else 'missing'}  {job.name}  {settings}")
    say(
        f"{count} runs of the search, {missing} missing, in {folder / 'runs'}; then the seeds of {len(table.rows)} rows"
    )
