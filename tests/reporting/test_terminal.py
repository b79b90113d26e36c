"""The comparison as text, and the command that writes the page."""

from __future__ import annotations

import argparse
import io
import json

import pytest

from cfol_fast import reporting
from cfol_fast.commands import report as command
from cfol_fast.errors import InputError
from cfol_fast.reporting.terminal import wants_colour
from tests.reporting.synthetic_runs import FASHION, change, make_run


@pytest.fixture
def pair(tmp_path):
    return [make_run(tmp_path / "erm", "erm"), make_run(tmp_path / "cfol", "cfol")]


def results(pair):
    return [json.loads((folder / "result.json").read_text()) for folder in pair]


def parse(*words):
    parser = argparse.ArgumentParser()
    command.add_arguments(parser)
    return parser.parse_args([str(word) for word in words])


def test_the_table_has_every_measure_with_its_difference(pair):
    for folder, worst in zip(pair, (0.1, 0.39), strict=True):
        change(folder / "result.json", "test", "robust", "worst", to=worst)
    lines = reporting.comparison_table(*results(pair)).splitlines()
    assert lines[0].split() == ["ERM-AT", "CFOL-AT"]
    assert next(line.split()[-3:] for line in lines if "Worst" in line) == ["10.0", "39.0", "(+29.0)"]
    assert len(lines) == 8


def test_methods_that_do_not_fit_side_by_side_are_rows(pair):
    lines = reporting.comparison_table(*pair, width=40).splitlines()
    assert [line.split()[0] for line in (lines[0], *lines[2:])] == ["Method", "ERM-AT", "CFOL-AT"]
    assert "Robust Worst class" in lines[0]
    assert "(+" in lines[3]


def test_the_bars_are_as_long_as_the_accuracies(pair):
    for share in (0.25, 0.5):
        change(pair[1] / "result.json", "test", "robust", "per_class", "Shirt", to=share)
        text = reporting.terminal_bars(*results(pair), width=80)
        shirt = next(line for line in text.splitlines() if line.split()[:1] == ["CFOL-AT"])
        room = 80 - len("T-shirt/top") - len("CFOL-AT") - 18
        assert shirt.count("█") == int(share * room)
        assert f"{100 * share:.1f}" in shirt


def test_the_bars_name_every_class_and_fit_the_terminal(pair):
    text = reporting.terminal_bars(*pair, width=60)
    assert all(name in text for name in FASHION)
    assert max(len(line) for line in text.splitlines()) <= 60
    assert "worst class" in text


def test_of_many_classes_the_tail_is_shown(tmp_path):
    text = reporting.terminal_bars(make_run(tmp_path / "run", "erm", classes=100, epochs=2))
    assert "the 20 % tail: 20 of 100 classes" in text
    assert text.count("class-") == 20
    # Two share the lowest accuracy, so the summary names neither.
    assert text.endswith("worst class 0.0 (2 classes)")


def test_colour_is_for_terminals_only(pair, monkeypatch):
    class Screen(io.StringIO):
        def isatty(self):
            return True

    monkeypatch.delenv("NO_COLOR", raising=False)
    assert wants_colour(Screen())
    assert not wants_colour(io.StringIO())
    monkeypatch.setenv("NO_COLOR", "1")
    assert not wants_colour(Screen())
    for make in (reporting.terminal_bars, reporting.comparison_table):
        assert "\x1b" not in make(*pair)
        assert "\x1b[32m" in make(*pair, colour=True)


def test_a_run_without_accuracies_has_no_bars(tmp_path):
    folder = make_run(tmp_path / "run", stopped=1)
    path = folder / "metrics.jsonl"
    path.write_text(path.read_text().splitlines(True)[0])
    assert "no run has a robust accuracy" in reporting.terminal_bars(folder)


def test_the_command_writes_the_page_and_says_where(pair, tmp_path, capsys):
    out = tmp_path / "report.html"
    assert command.run(parse(*pair, "--out", out)) == 0
    said = capsys.readouterr().out
    assert "CFOL-AT lifts the worst class" in said
    assert f"page:  {out}" in said
    assert out.exists()
    assert len(list((tmp_path / "report_files").glob("*.svg"))) == 8


def test_the_command_without_pictures_writes_none(pair, tmp_path):
    command.run(parse(*pair, "--out", tmp_path / "report.html", "--no-pictures"))
    assert not list((tmp_path / "report_files").glob("*.svg"))
    assert list((tmp_path / "report_files").glob("*.tex"))


def test_the_command_takes_a_folder_of_runs_and_a_baseline(pair, tmp_path, capsys):
    words = (
        tmp_path,
        "--out",
        tmp_path / "report.html",
        "--no-pictures",
        "--baseline",
        "cfol",
        "--title",
        "Two methods",
    )
    assert command.run(parse(*words)) == 0
    assert "ERM-AT lowers the worst class" in capsys.readouterr().out
    assert "Two methods" in (tmp_path / "report.html").read_text()


@pytest.mark.slow
def test_the_command_refuses_what_cannot_be_compared(tmp_path):
    runs = [make_run(tmp_path / "a"), make_run(tmp_path / "b", classes=100, epochs=2)]
    out = tmp_path / "report.html"
    with pytest.raises(InputError, match="--separate"):
        command.run(parse(*runs, "--out", out))
    assert command.run(parse(*runs, "--out", out, "--no-pictures", "--separate")) == 0
    with pytest.raises(InputError, match="nowhere"):
        command.run(parse(tmp_path / "nowhere"))
