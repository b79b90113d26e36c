"""Carrying out runs: one after another in this process, or several at a time in processes of their own, one per GPU."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import torch

from cfol_fast import atomic
from cfol_fast.errors import InputError, Stopped, TrainingFailed
from cfol_fast.recipes.planning import Job
from cfol_fast.runs.config import from_dict, to_dict
from cfol_fast.runs.json_files import read_object
from cfol_fast.training import train
from cfol_fast.training.signals import StopRequest

Say = Callable[[str], None]
POLL_SECONDS = 0.2


def workers(parallel: int | None, device: str = "auto") -> list[dict[str, str]]:
    """The environment of each worker process; empty for "in this process". `parallel` 0: as many as there are GPUs."""
    if parallel is None:
        return []
    if parallel < 0:
        raise InputError(f"--parallel takes the number of runs at a time, got {parallel}")
    gpus = 0 if device == "cpu" else torch.cuda.device_count()
    if gpus == 0:
        if parallel == 0:
            raise InputError(
                "--parallel runs one run per GPU and this machine has none; --parallel 2 runs two on the CPU"
            )
        share = max(1, torch.get_num_threads() // parallel)
        return [{"OMP_NUM_THREADS": str(share)} for _ in range(parallel)]
    count = parallel or gpus
    if count > gpus:
        raise InputError(f"--parallel {parallel}: this machine has {gpus} GPU(s), and each takes one run")
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", ",".join(map(str, range(gpus)))).split(",")
    return [{"CUDA_VISIBLE_DEVICES": visible[i].strip()} for i in range(count)]


def run_all(
    jobs: Sequence[Job], out: Path, environments: Sequence[dict[str, str]], force: bool, quiet: bool, say: Say
) -> None:
    """Trains every job that has no result yet; a run that was interrupted continues."""
    todo = [job for job in jobs if not job.finished(out)]
    if not todo:
        return
    (out / "runs").mkdir(parents=True, exist_ok=True)
    if environments:
        _in_processes(todo, out, list(environments), force, say)
        return
    for i, job in enumerate(todo):
        say(f"run {i + 1} of {len(todo)}: {job.name}")
        carry_out(job, out, force, quiet)


def carry_out(job: Job, out: Path, force: bool = False, quiet: bool = False) -> None:
    """One run in this process, continued where its folder stands."""
    job.config.out = str(job.folder(out))
    train(job.config, resume=True, force=force, quiet=quiet)


def _in_processes(todo: list[Job], out: Path, free: list[dict[str, str]], force: bool, say: Say) -> None:
    """Each worker takes the next run as soon as it is free. A failed run stops new ones; those under way are finished."""
    running: list[tuple[subprocess.Popen[bytes], Job, dict[str, str]]] = []
    failed: list[str] = []
    waiting = list(todo)
    with tempfile.TemporaryDirectory(prefix="cfol-runs-") as scratch, StopRequest() as stop:
        try:
            while waiting or running:
                if stop.requested:
                    raise Stopped(
                        stop.signal_number or 0,
                        "stopped; the runs under way have saved, and the same command continues",
                    )
                while waiting and free and not failed:
                    job, place = waiting.pop(0), free.pop(0)
                    job.config.out = str(job.folder(out))
                    order = Path(scratch) / f"{job.name}.json"
                    atomic.write_json(order, {"config": to_dict(job.config), "force": force})
                    log = (out / "runs" / f"{job.name}.log").open("ab")
                    command = [sys.executable, "-m", "cfol_fast.recipes.runner", str(order)]
                    process = subprocess.Popen(
                        command,
                        env={**os.environ, **place},
                        stdout=log,
                        stderr=subprocess.STDOUT,
                        start_new_session=True,
                    )
                    log.close()
                    running.append((process, job, place))
                    say(f"started {job.name} ({', '.join(f'{k}={v}' for k, v in place.items())})")
                if failed:
                    waiting.clear()
                time.sleep(POLL_SECONDS)
                for item in list(running):
                    process, job, place = item
                    if process.poll() is None:
                        continue
                    running.remove(item)
                    free.append(place)
                    if process.returncode == 0:
                        say(f"finished {job.name}")
                    else:
                        failed.append(job.name)
                        say(
                            f"{job.name} ended with status {process.returncode}: {_last_line(out / 'runs' / f'{job.name}.log')}"
                        )
        finally:
            _stop([process for process, _, _ in running])
    if failed:
        raise TrainingFailed(
            f"{len(failed)} run(s) failed: {', '.join(failed)}; their logs are in {out / 'runs'}"
        )


def _stop(processes: Sequence[subprocess.Popen[bytes]]) -> None:
    """Asks the runs to finish their step and save, and waits for them."""
    for process in processes:
        process.send_signal(signal.SIGTERM)
    for process in processes:
        process.wait()


def _last_line(log: Path) -> str:
    lines = [line for line in log.read_text(encoding="utf-8", errors="replace").splitlines() if line.strip()]
    return lines[-1] if lines else "no message"


def main(arguments: Sequence[str]) -> int:
    """A worker: `python -m cfol_fast.recipes.runner ORDER.json`. A bug of ours leaves its traceback in the run's log."""
    order = read_object(Path(arguments[0]))
    try:
        train(from_dict(order["config"]), resume=True, force=order["force"])
    except Stopped as stopped:
        print(stopped, file=sys.stderr)
        return 128 + stopped.signal_number
    except (InputError, TrainingFailed) as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
