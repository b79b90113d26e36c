"""What a better worst class costs: which classes lose, and what the favoured class's predictions are still
worth.

A model that calls more images by the name of its weakest class recognises that class more often, and is wrong
about more of the images that it calls so. Recall alone shows the first; precision and false alarms show the
second.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from cfol_fast.runs.accuracy import Accuracy


def price(base: Sequence[Accuracy], other: Sequence[Accuracy]) -> dict[str, Any]:
    """Of `other` against `base`, in means over the seeds of each.

    favoured: the class that the base is weakest in; its recall, precision and false alarms (images of other
    classes taken for it) are pairs, the base's first. A pair is None where no confusion matrix is known, and
    so is a precision where no image was taken for the class.
    """
    known_in = [{c for one in side for c in one.per_class} for side in (base, other)]
    classes = [c for c in base[0].classes if c in known_in[0] & known_in[1]]
    recalls = [
        {c: mean([one.per_class[c] for one in side if c in one.per_class]) for c in classes}
        for side in (base, other)
    ]
    changes = {c: recalls[1][c] - recalls[0][c] for c in classes}
    loser, weakest = min(changes, key=changes.__getitem__), min(classes, key=recalls[0].__getitem__)
    known = all(one.confusion for one in (*base, *other))
    return {
        "average": round(mean([one.average for one in other]) - mean([one.average for one in base]), 6),
        "largest_loss": {"class": loser, "change": round(changes[loser], 6)},
        "losing": sum(round(change, 9) < 0 for change in changes.values()),
        "classes": len(classes),
        "favoured": weakest,
        "recall": [side[weakest] for side in recalls],
        "precision": [_known_mean([one.precision.get(weakest) for one in side]) for side in (base, other)]
        if known
        else None,
        "false_alarms": [_known_mean([one.false_alarms(weakest) for one in side]) for side in (base, other)]
        if known
        else None,
    }


def mean(values: Sequence[float]) -> float:
    return round(math.fsum(values) / len(values), 6)


def _known_mean(values: Sequence[float | None]) -> float | None:
    """None where no value is known: a class that no image was taken for in any seed has no precision."""
    known = [value for value in values if value is not None]
    return mean(known) if known else None
