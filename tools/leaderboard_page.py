"""The site's page of results: one sortable table for each comparison of all methods in results/."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from cfol_fast import methods
from cfol_fast.recipes.frontier.facts import OFFSETS_RULE, RULE
from cfol_fast.reporting.wording import attack_phrase
from cfol_fast.runs.metrics import METRICS
from tools.headline import images_of, short

Facts = Mapping[str, Any]
HEAD = """\
# Results

Robust test accuracy in percent, the mean over the seeds. Each table has one network, one schedule and one
attack budget for all methods. Click on the head of a column to sort by it.

- **worst**, **tail**, **average**: accuracy of the worst class, mean of the worst fifth of the classes,
  and average, under the attack that the table names. PGD accuracies are upper bounds.
- **with offsets**: the same with class offsets, which are fitted on the hold-out without training. This
  column shows the gain beyond a shift of the class thresholds.
- **AutoAttack worst**: worst class under AutoAttack, one seed, few images; its uncertainty is large. It
  is empty where it was not run.
- **base**: the loss that the method modifies, AT (cross-entropy under attack) or TRADES.

The tables are exploratory. The comparisons that were declared before the runs, the intervals and the
limits are in [results/README.md](../results/README.md).
"""
COLUMNS = (
    *("method", "base", "worst", "tail", "average", "worst with offsets", "average with offsets"),
    *("AutoAttack worst", "seeds"),
)


def leaderboard_page(frontiers: Sequence[Facts]) -> str:
    """Real images come before the embedded ones."""
    ordered = sorted(frontiers, key=lambda facts: facts["dataset"] == "fashion-mini")
    return HEAD + "".join(_section(facts) for facts in ordered)


def _section(facts: Facts) -> str:
    best_first = sorted(facts["rows"], key=lambda row: -_mean(row, RULE, "worst"))
    lines = ["", f"## {short(facts)}", ""]
    lines += [f"{facts['setting']}. Attack: {attack_phrase(facts['attack'])}. Checkpoint: {RULE}.", ""]
    lines += ['<div class="sortable" markdown>', "", _cells(COLUMNS)]
    lines += ["|---|---|" + "---:|" * (len(COLUMNS) - 2)]
    lines += [_cells(_row(row)) for row in best_first]
    lines += ["", "</div>", "", f"![Average against worst class]({picture(facts)})", ""]
    lines += [f"Reproduce it with `{facts['command']}`. Images: {images_of(facts)}.", ""]
    return "\n".join(lines)


def picture(facts: Facts) -> str:
    """Its path in the site: tools.site_pages copies it there."""
    return f"pictures/frontier-{facts['scale']}.svg"


def _row(row: Mapping[str, Any]) -> list[str]:
    name = row["name"]
    title = f"[{row['title']}](methods/{name}.md)" if name in methods.METHODS else row["title"]
    figures = [_text(row, RULE, metric) for metric in ("worst", "tail", "average")]
    figures += [_text(row, OFFSETS_RULE, metric) for metric in ("worst", "average")]
    strong = row.get("autoattack")
    figures.append(METRICS["worst"].text(strong["robust"]["worst"]["mean"]) if strong else "")
    return [title, row["base"], *figures, str(len(row["seeds"]))]


def _text(row: Mapping[str, Any], rule: str, metric: str) -> str:
    return METRICS[metric].text(_mean(row, rule, metric)) if rule in row["rules"] else ""


def _mean(row: Mapping[str, Any], rule: str, metric: str) -> float:
    return float(row["rules"][rule]["robust"][metric]["mean"])


def _cells(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"
