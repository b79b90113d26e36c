"""Carrying out runs: one after another in this process, or several at a time in processes of their own, one
per GPU.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path

import torch

from cfol_fast import out_of_memory
from cfol_fast.errors import InputError, Stopped, TrainingFailed
from cfol_fast.machine import why_no_cuda
from cfol_fast.progress import printed
from cfol_fast.recipes.planning import Job
from cfol_fast.runs import offset_file
from cfol_fast.runs.config import TrainConfig, to_dict
from cfol_fast.runs.run_folder import RESULT
from cfol_fast.training import train
from cfol_fast.training.offsets import fit_offsets
from cfol_fast.training.signals import StopRequest

logger = logging.getLogger(__name__)
POLL_SECONDS = 0.2
# With -m the log would begin with Python's warning that the package has imported this module already.
WORKER = "import sys; from cfol_fast.recipes import runner; sys.exit(runner.main())"


def workers(parallel: int | None, device: str = "auto") -> list[dict[str, str]]:
    """The environment of each worker process; empty for "in this process".

    `parallel` 0: as many as there are GPUs or else cores.
    """
    if parallel is None:
        return []
    if parallel < 0:
        raise InputError(f"--parallel takes the number of runs at a time, got {parallel}")
    gpus = 0 if device == "cpu" or why_no_cuda() else torch.cuda.device_count()
    if gpus == 0:
        cores = len(os.sched_getaffinity(0))
        # A small network gains less from a second thread than from a second run.
        count = parallel or cores
        return [{"OMP_NUM_THREADS": str(max(1, cores // count))} for _ in range(count)]
    count = parallel or gpus
    if count > gpus:
        raise InputError(f"--parallel {parallel}: this machine has {gpus} GPU(s), and each takes one run")
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", ",".join(map(str, range(gpus)))).split(",")
    return [{"CUDA_VISIBLE_DEVICES": visible[i].strip()} for i in range(count)]


def run_all(
    jobs: Sequence[Job],
    out: Path,
    environments: Sequence[dict[str, str]],
    force: bool,
    quiet: bool,
    offsets: bool = False,
) -> None:
    """Trains every job that has no result yet; a run that was interrupted continues. offsets: and fits class
    offsets on each.
    """
    todo = [job for job in jobs if not _done(job.folder(out), offsets)]
    if not todo:
        return
    (out / "runs").mkdir(parents=True, exist_ok=True)
    if environments:
        _in_processes(todo, out, list(environments), force, offsets)
        return
    for i, job in enumerate(todo):
        logger.info(f"run {i + 1} of {len(todo)}: {job.name}")
        carry_out(job, out, force, quiet, offsets)


def _done(folder: Path, offsets: bool) -> bool:
    return (folder / RESULT).exists() and (not offsets or offset_file.has_rules(folder))


def carry_out(job: Job, out: Path, force: bool = False, quiet: bool = False, offsets: bool = False) -> None:
    """One run in this process, continued where its folder stands."""
    _carry_out(_placed(job, out), force, quiet, offsets)


def _placed(job: Job, out: Path) -> TrainConfig:
    """The run's configuration with its folder."""
    return job.config.with_settled({"out": str(job.folder(out))})


def _carry_out(config: TrainConfig, force: bool, quiet: bool, offsets: bool) -> None:
    train(config, resume="auto", force=force, quiet=quiet)
    folder = Path(config.out)
    if not _done(folder, offsets):
        with printed(quiet=True):
            fit_offsets(folder, device=config.device)


def _in_processes(
    todo: list[Job], out: Path, free: list[dict[str, str]], force: bool, offsets: bool = False
) -> None:
    """Each worker takes the next run as soon as it is free.

    A failed run stops new ones; those under way are finished.
    """
    running: list[tuple[subprocess.Popen[bytes], Job, dict[str, str]]] = []
    failed: list[str] = []
    waiting = list(todo)
    with StopRequest() as stop:
        try:
            while waiting or running:
                if stop.requested:
                    raise Stopped(
                        stop.signal_number or 0,
                        "stopped; the runs under way have saved, and the same command continues",
                    )
                while waiting and free and not failed:
                    job, place = waiting.pop(0), free.pop(0)
                    log = out / "runs" / f"{job.name}.log"
                    process = _start(_placed(job, out), place, log, force, offsets)
                    running.append((process, job, place))
                    logger.info(f"started {job.name} ({', '.join(f'{k}={v}' for k, v in place.items())})")
                if failed:
                    waiting.clear()
                time.sleep(POLL_SECONDS)
                for item in list(running):
                    process, job, place = item
                    if process.poll() is None:
                        continue
                    running.remove(item)
                    process.communicate()
                    free.append(place)
                    if process.returncode == 0:
                        logger.info(f"finished {job.name}")
                    else:
                        failed.append(job.name)
                        how = (
                            "was killed, perhaps by the system for lack of memory (--parallel 1 takes less)"
                            if process.returncode == -signal.SIGKILL
                            else f"ended with status {process.returncode}"
                        )
                        logger.error(f"{job.name} {how}: {_last_line(out / 'runs' / f'{job.name}.log')}")
        finally:
            _stop([process for process, _, _ in running])
    if failed:
        raise TrainingFailed(
            f"{len(failed)} run(s) failed: {', '.join(failed)}; their logs are in {out / 'runs'}"
        )


def _start(
    config: TrainConfig, place: dict[str, str], log: Path, force: bool, offsets: bool = False
) -> subprocess.Popen[bytes]:
    """A worker.

    It gets its order through a pipe that stays open: when this process dies, however it dies, the worker
    notices.
    """
    with log.open("ab") as file:
        process = subprocess.Popen(
            [sys.executable, "-c", WORKER],
            env={**os.environ, **place},
            stdin=subprocess.PIPE,
            stdout=file,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    assert process.stdin is not None
    # A worker that died at once is seen by its exit status.
    with contextlib.suppress(BrokenPipeError):
        order = {"config": to_dict(config), "force": force, "offsets": offsets}
        process.stdin.write(json.dumps(order).encode() + b"\n")
        process.stdin.flush()
    return process


def _stop(processes: Sequence[subprocess.Popen[bytes]]) -> None:
    """Asks the runs to finish their step and save, and waits for them."""
    for process in processes:
        process.send_signal(signal.SIGTERM)
    for process in processes:
        process.communicate()


def _last_line(log: Path) -> str:
    lines = [line for line in log.read_text(encoding="utf-8", errors="replace").splitlines() if line.strip()]
    return lines[-1] if lines else "no message"


def _stop_with_parent() -> None:
    """Stops this worker as SIGTERM does, saved, when the pipe from the process that started it closes."""
    while os.read(sys.stdin.fileno(), 1):
        pass
    os.kill(os.getpid(), signal.SIGTERM)


def main() -> int:
    """A worker: its order comes on standard input. A bug of ours leaves its traceback in the log."""
    order = json.loads(sys.stdin.buffer.readline())
    threading.Thread(target=_stop_with_parent, daemon=True).start()
    with printed():
        try:
            _carry_out(TrainConfig(order["config"]), order["force"], False, order["offsets"])
        except Stopped as stopped:
            logger.error(str(stopped))
            return 128 + stopped.signal_number
        except (InputError, TrainingFailed) as error:
            logger.error(str(error))
            return 1
        except Exception as error:
            if (lack := out_of_memory.sentence(error, "reproduce")) is None:
                raise
            logger.error(lack)
            return 1
    return 0
