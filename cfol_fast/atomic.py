"""Writing files so that nobody sees half of one: under a temporary name in the same folder, synced, then renamed."""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any


@contextlib.contextmanager
def replacing(path: str | os.PathLike[str]) -> Iterator[IO[bytes]]:
    """A binary file that takes the place of `path` when the block ends, and vanishes when the block fails."""
    target = Path(path)
    handle, name = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.", suffix=".tmp")
    try:
        with os.fdopen(handle, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        # mkstemp makes private files; a result should be as readable as any file that the user writes.
        umask = os.umask(0)
        os.umask(umask)
        os.chmod(name, 0o666 & ~umask)
        os.replace(name, target)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(name)
        raise
    sync_folder(target.parent)


def sync_folder(folder: Path) -> None:
    """Makes the renames in a folder survive a power cut too, on the file systems that offer this."""
    with contextlib.suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def write_bytes(path: str | os.PathLike[str], data: bytes) -> None:
    with replacing(path) as file:
        file.write(data)


def write_text(path: str | os.PathLike[str], text: str) -> None:
    write_bytes(path, text.encode())


def write_json(path: str | os.PathLike[str], obj: Any) -> None:
    """JSON with a final newline; NaN is refused, because most readers of JSON would refuse it."""
    write_text(path, json.dumps(obj, indent=2, allow_nan=False) + "\n")


def save_torch(path: str | os.PathLike[str], obj: Any) -> None:
    """Tensors and plain values only: `torch.load(..., weights_only=True)` must be able to read it back."""
    import torch

    with replacing(path) as file:
        torch.save(obj, file)
