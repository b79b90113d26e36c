"""The suite may run with the instructions of an older processor; what a benchmark's settings say of it is tested apart from that."""

import os

import pytest
import torch

from benchmarks import settings
from cfol_fast import _host
from cfol_fast.machine import cpu_bfloat16


@pytest.fixture(autouse=True)
def _no_limits(monkeypatch):
    limits = set(os.environ) - set(settings.environment("best"))
    if not limits:
        return
    # What oneDNN does in this process is asked while the environment still says it, and then known to every later test.
    cpu_bfloat16()
    for name in limits:
        monkeypatch.delenv(name)
    if torch.backends.cpu.get_cpu_capability().startswith("AVX"):
        # Torch alone is limited: its kernels would not be of one instruction set with ours.
        monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: _host.instruction_set)
