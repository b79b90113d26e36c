"""The README is true: its code blocks run, its commands parse, its files and links exist."""

import importlib
import re
import shlex
import tomllib
from pathlib import Path

import pytest

from cfol_fast import methods
from cfol_fast.commands import main as cli
from tests.data import published_files

ROOT = Path(__file__).resolve().parents[1]
PAGES = ["README.md", "docs/own-loop.md", "docs/install.md", "docs/gpu.md", "CONTRIBUTING.md"]


def blocks(page, language):
    return re.findall(rf"```{language}\n(.*?)```", (ROOT / page).read_text(), re.DOTALL)


def commands():
    for line in "".join(blocks("README.md", "bash")).splitlines():
        command = line.split("#")[0].strip()
        if command.startswith("torchrun "):
            command = "cfol-fast " + command.partition(" -m cfol_fast ")[2]
        if command.startswith("cfol-fast "):
            yield command


def test_the_loop_shows_what_the_bandit_is_for():
    code = blocks("docs/own-loop.md", "python")[-1]
    uniform = code.replace('eta="auto", draws=60 * 128', "eta=1e-9")
    assert uniform != code
    found = []
    for program in (code, uniform):
        names = {}
        exec(compile(program, "docs/own-loop.md", "exec"), names)
        found.append((float(names["robust"].per_class[9]), float(names["sampler"].p[9])))
    (accuracy, p), (left_behind, untouched) = found
    assert accuracy > 0.5
    assert p > 0.15
    assert left_behind < 0.2
    assert untouched == pytest.approx(0.1, abs=1e-3)


@pytest.mark.slow
def test_the_loop_trains_on_a_folder_of_images(monkeypatch, tmp_path, capsys):
    """Three classes, of which two are the same: the sampler must see that these fail."""
    monkeypatch.chdir(tmp_path)
    published_files.folder(tmp_path / "DIR", side=32, count=24)
    (code,) = blocks("README.md", "python")
    names = {}
    exec(compile(code, "README.md", "exec"), names)
    assert names["sampler"].draws == 3 * 72
    assert names["sampler"].w.abs().max() > 0
    table = capsys.readouterr().out
    assert all(name in table for name in ("ant", "bee", "cat"))


@pytest.mark.parametrize("command", list(commands()))
def test_a_command_is_understood_by_the_command_line(command):
    name, *arguments = shlex.split(command)[1:]
    module = importlib.import_module(cli.COMMANDS[name][0])
    parser = cli.OneLineParser(prog=name)
    module.add_arguments(parser)
    parser.parse_args(arguments)


def test_the_extras_are_those_that_can_be_installed():
    (named,) = re.findall(r"## Extras\n(.*)", (ROOT / "docs/install.md").read_text(), re.DOTALL)
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert re.findall(r"`(\w+)`", named) == list(declared)


def test_the_make_targets_exist():
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    for page in PAGES:
        named = set(re.findall(r"`make ([a-z-]+)`|^make ([a-z-]+)", (ROOT / page).read_text(), re.MULTILINE))
        assert {a or b for a, b in named} <= targets


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)#]+)\)", (ROOT / page).read_text()):
        if not target.startswith("http"):
            assert ((ROOT / page).parent / target).exists(), target


def test_the_number_of_methods_is_that_of_the_table():
    (count,) = re.findall(r"\*\*(\d+) methods\*\*", (ROOT / "README.md").read_text())
    assert int(count) == len(methods.METHODS)


def test_the_readme_fits_a_page():
    text = (ROOT / "README.md").read_text()
    assert len(text.splitlines()) <= 130
    # The status box stands on the first screen, before the instructions.
    assert "Nothing has run on a GPU yet" in text[: text.index("## Install")]
