"""Files appear whole or not at all."""

import contextlib
import errno
import json
import os
import resource
import signal
import stat
import subprocess
import sys

import pytest
import torch

from cfol_fast import atomic
from cfol_fast.runs import checkpoints


def test_a_file_is_replaced_in_one_go(tmp_path):
    path = tmp_path / "a.json"
    atomic.write_json(path, {"a": 1})
    atomic.write_json(path, {"a": 2})
    assert json.loads(path.read_text()) == {"a": 2}
    assert os.listdir(tmp_path) == ["a.json"]


def test_a_failed_write_leaves_the_old_file_and_no_other(tmp_path):
    path = tmp_path / "a.bin"
    atomic.write_bytes(path, b"old")

    def break_off():
        with atomic.replacing(path) as file:
            file.write(b"half")
            raise RuntimeError("the disk is full")

    with pytest.raises(RuntimeError, match="the disk is full"):
        break_off()
    assert path.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["a.bin"]


def test_nan_is_not_json(tmp_path):
    with pytest.raises(ValueError, match="not JSON compliant"):
        atomic.write_json(tmp_path / "a.json", {"a": float("nan")})
    assert os.listdir(tmp_path) == []


def test_a_result_is_as_readable_as_any_file(tmp_path):
    old = os.umask(0o022)
    try:
        atomic.write_text(tmp_path / "a.txt", "hello")
    finally:
        os.umask(old)
    assert (tmp_path / "a.txt").stat().st_mode & 0o777 == 0o644


def test_a_symlink_stays_and_what_it_points_to_is_replaced(tmp_path):
    (tmp_path / "there").mkdir()
    (tmp_path / "link.json").symlink_to("there/a.json")
    for number in (1, 2):
        atomic.write_json(tmp_path / "link.json", number)
        assert (tmp_path / "link.json").is_symlink()
        assert json.loads((tmp_path / "there/a.json").read_text()) == number


def test_symlinks_in_a_circle_are_an_error_and_stay(tmp_path):
    (tmp_path / "a").symlink_to("b")
    (tmp_path / "b").symlink_to("a")
    with pytest.raises(OSError, match=os.strerror(errno.ELOOP)):
        atomic.write_text(tmp_path / "a", "text")
    assert (tmp_path / "a").is_symlink()


def test_a_pipe_is_written_to_and_stays_a_pipe(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    reader = os.open(tmp_path / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    atomic.write_text(tmp_path / "pipe", "hello")
    assert os.read(reader, 100) == b"hello"
    os.close(reader)
    assert stat.S_ISFIFO((tmp_path / "pipe").stat().st_mode)
    assert os.listdir(tmp_path) == ["pipe"]


def test_a_device_stays_a_device(tmp_path):
    atomic.write_text(os.devnull, "text")
    assert stat.S_ISCHR(os.stat(os.devnull).st_mode)


def test_an_open_stream_is_written_to_and_not_replaced(tmp_path):
    """`eval RUN --json /dev/stdout > out.txt`: what is printed afterwards must arrive too."""
    with open(tmp_path / "out.txt", "w") as file:
        file.write("before\n")
        file.flush()
        atomic.write_text(f"/dev/fd/{file.fileno()}", "json\n")
    assert (tmp_path / "out.txt").read_text() == "before\njson\n"


def test_a_folder_in_the_way_is_named(tmp_path):
    with pytest.raises(IsADirectoryError, match=str(tmp_path)):
        atomic.write_text(tmp_path, "text")


WRITE_AND_DIE = """
import os, signal, sys
from cfol_fast import atomic
from cfol_fast.runs import checkpoints
with atomic.replacing(sys.argv[1]) as file:
    file.write(b"half of it")
    file.flush()
    os.kill(os.getpid(), signal.SIGKILL)
"""


def killed_writer(path):
    done = subprocess.run([sys.executable, "-c", WRITE_AND_DIE, str(path)], check=False)
    assert done.returncode == -signal.SIGKILL


def test_a_whole_file_is_not_swept_before_it_is_in_its_place(tmp_path, monkeypatch):
    replace = os.replace

    def replace_late(source, target):
        # Another writer of the same file comes just now.
        atomic.sweep(tmp_path / "a.txt")
        replace(source, target)

    monkeypatch.setattr(os, "replace", replace_late)
    atomic.write_text(tmp_path / "a.txt", "whole")
    assert (tmp_path / "a.txt").read_text() == "whole"


@pytest.mark.slow
def test_what_a_killed_writer_left_is_removed_by_the_next_and_nothing_else(tmp_path):
    killed_writer(tmp_path / "a.beton")
    assert len(os.listdir(tmp_path)) == 1
    for name in (".b.beton.12345678.tmp", ".a.beton.mine.tmp", "a.beton.12345678.tmp"):
        (tmp_path / name).write_text("of somebody else")
    atomic.write_text(tmp_path / "a.beton", "whole")
    others = [".a.beton.mine.tmp", ".b.beton.12345678.tmp", "a.beton", "a.beton.12345678.tmp"]
    assert sorted(os.listdir(tmp_path)) == others


def test_what_somebody_is_writing_is_not_removed(tmp_path):
    with atomic.replacing(tmp_path / "a.txt") as file:
        file.write(b"slow")
        atomic.write_text(tmp_path / "a.txt", "quick")
        assert len(os.listdir(tmp_path)) == 2
    assert (tmp_path / "a.txt").read_text() == "slow"
    assert os.listdir(tmp_path) == ["a.txt"]


@contextlib.contextmanager
def room_for(size: int):
    """Files grow to `size` bytes and no further: the errors of a full disk, without one."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.parametrize("size", [0, 20_000])
def test_a_full_disk_names_the_file_and_says_how_much_is_free(tmp_path, size):
    path = tmp_path / "a.pt"
    checkpoints.write(path, {"step": 1})
    state = {"w": torch.zeros(100_000)}
    with room_for(size), pytest.raises(OSError, match=r"MiB are free") as caught:
        checkpoints.write(path, state)
    assert (caught.value.errno, caught.value.filename) == (errno.EFBIG, str(path))
    assert torch.load(path, weights_only=True) == {"step": 1}
    assert os.listdir(tmp_path) == ["a.pt"]
    checkpoints.write(path, state)


def test_a_failing_disk_names_the_file(tmp_path):
    with pytest.raises(OSError, match="failing") as caught, atomic.replacing(tmp_path / "a"):
        raise OSError(errno.EIO, "failing")
    assert caught.value.filename == str(tmp_path / "a")


def test_a_file_that_is_replaced_passes_its_mode_on(tmp_path):
    path = tmp_path / "a.txt"
    path.write_text("old")
    path.chmod(0o640)
    atomic.write_text(path, "new")
    assert stat.S_IMODE(path.stat().st_mode) == 0o640


def test_two_files_take_their_places_together_in_a_new_folder(tmp_path):
    with atomic.replacing_together(tmp_path / "new", ["b", "a"]) as (b, a):
        b.write(b"bee")
        a.write(b"ant")
        assert not (tmp_path / "new").exists()
    assert [(path.name, path.read_text()) for path in sorted(tmp_path.glob("new/*"))] == [
        ("a", "ant"),
        ("b", "bee"),
    ]
    assert os.listdir(tmp_path) == ["new"]


def test_of_two_files_neither_is_replaced_when_one_cannot_be_written(tmp_path):
    for name in "ab":
        (tmp_path / name).write_text("old")

    def write() -> None:
        with atomic.replacing_together(tmp_path, ["a", "b"]) as (a, b):
            a.write(b"new")
            # One byte too far; it is noticed when the buffer is written out, at the end.
            b.seek(20_000)
            b.write(b"x")

    with room_for(20_000), pytest.raises(OSError, match=os.strerror(errno.EFBIG)):
        write()
    assert [(tmp_path / name).read_text() for name in "ab"] == ["old", "old"]
    assert sorted(os.listdir(tmp_path)) == ["a", "b"]
