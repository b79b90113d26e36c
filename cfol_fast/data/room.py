"""Is there room?

What images need of the device, of memory and of the disk, in numbers, before anything large is read or
copied.

An error names the way out that is open: streaming from FFCV files, or for what streams already a smaller
batch or smaller images.
"""

from __future__ import annotations

import resource
import shutil
from importlib.util import find_spec
from pathlib import Path

import torch

from cfol_fast import processes
from cfol_fast.errors import InputError

CGROUP = Path("/sys/fs/cgroup")


def size_text(n: float) -> str:
    return f"{n / 2**30:,.1f} GiB" if n >= 2**30 else f"{n / 2**20:,.1f} MiB"


def free_memory(device: torch.device) -> int | None:
    """Bytes still free on `device`, or None where that is not known (the CPU already holds the images)."""
    return torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else None


def available_memory() -> int | None:
    """Bytes that this process may still take, by the system and by the limits of its container; None where
    nobody says.
    """
    free = _free_by_the_system()
    limit = resource.getrlimit(resource.RLIMIT_AS)[0]
    if free is None or limit == resource.RLIM_INFINITY:
        return free
    # ulimit -v: of all addresses that the process has.
    return max(
        0, min(free, limit - int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize())
    )


def _free_by_the_system() -> int | None:
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
        free = next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:"))
    except (OSError, StopIteration, ValueError):
        return None
    try:
        limit = int((CGROUP / "memory.max").read_text())
        used = int((CGROUP / "memory.current").read_text())
        # Pages of files are counted as used, and go when memory is needed.
        stat = dict(line.split() for line in (CGROUP / "memory.stat").read_text().splitlines())
        return min(free, limit - used + int(stat.get("file", 0)))
    except (OSError, ValueError):
        return free


def check_memory(what: str, needed: int, way_out: str) -> None:
    """Refuses to take more memory than there is; the first of a machine's processes asks for all of them."""
    if processes.local_rank() == 0:
        needed *= processes.local_count()
    free = available_memory()
    if free is not None and needed > free:
        raise InputError(f"{what} need {size_text(needed)} of memory, {size_text(free)} are free: {way_out}")


def check_device(what: str, needed: int, device: torch.device, free: int | None, way_out: str) -> None:
    if free is not None and needed > free:
        raise InputError(
            f"{what} need {size_text(needed)} on {device}, {size_text(free)} are free: {way_out}"
        )


def check_disk(what: str, needed: int, folder: Path, way_out: str) -> None:
    free = shutil.disk_usage(folder).free
    if needed > free:
        raise InputError(
            f"{what} need about {size_text(needed)} in {folder}, {size_text(free)} are free: {way_out}"
        )


def streaming(name: str = "NAME", root: str | None = "DIR", files: bool = False) -> str:
    """The way out for data that does not fit: to stream it. name, root: of the data set; files: whether it is
    a folder of image files.
    """
    if files:
        return "take --source stream, which decodes the images while the run goes on (docs/own-data.md)"
    data = "" if root is None else f" --data {root}"
    text = (
        f"write FFCV files with `cfol-fast data to-ffcv --dataset {name}{data} --split all --out FILES` and"
        " train with `--dataset beton --data FILES`, which leaves the images in them"
    )
    return text if find_spec("ffcv") is not None else f"{text}; that needs FFCV (`cfol-fast doctor`)"
