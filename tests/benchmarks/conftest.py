"""The suite may run with the instructions of an older processor; what a benchmark's settings say of it is
tested apart from that.
"""

import os

import pytest
import torch

from benchmarks import settings
from cfol_fast import _host
from cfol_fast.machine import cpu_bfloat16


@pytest.fixture(autouse=True, scope="session")
def _limits():
    limits = set(os.environ) - set(settings.environment("best"))
    if limits:
        # What oneDNN does in this process is asked while the environment still says it, and then known to
        # every later test. It takes a Python of its own, which most tests may not start.
        cpu_bfloat16()
    return limits


@pytest.fixture(autouse=True)
def _no_limits(monkeypatch, _limits):
    if not _limits:
        return
    for name in _limits:
        monkeypatch.delenv(name)
    if torch.backends.cpu.get_cpu_capability().startswith("AVX"):
        # Torch alone is limited: its kernels would not be of one instruction set with ours.
        monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: _host.instruction_set)
