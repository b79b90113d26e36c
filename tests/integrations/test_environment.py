"""The environment of these tests: the packages are the pinned ones, and torch is the one of .venv."""

from __future__ import annotations

from importlib.metadata import version
from pathlib import Path

import pytest
import torch

HERE = Path(__file__).parent
PINS = [
    line.split("==")
    for name in ("requirements.txt", "requirements-no-deps.txt")
    for line in (HERE / name).read_text().splitlines()
    if line and not line.startswith("#")
]


@pytest.mark.parametrize(("package", "pinned"), PINS)
def test_the_packages_are_the_pinned_ones(package: str, pinned: str) -> None:
    assert version(package) == pinned


def test_torch_is_not_installed_twice() -> None:
    assert ".venv-integrations" not in torch.__file__
