"""Who carries out the runs of the fair table, and who only notes which of them are finished, to keep them in
one file.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from cfol_fast.recipes import kept_runs, runner
from cfol_fast.recipes.frontier.plan import Place
from cfol_fast.recipes.planning import Job
from cfol_fast.runs import offset_file
from cfol_fast.runs.run_folder import GALLERY, OFFSETS

logger = logging.getLogger(__name__)


@dataclass
class Carrier:
    """How runs are carried out, and where they go."""

    place: Place
    out: Path
    environments: list[dict[str, str]]
    force: bool
    quiet: bool

    def train(self, jobs: Sequence[Job], what: str, offsets: bool = False) -> None:
        missing = sum(not job.finished(self.out) for job in jobs)
        logger.info(f"{what}: {len(jobs)} runs, {len(jobs) - missing} of them there already")
        runner.run_all(jobs, self.out, self.environments, self.force, self.quiet, offsets)


class Unfinished(Exception):
    """A run is missing without which it is not known which others the table needs."""


@dataclass
class Noting(Carrier):
    """Trains nothing. noted: what is kept of each finished run."""

    noted: kept_runs.Runs = field(default_factory=dict)

    def train(self, jobs: Sequence[Job], what: str, offsets: bool = False) -> None:
        self.note(jobs, offsets)
        if not all(job.finished(self.out) for job in jobs):
            raise Unfinished

    def note(
        self, jobs: Sequence[Job], offsets: bool, pictures: bool = False, checkpoint: bool = False
    ) -> None:
        """offsets: a run without them is not finished. pictures: for the page. checkpoint: for an attack that
        is still to come.
        """
        wanted = [(OFFSETS, offsets), (GALLERY, pictures), (kept_runs.CHECKPOINT, checkpoint)]
        more = tuple(name for name, needed in wanted if needed)
        for job in jobs:
            folder = job.folder(self.out)
            if job.finished(self.out) and (not offsets or offset_file.has_rules(folder)):
                self.noted[job.name] = kept_runs.of_folder(folder, more)

    def write(self, file: Path) -> int:
        """With those that the file holds already; returns how many runs that makes."""
        held = kept_runs.read(file) if file.exists() else {}
        runs = {**held, **self.noted}
        kept_runs.write(file, runs)
        logger.info(
            f"{file}: {len(runs)} runs, {len(runs.keys() - held.keys())} of them new,"
            f" {file.stat().st_size / 1e6:.2f} MB"
        )
        return len(runs)


def take(file: Path, out: Path) -> None:
    """Puts the runs of a file where they would have been trained."""
    taken, strange = kept_runs.take(file, out / "runs")
    logger.info(f"{file}: {len(taken)} finished runs taken")
    if strange:
        logger.info(f"left out, since this version gives them another name: {', '.join(strange)}")
