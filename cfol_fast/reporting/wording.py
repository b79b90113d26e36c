"""Numbers and findings in words: one place, so that the page, the tables and the terminal say the same thing
the same way.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from cfol_fast.plain_text import MINUS, NARROW, percent, points
from cfol_fast.reporting.groups import Comparison, Group, Stat
from cfol_fast.runs.comparisons import NOT_SHOWN
from cfol_fast.runs.metrics import SHARE, Metric
from cfol_fast.runs.records import Run


def change_text(pair: Sequence[float | None]) -> str:
    """Two shares, before and after: 10.0 → 43.3; a dash for one that is not defined."""
    return " → ".join("–" if share is None else percent(share) for share in pair)


def tone(change: str, metric: Metric | None = None) -> str:
    """The style of a difference that `points`, or the metric, wrote."""
    styles = ["+", MINUS] if metric is None or not metric.least_is_best else [MINUS, "+"]
    return {styles[0]: " good", styles[1]: " bad"}.get(change[0], "")


def stat_text(stat: Stat | None, digits: int = 1, metric: Metric | None = None) -> str:
    """metric: what it is of; a share without one."""
    if stat is None:
        return "–"
    write = percent if metric is None else metric.text
    if stat.deviation is None:
        return write(stat.mean, digits)
    return f"{write(stat.mean, digits)} ± {write(stat.deviation, digits)}"


def duration(seconds: float | None) -> str:
    if seconds is None:
        return "–"
    whole = round(seconds)
    hours, minutes, rest = whole // 3600, whole // 60 % 60, whole % 60
    if hours:
        return f"{hours} h {minutes:02d} min"
    return f"{minutes} min {rest:02d} s" if minutes else f"{rest} s"


def radius(eps: Any) -> str:
    """8/255 for 0.03137..., 0.1 for 0.1: the way such sizes are quoted."""
    if isinstance(eps, float) and len(f"{eps:.6g}") > 5 and abs(eps * 255 - round(eps * 255, 1)) < 1e-4:
        return f"{round(eps * 255, 1):g}/255"
    return f"{eps:g}" if isinstance(eps, (int, float)) else str(eps)


def attack_phrase(attack: Mapping[str, Any]) -> str:
    """'PGD-20, ε = 8/255' from an attack's description."""
    if not attack:
        return ""
    if isinstance(attack.get("of"), list):
        return "worst of " + " and ".join(attack_phrase(one).split(",")[0] for one in attack["of"])
    kind = str(attack.get("kind") or attack.get("name") or attack.get("attack") or "attack")
    known = {"autoattack": "AutoAttack", "none": "no attack"}
    name = known.get(kind.lower(), kind.upper())
    steps = attack.get("steps")
    if steps and kind.lower() not in ("fgsm", "n-fgsm", "autoattack", "none"):
        name += f"-{steps}"
    if kind.lower() == "pgd" and attack.get("loss") not in (None, "ce"):
        name += f" ({attack['loss']} loss)"
    if attack.get("restarts") and attack["restarts"] != 1:
        name += f", {attack['restarts']} restarts"
    if attack.get("eps") is not None:
        name += f", ε = {radius(attack['eps'])}"
    if attack.get("norm") not in (None, "linf", "Linf"):
        name += f" ({attack['norm']})"
    return name


def upper_bound(attack: Mapping[str, Any]) -> str:
    """What is to be known of the accuracies under a weak attack; empty for AutoAttack and without one."""
    kinds = [one.get("kind") for one in attack.get("of") or [attack]]
    if not attack or "none" in kinds or any(str(kind).lower() == "autoattack" for kind in kinds):
        return ""
    name = attack_phrase(attack).split(",")[0]
    return f"Robust accuracies under {name} are upper bounds: a stronger attack finds more."


def setting_phrase(comparison: Comparison) -> str:
    """'fashion-mini · demo-cnn · PGD-20, ε = 0.1 · 300 test images per class'."""
    runs = [run for group in comparison.groups for run in group.runs]
    parts = [
        comparison.dataset,
        *_one([run.model for run in runs]),
        *_one([attack_phrase(run.attack) for run in runs]),
    ]
    for group in comparison.groups:
        counts = set(group.class_counts("robust").values())
        if group.tested and counts:
            low, high = min(counts), max(counts)
            size = f"{low:,}" if low == high else f"{low:,} to {high:,}"
            parts.append(f"{size} test images per class")
            break
    return " · ".join(parts)


def _one(values: list[str]) -> list[str]:
    different = list(dict.fromkeys(value for value in values if value))
    return different if len(different) == 1 else []


def headline(comparison: Comparison) -> tuple[str, str]:
    """The finding in one line, and the sentence under it; both computed from the test results."""
    base, focus = comparison.baseline, comparison.focus
    if focus is not None and base.tested and base.stat("robust", "worst") is not None:
        return _finding(comparison, base, focus)
    tested = [group for group in comparison.groups if group.tested and group.accuracies("robust")]
    if tested:
        return _portrait(tested[0])
    states = ", ".join(
        f"{group.label}: {group.partial or 'no attack evaluated'}" for group in comparison.groups
    )
    return "Not finished yet", f"No run has a test result so far ({states})."


def _counted(comparison: Comparison, focus: Group, before: float, after: float) -> str:
    """The first line where the number of failing classes says more than the worst one."""
    metric = comparison.leading
    path = f"{metric.text(before)} to {metric.text(after)} of {len(comparison.classes)}"
    name = metric.phrase(comparison.floor).replace(" %", f"{NARROW}%")
    if before == after:
        return f"{focus.label} leaves {metric.text(after)} of {len(comparison.classes)} {name}"
    return f"{focus.label} {'lowers' if after < before else 'raises'} the number of {name} from {path}"


def _finding(comparison: Comparison, base: Group, focus: Group) -> tuple[str, str]:
    metric, of = comparison.leading, len(comparison.candidates)
    before, after = base.stat("robust", metric.key), focus.stat("robust", metric.key)
    average, average_after = base.stat("robust", "average"), focus.stat("robust", "average")
    if not (before and after and average and average_after):
        return _portrait(focus)
    change = after.mean - before.mean
    gain = metric.is_better(change)
    verb = "lifts" if change > 0 else "lowers" if change < 0 else "leaves"
    first = (
        f"{focus.label} {verb} the worst class from {percent(before.mean)} to {percent(after.mean)}{NARROW}%"
    )
    if change == 0:
        first = f"{focus.label} leaves the worst class at {percent(after.mean)}{NARROW}%"
    if metric.unit != SHARE:
        first = _counted(comparison, focus, before.mean, after.mean)
    moved = average_after.mean - average.mean
    path = f"{percent(average.mean)} to {percent(average_after.mean)}{NARROW}%"
    if points(moved) == "0.0":
        price = f"The average stays at {percent(average_after.mean)}{NARROW}%."
    elif gain and moved < 0:
        price = f"The price is {percent(-moved)} points of the average, from {path}."
    else:
        price = (
            f"The average {'rises' if moved > 0 else 'falls'} by {percent(abs(moved))} points, from {path}."
        )
    second = f"Accuracy under attack, compared with {base.label}. {price}"
    return first, f"{second} {_evidence(base, focus, of, metric)}"


def _evidence(base: Group, focus: Group, of: int, metric: Metric) -> str:
    """What the seeds say about the difference of the metric; of a method that its test result selected
    they show nothing.
    """
    difference = focus.over(base, "robust", metric.key)
    selected = (
        f" Descriptive: {focus.label} is the best of {of} methods by this test result itself."
        if of > 1
        else ""
    )
    if difference is None or len(difference.values) == 1:
        return f"One seed shows no difference between methods: another seed may reverse it.{selected}"
    seeds = f"over {len(difference.values)} seeds"
    if difference.interval is None:
        return (
            f"The difference is the same in each of {len(difference.values)} seeds, which do not tell how"
            f" much it varies.{selected}"
        )
    low, high = (metric.change(limit) for limit in difference.interval)
    unit = "points" if metric.unit == SHARE else "classes"
    if selected:
        return f"The unadjusted 95 % interval of the difference {seeds} is {low} to {high} {unit}.{selected}"
    verdict = "is shown" if difference.verdict != NOT_SHOWN else "is not shown"
    return f"The difference {verdict} {seeds}: its 95 % interval is {low} to {high} {unit}."


def price_sentence(price: Mapping[str, Any]) -> str:
    """What a better worst class costs, from `runs.price`."""
    loss, favoured = price["largest_loss"], price["favoured"]
    text = (
        f"{points(price['average'])} points of the average; {price['losing']} of {price['classes']} classes"
        " lose"
    )
    text += f", {loss['class']} most ({points(loss['change'])})" if loss["change"] < 0 else ""
    if price["precision"] is not None:
        recall, precision = (change_text(price[key]) for key in ("recall", "precision"))
        alarms = " → ".join(f"{value:.0f}" for value in price["false_alarms"])
        text += (
            f"; for {favoured}, the recall goes {recall} %, the precision {precision} % (false alarms:"
            f" {alarms})"
        )
    return text + "."


def _portrait(group: Group) -> tuple[str, str]:
    average, worst = group.stat("robust", "average"), group.stat("robust", "worst")
    if average is None or worst is None:
        return group.label, ""
    name = group.worst_class("robust")
    first = (
        f"{group.label} holds {percent(average.mean)}{NARROW}% on average, {percent(worst.mean)}{NARROW}% in"
        " the worst class"
    )
    several = name.endswith(" classes")
    second = f"Robust accuracy under attack; {f'{name} are' if several else 'the worst class is'}"
    second += " the worst." if several else f" {name}."
    return first, second


def run_state(run: Run) -> str:
    """'finished', or how far an unfinished run got."""
    done, planned = run.epochs
    if run.finished:
        return "finished"
    return f"unfinished: epoch {done}" + (f" of {planned}" if planned else "")
