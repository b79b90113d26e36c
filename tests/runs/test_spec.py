"""A setting is described once, in its field: the page of the docs, and a setting that is added as
CONTRIBUTING says.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from cfol_fast.runs.config import settings
from tools import settings_page

ROOT = Path(__file__).resolve().parents[2]
# In the field's place: behind the setting that stands above it in the tree.
ABOVE = "    batchnorm: str = setting("
ADDED = """\
    dimming: float = setting(
        0.0, limits=Range(0, 1, whole=False), option="--dimming SHARE", help="how dark the images become"
    )
    folder: str = setting("here", choices=("here", "there"), incidental=True, help="where notes are kept")
"""
PROGRAM = """
import argparse, json
from cfol_fast.commands import train
from cfol_fast.errors import InputError
from cfol_fast.runs.config import TrainConfig, to_dict
from cfol_fast.runs.identity import differences, identity
from tools import settings_page

parser = argparse.ArgumentParser()
train.add_arguments(parser)

def read(*words):
    return train.completed(parser.parse_args(["erm", *words]))

def refused(*words):
    try:
        read(*words)
    except InputError as error:
        return str(error)

plain, by_option, by_set = read(), read("--dimming", "1/4"), read("--set=dimming=1/4", "--set=folder=there")
print(json.dumps({
    "help": parser.format_help(),
    "by option": by_option.dimming,
    "by set": by_set.dimming,
    "limit": refused("--dimming", "2"),
    "kind": refused("--set=dimming=much"),
    "choice": refused("--set=folder=elsewhere"),
    "stored": to_dict(by_set)["dimming"],
    "read again": TrainConfig.recorded(to_dict(by_set)).dimming,
    "named": identity(by_set).get("dimming"),
    "named by default": "dimming" in identity(plain),
    "named folder": "folder" in identity(by_set),
    "differences": differences(plain, by_set),
    "page": settings_page.page(),
}))
"""


def test_the_page_of_the_docs_says_what_the_fields_say():
    """After a change of a setting: `python -m tools.settings_page`."""
    assert settings_page.PAGE.read_text() == settings_page.page()


def test_every_setting_stands_on_the_page_with_its_meaning():
    page = settings_page.page()
    for key, chosen in settings().items():
        (row,) = [line for line in page.splitlines() if line.startswith(f"| `{key}` ")]
        assert chosen.help
        assert row.replace("\\|", "|").endswith(f" {chosen.help} |")


@pytest.mark.slow
def test_a_setting_is_one_line_and_its_use(tmp_path):
    """By the guide in CONTRIBUTING, in a copy of the package that is linked except for the changed file."""
    for name in ("cfol_fast", "tools"):
        shutil.copytree(
            ROOT / name,
            tmp_path / name,
            copy_function=os.symlink,
            ignore=shutil.ignore_patterns("__pycache__"),
        )
    changed = tmp_path / "cfol_fast" / "runs" / "config.py"
    text = changed.read_text()
    assert text.count(ABOVE) == 1
    changed.unlink()
    changed.write_text(text.replace(ABOVE, ADDED + ABOVE))
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    assert "--dimming SHARE" in said["help"]
    assert "how dark the images become" in said["help"]
    assert said["by option"] == said["by set"] == said["stored"] == said["read again"] == 0.25
    assert said["limit"] == "--dimming: dimming must be at most 1, got 2.0"
    assert said["kind"].startswith("dimming takes a number")
    assert said["choice"] == "folder must be one of here, there, got 'elsewhere'"
    assert said["named"] == 0.25
    assert not said["named by default"]
    assert not said["named folder"]
    assert said["differences"] == ["dimming (was 0.0, now 0.25)"]
    (row,) = [line for line in said["page"].splitlines() if line.startswith("| `dimming` ")]
    assert row == "| `dimming` | number | 0 | 0 to 1 | `--dimming SHARE` | yes | how dark the images become |"
