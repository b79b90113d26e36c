"""A worker of torchrun that trains a tiny run: `python -m torch.distributed.run ... -m
tests.distributed.torchrun_worker OUT [STEP]`.

STEP: the last rank of the first start is killed at the beginning of this step, counted from 1, as by a
machine that fails.

At its end a worker says which threads of its process group still live: one that meets the interpreter's end
aborts the process.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import torch

from cfol_fast.commands import main as cli
from cfol_fast.training import trainer
from tests.training import tiny

TINY = ["--epochs=2", "--batch-size=16", "--model=demo-cnn@0.25", "--device=cpu", "--quiet", "--patience=60"]
SETTINGS = ["steps_per_epoch=2", "attack.steps=1", "validation.steps=1", "test.steps=1"]


def words(out: str) -> list[str]:
    return ["train", "cfol", *TINY, *(f"--set={setting}" for setting in SETTINGS), f"--out={out}"]


def threads_of_the_group() -> list[str]:
    names = [file.read_text().strip() for file in Path("/proc/self/task").glob("*/comm")]
    return [name for name in names if "gloo" in name]


if __name__ == "__main__":
    out, *step = sys.argv[1:]
    torch.set_num_threads(1)
    tiny.use_few_images()
    last = int(os.environ["RANK"]) == int(os.environ["WORLD_SIZE"]) - 1
    if step and last and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
        original, calls = trainer.learning_rate, []

        def killed(*args):  # type: ignore[no-untyped-def]
            calls.append(1)
            if len(calls) == int(step[0]):
                os.kill(os.getpid(), signal.SIGKILL)
            return original(*args)

        trainer.learning_rate = killed
    status = cli.main([*words(out), "--resume=auto"])
    print(f"threads of the group: {threads_of_the_group()}", file=sys.stderr, flush=True)
    sys.exit(status)
