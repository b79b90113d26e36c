"""Data shared by the tests of this folder.

FFCV compiles for seconds, so its files and sources are made once.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from cfol_fast import data
from cfol_fast.data.ffcv import writer


@pytest.fixture(scope="session")
def mini() -> data.ImageData:
    return data.load("fashion-mini")


@pytest.fixture(scope="session")
def mini_beton(mini: data.ImageData, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The embedded training images as a raw FFCV file."""
    path = tmp_path_factory.mktemp("beton") / "mini.beton"
    writer.write(path, mini.train, description={"dataset": "fashion-mini"})
    return path


@contextmanager
def without_privileges() -> Iterator[None]:
    """As root every file can be read; for the tests of permissions the process becomes nobody for a
    moment.
    """
    root = os.geteuid() == 0
    if root:
        os.seteuid(65534)
    try:
        yield
    finally:
        if root:
            os.seteuid(0)


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder that nobody can reach too (pytest's own are private to the user)."""
    path = Path(tempfile.mkdtemp(prefix="cfol-data-"))
    path.chmod(0o755)
    yield path
    for folder in path.rglob("*"):
        if folder.is_dir():
            folder.chmod(0o755)
    shutil.rmtree(path)
