"""The report as one HTML page: no script, no network, nothing outside the file but optional downloads beside it."""

from __future__ import annotations

import base64
import re
from collections.abc import Mapping, Sequence
from html import escape

from cfol_fast.reporting import figures, gallery, svg, tables, theme
from cfol_fast.reporting.charts import Figure
from cfol_fast.reporting.groups import METRICS, Comparison, Group, is_essential, settings
from cfol_fast.reporting.tables import Table
from cfol_fast.reporting.wording import (
    NARROW,
    attack_phrase,
    headline,
    percent,
    points,
    radius,
    run_state,
    setting_phrase,
)

WIDE, PAIR, NARROW_WIDTH = 1010.0, 478.0, 342.0  # px a drawing gets in the page's layout

MANY_METHODS = 6  # more than these are rows of the comparison table instead of columns


def render(
    comparisons: Sequence[Comparison],
    title: str = "",
    extra: Sequence[Table] = (),
    extra_figures: Sequence[Figure] = (),
    pictures: Mapping[str, str] | None = None,
) -> str:
    """The page. `pictures`: figure key -> address of its picture file beside the page; `extra` and `extra_figures`: shown
    before everything else of the first part."""
    before = "".join(_table_section(table) for table in extra)
    before += "".join(_figure_section(drawn, f"extra-{drawn.key}", pictures or {}) for drawn in extra_figures)
    parts = [
        _part(comparison, number, len(comparisons), before if number == 0 else "", pictures or {})
        for number, comparison in enumerate(comparisons)
    ]
    name = title or headline(comparisons[0])[0]
    theme_buttons = "".join(
        f'<label><input type="radio" name="theme" id="theme-{key}"{" checked" if key == "auto" else ""}>{text}</label>'
        for key, text in (("auto", "Auto"), ("light", "Light"), ("dark", "Dark"))
    )
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width,initial-scale=1">\n'
        f'<link rel="icon" href="data:,">\n<title>{escape(name)}</title>\n<style>\n{theme.css()}</style>\n</head>\n<body>\n'
        f'<header class="top"><fieldset class="theme" aria-label="Colours">{theme_buttons}</fieldset>'
        f"{f'<p class=kicker>{escape(title)}</p>' if title else ''}</header>\n"
        f"<main>\n{''.join(parts)}</main>\n"
        "<footer>Written by cfol-fast report from the runs' own files: result.json, metrics.jsonl, config.json, gallery.json and saved "
        "evaluations.</footer>\n</body>\n</html>\n"
    )


def prose(text: str) -> str:
    """Text for a paragraph: a number stays on the line of its unit."""
    return escape(text).replace(" %", f"{NARROW}%")


def part_key(number: int, count: int, key: str) -> str:
    """Names of figures and tables are unique on a page with several parts."""
    return f"part{number + 1}-{key}" if count > 1 else key


def _part(comparison: Comparison, number: int, count: int, before: str, pictures: Mapping[str, str]) -> str:
    first, second = headline(comparison)
    level = "h1" if number == 0 else "h2"
    top = (
        f'<p class="kicker">{escape(setting_phrase(comparison))}</p><{level}>{escape(first)}</{level}>'
        f'<p class="lead">{escape(second)}</p>{_notices(comparison)}{_cards(comparison)}'
    )
    made = {table.key: table for table in tables.build(comparison)}
    main = made["comparison"]
    if len(main.columns) > MANY_METHODS:
        main = main.transposed("Method")
    blocks = [before, _table_section(main)]
    drawn = figures.build(comparison)
    blocks += [_figure_section(figure, part_key(number, count, figure.key), pictures) for figure in drawn]
    blocks.append(_gallery_section(comparison))
    blocks += [
        _table_section(made[key]) for key in ("evaluations", "checkpoints", "classes", "runs") if key in made
    ]
    blocks += [_configuration(comparison), _versions(comparison)]
    article = f'<article id="report"{" class=part" if number else ""}>{top}{"".join(blocks)}</article>\n'
    # Text is escaped and holds no quotation mark, so this finds the ids of elements alone.
    return re.sub(
        r' id="(?!part\d)([^"]+)"', lambda found: f' id="{part_key(number, count, found[1])}"', article
    )


def _notices(comparison: Comparison) -> str:
    notes = []
    for group in comparison.groups:
        for run in group.runs:
            if not run.finished:
                what = (
                    f"shown is its {group.partial}"
                    if group.partial
                    else "left out of the means"
                    if not run.tested
                    else "shown with what it has"
                )
                seed = f", seed {run.seed}" if run.seed is not None else ""
                notes.append(f"{group.label}{seed} is {run_state(run)}; {what}.")
    if any(run.holdout == "test" for group in comparison.groups for run in group.runs):
        notes.append(
            "Checkpoints were chosen on the test set (hold-out = test), as in some of the paper's tables: such results are optimistic."
        )
    attacks = {attack_phrase(run.attack) for group in comparison.groups for run in group.runs if run.attack}
    if len(attacks) > 1:
        notes.append(
            "The runs were tested with different attacks; their robust accuracies are not directly comparable."
        )
    return "".join(f'<p class="notice">{escape(note)}</p>' for note in notes)


def _cards(comparison: Comparison) -> str:
    """The three robust measures at a glance: baseline, then the group the headline is about."""
    base, focus = comparison.baseline, comparison.focus
    cards = []
    for metric in ("worst", "tail", "average"):
        before = base.stat("robust", metric) if base.tested else None
        after = focus.stat("robust", metric) if focus is not None else None
        if before is None:
            continue
        name = METRICS[metric]
        if after is None or focus is None:
            who = base.worst_class("robust") if metric == "worst" else base.label
            body = f'<div class="change">{percent(before.mean)}<span class="unit">%</span></div>'
            cards.append(
                f'<div class="card"><div class="what"><span>{prose(name)}</span><span class="who">{escape(who)}</span></div>{body}</div>'
            )
            continue
        change = after.mean - before.mean
        tone = "" if points(change) == "0.0" else "good" if change > 0 else "bad"
        who = ""
        if metric == "worst":
            worst = base.worst_class("robust"), focus.worst_class("robust")
            who = worst[0] if worst[0] == worst[1] else f"{worst[0]}, then {worst[1]}"
        cards.append(
            f'<div class="card"><div class="what"><span>{prose(name)}</span><span class="who">{escape(who)}</span></div>'
            f'<div class="change"><span class="from">{percent(before.mean)}</span><span class="arrow">→</span>'
            f'<span style="color:var(--s{focus.colour})">{percent(after.mean)}</span><span class="unit">%</span></div>'
            f'<div class="delta {tone}">{points(change)} points</div></div>'
        )
    return f'<div class="cards">{"".join(cards)}</div>' if cards else ""


def _table_section(table: Table) -> str:
    files = "".join(
        f'<a download="{table.key}.{ending}" href="data:{kind};base64,{base64.b64encode(text.encode()).decode()}">{name}</a>'
        for ending, kind, name, text in (
            ("csv", "text/csv", "CSV", table.csv()),
            ("tex", "text/x-tex", "LaTeX", table.latex()),
        )
    )
    body = f'<div class="figure">{table.html()}</div><p class="files">{files}</p>'
    if table.folded:
        body = f"<details><summary>Show the table ({len(table.rows)} rows)</summary>{body}</details>"
    return f'<section><h2>{escape(table.title)}</h2><p class="caption">{prose(table.caption)}</p>{body}</section>'


def _figure_section(figure: Figure, key: str, pictures: Mapping[str, str]) -> str:
    legend = ""
    if figure.legend:
        items = "".join(
            f'<li><i style="background:var(--{"faint" if colour is None else f"s{colour}"}){";opacity:.35" if pale else ""}"></i>'
            f"{escape(name)}</li>"
            for name, colour, pale in figure.legend
        )
        legend = f'<ul class="legend">{items}</ul>'
    panels = ""
    for number, chart in enumerate(figure.charts):
        note = f' <span class="note">{escape(chart.note)}</span>' if chart.note else ""
        title = f"<h3>{escape(chart.title)}{note}</h3>" if chart.title or note else ""
        drawings = svg.draw(chart, PAIR if figure.pair else WIDE, "wide") + svg.draw(
            chart, NARROW_WIDTH, "narrow"
        )
        panels += f'<div class="panel" data-chart="{key}-{number}">{title}{drawings}</div>'
    files = f'<p class="files"><a href="{escape(pictures[key])}">PNG</a></p>' if key in pictures else ""
    return (
        f'<section id="{key}"><h2>{escape(figure.title)}</h2><p class="caption">{prose(figure.caption)}</p>'
        f'<div class="figure">{legend}<div class="panels{" pair" if figure.pair else ""}">{panels}</div></div>{files}</section>'
    )


def _gallery_section(comparison: Comparison) -> str:
    blocks = []
    for group in comparison.groups:
        found = next((made for run in group.runs if (made := gallery.load(run)) is not None), None)
        if found is None:
            continue
        items = "".join(_example(example, found.class_name) for example in found.examples)
        name = f'<i style="background:var(--s{group.colour})"></i>{escape(group.label)}: {escape(found.class_name)}'
        blocks.append(
            f'<div class="panel"><ul class="legend"><li>{name}</li></ul><div class="gallery">{items}</div></div>'
        )
    if not blocks:
        return ""
    return (
        '<section id="gallery"><h2>The worst class under attack</h2><p class="caption">For each image of the class: clean, the perturbation '
        "stretched to be seen, and adversarial; below, what the model takes the adversarial image for and how sure it is.</p>"
        f'<div class="figure"><div class="panels">{"".join(blocks)}</div></div></section>'
    )


def _example(example: gallery.Example, class_name: str) -> str:
    alt = ("clean", f"perturbation times {example.gain:.0f}", "adversarial")
    strip = "".join(
        f'<img src="{address}" alt="{name}" title="test image {example.index}, {name}">'
        for address, name in zip(example.pictures, alt, strict=True)
    )
    right = example.predicted == class_name
    sure = f", {percent(example.confidence)}{NARROW}% sure" if example.confidence is not None else ""
    clean_right = "right" if example.clean_predicted == class_name else "wrong"
    return (
        f'<figure class="example"><div class="strip">{strip}</div><figcaption>Clean <b class="{clean_right}">{escape(example.clean_predicted)}</b>'
        f' → attacked <b class="{"right" if right else "wrong"}">{escape(example.predicted)}</b>{sure}'
        "</figcaption></figure>"
    )


def _show(key: str, value: object) -> str:
    if isinstance(value, float):
        # Only sizes of perturbations are quoted in 255ths.
        return radius(value) if key.split(".")[-1] in ("eps", "step") else f"{value:g}"
    return "–" if value is None else str(value)


def _columns(comparison: Comparison) -> list[tuple[Group, dict[str, object]]]:
    return [(group, settings(group.runs[0])) for group in comparison.groups]


def _configuration(comparison: Comparison) -> str:
    columns = _columns(comparison)
    keys = list(dict.fromkeys(key for _, values in columns for key in values))
    if not keys:
        return ""

    def row(key: str) -> tables.Row:
        return tables.Row(
            [key], [tables.Cell(_show(key, values[key]) if key in values else "–") for _, values in columns]
        )

    labels = [group.label for group, _ in columns]
    different = [
        key for key in keys if is_essential(key) and len({repr(values.get(key)) for _, values in columns}) > 1
    ]
    body = ""
    if different:
        table = Table(
            "settings-different",
            "Settings that differ",
            "",
            ["Setting"],
            labels,
            [row(key) for key in different],
            words=True,
        )
        body = f'<div class="figure">{table.html()}</div>'
    table = Table("settings", "All settings", "", ["Setting"], labels, [row(key) for key in keys], words=True)
    body += f'<details><summary>All {len(keys)} settings</summary><div class="figure">{table.html()}</div></details>'
    text = (
        "The settings that differ between the methods come first."
        if different
        else "Every method has the same settings."
    )
    seeds = (
        " Of several seeds, the first run's."
        if any(len(group.runs) > 1 for group in comparison.groups)
        else ""
    )
    return f'<section id="configuration"><h2>Configuration</h2><p class="caption">{text}{seeds}</p>{body}</section>'


def _versions(comparison: Comparison) -> str:
    found: dict[str, dict[str, None]] = {}
    for group in comparison.groups:
        for run in group.runs:
            for name, version in run.versions.items():
                found.setdefault(name, {}).setdefault(str(version))
    if not found:
        return ""
    rows = [tables.Row([name], [tables.Cell(", ".join(versions))]) for name, versions in found.items()]
    table = Table("versions", "Versions", "", ["Part"], ["Version"], rows, words=True)
    return f'<section id="versions"><h2>Versions</h2><p class="caption">What the runs were made with.</p><div class="figure">{table.html()}</div></section>'
