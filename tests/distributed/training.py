"""What each process of `test_training.py` does, with gloo: four are started once, and are a job of four, then
two a job of two.

Several jobs follow each other in one process, since most of a process's time is its import of torch.
"""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from cfol_fast import processes
from cfol_fast.errors import Stopped, TrainingFailed
from cfol_fast.frozen.autotune import Choices, using
from cfol_fast.methods import METHODS
from cfol_fast.progress import Stopwatch
from cfol_fast.runs.config import TrainConfig
from cfol_fast.training import train, trainer
from cfol_fast.training.evaluations import Evaluations
from cfol_fast.training.step import Step
from tests.distributed.networks import DROPOUT, SKIPPING, UNUSED
from tests.training import tiny

# Of all shards; from one state, one step.
ONE_STEP: dict[str, tuple[str, dict[str, Any]]] = {
    **{name: (name, {}) for name in ("cfol", "lcvar", "frl")},
    "skipping": ("cfol", {"model__name": SKIPPING}),
}
SHORT: dict[str, Any] = {"epochs": 2, "steps_per_epoch": 2, "attack__steps": 1, "test__steps": 1}
VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    **{name: (name, {}) for name in METHODS},
    "perturbed": ("frl", {"awp": 0.05}),
    "members": ("cfol", {"ensemble": 2}),
    "averaged": ("cfol", {"ema__decay": 0.5}),
    "n-fgsm": ("cfol", {"attack__kind": "n-fgsm"}),
    "unused": ("lcvar", {"model__name": UNUSED}),
    "skipping": ("cfol", {"model__name": SKIPPING}),
}


def run_settings(variant: str) -> tuple[str, dict[str, Any]]:
    method, settings = VARIANTS[variant]
    return method, {**SHORT, "shards": 2, "model__name": DROPOUT, **settings}


def work(rank: int, folder: str) -> None:
    torch.set_num_threads(1)
    tiny.use_few_images()
    out = Path(folder)
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "MASTER_ADDR": "localhost"}
    job(4, out)
    one_step_each(out / "4")
    leave()
    if rank >= 2:
        return
    job(2, out)
    one_step_each(out / "2")
    for variant in VARIANTS:
        method, settings = run_settings(variant)
        tiny.run(out / variant, method, **settings)
    found = {
        "drifted": message(lambda: drifting(out / "drifted", rank), TrainingFailed),
        "stopped": message(lambda: signalled(out / "stopped", rank, "learning_rate"), Stopped),
        "validated": message(lambda: signalled(out / "validated", rank, "holdout_attack"), Stopped),
    }
    continued = train(
        tiny.tiny_config(out / "four-to-two", **{**SHORT, "shards": 4}), resume="auto", quiet=True
    )
    found["result"] = continued.result
    found["again"] = tiny.run(
        out / "erm", *run_settings("erm")[:1], resume=True, **run_settings("erm")[1]
    ).result
    one_clock(out / "one-clock", rank)
    found["choices"] = racing(out / "raced", rank)
    method, settings = run_settings("cfol")
    for overwrite in (False, True):
        # The second takes the place of the first.
        config = tiny.tiny_config(out / "overwritten", method, **settings, seed=3 - 3 * overwrite)
        train(config, overwrite=overwrite, quiet=True)
    found["lost"] = message(lambda: hanging(out / "lost", rank), processes.RankLost)
    (out / f"found-{rank}.json").write_text(json.dumps(found))


def job(size: int, folder: Path) -> None:
    """Joins a job of so many processes."""
    os.environ |= {"WORLD_SIZE": str(size), "MASTER_PORT": (folder / f"port-{size}").read_text()}
    joined.append(processes.joined("cpu"))
    joined[-1].__enter__()


def leave() -> None:
    joined.pop().__exit__(None, None, None)


joined: list[Any] = []


def one_step_each(folder: Path) -> None:
    """Weights, indices, pixels and attack starts of one step in four shards; each process keeps what
    it saw.
    """
    for variant in ONE_STEP:
        rank, size = processes.ranks().rank, processes.ranks().size
        torch.save(one_step(variant), folder.parent / f"step-{variant}-{rank}-of-{size}.pt")


def one_step(variant: str) -> dict[str, Tensor]:
    method, settings = ONE_STEP[variant]
    made = tiny.new_trainer("unused", method, shards=4, attack__steps=1, **settings)
    start, starts = made.step.attack.start, []
    made.step.attack.start = lambda x, eps, slots=None: (
        starts.append(start(x, eps, slots)) or starts[-1].clone()
    )  # type: ignore[method-assign]
    batch = next(made.state.batches.feed(1))
    made.take_step(iter([batch]))
    seen = {"indices": batch.indices, "pixels": batch.x, "starts": torch.cat(starts)}
    return {**seen, **{f"model {name}": tensor for name, tensor in made.step.model.state_dict().items()}}


def message(action: Callable[[], Any], kind: type[Exception]) -> str:
    try:
        action()
    except kind as error:
        return str(error)
    return "nothing was said"


class LastWins(Choices):
    """A race in which the last way wins, on the first rank; the second has no business there."""

    rank = 0

    def _race(self, layer: str, names: Sequence[str], run: Callable[[str], object]) -> str:
        assert self.rank == 0
        return names[-1]


def racing(out: Path, rank: int) -> dict[str, str]:
    """What a run chose whose ranks would race."""
    with using(LastWins("race")) as chosen:
        chosen.rank = rank
        tiny.run(out, "cfol", **SHORT, shards=2)
    return chosen.chosen


def drifting(out: Path, rank: int) -> None:
    """A run in which the second rank's sampler learns something of its own."""
    original = Step.__call__

    def step(self: Step, batches: Any) -> None:
        original(self, batches)
        if rank == 1:
            self.sampler.w += 1e-9

    Step.__call__ = step  # type: ignore[method-assign]
    try:
        tiny.run(out, "cfol", shards=2)
    finally:
        Step.__call__ = original  # type: ignore[method-assign]


def signalled(out: Path, rank: int, place: str) -> None:
    """A run whose second rank gets a signal: in its second step, or in its first validation."""
    owner: Any = trainer if place == "learning_rate" else Evaluations
    original, calls = getattr(owner, place), []

    def counting(*args: Any) -> Any:
        calls.append(1)
        if rank == 1 and len(calls) == (2 if place == "learning_rate" else 1):
            os.kill(os.getpid(), signal.SIGTERM)
        return original(*args)

    setattr(owner, place, counting)
    try:
        tiny.run(out, "dafa", shards=2)
    finally:
        setattr(owner, place, original)


def one_clock(out: Path, rank: int) -> None:
    """A run that saves by the clock, and the second rank's clock stands still."""
    original = Stopwatch.seconds
    if rank == 1:
        Stopwatch.seconds = property(lambda self: 0.0)  # type: ignore[assignment, method-assign]
    try:
        method, settings = run_settings("cfol")
        tiny.run(out, method, **settings, checkpoint__seconds=1e-9)
    finally:
        Stopwatch.seconds = original  # type: ignore[method-assign]


def hanging(out: Path, rank: int) -> None:
    """A run whose second rank answers no more in its second step; the first has two seconds of patience."""
    leave()
    config: TrainConfig = tiny.tiny_config(out, shards=2)
    os.environ["MASTER_PORT"] = (out.parent / "port-patience").read_text()
    original, calls = trainer.learning_rate, []

    def waiting(*args: Any) -> float:
        calls.append(1)
        if rank == 1 and len(calls) == 2:
            signal.sigwait({signal.SIGUSR1})
            raise processes.RankLost("woken")
        return original(*args)

    trainer.learning_rate = waiting  # type: ignore[assignment]
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})
    (out.parent / f"pid-{rank}").write_text(str(os.getpid()))
    try:
        train(config, quiet=True, patience=2)
    finally:
        if rank == 0:
            os.kill(int((out.parent / "pid-1").read_text()), signal.SIGUSR1)
