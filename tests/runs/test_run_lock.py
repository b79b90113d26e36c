"""One process in a run folder: the second is refused, and neither a run that was refused nor a killed one
changes that.
"""

import errno
import fcntl
import itertools
import os
import shutil
import signal
from pathlib import Path

import filelock
import pytest

from cfol_fast.errors import InputError, TrainingFailed
from cfol_fast.runs import checkpoints, run_folder
from cfol_fast.runs.config import TrainConfig
from cfol_fast.runs.run_folder import Start
from cfol_fast.runs.run_lock import RunLock


def second_process(run: Path) -> str:
    """What becomes of another process that wants the lock."""
    read_end, write_end = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            with RunLock(run):
                os.write(write_end, b"entered")
        except InputError as error:
            os.write(write_end, str(error).encode())
        os._exit(0)
    os.waitpid(child, 0)
    os.close(write_end)
    try:
        return os.read(read_end, 1000).decode()
    finally:
        os.close(read_end)


def test_two_processes_cannot_train_in_one_folder(tmp_path):
    with RunLock(tmp_path):
        assert second_process(tmp_path) == f"another process is training in {tmp_path}"
    assert second_process(tmp_path) == "entered"


def test_a_refused_run_leaves_no_folder(tmp_path):
    with RunLock(tmp_path / "deep/er/run"):
        assert (tmp_path / "deep/er/run").is_dir()
        assert "another process" in second_process(tmp_path / "deep/er/run")
    assert not list(tmp_path.iterdir())


def test_a_folder_that_was_there_and_one_that_is_used_stay(tmp_path):
    with RunLock(tmp_path / "run"):
        (tmp_path / "run/config.json").write_text("{}")
    assert sorted(path.name for path in (tmp_path / "run").iterdir()) == [".lock", "config.json"]
    (tmp_path / "empty").mkdir()
    with RunLock(tmp_path / "empty"):
        pass
    assert (tmp_path / "empty").is_dir()


@pytest.mark.slow
def test_a_killed_process_leaves_no_run_locked(tmp_path):
    child = os.fork()
    if child == 0:
        RunLock(tmp_path).__enter__()
        os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(child, 0)
    assert (tmp_path / ".lock").exists()
    assert second_process(tmp_path) == "entered"


def test_of_processes_that_start_together_the_refused_ones_leave_the_winners_folder(tmp_path, monkeypatch):
    """The other process makes the folder between looking for it and making it here, and has no file in it yet
    but the lock.
    """
    run, mkdir = tmp_path / "run", Path.mkdir
    winner = RunLock(run)

    def late(self, *args, **options):
        monkeypatch.setattr(Path, "mkdir", mkdir)
        winner.__enter__()
        return mkdir(self, *args, **options)

    monkeypatch.setattr(Path, "mkdir", late)
    with pytest.raises(InputError, match="another process"):
        RunLock(run).__enter__()
    assert run.is_dir()
    (run / "config.json").write_text("{}")
    winner.check()
    winner.__exit__()


@pytest.mark.parametrize("when", ["before it is locked", "once it is locked"])
def test_a_folder_that_is_removed_while_it_is_locked_is_made_and_locked_again(tmp_path, monkeypatch, when):
    """Another process leaves, and removes the folder that it had made."""
    run, acquire = tmp_path / "run", filelock.FileLock.acquire

    def late(self, **options):
        monkeypatch.setattr(filelock.FileLock, "acquire", acquire)
        if when == "before it is locked":
            shutil.rmtree(run)
        found = acquire(self, **options)
        if when == "once it is locked":
            shutil.rmtree(run)
        return found

    monkeypatch.setattr(filelock.FileLock, "acquire", late)
    with RunLock(run):
        assert "another process" in second_process(run)


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP], ids=errno.errorcode.get)
@pytest.mark.filterwarnings("ignore:flock not supported")
def test_a_file_system_without_locks_is_named(tmp_path, monkeypatch, number):
    def none_left(handle, how):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(fcntl, "flock", none_left)
    with pytest.raises(InputError, match=r"cannot lock .*\.lock .*two processes could train in one run"):
        RunLock(tmp_path).__enter__()


# ---------------------------------------------------------------- --overwrite


@pytest.fixture
def run(tmp_path) -> Path:
    folder = tmp_path / "run"
    run_folder.begin(folder, TrainConfig())
    (folder / "notes.txt").write_text("mine")
    return folder


def test_an_old_run_is_renamed_whole_and_the_new_one_is_locked(run, tmp_path):
    with RunLock(run) as lock:
        assert lock.set_aside() == tmp_path / "run.old-1"
        assert (tmp_path / "run.old-1/notes.txt").read_text() == "mine"
        assert run_folder.holds(run) == []
        assert "another process" in second_process(run)
        run_folder.begin(run, TrainConfig())
        lock.check()
    # The next one gets the next number.
    with RunLock(run) as lock:
        assert lock.set_aside() == tmp_path / "run.old-2"
        assert second_process(tmp_path / "run.old-1") == "entered"


def test_a_run_that_cannot_begin_gives_the_old_one_its_name_back(run, tmp_path):
    with RunLock(run) as lock:
        aside = lock.set_aside()
        run_folder.begin(run, TrainConfig(epochs=7))
        lock.put_back(aside)
        lock.check()
    assert (run / "notes.txt").read_text() == "mine"
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


def test_who_comes_first_to_the_empty_name_has_it(run, tmp_path, monkeypatch):
    rename, other = os.rename, RunLock(run)

    def taken(source, target):
        rename(source, target)
        other.__enter__()

    with RunLock(run) as lock:
        monkeypatch.setattr(os, "rename", taken)
        with pytest.raises(InputError, match=r"another process is training in .*run\.old-1 now"):
            lock.set_aside()
    assert (tmp_path / "run.old-1/notes.txt").exists()
    assert run.is_dir()
    other.__exit__()


class Killed(BaseException):
    """Takes the place of a kill: nothing after it changes the disk."""


def dies(monkeypatch, fatal: int, action) -> bool:
    """The process dies before its change number `fatal` of the disk."""
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
        for name in ("replace", "rename", "unlink", "rmdir", "mkdir", "fsync"):
            patch.setattr(os, name, counted(getattr(os, name)))
        try:
            action()
        except Killed:
            return True
    return False


def overwrite(run: Path) -> None:
    with RunLock(run) as lock:
        aside = lock.set_aside()
        try:
            run_folder.begin(run, TrainConfig(epochs=2))
            checkpoints.CheckpointStore(run).save_last({"new": 1})
        except BaseException:
            lock.put_back(aside)
            raise


@pytest.mark.slow
@pytest.mark.parametrize("linked", [False, True], ids=["folder", "linked checkpoints"])
def test_a_process_killed_at_any_moment_of_overwriting_loses_neither_run(tmp_path, monkeypatch, linked):
    outcomes = []
    for fatal in itertools.count(1):
        place = tmp_path / str(fatal)
        run, aside = place / "run", place / "run.old-1"
        run.mkdir(parents=True)
        run_folder.begin(run, TrainConfig(epochs=1))
        (place / "disk" if linked else run / "checkpoints").mkdir()
        if linked:
            (run / "checkpoints").symlink_to(place / "disk")
        (run / "checkpoints/last.pt").write_text("old")
        killed = dies(monkeypatch, fatal, lambda run=run: overwrite(run))
        old = run if (run / "checkpoints/last.pt").exists() and not aside.exists() else aside
        assert run_folder.read_config(old).epochs == 1, f"killed at change {fatal}"
        assert (old / "checkpoints/last.pt").read_text() == "old"
        # Nobody has to tidy up: the same command, or --resume=auto, goes on from here.
        again = TrainConfig(epochs=1 if old is run else 2)
        assert run_folder.check(run, again, resume="auto") in (Start.NEW, Start.CONTINUE)
        outcomes.append(old is aside)
        if not killed:
            break
    assert outcomes == sorted(outcomes), "once it has another name it keeps it"
    assert set(outcomes) == {False, True}


def test_a_rename_that_the_system_refuses_names_the_command(run, monkeypatch):
    def refused(source, target):
        raise OSError(errno.EXDEV, os.strerror(errno.EXDEV))

    monkeypatch.setattr(os, "rename", refused)
    with RunLock(run) as lock, pytest.raises(InputError, match=r"cannot rename .* Type: mv "):
        lock.set_aside()
    assert (run / "notes.txt").exists()


@pytest.mark.parametrize("missing", ["the folder", "the configuration", "another folder came"])
def test_a_folder_that_is_taken_away_is_noticed(tmp_path, missing):
    run = tmp_path / "run"
    with RunLock(run) as lock:
        (run / "config.json").write_text("{}")
        lock.check()
        if missing == "the configuration":
            (run / "config.json").unlink()
        else:
            run.rename(tmp_path / "moved")
        if missing == "another folder came":
            shutil.copytree(tmp_path / "moved", run)
        with pytest.raises(TrainingFailed, match="was deleted or replaced"):
            lock.check()


def test_a_file_in_the_way_is_named(tmp_path):
    (tmp_path / "run").write_text("")
    with pytest.raises(InputError, match="is a file, not a folder"):
        RunLock(tmp_path / "run").__enter__()
    with pytest.raises(InputError, match="cannot create"):
        RunLock(tmp_path / "run/below").__enter__()
