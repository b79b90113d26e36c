"""Attempts on what is written: a disk that fails or is full at any call of a run, and kills at any call or
operation.

Every run is a forked child of a process of its own, which has no threads: of a lock that a thread holds at
the fork, the child has a copy that nobody opens (FFCV starts threads, and a run hung once). Afterwards it is
continued without faults, and must end with the weights, the metrics and the result of a run that nobody
disturbed. The system is attacked where Python calls it; where this process may mount one, a small file system
is filled as well.
"""

from __future__ import annotations

import concurrent.futures
import errno
import faulthandler
import io
import multiprocessing
import os
import shutil
import signal
import subprocess
import sys
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hypothesis import strategies as st

from cfol_fast import atomic
from cfol_fast.commands import main as cli
from cfol_fast.errors import TrainingFailed
from cfol_fast.training.loop import train
from tests.hostile.attempts import Tally, attack
from tests.hostile.reading import Area, few_embedded_images
from tests.training import tiny
from tests.training.killed_run import Counter, die

FINISHED, SENTENCE, TRACEBACK = 0, 3, 4
ERRORS = (errno.ENOSPC, errno.EIO, errno.EDQUOT, errno.EROFS)
MOUNTABLE = "tmpfs"


class Disturbance:
    """Counts the calls that change the disk, and disturbs some: those from `first` on, `length` of them.

    how: "error" raises, "short" writes a part of the bytes (which the system may do, and the rest must
    follow), "kill" ends the process before the call, "kill after" after it, "half" writes half of the bytes
    and ends the process.
    """

    def __init__(
        self, first: int = 0, length: int = 1, how: str = "error", number: int = errno.ENOSPC
    ) -> None:
        self.calls, self.first, self.length, self.how, self.number = 0, first, length, how, number

    def _due(self) -> bool:
        self.calls += 1
        return self.first <= self.calls < self.first + self.length if self.first else False

    def call(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def disturbed(*args: Any, **options: Any) -> Any:
            due = self._due()
            if due and self.how == "error":
                raise OSError(self.number, os.strerror(self.number))
            if due and self.how in ("kill", "half"):
                die()
            result = function(*args, **options)
            if due and self.how == "kill after":
                die()
            return result

        return disturbed

    def write(self, function: Callable[..., int]) -> Callable[..., int]:
        whole = self.call(function)

        def disturbed(file: Any, data: Any) -> int:
            view = memoryview(data).cast("B")
            if self.first == self.calls + 1 and self.how in ("short", "half"):
                self.calls += 1
                written = function(file, view[: max(1, len(view) // 2)])
                return die() if self.how == "half" else written  # type: ignore[func-returns-value]
            return whole(file, data)

        return disturbed

    def install(self) -> None:
        """In a child process, which ends with it."""
        for name in ("replace", "fsync", "link", "mkdir", "truncate", "unlink", "rmdir", "open"):
            setattr(os, name, self.call(getattr(os, name)))
        plain = self.write(io.FileIO.write)

        class File(io.FileIO):
            def write(file, data: Any) -> int:
                return plain(file, data)

        # Below what `atomic` makes of it, where the system would answer.
        atomic._Raw.__bases__ = (File,)


def in_child(action: Callable[[], None], folder: Path) -> int:
    """How a child ended: FINISHED, with a SENTENCE, with a TRACEBACK (which is kept), or killed
    (negative).
    """
    child = os.fork()
    if child == 0:
        status = TRACEBACK
        try:
            faulthandler.enable()
            silence = os.open(os.devnull, os.O_WRONLY)
            os.dup2(silence, 1)
            action()
            status = FINISHED
        except Exception as error:
            sentence = cli.is_input_error(error) or isinstance(error, TrainingFailed)
            status = SENTENCE if sentence else TRACEBACK
            # Below the disturbance: this is the test's own file.
            with io.FileIO(folder / "said", "w") as said:
                io.FileIO.write(said, traceback.format_exc().encode())
        finally:
            os._exit(status)
    try:
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    except BaseException:
        # It hangs. The child says where before it ends.
        os.kill(child, signal.SIGABRT)
        os.waitpid(child, 0)
        raise


def run(out: Path, overwrite: bool = False, seed: int = 0) -> None:
    config = tiny.tiny_config(out, epochs=2, checkpoint__steps=2, ensemble=1, seed=seed)
    train(config, resume=False if overwrite else "auto", overwrite=overwrite, quiet=True)


@dataclass(frozen=True)
class Runs:
    """whole: an undisturbed run. old: another, for a run that overwrites it."""

    folder: Path
    whole: Path
    old: Path
    calls: int
    operations: int


def prepare(folder: Path) -> Runs:
    tiny.use_few_images()
    whole, old = folder / "whole", folder / "old"

    def counted() -> None:
        disturbance = Disturbance()
        disturbance.install()
        with Counter() as counter:
            run(whole)
        (folder / "counts").write_text(f"{disturbance.calls} {counter.count}")

    for action in (counted, lambda: run(old, seed=5)):
        status = in_child(action, folder)
        assert status == FINISHED, (folder / "said").read_text() if (folder / "said").exists() else status
    calls, operations = map(int, (folder / "counts").read_text().split())
    return Runs(folder, whole, old, calls, operations)


def attempt_failing_disk(runs: Runs, draw: st.DataObject) -> None:
    overwrite = draw.draw(st.integers(0, 3)) == 0
    first = draw.draw(st.integers(1, runs.calls + (40 if overwrite else 0)))
    how = draw.draw(st.sampled_from(["error", "error", "short"]))
    length = draw.draw(st.sampled_from([1, 1, 3, 10**9]))
    disturbance = Disturbance(first, length, how, draw.draw(st.sampled_from(ERRORS)))
    disturbed_run(runs, disturbance.install, overwrite, (FINISHED, SENTENCE))


def attempt_kill(runs: Runs, draw: st.DataObject) -> None:
    overwrite = draw.draw(st.integers(0, 3)) == 0
    if draw.draw(st.booleans()):
        number = draw.draw(st.integers(1, runs.operations))
        disturb: Callable[[], Any] = Counter(number).__enter__
    else:
        first = draw.draw(st.integers(1, runs.calls + (40 if overwrite else 0)))
        disturb = Disturbance(first, 1, draw.draw(st.sampled_from(["kill", "kill after", "half"]))).install
    # FINISHED: a run that overwrites makes other calls, the last ones may never come.
    disturbed_run(runs, disturb, overwrite, (FINISHED, -signal.SIGKILL))


def disturbed_run(runs: Runs, disturb: Callable[[], Any], overwrite: bool, allowed: tuple[int, ...]) -> None:
    out = runs.folder / "out"
    shutil.rmtree(out, ignore_errors=True)
    if overwrite:
        shutil.copytree(runs.old, out, symlinks=True)

    def disturbed() -> None:
        disturb()
        run(out, overwrite)

    status = in_child(disturbed, runs.folder)
    assert status in allowed, f"ended with {status}: {_said(runs)}"
    check_continued(runs, out, overwrite)


def check_continued(runs: Runs, out: Path, overwrite: bool = False) -> None:
    """Continued without a fault, the run ends as if nothing had happened; or the old run still
    stands, whole.
    """
    status = in_child(lambda: run(out), runs.folder)
    if overwrite and status == SENTENCE and "changed configuration" in _said(runs):
        tiny.assert_same_outcome(out, runs.old)
        return
    assert status == FINISHED, f"did not continue ({status}): {_said(runs)}"
    tiny.assert_same_outcome(out, runs.whole)
    left = [path.name for path in out.rglob("*") if path.name.endswith(".tmp") or path.name == "next.pt"]
    assert not left, f"left behind: {left}"


def _said(runs: Runs) -> str:
    path = runs.folder / "said"
    return path.read_text()[-3000:] if path.exists() else "nothing"


# ---------------------------------------------------------------- a file system that is really full


def may_mount(folder: Path) -> bool:
    place = folder / "disk"
    place.mkdir(exist_ok=True)
    if os.geteuid() != 0 or not sys.platform.startswith("linux"):
        return False
    if _mount("-t", MOUNTABLE, "-o", "size=64k", MOUNTABLE, str(place)) != 0:
        return False
    subprocess.run(["umount", str(place)], check=True)
    return True


def _mount(*arguments: str) -> int:
    return subprocess.run(["mount", *arguments], capture_output=True, check=False).returncode


def attempt_full_disk(runs: Runs, draw: st.DataObject) -> None:
    """A file system of so many KiB; it fills, is made larger, and the run goes on."""
    place = runs.folder / "disk"
    place.mkdir(exist_ok=True)
    size = draw.draw(st.integers(16, 4000))
    assert _mount("-t", MOUNTABLE, "-o", f"size={size}k", MOUNTABLE, str(place)) == 0
    try:
        status = in_child(lambda: run(place / "run"), runs.folder)
        assert status in (FINISHED, SENTENCE), f"{size} KiB, ended with {status}: {_said(runs)}"
        assert _mount("-o", "remount,size=64m", str(place)) == 0
        check_continued(runs, place / "run")
    finally:
        subprocess.run(["umount", "-l", str(place)], check=True)


AREAS = [
    Area("failing disk", prepare, attempt_failing_disk),
    Area("kills", prepare, attempt_kill),
]
FULL_DISK = Area("full disk", prepare, attempt_full_disk)


def process_without_threads() -> concurrent.futures.ProcessPoolExecutor:
    """Where `attack_here` is to run."""
    return concurrent.futures.ProcessPoolExecutor(1, multiprocessing.get_context("spawn"))


def attack_here(name: str, folder: Path, attempts: int, seed: int) -> Tally:
    """Attempts on the area of this name."""
    area = next(area for area in (*AREAS, FULL_DISK) if area.name == name)
    assert len(os.listdir("/proc/self/task")) == 1 or not sys.platform.startswith("linux")
    with few_embedded_images():
        return attack(area, folder, attempts, seed)
