"""The names of the classes that a data set of torchvision's or Hugging Face's brings, in the order of the
labels that it hands out.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping
from typing import Any

from torch.utils.data import ConcatDataset, Subset

from cfol_fast.data.classes import same_text
from cfol_fast.data.numbered import LABELS
from cfol_fast.errors import InputError


def names_of(dataset: Any) -> tuple[list[str], list[str]]:
    """(names, notes); no names where the data set has none, or where its labels are not their numbers."""
    if isinstance(dataset, Subset):
        return names_of(dataset.dataset)
    if isinstance(dataset, ConcatDataset):
        return _names_of_parts(dataset)
    names = _own_names(dataset)
    transform = getattr(dataset, "target_transform", None)
    if not names or transform is None:
        return names, []
    try:
        labels = [operator.index(transform(c)) for c in range(len(names))]
    # Somebody else's function, which may want another kind of label.
    except Exception:
        labels = []
    if sorted(labels) != list(range(len(names))):
        return [], ["the data set's target_transform makes other labels, so its class names are not used"]
    return [names[labels.index(c)] for c in range(len(names))], []


def _names_of_parts(dataset: ConcatDataset[Any]) -> tuple[list[str], list[str]]:
    found = [names_of(part) for part in dataset.datasets]
    names, notes = [same_text(names) for names, _ in found], [note for _, notes in found for note in notes]
    other = next((one for one in names if one != names[0]), None)
    if other is None:
        return found[0][0], list(dict.fromkeys(notes))
    if sorted(other) == sorted(names[0]):
        raise InputError(
            f"the parts of the ConcatDataset have their classes in other orders ({', '.join(names[0])} and"
            f" {', '.join(other)}), so a label has two meanings: give one of them a target_transform"
        )
    return [], [*dict.fromkeys(notes), "the parts of the data set name other classes: no names are used"]


def _own_names(dataset: Any) -> list[str]:
    """torchvision's `classes` by its `class_to_idx`, or the names of Hugging Face's label."""
    features = getattr(dataset, "features", None)
    label = next((features[name] for name in LABELS if isinstance(features, dict) and name in features), None)
    classes = getattr(dataset, "classes", None) or getattr(label, "names", None)
    given = getattr(dataset, "class_to_idx", None)
    numbers: Mapping[Any, Any] = given if isinstance(given, Mapping) else {}
    names = list(classes) if isinstance(classes, (list, tuple)) else []
    # The labels are its numbers, whatever order the names are listed in.
    numbered = numbers and set(numbers.values()) == set(range(len(numbers)))
    if numbered and (not names or set(names) == set(numbers)):
        names = sorted(numbers, key=lambda name: numbers[name])
    # torchvision's ImageNet has several names for a class.
    return [", ".join(name) if isinstance(name, tuple) else str(name) for name in names]
