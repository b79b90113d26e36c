"""Attempts on what is remembered: it meets something else than it was made from, by a change between two
calls.

It holds when the second call is refused in a sentence, or gives what a fresh process would give for what is
there now.
"""

from __future__ import annotations

import contextlib
import copy
import io
import os
import shutil
import types
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from hypothesis import strategies as st
from PIL import Image
from torch import Tensor, nn
from torch.utils.data import ConcatDataset, DataLoader, Dataset, Subset, TensorDataset

import cfol_fast as cf
from cfol_fast import data, sampling
from cfol_fast.errors import InputError
from cfol_fast.training import load, train
from tests.hostile.reading import Area
from tests.training import tiny

CLASSES, SIZE = ("ant", "bee", "cow"), 8
# Where a gradient is within rounding of 0 its sign is a matter of the order of a sum.
SHARE = 0.01


def refused(action: Callable[[], Any]) -> bool:
    try:
        action()
    except InputError:
        return True
    return False


# ---------------------------------------------------------------- a model, and the plan of its attack


class Scaled(nn.Module):
    """The habits of other people's models: numbers, lists and modules that `forward` looks at."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(1, 6, 3, padding=1), nn.BatchNorm2d(6), nn.ReLU(), nn.Conv2d(6, 6, 3, padding=1)
        )
        self.act: nn.Module = nn.ReLU()
        self.head = nn.Linear(6 * SIZE * SIZE, 3)
        self.temperature, self.flip, self.scales = 1.0, False, [1.0, 0.5]
        self.more = nn.ModuleList()
        self.register_buffer("shift", torch.zeros(6, 1, 1))

    def forward(self, x: Tensor) -> Tensor:
        h = self.act(self.body(x) + self.shift)
        h = h * self.scales[0] if not self.flip else h.flip(-1) * self.scales[1]
        for module in self.more:
            h = h + module(h)
        return self.head(h.flatten(1)) / self.temperature


def _patch_forward(model: Scaled) -> None:
    layer = model.body[0]
    original = layer.forward
    layer.forward = types.MethodType(lambda self, x: -original(x), layer)


def _subclass(model: Scaled) -> None:
    class Turned(Scaled):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(1 - x)

    model.__class__ = Turned


def _weights(model: Scaled) -> None:
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(-1)


def _new_head(model: Scaled) -> None:
    model.head = nn.Linear(6 * SIZE * SIZE, 3).double().eval()


MODEL_CHANGES: dict[str, Callable[[Scaled], Any]] = {
    "nothing": lambda model: None,
    "a number": lambda model: setattr(model, "temperature", -3.0),
    "a flag": lambda model: setattr(model, "flip", True),
    "an item of a list": lambda model: model.scales.__setitem__(0, -2.0),
    "an activation": lambda model: setattr(model, "act", nn.Tanh()),
    "another slope": lambda model: setattr(model, "act", nn.LeakyReLU(-0.5)),
    "a patched forward": _patch_forward,
    "a class": _subclass,
    "weights in place": _weights,
    "another head": _new_head,
    "one module more": lambda model: model.more.append(nn.Conv2d(6, 6, 1).double().eval()),
    "a module fewer": lambda model: model.body.__delitem__(2),
    "padding": lambda model: setattr(model.body[0], "padding_mode", "circular"),
    "stride": lambda model: (
        setattr(model.body[3], "dilation", (1, 1)) or setattr(model.body[3], "padding", (1, 1))
    ),
    "a hook": lambda model: model.body[0].register_forward_hook(lambda module, given, out: -out),
    "a hook before": lambda model: model.head.register_forward_pre_hook(lambda module, given: (-given[0],)),
    "a buffer in place": lambda model: model.shift.add_(torch.arange(6.0)[:, None, None]),
    "statistics": lambda model: model.body[1].running_mean.add_(1.0),
    "a parametrisation": lambda model: torch.nn.utils.parametrizations.weight_norm(model.head),
    "frozen weights": lambda model: model.requires_grad_(False),
}


def prepare_nothing(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def attempt_model(folder: Path, draw: st.DataObject) -> None:
    """Several changes, with an attack between any two of them; the last attack is compared with a plain one
    on a fresh model.
    """
    torch.manual_seed(draw.draw(st.integers(0, 2**16)))
    model, x, y = (
        Scaled().double().eval(),
        torch.rand(6, 1, SIZE, SIZE, dtype=torch.float64),
        torch.arange(6) % 3,
    )
    names = draw.draw(st.lists(st.sampled_from(sorted(MODEL_CHANGES)), min_size=1, max_size=3, unique=True))
    options = {"steps": 2, "random_start": False}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        attack = cf.PGD(model, 0.1, 0.03, **options)
        for _ in range(draw.draw(st.integers(1, 3))):
            attack(x, y)
        for name in names:
            with contextlib.suppress(IndexError), torch.no_grad():
                MODEL_CHANGES[name](model)
            found = attack(x, y)
        expected = cf.PGD(model, 0.1, 0.03, fast=False, **options)(x, y)
    off = ((found - expected).abs() > 1e-9).double().mean()
    assert off <= SHARE, f"{names}: {off:.1%} of the pixels differ from the plain attack's"


# ---------------------------------------------------------------- a folder of images: its run, its cache, its
# classes


def write_images(root: Path, seed: int = 0, per_class: int = 6) -> None:
    numbers = np.random.default_rng(seed)
    for part in ("train", "test"):
        for number, name in enumerate(CLASSES):
            place = root / part / name
            place.mkdir(parents=True, exist_ok=True)
            for index in range(per_class):
                pixels = numbers.integers(60 * number, 60 * number + 80, (SIZE, SIZE, 3), dtype=np.uint8)
                Image.fromarray(pixels).save(place / f"{index}.png")


def _swap_files(root: Path, part: str, index: int) -> None:
    first, second = (root / part / name / f"{index}.png" for name in CLASSES[:2])
    spare = root / "spare"
    for source, target in ((first, spare), (second, first), (spare, second)):
        os.rename(source, target)


def _other_pixels(root: Path, part: str, index: int) -> None:
    """Another image of the same size in bytes and with the old times."""
    file = root / part / CLASSES[2] / f"{index}.png"
    before, found = file.stat(), np.asarray(Image.open(file)).copy()
    Image.fromarray(found[::-1]).save(file)
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))


def _times(root: Path, part: str, index: int) -> None:
    os.utime(root / part / CLASSES[0] / f"{index}.png", (index, index))


def _copied(root: Path, part: str, index: int) -> None:
    shutil.copytree(root, root.with_name("copy"))
    shutil.rmtree(root)
    os.rename(root.with_name("copy"), root)


def _moved_file(root: Path, part: str, index: int) -> None:
    os.rename(root / part / CLASSES[0] / f"{index}.png", root / part / CLASSES[1] / f"new-{index}.png")


def _other_name(root: Path, part: str, index: int) -> None:
    os.rename(root / part / CLASSES[0] / f"{index}.png", root / part / CLASSES[0] / f"9{index}.png")


def _other_class(root: Path, part: str, index: int) -> None:
    for each in ("train", "test"):
        os.rename(root / each / CLASSES[0], root / each / "zebra")


def _classes_exchanged(root: Path, part: str, index: int) -> None:
    for each in ("train", "test"):
        first, second, spare = (root / each / name for name in (*CLASSES[:2], "spare"))
        for source, target in ((first, spare), (second, first), (spare, second)):
            os.rename(source, target)


@dataclass(frozen=True)
class Change:
    """same: a fresh process would find the same images under the same names."""

    make: Callable[[Path, str, int], None]
    same: bool = False


FOLDER_CHANGES = {
    "nothing": Change(lambda *_: None, same=True),
    "times": Change(_times, same=True),
    "a copy of the folder": Change(_copied, same=True),
    "two files exchanged": Change(_swap_files),
    "other pixels of the same size": Change(_other_pixels),
    "a file in another class": Change(_moved_file),
    "a file of another name": Change(_other_name),
    "a class of another name": Change(_other_class),
    "two classes exchanged": Change(_classes_exchanged),
}


@dataclass
class Stopped:
    """A run that was stopped after its first epoch, and the data that it began with."""

    folder: Path
    images: Path = field(init=False)
    run: Path = field(init=False)
    whole: Path = field(init=False)

    def __post_init__(self) -> None:
        self.images, self.run, self.whole = (self.folder / name for name in ("images", "run", "whole"))

    def settings(self, root: Path) -> dict[str, Any]:
        own = {"data__name": "folder", "data__root": str(root), "data__holdout": "none", "data__size": SIZE}
        return {
            **own,
            "batch_size": 6,
            "epochs": 2,
            "steps_per_epoch": 2,
            "attack__steps": 1,
            "test__steps": 1,
        }


def prepare_run(folder: Path) -> Stopped:
    subject = Stopped(folder)
    write_images(subject.images)
    with _data_as_it_is():
        tiny.run(subject.whole, "erm", **subject.settings(subject.images))
        shutil.copytree(subject.whole, subject.run)
        (subject.run / "result.json").unlink()
    return subject


@contextlib.contextmanager
def _data_as_it_is() -> Any:
    """The other areas see few of the embedded images."""
    before, data.load = data.load, data.registry.load
    try:
        yield
    finally:
        data.load = before


def _changed(subject: Stopped, draw: st.DataObject) -> tuple[str, Path]:
    """The name of the change, and a copy of the images that has it."""
    name = draw.draw(st.sampled_from(sorted(FOLDER_CHANGES)))
    place = subject.folder / "now"
    shutil.rmtree(place, ignore_errors=True)
    shutil.copytree(subject.images, place)
    FOLDER_CHANGES[name].make(
        place, draw.draw(st.sampled_from(["train", "test"])), draw.draw(st.integers(0, 5))
    )
    return name, place


def attempt_resume(subject: Stopped, draw: st.DataObject) -> None:
    name, place = _changed(subject, draw)
    run = subject.folder / "resumed"
    shutil.rmtree(run, ignore_errors=True)
    shutil.copytree(subject.run, run)
    config = tiny.tiny_config(run, "erm", **subject.settings(place))
    with _data_as_it_is(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        was_refused = refused(lambda: train(config, resume=True, quiet=True))
    assert was_refused != FOLDER_CHANGES[name].same, f"{name}: {'refused' if was_refused else 'accepted'}"
    if not was_refused:
        tiny.assert_same_outcome(run, subject.whole)


def attempt_cache(subject: Stopped, draw: st.DataObject) -> None:
    """The images are read with a cache before and after the change, which is made in their own place."""
    place, cache = subject.folder / "cached", subject.folder / "cache"
    for old in (place, cache):
        shutil.rmtree(old, ignore_errors=True)
    shutil.copytree(subject.images, place)
    cache.mkdir()

    def read(where: str) -> data.ImageData:
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            return data.registry.load("folder", root=str(place), size=SIZE, cache=where)

    read(str(cache))
    name = draw.draw(st.sampled_from(sorted(FOLDER_CHANGES)))
    FOLDER_CHANGES[name].make(
        place, draw.draw(st.sampled_from(["train", "test"])), draw.draw(st.integers(0, 5))
    )
    found, fresh = read(str(cache)), read("off")
    for part in ("train", "test"):
        mine, expected = getattr(found, part), getattr(fresh, part)
        assert mine.classes == expected.classes, name
        assert torch.equal(mine.labels, expected.labels), name
        assert torch.equal(torch.as_tensor(mine.images), torch.as_tensor(expected.images)), (
            f"{name}: old pixels"
        )


def attempt_classes(subject: Stopped, draw: st.DataObject) -> None:
    """A checkpoint on data with the same classes, in whatever order they are given, or with others."""
    model = load(subject.whole)
    images, names = torch.rand(30, 3, SIZE, SIZE, generator=torch.Generator().manual_seed(1)), list(CLASSES)
    labels = torch.arange(30) % 3
    order = draw.draw(st.permutations(range(3)))
    other = draw.draw(st.sampled_from([None, "zebra"]))
    given = [names[c] for c in order]
    if other is not None:
        given[0] = other
    place = torch.tensor([order.index(c) for c in range(3)])

    def evaluated(labels: Tensor, class_names: list[str]) -> dict[str, float]:
        batches = DataLoader(TensorDataset(images, labels), 10)
        found = cf.evaluate(model, batches, attack=None, class_names=class_names).clean.per_class
        return dict(zip(class_names, found.tolist(), strict=True))

    found: dict[str, float] = {}
    was_refused = refused(lambda: found.update(evaluated(place[labels], given)))
    assert was_refused == (other is not None), f"{given}: {'refused' if was_refused else 'accepted'}"
    if not was_refused:
        assert found == evaluated(labels, names), given


# ---------------------------------------------------------------- a batch and its ticket, a loader and its
# rows


class Numbered(Dataset[Any]):
    """Each image holds its own index."""

    labels = torch.arange(48) % 3

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        return torch.full((1, 2, 2), float(index)), int(self.labels[index])


def attempt_tickets(folder: Path, draw: st.DataObject) -> None:
    """Batches are reported with their own tickets or with another batch's, on time or late."""
    seed, lag = draw.draw(st.integers(0, 99)), draw.draw(st.integers(0, 4))
    weighted = draw.draw(st.booleans())
    other = draw.draw(st.booleans())

    def sampler() -> Any:
        if weighted:
            return sampling.ClassSampler(Numbered.labels, eta=0.05, gamma=0.3, seed=seed)
        return sampling.ExampleSampler(48, eta=0.01, gamma=0.3, seed=seed)

    mine = sampler()
    kept: list[tuple[Any, ...]] = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for batch in cf.loader(Numbered(), mine, batch_size=8, lag=lag):
            (x, y), ticket = batch[0] if isinstance(batch[0], tuple | list) else batch[:2], batch[-1]
            assert torch.equal(y, Numbered.labels[x[:, 0, 0, 0].long()]), "a batch of other labels"
            kept.append((x[:, 0, 0, 0].long(), y, ticket))
            late = kept[0] if other and len(kept) > 1 and not torch.equal(kept[0][1], y) else None
            if late is not None:
                assert _refuses_ticket(mine, y, (y == 2).float(), late[2]), (
                    "another batch's ticket was accepted"
                )
                return
            mine.update(y, (y == 2).float(), p=ticket)


def _refuses_ticket(sampler: Any, y: Tensor, loss: Tensor, ticket: Any) -> bool:
    before = copy.deepcopy(sampler.state_dict())
    try:
        sampler.update(y, loss, p=ticket)
    except (InputError, ValueError):
        return str(before) == str(sampler.state_dict())
    return False


class _Rows(Dataset[Any]):
    """(image, label, row)"""

    def __init__(self, x: Tensor, y: Tensor) -> None:
        self.x, self.y = x, y

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, row: int) -> tuple[Tensor, int, int]:
        return self.x[row], int(self.y[row]), row


def attempt_rows(folder: Path, draw: st.DataObject) -> None:
    """A loader that drops, repeats, shuffles or joins rows: the accuracies are of what came, or there are
    none.
    """
    torch.manual_seed(draw.draw(st.integers(0, 999)))
    count, batch = draw.draw(st.integers(3, 40)), draw.draw(st.integers(1, 9))
    x, y = torch.rand(count, 1, SIZE, SIZE), torch.arange(count) % 3
    model = nn.Sequential(nn.Flatten(), nn.Linear(SIZE * SIZE, 3)).eval()
    rows = list(range(count))
    how = draw.draw(st.sampled_from(["in order", "shuffled", "dropped", "repeated", "filled up", "joined"]))
    if how == "shuffled":
        rows = draw.draw(st.permutations(rows))
    elif how == "dropped":
        gone = draw.draw(st.sets(st.sampled_from(rows), min_size=1, max_size=count - 1))
        rows = [row for row in rows if row not in gone]
    elif how == "repeated":
        rows = rows + draw.draw(st.lists(st.sampled_from(rows), min_size=1, max_size=5))
    collated = draw.draw(st.booleans())
    # As many rows as were asked for, and some of them are others.
    places = draw.draw(st.lists(st.integers(0, batch - 1), min_size=batch, max_size=batch))
    others = any(len({at % n for at in places[:n]}) < n for n in {min(batch, count), count % batch} - {0})

    def filled_up(examples: list[int]) -> tuple[Tensor, Tensor]:
        there = [examples[at % len(examples)] for at in places[: len(examples)]]
        return x[there], y[there]

    def collate(examples: list[int]) -> tuple[Tensor, Tensor]:
        there = [row for row in examples if row in kept]
        return x[there], y[there]

    kept = set(rows)
    loader: Any = DataLoader(TensorDataset(x, y), batch_size=batch, sampler=rows)
    if how == "dropped" and collated:
        loader = DataLoader(range(count), batch_size=batch, collate_fn=collate)
    whole = TensorDataset(x, y)
    if how == "repeated" and collated:
        loader = DataLoader(Subset(whole, rows), batch_size=batch)
    elif how == "filled up":
        loader = DataLoader(
            _Rows(x, y), batch_size=batch, collate_fn=lambda rows: filled_up([r[2] for r in rows])
        )
    elif how == "joined":
        half = draw.draw(st.integers(0, count))
        loader = DataLoader(ConcatDataset([Subset(whole, rows[half:]), Subset(whole, rows[:half])]), batch)
    found: list[Any] = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if refused(lambda: found.append(cf.evaluate(model, loader, attack=None, num_classes=3))):
            assert how not in ("in order", "shuffled", "joined"), f"{how}: refused"
            return
    assert how != "repeated", "repeated: accepted"
    assert how != "filled up" or not others, "filled up: accepted"
    right = model(x[rows]).argmax(1) == y[rows]
    for number, accuracy in enumerate(found[0].clean.per_class.tolist()):
        mine = right[y[rows] == number]
        assert not len(mine) or abs(accuracy - float(mine.double().mean())) < 1e-9, f"{how}: class {number}"


AREAS = [
    Area("meanings: model and plan", prepare_nothing, attempt_model),
    Area("meanings: folder and run", prepare_run, attempt_resume),
    Area("meanings: folder and cache", prepare_run, attempt_cache),
    Area("meanings: class names and checkpoint", prepare_run, attempt_classes),
    Area("meanings: batch and ticket", prepare_nothing, attempt_tickets),
    Area("meanings: loader and rows", prepare_nothing, attempt_rows),
]
