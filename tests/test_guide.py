"""CONTRIBUTING.md is true: its map is the tree, and a method is added by its guide."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from cfol_fast.methods import METHODS

ROOT = Path(__file__).resolve().parents[1]
GUIDE = (ROOT / "CONTRIBUTING.md").read_text()
MAP = GUIDE.partition("## The map")[2].split("```")[1]
# Place -> what the map says of it, with the lines below that continue it.
PLACES: dict[str, str] = dict(re.findall(r"^(\S+) +(.*(?:\n +.*)*)", MAP, re.MULTILINE))
# What is in a checkout besides the project: made by tools, and the files of git.
MADE = {"build", "dist", "site", "reproduction", "runs", "__pycache__", ".git"}


def tracked() -> list[Path]:
    """The files of the project, from its root. Without git (an unpacked archive) those that are there."""
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=False)
    if listed.returncode == 0:
        return [Path(line) for line in listed.stdout.splitlines()]
    found = (path.relative_to(ROOT) for path in ROOT.rglob("*") if path.is_file())
    return [path for path in found if not MADE & set(path.parts)]


def test_every_place_and_every_module_of_the_map_is_there() -> None:
    for place, said in PLACES.items():
        if place == "cfol_fast/*.py":
            continue
        assert (ROOT / place).exists(), place
        room = ROOT / place if place.endswith("/") else ROOT
        for name in re.findall(r"[\w/]+(?:\.py|\.toml)\b|\b[\w/]+/(?=[:,;) ])", said):
            assert [*room.rglob(name.strip("/"))] or (ROOT / name).exists(), f"{place}: {name}"


def test_every_room_of_the_tree_is_on_the_map() -> None:
    files = tracked()
    rooms = {
        f"cfol_fast/{path.parts[1]}/" for path in files if path.parts[0] == "cfol_fast" and path.parts[2:]
    }
    folders = {f"{path.parts[0]}/" for path in files if path.parts[1:] and path.parts[0][0] != "."}
    assert not (rooms | folders - {"cfol_fast/"}) - PLACES.keys()
    modules = {path.stem for path in files if path.parts[0] == "cfol_fast" and len(path.parts) == 2}
    own = {place.removeprefix("cfol_fast/").removesuffix(".py") for place in PLACES}
    foundation = set(re.findall(r"\w+", PLACES["cfol_fast/*.py"]))
    public = {"__init__", "__main__", "_version", "_host", "_ops", "py"}
    assert not modules - own - foundation - public


def test_the_rooms_stand_in_the_order_in_which_imports_go_down() -> None:
    layers = (ROOT / "pyproject.toml").read_text().partition('name = "Imports go down only"')[2]
    order = [
        {word.strip() for word in line.split("|")}
        for line in re.findall(r'^  "([^"]+)",$', layers.partition("[[")[0], re.MULTILINE)
    ]
    level = {name: number for number, names in enumerate(order) for name in names}
    rooms = [place.split("/")[1].removesuffix(".py") for place in PLACES if place.startswith("cfol_fast/")]
    levels = [level[room] for room in rooms if room in level]
    assert len(levels) > 12
    assert levels == sorted(levels)


OBJECTIVE = '''
"""Half of the mean."""
from cfol_fast.objectives.objective import Mean


class HalfMean(Mean):
    def risk(self, terms, examples):
        return super().risk(terms, examples) / 2
'''
ROW = """        Method(
            name="half",
            title="Half ERM-AT",
            section="a test",
            summary="ERM-AT with half of its gradients.",
            draw=_uniform,
            minimise=lambda params, k: HalfMean(),
        ),
"""
ABOVE = '        Method(\n            name="two-run",\n'


@pytest.mark.slow
def test_a_method_is_its_row_and_its_new_part(tmp_path: Path) -> None:
    """By the guide, in a copy of the package that is linked except for the changed files: it is listed,
    trained, tested, resumed and reported because it is in the table.
    """
    linked = {"copy_function": os.symlink, "ignore": shutil.ignore_patterns("__pycache__")}
    shutil.copytree(ROOT / "cfol_fast", tmp_path / "cfol_fast", **linked)  # type: ignore[arg-type]
    table = tmp_path / "cfol_fast" / "methods.py"
    text = table.read_text()
    assert text.count(ABOVE) == 1
    table.unlink()
    imported = "from cfol_fast.objectives.half import HalfMean\n\n"
    first = (
        text.index("import dataclasses") if "import dataclasses" in text else text.index("from collections")
    )
    table.write_text(text[:first] + imported + text[first:].replace(ABOVE, ROW + ABOVE))
    (tmp_path / "cfol_fast" / "objectives" / "half.py").write_text(OBJECTIVE)

    def cli(*words: str) -> str:
        done = subprocess.run(
            [sys.executable, "-m", "cfol_fast", *words],
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": str(tmp_path), "OMP_NUM_THREADS": "1"},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    assert "half             Half ERM-AT" in cli("train", "--list-methods")
    short = [f"--set={one}" for one in ("steps_per_epoch=2", "attack.steps=1", "test.steps=1")]
    short += [
        "--set=data.images=200",
        "--set=validation.steps=1",
        "--model",
        "demo-cnn@0.05",
        "--epochs",
        "1",
    ]
    for method in ("half", "erm"):
        cli("train", method, *short, "--device", "cpu", "--quiet", "--out", method)
    rows = [
        json.loads((tmp_path / name / "metrics.jsonl").read_text().splitlines()[0])
        for name in ("half", "erm")
    ]
    assert rows[0]["loss"] < 0.6 * rows[1]["loss"]
    assert "half" in json.loads((tmp_path / "half" / "result.json").read_text())["method"]
    assert "Half ERM-AT" in cli("report", "half", "erm", "--out", "page.html")


def test_the_places_that_the_guide_names_for_a_method_know_every_method() -> None:
    """Step 3 of the guide: the names in tests/test_methods.py, and the words of each method's page."""
    words = tomllib.loads((ROOT / "docs/methods.toml").read_text())
    assert list(words) == list(METHODS)
