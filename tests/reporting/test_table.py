"""One table, five forms: each holds all of it and escapes what its format would misread."""

from __future__ import annotations

import csv
import io

import pytest

from cfol_fast.reporting import Cell, Row, Table

TABLE = Table(
    "key",
    "A title",
    "A caption.",
    ["", "Measure"],
    ["ERM-AT", "CFOL-AT"],
    [
        Row(["clean", "a|b"], [Cell("80.0", 0.8), Cell("75.0", 0.75, None, -0.05)], first=True),
        Row(["", "50 %"], [Cell("10.0 ± 1.0", 0.1, 0.01), Cell("39.0", 0.39, None, 0.29, best=True)]),
    ],
    ["slate", "indigo"],
)


def test_markdown_marks_the_best_and_writes_differences_in_brackets():
    assert TABLE.markdown().splitlines() == [
        "|  | Measure | ERM-AT | CFOL-AT |",
        "| --- | --- | ---: | ---: |",
        r"| clean | a\|b | 80.0 | 75.0 (−5.0) |",
        "|  | 50 % | 10.0 ± 1.0 | **39.0** (+29.0) |",
    ]


def test_csv_has_full_numbers_and_repeats_the_stubs():
    rows = list(csv.DictReader(io.StringIO(TABLE.csv())))
    assert [row[""] for row in rows] == ["clean", "clean"]
    assert [float(row["CFOL-AT difference"]) for row in rows] == [-0.05, 0.29]
    assert [row["ERM-AT deviation"] for row in rows] == ["", "0.01"]


def test_latex_has_only_characters_that_every_latex_knows():
    table = Table("k", "α ≤ 1", "a → b, 5 ± 1 − 2 · 3 – 4", ["x"], ["a → b"], [Row(["ε"], [Cell("1 → 2")])])
    assert table.latex().isascii()
    assert r"1 $\rightarrow$ 2" in table.latex()


def test_latex_opens_blocks_with_a_rule_and_escapes():
    text = TABLE.latex()
    assert r" & 50 \% & 10.0 $\pm$ 1.0 & \textbf{39.0} (+29.0) \\" in text
    assert text.count(r"\midrule") == 1
    assert text.isascii()


def test_html_colours_columns_and_differences():
    text = TABLE.html()
    assert 'style="background:var(--indigo)"' in text
    assert '<span class="delta bad">−5.0</span>' in text
    assert '<td class=best>39.0<span class="delta good">+29.0</span></td>' in text


def test_plain_text_is_aligned():
    lines = TABLE.text().splitlines()
    assert len({len(line) for line in lines}) <= 2
    assert lines[3].endswith("39.0 (+29.0)")


def test_a_table_can_be_turned():
    turned = TABLE.transposed("Method")
    assert turned.columns == ["clean a|b", "clean 50 %"]
    assert [(row.stubs, row.colour) for row in turned.rows] == [
        (["ERM-AT"], "slate"),
        (["CFOL-AT"], "indigo"),
    ]


def test_a_table_without_rows_has_its_heading_in_every_form():
    empty = Table("key", "A title", "", ["Measure"], ["ERM-AT"], [])
    for text in (empty.markdown(), empty.csv(), empty.latex(), empty.html(), empty.text()):
        assert "ERM-AT" in text


@pytest.mark.parametrize("name", ["=1+1", "+1", "-2+3", "@SUM(A1)", "\t=1", "a\r=1"])
def test_no_name_is_a_formula_in_a_spreadsheet(name):
    table = Table("k", "t", "c", [name], [name], [Row([name], [Cell("-1", value=-0.5, difference=-0.25)])])
    header, row = csv.reader(io.StringIO(table.csv(), newline=""))
    shown = "a =1" if name.startswith("a") else f"'{name}"
    assert header == [shown, shown, f"{shown} difference"]
    assert row == [shown, "-0.5", "-0.25"]
