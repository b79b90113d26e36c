"""How a run starts in its folder: new, continued, or in the place of an old run. Nothing is written before everything is built."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from cfol_fast.runs import overwriting, run_folder
from cfol_fast.runs.config import TrainConfig
from cfol_fast.runs.run_folder import Resume, Start
from cfol_fast.runs.run_lock import RunLock
from cfol_fast.training.trainer import Trainer


class RunStart:
    """The start of the run `config` in a folder that this process has locked; `kind` is CONTINUE as soon as the run is there."""

    def __init__(self, lock: RunLock, config: TrainConfig, resume: Resume, overwrite: bool) -> None:
        self.lock, self.config = lock, config
        overwriting.settle(lock.run)
        self.kind = run_folder.check(lock.run, config, resume, overwrite)

    def result(self, folder: Path) -> dict[str, Any] | None:
        """Of a stage, or of the run, that is finished already."""
        return run_folder.read_result(folder) if self.kind is Start.CONTINUE else None

    def enter(self, trainer: Trainer, force: bool) -> Callable[[], None] | None:
        """Brings the trainer to where its run stands; returns what is to be done after its first step."""
        trainer.check_folder = self.lock.check
        if self.kind is Start.OVERWRITE:
            return lambda: self._replace_old_run(trainer)
        # A stage that was not begun has no file yet; one that lost its configuration is not begun again.
        begun = any(not path.name.startswith(".") for path in run_folder.contents(trainer.folder)[0])
        if self.kind is Start.CONTINUE and begun:
            run_folder.check_same(run_folder.read_config(trainer.folder), self.config, trainer.folder)
            trainer.restore(force)
        else:
            self._begin(trainer.folder)
        return None

    def _replace_old_run(self, trainer: Trainer) -> None:
        with overwriting.overwritten(self.lock.run):
            self._begin(trainer.folder)
            trainer.save()

    def _begin(self, folder: Path) -> None:
        if self.kind is not Start.CONTINUE:
            run_folder.begin(self.lock.run, self.config)
            self.kind = Start.CONTINUE
        if folder != self.lock.run:
            run_folder.begin(folder, self.config)

    @contextmanager
    def folder_stays(self) -> Iterator[None]:
        """Fails at the end when the folder was taken away, also where that showed as a file that is missing."""
        try:
            yield
        except FileNotFoundError:
            if self.kind is Start.CONTINUE:
                self.lock.check()
            raise
        self.lock.check()
