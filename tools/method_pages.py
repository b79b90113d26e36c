"""The site's pages of methods, from the table in cfol_fast/methods.py, docs/methods.toml and results/.

`tools.site_pages` writes them before mkdocs builds the site.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from cfol_fast import methods
from cfol_fast.recipes.frontier.facts import RULE
from cfol_fast.recipes.frontier.sentences import interval_text, row_of
from cfol_fast.recipes.frontier.text import setting_text
from tools.collection import read_frontiers

WORDS = Path(__file__).resolve().parents[1] / "docs" / "methods.toml"


def method_pages(kept: Path) -> dict[str, str]:
    """The markdown of each method's page, and of their index, by name. kept: the folder of results."""
    words = tomllib.loads(WORDS.read_text())
    found, fair = results(kept), read_frontiers(kept)
    pages = {
        name: method_page(row, words[name], [*fair_results(name, fair), *found.get(name, [])])
        for name, row in methods.METHODS.items()
    }
    lines = ["# Methods", "", "One trainer, one attack, one schedule; a method is a row of a table.", ""]
    lines += ["| name | what it does | published |", "|---|---|---|"]
    lines += [
        f"| [{name}]({name}.md) | {row.summary} | {reference(row)} |" for name, row in methods.METHODS.items()
    ]
    lines += [
        "",
        "`cfol-fast offsets RUN` fits class offsets on a run's hold-out: the baseline without training.",
    ]
    pages["index"] = "\n".join(lines) + "\n"
    return pages


def reference(row: methods.Method) -> str:
    """A method of the paper has its section, another one says who published it."""
    return f"the paper, {row.section}" if re.match(r"\d|appendix", row.section) else row.section


def method_page(row: methods.Method, words: dict[str, str], found: Sequence[str]) -> str:
    lines = [f"# {row.title}", "", row.summary, "", f"Published in: {reference(row)}.", ""]
    lines += ["## Idea", "", words["idea"], ""]
    lines += ["## Formula", "", "```", words["formula"].strip(), "```", ""]
    lines += ["## Cost", "", words["cost"], ""]
    lines += ["## Use", "", "```bash", f"cfol-fast train {row.name} --out runs/{row.name}", "```", ""]
    if row.defaults:
        lines += ["| parameter | default |", "|---|---|"]
        lines += [f"| `{name}` | {row.default_in_words(name)} |" for name in row.defaults]
        lines += ["", f"Origin: {row.origin}.", ""]
    if row.note:
        lines += [row.note, ""]
    lines += ["Where it differs from what was published: [differences](../differences.md).", ""]
    lines += ["## Result", ""]
    lines += ["\n\n".join(found) or "No run of this method is kept in `results/` yet."]
    return "\n".join(lines) + "\n"


def fair_results(name: str, tables: Sequence[Mapping[str, Any]]) -> list[str]:
    """What each comparison of all methods says of this one; where a comparison has no row of it, that."""
    return [_fair_sentence(name, facts) for facts in tables]


def _fair_sentence(name: str, facts: Mapping[str, Any]) -> str:
    row = row_of(facts, name)
    if row is None:
        return f"The comparison of all methods has no row of it ({facts['setting']}; `{facts['command']}`)."
    # What it is built on is the first row of its block.
    base = next(other for other in facts["rows"] if other["base"] == row["base"])

    def figures(of: Mapping[str, Any]) -> str:
        robust = of["rules"][RULE]["robust"]
        return (
            f"{interval_text(robust['average'])} % on average, {interval_text(robust['worst'])} % in the"
            " worst class"
        )

    seeds = len(row["seeds"])
    count = "one seed" if seeds == 1 else f"{seeds} seeds, ± half of the mean's 95 % t-interval"
    beside = "" if base is row else f" {base['title']} beside it: {figures(base)}."
    times = facts["eta_times"].get(row["title"])
    scaled = f", the step size times {times:g} here" if times else ""
    where = f" at the {facts['settings_from']} scale" if facts["settings_from"] else ""
    chosen = (
        f" Settings, chosen on a hold-out{where}: {setting_text(row['settings'])}{scaled}."
        if row["settings"]
        else ""
    )
    return (
        f"In the comparison of all methods ({facts['setting']}): robust accuracy {figures(row)} ({count};"
        f" checkpoint {RULE}).{beside}{chosen} Made by `{facts['command']}`; what it shows and what not:"
        " `results/README.md`."
    )


def results(kept: Path) -> dict[str, list[str]]:
    """For each method that a recipe's result has a run of, a sentence with its robust figures: of the recipe
    with the most seeds.
    """
    best: dict[str, tuple[int, str]] = {}
    for file in sorted(kept.glob("*/*.json")):
        recipe = json.loads(file.read_text())
        for block in recipe.get("blocks") or []:
            for entry in block.get("entries") or []:
                name, seeds = entry.get("method"), len(entry.get("seeds") or [])
                if name in methods.METHODS and seeds > best.get(name, (0, ""))[0] and _plain(entry):
                    best[name] = seeds, _sentence(recipe, entry, seeds)
    return {name: [sentence] for name, (_, sentence) in best.items()}


def _plain(entry: dict[str, Any]) -> bool:
    """Whether the row is the method as it is by default, under the attack that its data set is tested
    with.
    """
    complete = {"robust.average", "robust.worst"} <= set(entry.get("values") or {})
    return complete and not entry.get("parameters") and not entry.get("attack")


def _sentence(recipe: dict[str, Any], entry: dict[str, Any], seeds: int) -> str:
    def share(key: str) -> str:
        value = entry["values"][key]
        deviation = "" if value.get("deviation") is None else f" ± {100 * value['deviation']:.1f}"
        return f"{100 * value['mean']:.1f}{deviation} %"

    data, model = ", ".join(recipe.get("datasets") or []), entry.get("model")
    count = "one seed" if seeds == 1 else f"{seeds} seeds, with their deviation"
    return (
        f"On {data} with {model}: robust accuracy {share('robust.average')} on average,"
        f" {share('robust.worst')} in the worst class ({count}; checkpoint {recipe.get('checkpoint')}). Made"
        f" by `{recipe.get('command')}`."
    )
