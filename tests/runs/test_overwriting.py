"""Overwriting a run: the old one or the new one is whole at every moment, whenever the process is killed."""

import itertools
import os
from pathlib import Path

import pytest

from cfol_fast.runs import overwriting, run_folder
from cfol_fast.runs.config import TrainConfig

OLD = ("metrics.jsonl", "result.json", "gallery.json", "wandb.json", "eval.json", "eval-pgd-12345678.json", ".config.json.12345678.tmp",
       "checkpoints/last.pt", "checkpoints/previous.pt", "checkpoints/best-average.pt", "checkpoints/best-worst.pt",
       "tensorboard/events.out.tfevents.1.host", "stage-1/config.json", "stage-1/checkpoints/last.pt", "stage-1/result.json")  # fmt: skip
MINE = ("notes.txt", "checkpoints/mine.pt", "tensorboard/mine", ".replaced-mine")


@pytest.fixture(params=["folders", "linked checkpoints"])
def run(tmp_path, request) -> Path:
    """A finished run, with files of its owner in between."""
    folder = tmp_path / "run"
    folder.mkdir()
    if request.param == "linked checkpoints":
        (tmp_path / "other disk").mkdir()
        (folder / "checkpoints").symlink_to(tmp_path / "other disk")
    for name in (*OLD, *MINE):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("old")
    run_folder.begin(folder, TrainConfig(epochs=1))
    return folder


def tree(run: Path) -> dict[str, bytes]:
    """What is there but for temporary files, which the next writer of the same file removes."""
    files = {path for place in (run, run / "checkpoints") if place.exists() for path in place.rglob("*")}
    return {
        str(path.relative_to(run)): path.read_bytes()
        for path in files
        if path.is_file() and path.suffix != ".tmp"
    }


def overwrite(run: Path) -> None:
    with overwriting.overwritten(run):
        begin_another(run)


def begin_another(run: Path) -> None:
    run_folder.begin(run, TrainConfig(epochs=2))
    (run / "checkpoints").mkdir(exist_ok=True)
    (run / "checkpoints/next.pt").write_text("new")
    os.replace(run / "checkpoints/next.pt", run / "checkpoints/last.pt")


def test_everything_of_the_old_run_goes_and_nothing_else(run):
    overwrite(run)
    after = tree(run)
    assert after.keys() == {*MINE, "config.json", "checkpoints/last.pt"}
    assert after["checkpoints/last.pt"] == b"new"
    assert run_folder.read_config(run).epochs == 2
    assert not (run / "stage-1").exists()


def test_a_new_run_that_fails_gives_the_old_one_back(run):
    before = tree(run)

    def fail() -> None:
        with overwriting.overwritten(run):
            run_folder.begin(run, TrainConfig(epochs=2))
            raise OSError("the disk is full")

    with pytest.raises(OSError, match="full"):
        fail()
    assert tree(run) == before


class Killed(BaseException):
    """Takes the place of a kill: nothing after it changes the disk."""


@pytest.fixture
def dies(monkeypatch):
    """The process dies before its change number `fatal` of the disk, and everything after that is without effect."""

    def until(fatal: int, action) -> bool:
        count = 0

        def counted(original):
            def change(*args, **options):
                nonlocal count
                count += 1
                if count >= fatal:
                    raise Killed
                return original(*args, **options)

            return change

        with monkeypatch.context() as patch:
            for name in ("replace", "unlink", "rmdir", "link", "mkdir"):
                patch.setattr(os, name, counted(getattr(os, name)))
            try:
                action()
            except Killed:
                return True
        return False

    return until


@pytest.mark.slow
def test_a_process_killed_at_any_moment_leaves_the_old_run_or_the_new_one(run, dies):
    old = tree(run)
    overwrite(run)
    new = tree(run)
    outcomes = []
    for fatal in itertools.count(1):
        put_back(run, old)
        if not dies(fatal, lambda: overwrite(run)):
            break
        # The next start is killed as well, at moments of its own; the one after it goes through.
        for second in (1, 2, 5, 9):
            dies(second, lambda: overwriting.recover(run))
        overwriting.recover(run)
        found = tree(run)
        assert found in (old, new), f"killed at change {fatal}"
        outcomes.append(found == new)
    assert outcomes == sorted(outcomes), "once the new run stands it stays"
    assert set(outcomes) == {False, True}


def put_back(run: Path, files: dict[str, bytes]) -> None:
    for place in (run, run / "checkpoints"):
        for path in [path for path in place.rglob("*") if path.is_file()]:
            path.unlink()
    for name, content in files.items():
        (run / name).parent.mkdir(parents=True, exist_ok=True)
        (run / name).write_bytes(content)


def test_nothing_to_settle_changes_nothing(run):
    before = tree(run)
    overwriting.recover(run)
    overwriting.recover(run.with_name("no run"))
    assert tree(run) == before
