"""A process of its own that trains tiny runs in children and kills them: python -m tests.training.killed_run
FOLDER SEED.

It loads torch once and computes nothing itself, so that forking is safe. First an uninterrupted run in
FOLDER/whole, whose operations are counted. Then ten runs, each killed with SIGKILL at a seeded point and
continued: eight at a random operation of the whole run, one in the middle of a checkpoint's bytes, one
between the two renames of a checkpoint. Then, for one method of each family, an uninterrupted run and one
that is killed in its second half, where a class policy has acted.
"""

from __future__ import annotations

import os
import random
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from cfol_fast.training.loop import train
from tests.training import tiny

RUN = {"epochs": 3, "checkpoint__steps": 2, "ensemble": 2}
SHORT = {"epochs": 2, "steps_per_epoch": 2, "checkpoint__steps": 1}
# A class policy that looks at the training images, one that looks at the hold-out and has TRADES' two terms,
# a best response, and an average of the weights.
FAMILIES: dict[str, dict[str, Any]] = {
    "dafa": {"method": "dafa", **SHORT},
    "frl": {"method": "frl", **SHORT},
    "faal": {"method": "faal", **SHORT},
    "ema": {"method": "cfol-trades", "ema__decay": 0.9, **SHORT},
}


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


class Counter(TorchDispatchMode):
    """Counts the operations of a run, and dies at one of them."""

    only_watches = True

    def __init__(self, fatal: int | None = None) -> None:
        super().__init__()
        self.count, self.fatal = 0, fatal

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.count += 1
        if self.count == self.fatal:
            die()
        return func(*args, **(kwargs or {}))


def run(out: Path, settings: dict[str, Any] = RUN) -> None:
    train(tiny.tiny_config(out, **settings), resume="auto", quiet=True)


def whole(out: Path, settings: dict[str, Any] = RUN) -> int:
    """The number of the run's operations."""

    def counted() -> None:
        with Counter() as counter:
            run(out, settings)
        (out / "operations").write_text(str(counter.count))

    assert in_child(counted) == 0
    return int((out / "operations").read_text())


def until_operation(out: Path, number: int, settings: dict[str, Any] = RUN) -> None:
    with Counter(number):
        run(out, settings)


def until_half_a_checkpoint(out: Path, number: int) -> None:
    save, calls = torch.save, 0

    def half(state, file) -> None:
        nonlocal calls
        calls += 1
        if calls < number:
            return save(state, file)
        import io

        buffer = io.BytesIO()
        save(state, buffer)
        file.write(buffer.getvalue()[: len(buffer.getvalue()) // 2])
        file.flush()
        return die()

    torch.save = half
    run(out)


def until_between_renames(out: Path, number: int) -> None:
    replace, calls = os.replace, 0

    def watched(source, target) -> None:
        nonlocal calls
        replace(source, target)
        if str(target).endswith("previous.pt"):
            calls += 1
            if calls == number:
                assert not Path(source).exists()
                die()

    os.replace = watched
    run(out)


def in_child(action: Callable[[], None]) -> int:
    """The child's exit status, negative for a signal."""
    child = os.fork()
    if child == 0:
        status = 1
        try:
            action()
            status = 0
        except BaseException:
            import traceback

            traceback.print_exc()
        finally:
            sys.stdout.flush()
            os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def main() -> None:
    folder, seed = Path(sys.argv[1]), int(sys.argv[2])
    torch.set_num_threads(1)
    tiny.use_few_images()
    operations = whole(folder / "whole")
    draw = random.Random(seed)
    deaths: list[tuple[str, Callable[[Path], None]]] = []
    for _ in range(8):
        number = draw.randrange(1, operations)
        deaths.append((f"operation {number}", lambda out, number=number: until_operation(out, number)))
    half, renames = draw.randrange(2, 6), draw.randrange(1, 4)
    deaths.append((f"half of checkpoint {half}", lambda out: until_half_a_checkpoint(out, half)))
    deaths.append((f"renames of checkpoint {renames}", lambda out: until_between_renames(out, renames)))
    for index, (name, action) in enumerate(deaths):
        out = folder / f"killed-{index}"
        assert in_child(lambda action=action, out=out: action(out)) == -signal.SIGKILL, (
            f"{name}: was not killed"
        )
        assert not (out / "result.json").exists() or index < 8, name
        status = in_child(lambda out=out: run(out))
        assert status == 0, f"{name}: did not continue"
        print(f"{out.name}: {name}")
    for name, settings in FAMILIES.items():
        operations = whole(folder / f"{name}-whole", settings)
        number, out = draw.randrange(operations // 2, operations), folder / f"{name}-killed"
        status = in_child(
            lambda out=out, number=number, settings=settings: until_operation(out, number, settings)
        )
        assert status == -signal.SIGKILL, f"{name}: was not killed at operation {number}"
        assert in_child(lambda out=out, settings=settings: run(out, settings)) == 0, (
            f"{name}: did not continue"
        )
        print(f"{out.name}: operation {number}")


if __name__ == "__main__":
    main()
