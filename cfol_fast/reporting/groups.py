"""Runs that differ in their seed alone are one group, and a comparison is an ordered list of groups.

A group answers with a mean and, over several seeds, the sample deviation. Its colour follows its method, so
that a method looks the same in every chart and on every page. The first group is the baseline that
differences are measured from: ERM where there is one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import astuple, dataclass, field
from typing import Any

from cfol_fast.errors import InputError
from cfol_fast.methods import METHODS
from cfol_fast.reporting.theme import SERIES
from cfol_fast.runs.accuracy import Accuracy
from cfol_fast.runs.comparisons import Difference
from cfol_fast.runs.config import flatten
from cfol_fast.runs.frame import Frame, Result, Summary
from cfol_fast.runs.identity import essential_settings
from cfol_fast.runs.metrics import FLOOR, METRICS, SELECTION, SHARE, Metric, tail_size, telling
from cfol_fast.runs.records import Run, in_class_order, same_attack

SPLITS = {"robust": "Robust", "clean": "Clean"}
# More classes than this are drawn as thin sorted columns, and only some by name.
MANY = 30


@dataclass(frozen=True)
class Stat:
    """A number over the seeds of a group; `low`/`high`: one deviation, or the 95 % interval of a single run
    (None: unknown).
    """

    mean: float
    deviation: float | None = None
    low: float | None = None
    high: float | None = None

    def times(self, factor: float) -> Stat:
        """In another unit."""
        return Stat(*(None if one is None else factor * one for one in astuple(self)))  # type: ignore[arg-type]


def stat_of(summary: Summary | None, most: float = 1.0) -> Stat | None:
    return None if summary is None else known_stat(summary, most)


def known_stat(summary: Summary, most: float = 1.0) -> Stat:
    """A summary as charts and tables show it; `most`: the largest value there can be."""
    mean, deviation = summary.mean, summary.deviation
    if deviation is not None:
        return Stat(mean, deviation, max(0.0, mean - deviation), min(most, mean + deviation))
    return Stat(mean, None, *summary.limits) if summary.limits else Stat(mean)


def metric_stat(frame: Frame, metric: str) -> Stat | None:
    """One of METRICS by its key over several runs, None without any."""
    found = frame.accuracies
    most = 1.0 if not found or METRICS[metric].unit == SHARE else float(len(found[0].classes))
    return stat_of(frame.summary(metric), most)


@dataclass(frozen=True)
class Group:
    """The runs of one configuration over seeds.

    shown: (clean, robust) of each run that has accuracies. partial: what these are when no run has a test
    result, such as "hold-out, epoch 7 of 12". copies: runs of a seed that another run of the group has, each
    with that run; they count nowhere.
    """

    label: str
    method: str
    colour: str
    runs: list[Run]
    shown: list[tuple[Accuracy | None, Accuracy | None]] = field(default_factory=list)
    partial: str = ""
    copies: list[tuple[Run, Run]] = field(default_factory=list)

    def frame(self, split: str) -> Frame:
        """What its runs reached, of those that are shown."""
        seeds = [run.seed for run in self.counted]
        found = [clean if split == "clean" else robust for clean, robust in self.shown]
        seeds += [None] * (len(found) - len(seeds))
        return Frame(
            Result(self.label, seed, split, accuracy)
            for seed, accuracy in zip(seeds, found, strict=False)
            if accuracy is not None
        )

    def accuracies(self, split: str) -> list[Accuracy]:
        return self.frame(split).accuracies

    def adjusted(self, split: str) -> Frame:
        """With class offsets; empty unless every run that counts has them."""
        found = [(run.seed, run.adjusted.get(split)) for run in self.counted]
        if any(accuracy is None for _, accuracy in found):
            return Frame([])
        return Frame(
            Result(self.label, seed, split, one, "offsets") for seed, one in found if one is not None
        )

    def stat(self, split: str, metric: str) -> Stat | None:
        """One of METRICS by its key over the seeds, None when no run has it."""
        return metric_stat(self.frame(split), metric)

    def class_stat(self, split: str, name: str) -> Stat | None:
        return stat_of(self.frame(split).of_class(name))

    def precision_stat(self, name: str) -> Stat | None:
        """Of the attacked images that are taken for a class, the share that are of it."""
        return stat_of(self.frame("robust").precision_of(name))

    def worst_class(self, split: str) -> str:
        """The class that is worst in most seeds, or how many share it."""
        return Counter(accuracy.worst_in_words for accuracy in self.accuracies(split)).most_common(1)[0][0]

    def over(self, other: Group, split: str, metric: str) -> Difference | None:
        """How much better this group is, paired over the seeds that both have; None where they share none."""
        return self.frame(split).above(other.frame(split), metric)

    def class_counts(self, split: str) -> dict[str, int]:
        found = self.accuracies(split)
        return found[0].count if found else {}

    def unlike(self, other: Group) -> list[str]:
        """In what the tests of the two groups differ, so that their figures cannot be compared; empty where
        they can.
        """
        mine, theirs = self.counted[0], other.counted[0]
        found = []
        digests = {mine.test_images, theirs.test_images}
        if None in digests and mine.root and theirs.root and mine.root != theirs.root:
            found.append(f"other images ({mine.root}, not {theirs.root})")
        counts = [group.class_counts("robust") or group.class_counts("clean") for group in (self, other)]
        sizes = [sum(count.values()) for count in counts]
        if all(counts) and sizes[0] != sizes[1]:
            found.append(f"{sizes[0]:,} test images, not {sizes[1]:,}")
        elif (all(counts) and counts[0] != counts[1]) or len(digests - {None}) > 1:
            found.append("other test images")
        if mine.attack and theirs.attack and not same_attack(mine.attack, theirs.attack):
            found.append("another attack")
        return found

    @property
    def tested(self) -> bool:
        return not self.partial

    @property
    def counted(self) -> list[Run]:
        """The runs the group's numbers come from: those with a test result, or all when none has one."""
        return _with_test_result(self.runs) or self.runs

    @property
    def heading(self) -> str:
        """The label, with the number of seeds behind its numbers."""
        count = len(self.shown) or len(self.runs)
        return f"{self.label}, {count} seeds" if count > 1 else self.label

    @property
    def legend(self) -> str:
        """The label, marked when its numbers are not test results."""
        return f"{self.label}, unfinished ({self.partial})" if self.partial else self.label

    @property
    def note(self) -> str:
        return f"Unfinished: {self.partial}" if self.partial else ""


def _with_test_result(runs: Sequence[Run]) -> list[Run]:
    return [run for run in runs if run.robust is not None or run.clean is not None]


@dataclass(frozen=True)
class Comparison:
    """Groups on one data set, the baseline first."""

    dataset: str
    classes: list[str]
    groups: list[Group]

    @property
    def baseline(self) -> Group:
        return self.groups[0]

    def comparable(self, group: Group) -> bool:
        """Whether a difference from the first tested group means something: the same attack on the same
        images.
        """
        return group.tested and not group.unlike(self._first_tested)

    def caveats(self) -> list[str]:
        """A sentence on each run that counts once with another, and each group that was tested in another way
        than the baseline.
        """
        first = self._first_tested
        copied = [
            f"{copy.path} has the settings and the seed ({copy.seed}) of {run.path}: the two count as one."
            for group in self.groups
            for copy, run in group.copies
        ]
        return copied + [
            f"{group.label} was tested in another way than {first.label} ({', '.join(different)}): "
            "the two cannot be compared, and no difference is given."
            for group in self.groups
            if group.tested and (different := group.unlike(first))
        ]

    @property
    def _first_tested(self) -> Group:
        return next((group for group in self.groups if group.tested), self.baseline)

    @property
    def candidates(self) -> list[tuple[Group, Stat]]:
        """The groups tested like the baseline, apart from it, with their worst class under attack."""
        return [
            (group, worst)
            for group in self.groups[1:]
            if self.comparable(group) and (worst := group.stat("robust", "worst")) is not None
        ]

    @property
    def focus(self) -> Group | None:
        """The group a headline is about: the candidate with the best worst class, which its test result
        itself selects.
        """

        def figures(item: tuple[Group, Stat]) -> list[float]:
            stats = [item[0].stat("robust", key) for key in SELECTION]
            return [stat.mean for stat in stats if stat is not None]

        return max(self.candidates, key=figures, default=(None,))[0]

    @property
    def leading(self) -> Metric:
        """What a headline is about: the worst class, or the number of failing ones where that says little."""
        return next((metric for metric in self.metrics if metric.key == "below_floor"), METRICS["worst"])

    @property
    def metrics(self) -> list[Metric]:
        """The figures that a table of these groups shows."""
        return telling(one for group in self.groups for split in SPLITS for one in group.accuracies(split))

    @property
    def floor(self) -> float:
        """The accuracy below which a class counts as failing."""
        found = (one.floor for group in self.groups for split in SPLITS for one in group.accuracies(split))
        return next(found, FLOOR)

    @property
    def tail_size(self) -> int:
        return tail_size(len(self.classes))

    def order(self) -> list[str]:
        """The classes as charts show them: as the data set has them up to 30, beyond that by the baseline's
        robust accuracy.
        """
        return self.classes if len(self.classes) <= MANY else self.ranked()

    def ranked(self) -> list[str]:
        """All classes, the one with the lowest robust accuracy of the baseline first."""

        def accuracy(name: str) -> float:
            for split in ("robust", "clean"):
                for group in self.groups:
                    stat = group.class_stat(split, name)
                    if stat is not None:
                        return stat.mean
            return 1.0

        return sorted(self.classes, key=accuracy)


def compare(runs: Sequence[Run], baseline: str | None = None) -> Comparison:
    """Group the runs of one data set.

    `baseline`: the method (or label) that differences are measured from.
    """
    if not runs:
        raise InputError("there is no run to report on")
    datasets = {run.dataset for run in runs} - {"unknown"}
    if len(datasets) > 1:
        where = "; ".join(
            f"{name}: {', '.join(str(run.path) for run in runs if run.dataset == name)}"
            for name in sorted(datasets)
        )
        raise InputError(
            f"runs on different data sets cannot be compared ({where}); "
            "use --separate to show them one after another"
        )
    classes = next((run.classes for run in runs if run.classes), [])
    for run in runs:
        if run.classes and sorted(run.classes) != sorted(classes):
            raise InputError(
                f"{run.path} has the classes {_few(run.classes)}, but {runs[0].path} has {_few(classes)}: "
                "such runs cannot be compared; use --separate to show them one after another"
            )
    runs = [in_class_order(run, classes) if run.classes else run for run in runs]
    families: dict[tuple[Any, ...], list[Run]] = {}
    for run in runs:
        families.setdefault(_identity(run), []).append(run)
    # Sorting is stable: the baseline comes first and the others keep the order they were given in.
    members = sorted(families.values(), key=lambda family: not is_baseline(family[0], baseline))
    if baseline is not None and not is_baseline(members[0][0], baseline):
        known = ", ".join(sorted({run.method for run in runs}))
        raise InputError(f"no run of the baseline {baseline!r} among the runs given; there are: {known}")
    labels = _labels(members)
    colours = _colours([family[0].method for family in members])
    groups = [_group(*item) for item in zip(labels, colours, members, strict=True)]
    return Comparison(next(iter(datasets), "unknown"), classes, groups)


def separate(runs: Iterable[Run]) -> list[list[Run]]:
    """The runs by data set and classes, in the order of their first run."""
    parts: dict[tuple[str, tuple[str, ...]], list[Run]] = {}
    for run in runs:
        parts.setdefault((run.dataset, tuple(sorted(run.classes))), []).append(run)
    return list(parts.values())


def _few(names: Sequence[str]) -> str:
    return f"{len(names)} ({', '.join(names[:20])}, ...)" if len(names) > 20 else ", ".join(names)


def is_baseline(run: Run, baseline: str | None) -> bool:
    """Whether the run is of the method, or has the title, that `baseline` names; without a name, the table of
    methods says.
    """
    if baseline is not None:
        return baseline in (run.method, run.title)
    return run.method in METHODS and METHODS[run.method].baseline


def _settings(run: Run) -> dict[str, Any]:
    """What is computed, apart from the seed: runs that agree in it are one group."""
    return {key: value for key, value in essential_settings(run.config).items() if key != "seed"}


def _identity(run: Run) -> tuple[Any, ...]:
    # A run that was stopped has no title of its own: its settings tell where it belongs.
    title = run.title if not run.config else ""
    # Nothing says that runs of unknown seeds differ in their seed alone.
    alone = str(run.path.resolve()) if run.seed is None else ""
    return run.method, title, run.model, repr(sorted(_settings(run).items())), alone


def _once_for_each_seed(runs: Sequence[Run]) -> tuple[list[Run], list[tuple[Run, Run]]]:
    """The runs in their order, and apart from them the copies: of two runs of one seed the one with a test
    result stays.
    """
    chosen: dict[int | None, Run] = {}
    for run in [*_with_test_result(runs), *runs]:
        chosen.setdefault(run.seed, run)
    kept = [run for run in runs if run is chosen[run.seed]]
    return kept, [(run, chosen[run.seed]) for run in runs if run is not chosen[run.seed]]


def _title(family: Sequence[Run], families: Sequence[Sequence[Run]]) -> str:
    """The family's title; of runs that were stopped before they had one, that of another run of the
    method.
    """
    peers = [run for other in families for run in other if run.method == family[0].method]
    return next((run.title for run in [*family, *peers] if run.tested), family[0].title)


def _distinction(run: Run, same: Sequence[Run]) -> str:
    """The settings that tell a run from others of its method: those that differ from what most of
    them have.
    """
    mine, others = _settings(run), [_settings(other) for other in same]
    keys = sorted({key for values in others for key in values})
    counts = {key: Counter(repr(values.get(key)) for values in others) for key in keys}
    different = [key for key in keys if len(counts[key]) > 1]
    unusual = [key for key in different if repr(mine.get(key)) != counts[key].most_common(1)[0][0]]
    # A run that is usual in everything is named by the setting that was varied most.
    shown = unusual[:3] or sorted(different, key=lambda key: -len(counts[key]))[:1]
    values = flatten(run.config)
    return ", ".join(f"{key.split('.')[-1]} {values.get(key)}" for key in shown) or run.path.name


def _labels(families: Sequence[Sequence[Run]]) -> list[str]:
    """The method's title; where several groups share it, with the settings that tell them apart."""
    titles = [_title(family, families) for family in families]
    labels = []
    for family, title in zip(families, titles, strict=True):
        same = [other[0] for other, name in zip(families, titles, strict=True) if name == title]
        if len(same) == 1:
            labels.append(title)
            continue
        labels.append(f"{title} ({_distinction(family[0], same)})")
    # Labels are what a reader tells columns apart by: the folder's name settles what the settings could not.
    return [
        f"{label} [{family[0].path.name}]" if labels.count(label) > 1 else label
        for label, family in zip(labels, families, strict=True)
    ]


def _colours(methods: Sequence[str]) -> list[str]:
    """A colour for each group: the method's own where it is free, else the next free one.

    More groups than colours share them by method: a colour that came round again would join what does not
    belong together.
    """
    palette = list(SERIES)
    if len(methods) > len(palette):
        names = list(dict.fromkeys(methods))
        shared = _colours(names[: len(palette)])
        return [shared[names.index(method) % len(palette)] for method in methods]
    taken: list[str] = []
    for method in methods:
        own = method_colour(method)
        free = [colour for colour in palette if colour not in taken]
        # The first two belong to methods that nearly every page shows: others take them last.
        spare = [colour for colour in free if colour not in palette[:2]] or free
        taken.append(own if own in free else spare[0])
    return taken


def method_colour(method: str | None) -> str | None:
    """The colour of the method's row; None for a method without one."""
    return METHODS[method].colour if method in METHODS else None


def _group(label: str, colour: str, family: Sequence[Run]) -> Group:
    runs, copies = _once_for_each_seed(family)
    method = runs[0].method
    if tested := _with_test_result(runs):
        return Group(label, method, colour, runs, [(run.clean, run.robust) for run in tested], copies=copies)
    shown = []
    partial = "no validation yet"
    for run in runs:
        if run.validation:
            last = run.validation[-1]
            shown.append((last["clean"], last["robust"]))
            split = "hold-out" if last.get("split") == "holdout" else str(last.get("split"))
            planned = run.epochs[1]
            partial = f"{split}, epoch {last.get('epoch')}" + (f" of {planned}" if planned else "")
    return Group(label, method, colour, runs, shown, partial, copies)
