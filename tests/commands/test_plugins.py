"""A package of somebody else adds a method, a data set and a model: the command line lists them and trains
with them.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from cfol_fast import data, methods, models
from cfol_fast.errors import InputError

pytestmark = pytest.mark.slow

PLUGIN = """\
import dataclasses
from torch import nn
from cfol_fast import data, methods, models

methods.register(dataclasses.replace(methods.get("cfol"), name="mine", title="Mine", colour=None))
data.register(dataclasses.replace(data.spec("fashion-mini"), name="my-data", model="my-net"))

@models.register("my-net")
def my_net(num_classes, in_channels, image_size):
    return nn.Sequential(nn.Flatten(), nn.Linear(in_channels * image_size**2, num_classes))
"""


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """A folder as pip leaves it: the module, and its entry point."""
    (tmp_path / "my_plugin.py").write_text(PLUGIN)
    info = tmp_path / "my_plugin-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: my-plugin\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[cfol_fast.plugins]\nmine = my_plugin\n")
    return tmp_path


def cli(site: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "PYTHONPATH": str(site), "OMP_NUM_THREADS": "1"}
    return subprocess.run(
        [sys.executable, "-m", "cfol_fast", *arguments], capture_output=True, text=True, env=env, cwd=site
    )


def test_they_are_listed(site: Path) -> None:
    said = cli(site, "train", "--list-methods").stdout
    assert "\nmine             Mine" in said
    assert ", my-data\n" in said
    assert ", my-net, " in said


def test_they_are_trained_and_evaluated(site: Path) -> None:
    options = [
        "--dataset",
        "my-data",
        "--epochs",
        "1",
        "--set",
        "steps_per_epoch=2",
        "--set",
        "attack.steps=1",
    ]
    options += ["--set", "test.steps=1", "--holdout", "none", "--device", "cpu", "--quiet", "--out", "run"]
    trained = cli(site, "train", "mine", *options)
    assert trained.returncode == 0, trained.stderr
    evaluated = cli(site, "eval", "run", "--limit", "20", "--steps", "1", "--device", "cpu")
    assert evaluated.returncode == 0, evaluated.stderr
    assert "worst class" in evaluated.stdout


def test_a_plugin_that_cannot_be_imported_is_one_line(site: Path) -> None:
    (site / "my_plugin.py").write_text("raise RuntimeError('broken')")
    found = cli(site, "train", "--list-methods")
    assert found.returncode == 2
    assert "the plugin mine (my_plugin) cannot be imported: " in found.stderr
    assert found.stderr.count("\n") == 1


def test_a_name_that_is_taken_is_refused() -> None:
    with pytest.raises(InputError, match="there is a method 'erm' already"):
        methods.register(methods.get("erm"))
    with pytest.raises(InputError, match="there is a data set 'cifar10' already"):
        data.register(data.spec("cifar10"))
    for name in ("resnet18", "a:b"):
        with pytest.raises(InputError, match="a model cannot be called"):
            models.register(name)
