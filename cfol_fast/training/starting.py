"""How a run starts in its folder: new, continued, or in the place of an old run.

Nothing is written before everything is built.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cfol_fast.ranks import Ranks
from cfol_fast.runs import run_folder
from cfol_fast.runs.config import TrainConfig
from cfol_fast.runs.data_facts import settled
from cfol_fast.runs.json_files import made_from
from cfol_fast.runs.run_folder import Resume, Start
from cfol_fast.runs.run_lock import RunLock
from cfol_fast.training.same_data import Before
from cfol_fast.training.state import Place, RunState

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Asked:
    """What the user said of the folder, see `train`."""

    resume: Resume = False
    overwrite: bool = False
    force: bool = False
    changed_data: bool = False


class RunStart(Place):
    """The start of the run `config` in the folder `run`; `kind` is CONTINUE as soon as the run is there.

    Of many ranks the first has locked the folder, looks at it and writes in it, and the others hear of it;
    their lock is None. `config` has what the data said as soon as a stage has read them.
    """

    def __init__(
        self,
        run: Path,
        lock: RunLock | None,
        config: TrainConfig,
        asked: Asked,
        ranks: Ranks,
    ) -> None:
        self.run, self.lock, self.config, self.asked, self.ranks = run, lock, config, asked, ranks
        self.kind = ranks.from_first(lambda: run_folder.check(run, config, asked.resume, asked.overwrite))

    def result(self, folder: Path) -> dict[str, Any] | None:
        """Of a stage, or of the run, that is finished already."""
        if self.kind is not Start.CONTINUE:
            return None
        return self.ranks.from_first(lambda: run_folder.read_result(folder))

    def check(self) -> None:
        """Fails when the folder is not the run's any more."""
        if self.lock is not None:
            self.lock.check()

    def enter(self, state: RunState, stage_before: dict[str, Any] | None = None) -> None:
        """Brings the state to where its run stands. A folder with an old run stays as it is until `move_in`.

        stage_before: the result of the stage before this one, whose data this one goes on with.
        """
        self.config = settled(self.config, state.facts)
        if self.kind is Start.OVERWRITE:
            return

        def begun() -> bool:
            # A stage that was not begun has no file yet; one that lost its configuration is not begun again.
            if not run_folder.holds(state.folder):
                return False
            run_folder.check_same(run_folder.read_config(state.folder), self.config, state.folder)
            return True

        there = self.kind is Start.CONTINUE and self.ranks.from_first(begun)
        if there and state.restore(self.asked.force, self.asked.changed_data):
            return
        if stage_before is not None and "data" in stage_before:
            with made_from(self.run):
                state.check_data(Before.of_result(stage_before), self.asked.changed_data)
        if not there:
            self._begin(state.folder)

    def move_in(self, state: RunState) -> None:
        """After every step: a run that overwrites another has shown with its first step that it can train,
        and takes the place of the old one.
        """
        if self.kind is Start.OVERWRITE:
            self._replace_old_run(state)

    def _replace_old_run(self, state: RunState) -> None:
        """Renames the old run, and puts it back if the new one cannot begin.

        A process that is killed here leaves it renamed.
        """

        def set_aside() -> Path:
            assert self.lock is not None
            return self.lock.set_aside()

        aside = self.ranks.from_first(set_aside)
        try:
            self._begin(state.folder)
            state.save()
        except BaseException:
            if self.lock is not None:
                self.lock.put_back(aside)
            raise
        size = self.ranks.from_first(lambda: run_folder.size_in_words(aside))
        logger.info(
            f"the run that was in {self.run} is {aside} now ({size}); nothing reads it unless it is named"
        )

    def _begin(self, folder: Path) -> None:
        folders = [self.run] if self.kind is not Start.CONTINUE else []
        folders += [folder] if folder != self.run else []

        def begin() -> None:
            for each in folders:
                run_folder.begin(each, self.config)

        self.ranks.from_first(begin)
        self.kind = Start.CONTINUE

    @contextmanager
    def folder_stays(self) -> Iterator[None]:
        """Fails at the end when the folder was taken away, also where that showed as a file that is
        missing.
        """
        try:
            yield
        except FileNotFoundError:
            if self.kind is Start.CONTINUE:
                self.check()
            raise
        self.check()
