"""The generated pages of the site say what the program and results/*.json say."""

from __future__ import annotations

import copy
import re
from pathlib import Path

import pytest

from cfol_fast import methods
from cfol_fast.commands import main as cli
from tools import command_page, site_pages
from tools.collection import read_frontiers
from tools.leaderboard_page import leaderboard_page
from tools.which_method_page import which_method_page

ROOT = Path(__file__).resolve().parents[2]
OPTION = re.compile(r"(?<![\w-])--[a-z][a-z0-9-]*")


def sections() -> dict[str, str]:
    parts = re.split(r"^## (.*)\n", command_page.command_page(), flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def rows(section: str) -> dict[str, str]:
    """The arguments of a section: what is typed, and its meaning without the escapes."""
    found = re.findall(r"^\| `(.*?)` \| (.*) \|$", section, re.MULTILINE)
    return {name: re.sub(r"\\(.)", r"\1", text) for name, text in found}


@pytest.fixture
def help_of(capsys, monkeypatch):
    """The help that the program itself prints for `words`."""
    monkeypatch.setenv("COLUMNS", "200")

    def printed(words: str) -> str:
        assert cli.main([*words.split(), "--help"]) == 0
        return capsys.readouterr().out

    return printed


@pytest.mark.slow
@pytest.mark.parametrize("words", [title for title, _ in command_page.parsers()])
def test_the_command_reference_is_the_help_of_the_program(words, help_of):
    printed, found = help_of(words), rows(sections()[words])
    listed = [line for line in printed.splitlines() if re.match(r"  -", line)]
    options = {option for line in listed for option in OPTION.findall(line.split("   ")[0])}
    assert {option for name in found for option in OPTION.findall(name)} == options - {"--help"}
    # Every meaning is printed too: argparse breaks lines, so blanks do not count.
    squeezed = "".join(printed.split())
    assert [text for text in found.values() if "".join(text.split()) not in squeezed] == []


def test_every_command_of_the_program_has_its_section():
    assert {title.split()[0] for title in sections() if title != "Exit status"} == set(cli.COMMANDS)


def test_the_leaderboard_has_every_row_with_the_mean_of_its_seeds():
    frontiers = read_frontiers(ROOT / "results")
    page = leaderboard_page(frontiers)
    assert page.count('<div class="sortable"') == len(frontiers)
    for facts in frontiers:
        for row in facts["rows"]:
            values = row["rules"]["best-average"]["robust"]["worst"]["values"]
            worst = f"{100 * sum(values) / len(values):.1f}"
            title = re.escape(row["title"])
            link = rf"\[{title}\]\(methods/{row['name']}\.md\)"
            line = rf"^\| {link} \| {row['base']} \| {worst} \|.*\| {len(values)} \|$"
            assert re.search(line, page, re.MULTILINE), (facts["scale"], row["name"])
    assert set(re.findall(r"methods/([\w-]+)\.md", page)) <= set(methods.METHODS)


def test_the_figures_of_which_method_come_from_the_results():
    frontiers = read_frontiers(ROOT / "results")
    changed = copy.deepcopy(frontiers)
    for facts in changed:
        erm = next(row for row in facts["rows"] if row["name"] == "erm")
        erm["rules"]["best-average"]["robust"]["worst"]["mean"] = 0.9876
    assert "98.8 / " not in which_method_page(frontiers)
    page = which_method_page(changed)
    # Questions 1, 2 and 5, and the best worst class, for each table.
    assert page.count("98.8 / ") == 4 * len(frontiers)
    assert page.count("ERM-AT, 98.8 / ") == len(frontiers)


def test_the_site_s_folder_is_written_anew_with_its_pictures(tmp_path):
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "gone.md").write_text("a page that no longer exists")
    site_pages.write(tmp_path / "site")
    written = {path.relative_to(tmp_path / "site").as_posix() for path in (tmp_path / "site").rglob("*.*")}
    assert {"index.md", "commands.md", "methods/cfol.md", "assets/tables.js"} <= written
    assert "gone.md" not in written
    used = re.findall(r"!\[[^\]]*\]\(([^)]+)\)", (tmp_path / "site" / "leaderboard.md").read_text())
    assert used
    assert set(used) <= written
