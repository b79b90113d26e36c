"""What each process of `test_ranks.py` does, with gloo; what it found goes to a file, which the tests
read.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.utils.data import DataLoader, TensorDataset

import cfol_fast as cf
from cfol_fast.errors import InputError, TrainingFailed
from cfol_fast.sampling import ClassSampler, ExampleSampler, FixedClassSampler, IndexSampler, UniformSampler

LABELS = torch.arange(240) % 5
GLOBAL_BATCH, STEPS = 64, 8
Maker = Callable[..., IndexSampler]
SAMPLERS: dict[str, Maker] = {
    "class": lambda **o: ClassSampler(LABELS, eta=0.01, **o),
    # w passes 64 and is shifted.
    "class-fast": lambda **o: ClassSampler(LABELS, eta=1.0, gamma=0.3, **o),
    "running": lambda **o: ClassSampler(LABELS, eta=0.01, baseline="running", **o),
    "running-fast": lambda **o: ClassSampler(LABELS, eta=1.0, gamma=0.3, baseline="running", **o),
    "mean": lambda **o: ClassSampler(LABELS, eta=0.01, baseline="mean", **o),
    "reweighted": lambda **o: ClassSampler(LABELS, eta=0.01, reweight=True, **o),
    "example": lambda **o: ExampleSampler(240, eta=0.01, **o),
    "uniform": lambda **o: UniformSampler(240, **o),
    "fixed": lambda **o: FixedClassSampler(LABELS, [0.1, 0.2, 0.3, 0.2, 0.2], **o),
}


def losses(idx: Tensor) -> Tensor:
    """(B,) float32 in [0, 1], with all kinds of fractions; class 1 is hard."""
    return torch.where(LABELS[idx] == 1, 1.0, (idx * 0.37) % 1).to(torch.float32)


def trajectory(sampler: IndexSampler, n: int) -> dict[str, Any]:
    """Some steps of n examples: what was drawn, and the state after each step."""
    drawn, states = [], []
    for _ in range(STEPS):
        idx = sampler.draw(n)
        sampler.observe(idx, LABELS[idx], losses(idx), sampler.ticket())
        drawn.append(idx)
        states.append(sampler.fingerprint())
    return {"drawn": torch.stack(drawn), "states": states}


def listing(sampler: ClassSampler, n: int) -> str:
    """The paper's listing: a plain DataLoader and `batch_update`."""
    for x, y in DataLoader(TensorDataset(torch.arange(240), LABELS), batch_size=n, sampler=sampler):
        sampler.batch_update(y, 1e-3 * losses(x))
    return sampler.fingerprint()


def with_loader(sampler: IndexSampler, n: int) -> dict[str, Any]:
    seen = []
    for x, y, ticket in cf.loader(TensorDataset(torch.arange(240), LABELS), sampler, batch_size=n, lag=2):
        sampler.update(y, losses(x), p=ticket)  # type: ignore[attr-defined]
        seen.append(x)
    return {"seen": seen, "state": sampler.fingerprint()}


def message(action: Callable[[], object], *kinds: type[Exception]) -> str:
    try:
        action()
    except kinds as error:
        return str(error)
    return "nothing was said"


def work(rank: int, world_size: int, folder: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=world_size)
    place, n = {"rank": rank, "world_size": world_size}, GLOBAL_BATCH // world_size
    found: dict[str, Any] = {name: trajectory(make(**place), n) for name, make in SAMPLERS.items()}
    found["group"] = trajectory(SAMPLERS["class"](process_group=dist.group.WORLD), n)
    found["listing"] = listing(ClassSampler(LABELS, **place), 60 // world_size)
    for name in ("class", "example"):
        found[f"loader-{name}"] = with_loader(SAMPLERS[name](**place), 60 // world_size)
    found["untold"] = message(lambda: SAMPLERS["class"]().draw(4), InputError)
    found["alone"] = SAMPLERS["class"](world_size=1).draw(GLOBAL_BATCH)

    # Rank 0 has two thirds of the batch, and the last rank nothing.
    uneven = SAMPLERS["class"](**place)
    idx = torch.arange(GLOBAL_BATCH)
    p = torch.full((5,), 0.2, dtype=torch.float64)
    border = 2 * GLOBAL_BATCH // 3
    part = idx[:border] if rank == 0 else idx[border:] if rank == 1 else idx[:0]
    uneven.update(LABELS[part], losses(part), p=p)  # type: ignore[attr-defined]
    found["uneven"] = uneven.fingerprint()

    sampler = SAMPLERS["class"](**place)
    found["same"] = message(sampler.check_ranks, TrainingFailed)
    sampler.draw(8 if rank == 1 else 4)
    found["other-number"] = message(sampler.check_ranks, TrainingFailed)
    sampler = SAMPLERS["example"](**place)
    if rank == world_size - 1:
        sampler.rng[0] += 1
    found["drifted"] = message(sampler.check_ranks, TrainingFailed)
    torch.save(found, Path(folder) / f"{rank}.pt")
    dist.destroy_process_group()
