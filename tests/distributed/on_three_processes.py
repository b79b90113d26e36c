"""What each process of `test_three_processes.py` does, with gloo, and what one process does beside it: the
same calls.

Three processes are started once: the first two of them are a group of their own, which is the case of an even
division.
"""

from __future__ import annotations

import json
import random
import shutil
import warnings
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset

import cfol_fast as cf
from cfol_fast import attacks, evaluation, objectives
from cfol_fast.errors import InputError, Stopped, TrainingFailed
from cfol_fast.evaluation import AutoAttack, check_gradients, evaluate, evaluate_radii
from cfol_fast.progress import Progress
from cfol_fast.ranks import Ranks
from cfol_fast.runs.config import TrainConfig
from cfol_fast.training.evaluations import Evaluations
from cfol_fast.training.holdout import HoldOut
from tests.attacks.small_models import EPS, SmallNet, Trained, images
from tests.evaluation.test_autoattack import FAST, shorten

# Four batches: for two ranks two rounds, for three one and a rest.
N, BATCH = 26, 8
SIZES = (2, 3)


def work(rank: int, world_size: int, folder: str) -> None:
    torch.set_num_threads(1)
    shorten_autoattack()
    # Programs seed their ranks differently.
    torch.manual_seed(rank)
    np.random.seed(rank)
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=world_size)
    for size in SIZES:
        # Every process takes part in making a group.
        group = dist.new_group(list(range(size)))
        if rank < size:
            found = everything(trained_in(folder), Path(folder) / str(size), Ranks(process_group=group))
            found["own loop"] = own_loop(rank, size, group)
            (Path(folder) / f"{size}-{rank}.json").write_text(json.dumps(found))
    dist.destroy_process_group()


def everything(trained: Trained, folder: Path, ranks: Ranks | None = None) -> dict[str, Any]:
    """All evaluations, by name. The folder is this number of ranks' own."""
    model, x, y = trained
    rank = 0 if ranks is None else ranks.rank
    options: dict[str, Any] = {"batch_size": BATCH, "ranks": ranks}
    pgd = attacks.PGD(model, EPS, steps=3, restarts=2, seed=3)
    told: list[tuple[int, int]] = []
    # Nothing but its random start: what the model says to it depends on the noise.
    start = {"eps": 0.5, "step": 0.0, "steps": 1}
    both = [pgd, start]
    found = {
        "pgd": evaluate(*trained, attack=both, progress=lambda *at: told.append(at), **options).to_json(),
        "told": told,
        "random state": pgd.rng.tolist(),
        "again": evaluate(*trained, attack=[pgd, pgd], **options).to_json(),
        "active set": evaluate(*trained, attack=pgd, active_set=True, **options).to_json(),
        "clean": evaluate(*trained, **options).to_json(),
        "few": evaluate(model, x[:3], y[:3], attack=pgd, **options).to_json(),
        "foreign": evaluate(*trained, attack=noise, **options).to_json(),
        "warned": warned(trained, options),
    }
    radii = {"radii": [0, 0.01, EPS], "attack": {"steps": 2}}
    own_batches = DataLoader(TensorDataset(x, y), batch_size=7)
    found["loader"] = evaluate_radii(model, own_batches, **radii, ranks=ranks).to_json()
    found["data set"] = evaluate_radii(model, TensorDataset(x, y), **radii, **options).to_json()
    checks = check_gradients(model, TensorDataset(x, y), attack={"eps": EPS, "steps": 2}, **options)
    found["sanity"] = [check.to_json() for check in checks]
    found |= autoattack(trained, folder, ranks, options)
    found["hold-out losses"] = losses_on_the_holdout(trained, ranks or Ranks(0, 1))
    if ranks is not None:
        found["errors"] = errors(trained, rank, options)
    return found


def autoattack(trained: Trained, folder: Path, ranks: Ranks | None, options: dict) -> dict[str, Any]:
    """One that is stopped after its first round and goes on; and one that goes on from what one process had
    left.
    """
    model, _, y = trained
    folder.mkdir(exist_ok=True)
    state, of_one = folder / "state.json", folder / "of-one.json"
    parts = {"kind": "autoattack", "eps": EPS, "attacks": FAST}

    def stop(done: int, total: int) -> None:
        if done > len(y):
            raise Stopped(15, "after the first round")

    before = [attacks.NoAttack(model), {**parts, "state": state}]
    found: dict[str, Any] = {
        "stopped": message(lambda: evaluate(*trained, attack=before, progress=stop, **options), Stopped),
        "stopped at": json.loads(state.read_text())["batch"],
    }
    if ranks is None:
        for size in SIZES:
            (folder.parent / str(size)).mkdir()
            shutil.copy(state, folder.parent / str(size) / of_one.name)
    found["autoattack"] = evaluate(*trained, attack={**parts, "state": state}, **options).to_json()
    if ranks is not None:
        attack = {**parts, "state": of_one}
        found["continued from one process"] = evaluate(*trained, attack=attack, **options).to_json()
    return found


def losses_on_the_holdout(trained: Trained, ranks: Ranks) -> list[str]:
    config = TrainConfig(
        test={"batch_size": BATCH}, attack={"kind": "trades", "eps": EPS, "steps": 2}, shards=1
    )
    source = evaluation.TensorSource(trained.x, trained.y, [str(c) for c in range(10)])
    images: Any = SimpleNamespace(classes=source.classes)
    evaluations = Evaluations(config, images, torch.device("cpu"), ranks, Progress(quiet=True), lambda: None)
    per_class, mean = HoldOut(evaluations, source, "holdout").losses(trained.model, objectives.Trades())
    # As text: a class without images has NaN, which is not equal to itself.
    return [repr(loss) for loss in (*per_class.tolist(), mean)]


def own_loop(rank: int = 0, size: int = 1, group: Any = None) -> dict[str, Any]:
    """A plain loop, under DDP where there are several processes: of both bandits what was drawn, and w at the
    end.
    """
    x, y = images(240, seed=1)
    x = x.double().flatten(1)
    place = {} if group is None else {"process_group": group}
    found: dict[str, Any] = {}
    for name in ("class", "example"):
        model: nn.Module = nn.Linear(300, 10, dtype=torch.float64)
        nn.init.zeros_(model.weight)
        nn.init.zeros_(model.bias)
        if group is not None:
            model = DistributedDataParallel(model, process_group=group)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        sampler: Any = (
            cf.ClassSampler(y, eta=0.01, **place)
            if name == "class"
            else cf.ExampleSampler(240, eta=0.01, **place)
        )
        drawn, errors = [], 0
        for _ in range(5):
            idx = sampler.draw(24 // size)
            logits = model(x[idx])
            optimizer.zero_grad()
            F.cross_entropy(logits, y[idx]).backward()
            optimizer.step()
            wrong = (logits.argmax(1) != y[idx]).float()
            sampler.update(y[idx] if name == "class" else idx, wrong)
            drawn.append(idx.tolist())
            errors += int(wrong.sum())
        found[name] = {"drawn": drawn, "state": sampler.fingerprint(), "wrong": errors}
    return found


def noise(x: Tensor, y: Tensor) -> Tensor:
    """An attack of another library, which draws from everybody's generators: torch's, numpy's and
    Python's.
    """
    drawn = torch.randn(x.shape) + torch.from_numpy(np.random.standard_normal(x.shape)) + random.gauss()
    return (x + 9 * EPS * drawn).clamp(0, 1).float()


noise.per_example = True  # type: ignore[attr-defined]


class OwnNoise:
    """One that draws from a generator of its own."""

    def __init__(self) -> None:
        self.generator = torch.Generator().manual_seed(0)

    def __call__(self, x: Tensor, y: Tensor) -> Tensor:
        return (x + 16 * EPS * torch.randn(x.shape, generator=self.generator)).clamp(0, 1)


def warned(trained: Trained, options: dict) -> list[str]:
    """What is said of both."""
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        evaluate(*trained, attack=[noise, OwnNoise()], **options)
    return [str(warning.message) for warning in said]


def errors(trained: Trained, rank: int, options: dict) -> dict[str, str]:
    """What is said on this rank when only rank 1 has something to say."""
    model, x, y = trained
    bright = x.clone()
    bright[BATCH] = 2.0
    other = SmallNet()
    other.load_state_dict(model.state_dict())
    if rank == 1:
        other.linear.bias.data[0] += 1e-6

    def impatient(done: int, total: int) -> None:
        if rank == 1:
            raise Stopped(15, "stopped on rank 1")

    def broken(x: Tensor, y: Tensor) -> Tensor:
        if rank == 1:
            raise KeyError("a bug")
        return x

    broken.per_example = True  # type: ignore[attr-defined]
    turned = y.flip(0) if rank == 1 else y
    return {
        "pixels": message(lambda: evaluate(model, bright, y, **options), InputError),
        "weights": message(lambda: evaluate(other.eval(), x, y, **options), InputError),
        "examples": message(lambda: evaluate(model, x, turned, **options), InputError),
        "stop": message(lambda: evaluate(*trained, progress=impatient, **options), Stopped),
        "bug": message(lambda: evaluate(*trained, attack=broken, **options), TrainingFailed, KeyError),
        "after it": str(evaluate(*trained, **options).clean.average),
    }


def message(action: Callable[[], object], *kinds: type[Exception]) -> str:
    try:
        action()
    except kinds as error:
        return f"{type(error).__name__}: {error}"
    return "nothing was said"


def trained_in(folder: str) -> Trained:
    """The model and images that the test has put there."""
    stored = torch.load(Path(folder) / "trained.pt", weights_only=True)
    model = SmallNet()
    model.load_state_dict(stored["model"])
    return Trained(model.eval(), stored["x"], stored["y"])


def shorten_autoattack(setattr: Callable[..., None] = setattr) -> None:
    original = AutoAttack._adversary
    setattr(AutoAttack, "_adversary", lambda self, *a: shorten(original(self, *a)))
