"""Batches of torch's `DataLoader` that keep their number on the way through its workers and through the
user's collate_fn.

Which batch came is not read off the order in which batches come: workers may return them in another order.
What came is counted, since a collate_fn may leave examples out, or put them in another order.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, default_collate

# Names of the images and of the labels in examples that are dicts, as Hugging Face and torchvision call them.
IMAGES = ("pixel_values", "image", "images", "img", "x")
LABELS = ("labels", "label", "targets", "target", "y")


class Delivered(NamedTuple):
    """A batch as collate_fn made it. number: the one it was asked for with. asked: how many examples were.

    came: how many labels it has; None where it has none that can be counted. replaced: so many of its images
    are those of another example, in a place that is not theirs. wrong: what else is wrong with it.
    """

    number: int
    asked: int
    came: int | None
    replaced: int
    wrong: str | None
    batch: Any

    def problem(self) -> str | None:
        """What is wrong with the batch."""
        if self.came is not None and self.came != self.asked:
            what = "are missing" if self.came < self.asked else "were added"
            return (
                f"collate_fn made a batch of {self.came} from {self.asked} examples:"
                f" {abs(self.asked - self.came)} {what}"
            )
        if self.replaced:
            return (
                f"collate_fn put other examples in the places of {self.replaced} of {self.asked}:"
                f" {self.replaced} are missing"
            )
        return self.wrong

    @property
    def missing(self) -> int:
        """How many of the examples did not come; less than 0: so many came in addition."""
        return self.replaced if self.came is None else self.asked - self.came + self.replaced


class Asked(list[Any]):
    """The indices of one batch, with its number."""

    def __init__(self, indices: Iterable[Any], number: int) -> None:
        super().__init__(indices)
        self.number = number

    def __reduce__(self) -> tuple[type[Asked], tuple[list[Any], int]]:
        return Asked, (list(self), self.number)


def numbered_batches(
    dataset: Any, asked: Iterable[Asked], collate_fn: Callable[[list[Any]], Any] | None, **options: Any
) -> DataLoader[Any]:
    """Gives a `Delivered` for each batch of `asked`. options: those of DataLoader."""
    collate = _Collate(collate_fn or default_collate)
    return DataLoader(_Numbered(dataset), batch_sampler=asked, collate_fn=collate, **options)  # type: ignore[arg-type]


def labels_in(batch: Any) -> Any:
    """The labels of a batch or of an example: the second of a tuple, or the entry of a dict; None where there
    are none.
    """
    if isinstance(batch, Mapping):
        return next((batch[name] for name in LABELS if name in batch), None)
    return batch[1] if isinstance(batch, (tuple, list)) and len(batch) > 1 else None


def image_in(batch: Any) -> Any:
    """The image of an example, or the images of a batch: the first of a tuple, or the entry of a dict."""
    if isinstance(batch, Mapping):
        return next((batch[name] for name in IMAGES if name in batch), None)
    return batch[0] if isinstance(batch, (tuple, list)) and len(batch) else None


def whole_numbers(labels: Any) -> Tensor | None:
    """The labels, if they are whole numbers of shape (B,)."""
    fits = isinstance(labels, Tensor) and labels.dim() == 1 and not labels.is_floating_point()
    return labels if fits else None


class _Examples(list[Any]):
    number: int


class _Numbered:
    """The data set, as a worker sees it: attributes are read from and written to the data set itself."""

    def __init__(self, dataset: Any) -> None:
        self.__dict__["_dataset"] = dataset

    def __len__(self) -> int:
        return len(self._dataset)

    def __getitems__(self, asked: Asked) -> _Examples:
        dataset = self._dataset
        whole = getattr(dataset, "__getitems__", None)
        examples = _Examples(whole(list(asked)) if whole else [dataset[index] for index in asked])
        examples.number, examples.asked = asked.number, len(asked)  # type: ignore[attr-defined]
        return examples

    def __getitem__(self, index: Any) -> Any:
        return self._dataset[index]

    def __getattr__(self, name: str) -> Any:
        # Whoever unpickles asks for special methods before there is a data set.
        if name.startswith("__") or "_dataset" not in self.__dict__:
            raise AttributeError(name)
        return getattr(self._dataset, name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self._dataset, name, value)


class _Collate:
    def __init__(self, collate: Callable[[list[Any]], Any]) -> None:
        self.collate = collate

    def __call__(self, examples: Any) -> Delivered:
        own, images = _labels_of_each(examples), None
        if self.collate is not default_collate:
            # Before collate_fn may write to them.
            images = _prints([image_in(example) for example in examples])
        batch = self.collate(list(examples))
        labels = whole_numbers(labels_in(batch))
        found = None if labels is None else labels.tolist()
        came = None if found is None else len(found)
        reordered = own is not None and found is not None and own != found and sorted(own) == sorted(found)
        replaced, moved = _compared(images, image_in(batch))
        wrong = "collate_fn changed the order of the examples" if reordered or moved else _two_labels(batch)
        return Delivered(examples.number, examples.asked, came, replaced, wrong, batch)


def _prints(images: Sequence[Any] | Tensor) -> list[int] | None:
    """A number for the pixels of each image; None where they are of a kind that has no bytes here."""
    found = []
    for image in images:
        if isinstance(image, Tensor):
            if image.device.type != "cpu" or image.layout is not torch.strided:
                return None
            image = image.detach().contiguous().reshape(-1).view(torch.uint8).numpy()
        # Pillow's images have it too.
        elif not hasattr(image, "__array_interface__"):
            return None
        found.append(hash(np.asarray(image).tobytes()))
    return found


def _compared(given: list[int] | None, images: Any) -> tuple[int, bool]:
    """(how many images are another's, whether they are the given ones in another order). given: the prints of
    the examples; collate_fn may have made other images of them.
    """
    if given is None or not isinstance(images, Tensor) or not images.dim() or len(images) != len(given):
        return 0, False
    found = _prints(images)
    if found is None:
        return 0, False
    return max(0, len(set(given)) - len(set(found))), given != found and sorted(given) == sorted(found)


def _two_labels(batch: Any) -> str | None:
    """What to say of a dict with two entries that are called labels and are not the same."""
    if not isinstance(batch, Mapping):
        return None
    found = [(name, labels) for name in LABELS if (labels := whole_numbers(batch.get(name))) is not None]
    other = next((name for name, labels in found[1:] if not torch.equal(labels, found[0][1])), None)
    if other is None:
        return None
    return (
        f"the examples have the entries {found[0][0]!r} and {other!r} with other values: keep the label alone"
    )


def _labels_of_each(examples: Sequence[Any]) -> list[int] | None:
    try:
        return [operator.index(labels_in(example)) for example in examples]
    # No label, or one that is no number.
    except (TypeError, ValueError, RuntimeError, KeyError):
        return None


def in_sequence(groups: Sequence[Sequence[Any]], first: int = 0, every: int = 1) -> Iterator[Asked]:
    """The batches first, first + every, ... with their numbers."""
    for number in range(first, len(groups), every):
        yield Asked(groups[number], number)
