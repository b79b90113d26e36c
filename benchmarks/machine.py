"""What is written beside the numbers: which machine, which instruction set, which versions."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import torch

from benchmarks.settings import limits
from benchmarks.timing import THREADS
from cfol_fast import _host

RESULTS = Path(__file__).parent / "results"
CPUINFO = Path("/proc/cpuinfo")
PACKAGES = (
    "torch",
    "torchvision",
    "torchattacks",
    "foolbox",
    "adversarial-robustness-toolbox",
    "cleverhans",
    "pyautoattack",
    "ffcv",
    "numpy",
    "pillow",
)


def cpu_model() -> str:
    return _cpu_fact("model name") or platform.processor() or platform.machine()


def cpu_numbers() -> tuple[int, int] | None:
    """Family and model, where Linux says them: virtual machines give processors of several generations the
    same name.
    """
    family, model = (_cpu_fact(key) for key in ("cpu family", "model"))
    return (int(family), int(model)) if family and model else None


def _cpu_fact(key: str) -> str | None:
    """What Linux says of the first core."""
    found = re.search(rf"^{key}\s*: (.*)$", CPUINFO.read_text(), re.M) if CPUINFO.exists() else None
    return found[1].strip() if found else None


def instructions() -> str:
    """The instruction set of this process's kernels: AVX-512, AVX2 or what else torch finds."""
    limits()
    torchs, ours = torch.backends.cpu.get_cpu_capability(), _host.instruction_set
    if torchs.startswith("AVX") and torchs != ours:
        sys.exit(f"torch's kernels use {torchs} and ours {ours}: such numbers belong to no instruction set")
    return "AVX-512" if torchs == "AVX512" else str(torchs)


def machine_name() -> str:
    """The results file's name: CPU, cores, threads if they are not as many, where there is one the GPU, and
    the instruction set.
    """
    parts = [cpu_model().replace("(R)", "")]
    if numbers := cpu_numbers():
        parts.append("family {} model {}".format(*numbers))
    parts.append(f"{os.cpu_count()} cores")
    if os.cpu_count() != THREADS:
        parts.append(f"{THREADS} threads")
    if torch.cuda.is_available():
        parts.append(torch.cuda.get_device_name())
    parts.append(instructions().replace("-", ""))
    return re.sub(r"[^a-z0-9]+", "-", " ".join(parts).lower()).strip("-")


def machine() -> dict[str, Any]:
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    family, model = cpu_numbers() or (None, None)
    return {
        "name": machine_name(),
        "date": time.strftime("%Y-%m-%d"),
        "began": time.strftime("%Y-%m-%dT%H:%M:%S"),
        "cpu": cpu_model(),
        "cpu_family": family,
        "cpu_model": model,
        "instructions": instructions(),
        "limits": limits(),
        "cores": os.cpu_count(),
        "threads": THREADS,
        "memory_gib": round(memory, 1),
        "system": platform.platform(),
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
    }


def commit() -> str | None:
    """The commit that is measured, if this is a checkout."""
    command = ["git", "rev-parse", "--short", "HEAD"]
    found = subprocess.run(command, cwd=RESULTS, capture_output=True, text=True, check=False)
    return f"commit {found.stdout.strip()}" if found.returncode == 0 else None


def versions() -> dict[str, str | None]:
    found: dict[str, str | None] = {"cfol_fast": commit(), "python": platform.python_version()}
    for package in PACKAGES:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            found[package] = None
    return found
