"""One process in a run folder: the second is refused, and neither a deleted file nor a refused run changes that."""

import errno
import fcntl
import os
import shutil
from pathlib import Path

import pytest

from cfol_fast.errors import InputError, TrainingFailed
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


@pytest.fixture(params=["local disk", "network disk"])
def disk(request, monkeypatch):
    """A network file system locks only what is open for writing, so no folders."""
    if request.param == "local disk":
        return
    flock = fcntl.flock

    def network(handle, how):
        if os.path.isdir(f"/proc/self/fd/{handle}"):
            raise OSError(errno.EBADF, os.strerror(errno.EBADF))
        flock(handle, how)

    monkeypatch.setattr(fcntl, "flock", network)


def test_two_processes_cannot_train_in_one_folder(tmp_path, disk):
    with RunLock(tmp_path):
        assert second_process(tmp_path) == f"another process is training in {tmp_path}"
    assert second_process(tmp_path) == "entered"


def test_a_deleted_lock_file_lets_nobody_in(tmp_path):
    with RunLock(tmp_path):
        (tmp_path / ".lock").unlink(missing_ok=True)
        assert "another process" in second_process(tmp_path)


def test_nothing_is_left_behind(tmp_path, disk):
    with RunLock(tmp_path / "deep/er/run"):
        assert (tmp_path / "deep/er/run").is_dir()
        assert "another process" in second_process(tmp_path / "deep/er/run")
    assert not list(tmp_path.iterdir())


def test_a_folder_that_was_there_and_one_that_is_used_stay(tmp_path, disk):
    with RunLock(tmp_path / "run"):
        (tmp_path / "run/config.json").write_text("{}")
    assert [path.name for path in (tmp_path / "run").iterdir()] == ["config.json"]
    (tmp_path / "empty").mkdir()
    with RunLock(tmp_path / "empty"):
        pass
    assert (tmp_path / "empty").is_dir()


def test_a_folder_that_is_replaced_while_it_is_locked_is_locked_again(tmp_path, monkeypatch):
    """Another process leaves, and removes the folder that it had made, between opening and locking it here."""
    run, flock = tmp_path / "run", fcntl.flock

    def late(handle, how):
        monkeypatch.setattr(fcntl, "flock", flock)
        run.rmdir()
        flock(handle, how)

    monkeypatch.setattr(fcntl, "flock", late)
    with RunLock(run):
        assert "another process" in second_process(run)


def test_a_file_system_without_locks_is_named(tmp_path, monkeypatch):
    def none_left(handle, how):
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", none_left)
    with pytest.raises(InputError, match=f"cannot lock {tmp_path} \\({os.strerror(errno.ENOLCK)}\\)"):
        RunLock(tmp_path).__enter__()


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
