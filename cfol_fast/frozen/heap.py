"""Keeps the C library from giving memory back in the middle of an attack.

An attack on the CPU allocates and frees the same tensors in every step. glibc returns what is free at the end
of its heap, and every block above 32 MiB, to the system at once, which hands it out again page by page, each
cleared: up to a fifth of an attack's time.
"""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Callable, Iterator

import torch

# The parameters of glibc's mallopt: how much may be free at the end of the heap, and from which size on a
# block is not in it.
TRIM_THRESHOLD, MMAP_THRESHOLD = -1, -3
INSIDE = {MMAP_THRESHOLD: 1 << 30, TRIM_THRESHOLD: (1 << 31) - 1}
# The most that glibc itself arrives at where large blocks come and go; once it was told a value it stays with
# it.
OUTSIDE = {MMAP_THRESHOLD: 32 << 20, TRIM_THRESHOLD: 64 << 20}

_lock = threading.Lock()
_blocks = 0


@functools.cache
def mallopt() -> Callable[[int, int], int] | None:
    """The C library's function, where it has one."""
    import ctypes

    try:
        found: Callable[[int, int], int] = ctypes.CDLL(None).mallopt
    # Another C library, or another system.
    except (AttributeError, OSError, TypeError):
        return None
    return found


@contextlib.contextmanager
def kept(device: torch.device) -> Iterator[None]:
    """What is freed inside the block stays with the process until the block, or the last of several in
    threads, ends.
    """
    global _blocks
    tell = mallopt() if device.type == "cpu" else None
    if tell is None:
        yield
        return
    with _lock:
        _blocks += 1
        if _blocks == 1:
            _set(tell, INSIDE)
    try:
        yield
    finally:
        with _lock:
            _blocks -= 1
            if _blocks == 0:
                _set(tell, OUTSIDE)


def _set(tell: Callable[[int, int], int], values: dict[int, int]) -> None:
    for parameter, value in values.items():
        tell(parameter, value)
