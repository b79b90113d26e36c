"""Groups of images that belong together (frames of one sign, slides of one patient), and a hold-out that
divides none of them.
"""

from __future__ import annotations

import csv
import os
import re
from collections import Counter
from collections.abc import Hashable, Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from cfol_fast.data.listing import Listing, shown
from cfol_fast.errors import InputError, one_line

WAY_OUT = "Add images of another group, or give a hold-out of your own (--holdout DIR), or --holdout none"
COLUMNS = ("path", "group")


def numbered(groups: Sequence[Hashable] | np.ndarray | Tensor, count: int) -> np.ndarray:
    """int64 (count,): the number of each image's group, in the order in which groups first occur."""
    values = groups.tolist() if isinstance(groups, (np.ndarray, Tensor)) else list(groups)
    if len(values) != count:
        raise InputError(f"there are {count} images, but {len(values)} groups: give one for each image")
    numbers: dict[Hashable, int] = {}
    return np.array([numbers.setdefault(value, len(numbers)) for value in values], np.int64)


def groups_of(listing: Listing, rule: str) -> list[str]:
    """The group of each file. rule: a regular expression, or the name of a table (*.csv) with the columns
    path and group.

    The expression is searched in the path below the part's folder, `<class>/<name>`; the group is what its
    parentheses hold, joined, or without any what it finds.
    """
    paths = [path.partition(os.sep)[2] for path in listing.paths]
    return _of_table(Path(rule), listing, paths) if is_table(rule) else _of_pattern(rule, listing, paths)


def is_table(rule: str) -> bool:
    return rule.lower().endswith(".csv")


def _of_pattern(rule: str, listing: Listing, paths: list[str]) -> list[str]:
    try:
        pattern = re.compile(rule)
    except re.error as error:
        raise InputError(
            f"data.holdout_groups={rule!r} is neither a regular expression ({error}) nor a FILE.csv. An"
            r" example is '^(.*)_\d+\.png$'"
        ) from None
    found = []
    for path in paths:
        match = pattern.search(path)
        if match is None:
            raise InputError(
                f"data.holdout_groups={rule!r} is not found in {shown(path)} of {listing.split}/. Change the"
                " expression, or give a FILE.csv with the columns path and group"
            )
        parts = match.groups(default="") or (match.group(),)
        found.append("\0".join(parts))
    return found


def _of_table(file: Path, listing: Listing, paths: list[str]) -> list[str]:
    rows: dict[str, str] = {}
    try:
        with open(file.expanduser(), encoding="utf-8-sig", newline="") as text:
            reader = csv.DictReader(text)
            if not {*COLUMNS} <= {*(reader.fieldnames or ())}:
                raise InputError(
                    f"{file} has the columns {', '.join(reader.fieldnames or ()) or 'none'}. Its first line"
                    " must name the columns path and group"
                )
            for row in reader:
                path, group = os.path.normpath(row["path"] or ""), row["group"]
                if not group:
                    raise InputError(f"{file}, line {reader.line_num}: {path} has no group. Give it one")
                if rows.setdefault(path, group) != group:
                    raise InputError(
                        f"{file}, line {reader.line_num}: {path} has two groups. Leave one of them"
                    )
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise InputError(
            f"data.holdout_groups={file} cannot be read ({one_line(error)}). Give a CSV file"
        ) from None
    found = []
    for path in paths:
        group = rows.get(path, rows.get(f"{listing.split}{os.sep}{path}"))
        if group is None:
            raise InputError(
                f"{file} has no line for {shown(path)} of {listing.split}/. Every image needs one, with its"
                f" path below {listing.split}/ or with {listing.split}/"
            )
        found.append(group)
    return found


def divided(
    labels: np.ndarray, groups: np.ndarray, fraction: float, seed: int, classes: Sequence[str] = ()
) -> tuple[np.ndarray, np.ndarray]:
    """(kept rows, held-out rows), each sorted: whole groups, and of each class as near to `fraction` as these
    allow, at least one group on both sides.

    groups: int64, as `numbered` makes them. Groups are taken in a random order, each where it brings the
    classes nearer to their shares.
    """
    sizes = np.bincount(labels)
    # Of a pair of group and class that occurs, the number of images.
    pairs, counts = np.unique(np.stack([groups, labels]), axis=1, return_counts=True)
    per_class = Counter(pairs[1].tolist())
    for c in np.flatnonzero(sizes).tolist():
        if per_class[c] < 2:
            raise InputError(
                f"class {repr(classes[c]) if len(classes) else c} has one group of {sizes[c]} images, and no"
                f" group is divided. {WAY_OUT}"
            )
    starts = np.searchsorted(pairs[0], np.arange(int(groups.max()) + 2))
    members = [(pairs[1, start:end], counts[start:end]) for start, end in pairwise(starts)]
    wanted, held = fraction * sizes, np.zeros(len(sizes))
    left = np.array([per_class[c] for c in range(len(sizes))])
    taken = np.zeros(len(members), bool)
    order = np.random.default_rng([seed, len(members)]).permutation(len(members))

    def cost(number: int) -> float:
        """By how much the classes' distances from their shares grow if the group is held out."""
        own, count = members[number]
        before, after = np.abs(held[own] - wanted[own]), np.abs(held[own] + count - wanted[own])
        return float(((after - before) / sizes[own]).sum())

    def take(number: int) -> None:
        own, count = members[number]
        taken[number] = True
        held[own] += count
        left[own] -= 1

    for number in order.tolist():
        if cost(number) < 0 and (left[members[number][0]] > 1).all():
            take(number)
    for c in np.flatnonzero((sizes > 0) & (held == 0)).tolist():
        if held[c]:
            # By a group that another class needed.
            continue
        able = [
            number
            for number in order.tolist()
            if not taken[number] and c in members[number][0] and (left[members[number][0]] > 1).all()
        ]
        if not able:
            raise InputError(
                f"class {repr(classes[c]) if len(classes) else c} shares its groups with others, and none can"
                f" be held out without taking all of a class. {WAY_OUT}"
            )
        take(min(able, key=cost))
    out = taken[groups]
    return np.flatnonzero(~out), np.flatnonzero(out)


def holdout_of_groups(
    labels: Tensor, groups: np.ndarray, fraction: float, seed: int, classes: Sequence[str] = ()
) -> tuple[Tensor, Tensor]:
    """`divided`, of tensors."""
    kept, held = divided(labels.cpu().numpy(), groups, fraction, seed, classes)
    return torch.from_numpy(kept), torch.from_numpy(held)
