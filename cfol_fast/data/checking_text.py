"""The findings of `cfol-fast data check` as lines of text."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from cfol_fast.data.checking import Findings, Pairs, Part, name_groups
from cfol_fast.data.listing import shown
from cfol_fast.plain_text import aligned

MOST_SHOWN = 5
Row = tuple[str, str, str]


def lines(found: Findings) -> list[str]:
    """A table of where, what and how much; then examples of each finding."""
    rows = [row for part in found.parts for row in _of_part(part)]
    rows += [row for pairs in found.pairs for row in _of_pairs(pairs)]
    if found.mirrored:
        count = sum(number for *_, number in found.mirrored)
        rows.append((found.parts[0].listing.split, "mirror images like another class", f"{count:,}"))
    return [*aligned(rows, left=(0, 1, 2)), *_examples(found)]


def _of_part(part: Part) -> Iterable[Row]:
    split, whole = part.listing.split, [part.seen[row] for row in part.whole]
    counts = Counter(part.listing.labels)
    classes = part.listing.classes
    least, most = min(counts, key=counts.__getitem__), max(counts, key=counts.__getitem__)
    yield split, "images", f"{len(part.listing):,} of {len(classes):,} classes"
    yield (
        split,
        "images of a class",
        f"{counts[least]:,} ({shown(classes[least])}) to {counts[most]:,} ({shown(classes[most])}),"
        f" 1 : {counts[most] / counts[least]:.3g}",
    )
    if len(whole) < len(part.seen):
        yield split, "broken files", f"{len(part.seen) - len(whole):,}"
    yield split, "modes", _counted(Counter(one.mode for one in whole))
    yield split, "sizes", _counted(Counter(f"{one.size[0]}x{one.size[1]}" for one in whole))
    if groups := name_groups(part.listing.paths):
        yield (
            split,
            "groups by name",
            f"{len(groups):,}, {len(part.listing) / len(groups):.3g} images each on average",
        )


def _counted(values: Counter[str]) -> str:
    most = values.most_common(MOST_SHOWN)
    more = f", and {len(values) - len(most):,} others" if len(values) > len(most) else ""
    return ", ".join(f"{name}: {count:,}" for name, count in most) + more


def _where(pairs: Pairs) -> str:
    return pairs.one if pairs.one == pairs.other else f"{pairs.one}, {pairs.other}"


def _of_pairs(pairs: Pairs) -> Iterable[Row]:
    yield _where(pairs), "pairs of exact copies", f"{len(pairs.exact):,}"
    yield _where(pairs), "pairs of near copies", f"{len(pairs.near):,}"


def _examples(found: Findings) -> Iterable[str]:
    for part in found.parts:
        listing = part.listing
        broken = [(path, one.error) for path, one in zip(listing.paths, part.seen, strict=True) if one.error]
        yield from (f"broken: {shown(path)} ({error})" for path, error in broken[:MOST_SHOWN])
    for pairs in found.pairs:
        for kind, same in (("exact copies", pairs.exact), ("near copies", pairs.near)):
            yield from (f"{kind}: {shown(a)} and {shown(b)}" for a, b in same[:MOST_SHOWN])
    for one, other, count in found.mirrored[:MOST_SHOWN]:
        yield f"mirrored: {count:,} of {shown(one)} look like {shown(other)}: no --augment that mirrors"
    if name_groups(found.parts[0].listing.paths):
        yield (
            "groups: where images of one name belong together, no hold-out should divide them:"
            r" --holdout-groups '^(.*?)[-_ .]?\d+\.\w+$'"
        )
    if found.shared:
        yield "parts share images: accuracies on them are too high"
