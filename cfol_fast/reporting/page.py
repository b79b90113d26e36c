"""The report as one HTML page: no script, no network, nothing outside the file but optional downloads beside
it.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape

from cfol_fast import atomic
from cfol_fast.plain_text import NARROW, percent
from cfol_fast.reporting import gallery, svg
from cfol_fast.reporting.chart import Figure
from cfol_fast.reporting.groups import Comparison
from cfol_fast.reporting.picture_files import PAIR, WIDE
from cfol_fast.reporting.table import Cell, Row, Table
from cfol_fast.reporting.theme import page_css, variable
from cfol_fast.reporting.wording import headline, radius, run_state, setting_phrase, tone
from cfol_fast.runs.config import flatten
from cfol_fast.runs.identity import is_incidental
from cfol_fast.runs.metrics import SHARE
from cfol_fast.runs.records import join_versions

# The width of a drawing on a phone, in px.
PHONE = 342.0
# More methods than these are rows of the comparison table instead of columns.
MANY_METHODS = 6
# Tables that come before the figures.
FIRST = ("adjusted", "price", "checkpoints")


@dataclass(frozen=True)
class Part:
    """The runs on one data set. prefix: keeps ids and file names apart on a page with several parts, empty
    otherwise.
    """

    comparison: Comparison
    tables: Sequence[Table]
    figures: Sequence[Figure]
    prefix: str


def render(
    parts: Sequence[Part],
    title: str,
    extra: Sequence[Table],
    extra_figures: Sequence[Figure],
    pictures: Mapping[str, str],
    finding: tuple[str, str] | None = None,
) -> str:
    """The page. extra, extra_figures: shown before everything else of the first part. pictures: key of a
    figure -> address of its picture file beside the page. finding: the first part's headline, see
    `write_report`."""
    before = "".join(_table_section(table) for table in extra)
    before += "".join(_figure_section(drawn, f"extra-{drawn.key}", pictures) for drawn in extra_figures)
    articles = [
        _article(part, before if part is parts[0] else "", pictures, part is parts[0], finding)
        for part in parts
    ]
    name = title or headline(parts[0].comparison)[0]
    theme_buttons = "".join(
        '<label><input type="radio" name="theme"'
        f' id="theme-{key}"{" checked" if key == "auto" else ""}>{text}</label>'
        for key, text in (("auto", "Auto"), ("light", "Light"), ("dark", "Dark"))
    )
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width,initial-scale=1">\n'
        '<link rel="icon"'
        f' href="data:,">\n<title>{escape(name)}</title>\n<style>\n{page_css()}</style>\n</head>\n<body>\n'
        f'<header class="top"><fieldset class="theme" aria-label="Colours">{theme_buttons}</fieldset>'
        f"{f'<p class=kicker>{escape(title)}</p>' if title else ''}</header>\n"
        f"<main>\n{''.join(articles)}</main>\n"
        "<footer>Written by cfol-fast report from the runs' own files: result.json, metrics.jsonl,"
        " config.json, gallery.json and saved "
        "evaluations.</footer>\n</body>\n</html>\n"
    )


def prose(text: str) -> str:
    """Text for a paragraph: a number stays on the line of its unit."""
    return escape(text).replace(" %", f"{NARROW}%")


def _article(
    part: Part, before: str, pictures: Mapping[str, str], is_first: bool, finding: tuple[str, str] | None
) -> str:
    comparison = part.comparison
    declared = finding if is_first else None
    first, second = declared or headline(comparison)
    level = "h1" if is_first else "h2"
    top = (
        f'<p class="kicker">{escape(setting_phrase(comparison))}</p><{level}>{escape(first)}</{level}>'
        f'<p class="lead">{escape(second)}</p>{_notices(comparison)}'
    )
    # The cards are about the method with the best test result, which a declared finding need not be about.
    top += "" if declared else _cards(comparison)
    main, *others = part.tables
    if len(main.columns) > MANY_METHODS:
        main = main.transposed("Method")
    blocks = [before, _table_section(main)]
    # What is gained and what it costs stand together, before the details.
    blocks += [_table_section(table) for table in others if table.key in FIRST]
    blocks += [_figure_section(figure, part.prefix + figure.key, pictures) for figure in part.figures]
    blocks.append(_gallery_section(comparison))
    blocks += [_table_section(table) for table in others if table.key not in FIRST]
    blocks += [_configuration(comparison), _versions(comparison)]
    article = f'<article id="report"{"" if is_first else " class=part"}>{top}{"".join(blocks)}</article>\n'
    # Text is escaped and holds no quotation mark, so this finds the ids of elements alone.
    return re.sub(r' id="(?!part\d)([^"]+)"', rf' id="{part.prefix}\1"', article)


def _notices(comparison: Comparison) -> str:
    notes = []
    for group in comparison.groups:
        for run in group.runs:
            if not run.finished:
                what = "shown with what it has" if run.tested else "left out of the means"
                if group.partial:
                    what = f"shown is its {group.partial}"
                seed = f", seed {run.seed}" if run.seed is not None else ""
                notes.append(f"{group.label}{seed} is {run_state(run)}; {what}.")
    if any(run.holdout == "test" for group in comparison.groups for run in group.runs):
        notes.append(
            "Checkpoints were chosen on the test set (hold-out = test), as in some of the paper's tables:"
            " such results are optimistic."
        )
    notes += comparison.caveats()
    return "".join(f'<p class="notice">{escape(note)}</p>' for note in notes)


def _cards(comparison: Comparison) -> str:
    """The robust figures at a glance, those that say most first: baseline, then the group the headline is
    about.
    """
    base, focus = comparison.baseline, comparison.focus
    cards = []
    for kind in reversed(comparison.metrics):
        metric = kind.key
        before = base.stat("robust", metric) if base.tested else None
        after = focus.stat("robust", metric) if focus is not None else None
        if before is None:
            continue
        if after is None or focus is None:
            who = base.worst_class("robust") if metric == "worst" else base.label
            numbers, delta = kind.text(before.mean), ""
        else:
            worst = dict.fromkeys([base.worst_class("robust"), focus.worst_class("robust")])
            who = ", then ".join(worst) if metric == "worst" else ""
            numbers = (
                f'<span class="from">{kind.text(before.mean)}</span><span class="arrow">→</span>'
                f'<span style="color:{variable(focus.colour)}">{kind.text(after.mean)}</span>'
            )
            change = kind.change(after.mean - before.mean)
            of = "points" if kind.unit == SHARE else "classes"
            delta = f'<div class="delta{tone(change, kind)}">{change} {of}</div>'
        unit = '<span class="unit">%</span>' if kind.unit == SHARE else ""
        cards.append(
            f'<div class="card"><div class="what"><span>{prose(kind.heading(comparison.floor))}</span><span'
            f' class="who">{escape(who)}</span></div><div class="change">{numbers}{unit}</div>{delta}</div>'
        )
    return f'<div class="cards">{"".join(cards)}</div>' if cards else ""


def _table_section(table: Table) -> str:
    files = "".join(
        f'<a download="{table.key}.{ending}"'
        f' href="data:{kind};base64,{base64.b64encode(atomic.in_utf8(text)).decode()}">{name}</a>'
        for ending, kind, name, text in (
            ("csv", "text/csv", "CSV", table.csv()),
            ("tex", "text/x-tex", "LaTeX", table.latex()),
        )
    )
    body = f'<div class="figure">{table.html()}</div><p class="files">{files}</p>'
    if table.folded:
        body = f"<details><summary>Show the table ({len(table.rows)} rows)</summary>{body}</details>"
    return (
        f"<section><h2>{escape(table.title)}</h2><p"
        f' class="caption">{prose(table.caption)}</p>{body}</section>'
    )


def _figure_section(figure: Figure, key: str, pictures: Mapping[str, str]) -> str:
    legend = ""
    if figure.legend:
        items = "".join(
            f'<li><i style="background:{variable(colour)}{";opacity:.35" if pale else ""}"></i>'
            f"{escape(name)}</li>"
            for name, colour, pale in figure.legend
        )
        legend = f'<ul class="legend">{items}</ul>'
    panels = ""
    for number, chart in enumerate(figure.charts):
        note = f' <span class="note">{escape(chart.note)}</span>' if chart.note else ""
        title = f"<h3>{escape(chart.title)}{note}</h3>" if chart.title or note else ""
        widths = {"wide": PAIR if figure.pair else WIDE, "narrow": PHONE}
        drawings = "".join(
            svg.draw(chart, width).svg(kind, chart.title or figure.title) for kind, width in widths.items()
        )
        panels += f'<div class="panel" data-chart="{key}-{number}">{title}{drawings}</div>'
    files = f'<p class="files"><a href="{escape(pictures[key])}">SVG</a></p>' if key in pictures else ""
    return (
        f'<section id="{key}"><h2>{escape(figure.title)}</h2><p'
        f' class="caption">{prose(figure.caption)}</p><div class="figure">{legend}<div'
        f' class="panels{" pair" if figure.pair else ""}">{panels}</div></div>{files}</section>'
    )


def _gallery_section(comparison: Comparison) -> str:
    blocks = []
    for group in comparison.groups:
        found = next((made for run in group.runs if (made := gallery.load(run)) is not None), None)
        if found is None:
            continue
        items = "".join(_example(example, found.class_name) for example in found.examples)
        name = (
            f'<i style="background:{variable(group.colour)}"></i>{escape(group.label)}:'
            f" {escape(found.class_name)}"
        )
        blocks.append(
            f'<div class="panel"><ul class="legend"><li>{name}</li></ul><div'
            f' class="gallery">{items}</div></div>'
        )
    if not blocks:
        return ""
    return (
        '<section id="gallery"><h2>The worst class under attack</h2><p class="caption">For each image of the'
        " class: clean, the perturbation stretched to be seen, and adversarial; below, what the model takes"
        ' the adversarial image for and how sure it is.</p><div class="figure"><div'
        f' class="panels">{"".join(blocks)}</div></div></section>'
    )


def _example(example: gallery.Example, class_name: str) -> str:
    alt = ("clean", f"perturbation times {example.gain:.0f}", "adversarial")
    strip = "".join(
        f'<img src="{address}" alt="{name}" title="test image {example.index}, {name}">'
        for address, name in zip(example.pictures, alt, strict=True)
    )
    sure = f", {percent(example.confidence)}{NARROW}% sure" if example.confidence is not None else ""
    clean, attacked = (
        f'<b class="{"right" if predicted == class_name else "wrong"}">{escape(predicted)}</b>'
        for predicted in (example.clean_predicted, example.predicted)
    )
    caption = f"Clean {clean} → attacked {attacked}{sure}"
    return (
        f'<figure class="example"><div class="strip">{strip}</div><figcaption>{caption}</figcaption></figure>'
    )


def _setting_text(key: str, value: object) -> str:
    if isinstance(value, float):
        # Only sizes of perturbations are quoted in 255ths.
        return radius(value) if key.split(".")[-1] in ("eps", "step") else f"{value:g}"
    return "–" if value is None else str(value)


def _words_table(
    key: str, title: str, stub: str, columns: list[str], rows: Mapping[str, Sequence[str]]
) -> str:
    lines = [Row([name], [Cell(text) for text in texts]) for name, texts in rows.items()]
    table = Table(key, title, "", [stub], columns, lines, words=True)
    return f'<div class="figure">{table.html()}</div>'


def _configuration(comparison: Comparison) -> str:
    settings = [flatten(group.runs[0].config) for group in comparison.groups]
    keys = list(dict.fromkeys(key for values in settings for key in values))
    if not keys:
        return ""
    labels = [group.label for group in comparison.groups]
    rows = {key: [_setting_text(key, values.get(key)) for values in settings] for key in keys}
    different = {
        key: texts
        for key, texts in rows.items()
        if len({repr(values.get(key)) for values in settings}) > 1
        and key != "seed"
        and not is_incidental(key)
    }
    body = ""
    text = "Every method has the same settings."
    if different:
        body = _words_table("settings-different", "Settings that differ", "Setting", labels, different)
        text = "The settings that differ between the methods come first."
    if any(len(group.runs) > 1 for group in comparison.groups):
        text += " Of several seeds, the first run's."
    everything = _words_table("settings", "All settings", "Setting", labels, rows)
    body += f"<details><summary>All {len(keys)} settings</summary>{everything}</details>"
    return f'<section id="configuration"><h2>Configuration</h2><p class="caption">{text}</p>{body}</section>'


def _versions(comparison: Comparison) -> str:
    found = join_versions(run.versions for group in comparison.groups for run in group.runs)
    if not found:
        return ""
    rows = {name: [versions] for name, versions in found.items()}
    body = _words_table("versions", "Versions", "Part", ["Version"], rows)
    return (
        '<section id="versions"><h2>Versions</h2><p class="caption">What the runs were made'
        f" with.</p>{body}</section>"
    )
