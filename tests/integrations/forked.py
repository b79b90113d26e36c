"""Two processes of one process group, forked from the test: the heavy imports are made once."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch.distributed as dist
from torch import multiprocessing


def _as_rank(rank: int, work: Callable[..., None], meeting: Path, size: int, args: tuple[Any, ...]) -> None:
    dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=size)
    try:
        work(rank, *args)
    finally:
        dist.destroy_process_group()


def on_two_ranks(work: Callable[..., None], folder: Path, *args: Any) -> None:
    """Calls work(rank, *args) in two processes; what it raises in one is raised here."""
    start = multiprocessing.start_processes
    start(_as_rank, (work, folder / "meeting", 2, args), nprocs=2, start_method="fork")
