"""Whose class is which: the classes of a model and those of the data are matched by their names, never by
their places alone.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from cfol_fast.data.source import Batch, Source, every_nth_batch
from cfol_fast.errors import InputError

# So many names are listed of each side.
SHOWN = 20


def same_text(names: Sequence[str]) -> list[str]:
    """The names with their accents composed: a Mac writes the name of a folder in another form than it was
    typed.
    """
    composed = [unicodedata.normalize("NFC", name) for name in names]
    return composed if len(set(composed)) == len(set(names)) else list(names)


def places(model: Sequence[str], data: Sequence[str], whose: str, way_out: str) -> list[int] | None:
    """For each class of the data its place among the model's; None where the order is the same.

    Other names are refused.

    whose: what the model is called in the message, and `way_out` what can be done.
    """
    mine, theirs = same_text(model), same_text(data)
    if mine == theirs:
        return None
    if len(mine) == len(theirs) and set(mine) == set(theirs) and len(set(mine)) == len(mine):
        return [mine.index(name) for name in theirs]
    raise InputError(
        f"{whose} has the classes {_listed(model)}; the data have {_listed(data)}{_spelling(mine, theirs)}."
        f" {way_out}"
    )


def _listed(names: Sequence[str]) -> str:
    more = f", ... ({len(names)} in all)" if len(names) > SHOWN else ""
    return ", ".join(map(repr, names[:SHOWN])) + more


def _spelling(mine: Sequence[str], theirs: Sequence[str]) -> str:
    only = [name for name in mine if name not in theirs], [name for name in theirs if name not in mine]
    plain = [sorted("".join(c for c in name.casefold() if c.isalnum()) for name in side) for side in only]
    if only[0] and plain[0] == plain[1] and all(plain[0]):
        return f" ({only[0][0]!r} and others differ in their spelling alone)"
    long = len(mine) > SHOWN or len(theirs) > SHOWN
    return f" (only the first: {_listed(only[0])}; only the second: {_listed(only[1])})" if long else ""


def order_as_text(names: Sequence[str]) -> str | None:
    """What to say where names are numbers in the order of text, 10 before 2, and weights without names count
    their classes.
    """
    if not all(name.isdecimal() for name in names):
        return None
    wrong = next((place for place, name in enumerate(names) if int(name) != place), None)
    if wrong is None or sorted(map(int, names)) == [int(name) for name in names]:
        return None
    return (
        f"the weights have no class names: their output {wrong} counts as the class {names[wrong]!r}, as"
        " the folders are in the order of text (10 before 2). If the classes were numbered in training,"
        " rename the folders to 00, 01, 02 ..."
    )


class InModelOrder:
    """A source with the labels of a model that has the same classes in another order. places: of the data's
    classes in the model.
    """

    def __init__(self, source: Source, places: Sequence[int], classes: Sequence[str]) -> None:
        self.source, self.classes, self._places = source, list(classes), torch.tensor(places)

    def __getattr__(self, name: str) -> Any:
        if name == "source":
            raise AttributeError(name)
        return getattr(self.source, name)

    def __len__(self) -> int:
        return len(self.source)

    @property
    def labels(self) -> Tensor:
        return self._mapped(self.source.labels)

    def batches(self, batch_size: int, first: int = 0, every: int = 1) -> Iterator[Batch]:
        for _, (idx, x, y) in every_nth_batch(self.source, batch_size, first, every):
            yield idx, x, self._mapped(y)

    def _mapped(self, labels: Tensor) -> Tensor:
        known = (labels >= 0) & (labels < len(self._places))
        # What is no class stays none: whoever reads the labels refuses it.
        mapped = self._places.to(labels.device)[torch.where(known, labels, 0)]
        return torch.where(known, mapped, labels)
