"""The suite may run with the instructions of an older processor; what a benchmark's settings say of it is tested apart from that."""

import os

import pytest

from benchmarks import settings


@pytest.fixture(autouse=True)
def _no_limits(monkeypatch):
    for name in set(os.environ) - set(settings.environment("best")):
        monkeypatch.delenv(name)
