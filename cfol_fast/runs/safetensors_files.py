"""safetensors files: tensors by name, and a header with texts.

Ours carry the description of a checkpoint there, as JSON.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from cfol_fast.errors import InputError, one_line
from cfol_fast.runs.json_files import parse_object

# The entry of the header that holds what a checkpoint of ours says besides its weights.
ENTRY = "cfol_fast"
LARGEST_HEADER = 100_000_000


def is_safetensors(path: Path) -> bool:
    """By its first bytes: the length of a JSON header, and its brace."""
    with open(path, "rb") as file:
        start = file.read(9)
    return start[8:] == b"{" and int.from_bytes(start[:8], "little") <= LARGEST_HEADER


def read(path: Path, device: torch.device | str = "cpu") -> tuple[dict[str, Tensor], dict[str, Any] | None]:
    """The tensors, and the description if the file is one of ours."""
    library = _library(f"{path} is a safetensors file, and reading it")
    try:
        with library.safe_open(path, "pt", device=str(device)) as file:
            texts = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except Exception as error:
        raise InputError(f"{path} is damaged or no safetensors file ({one_line(error)[:150]})") from None
    return tensors, parse_object(texts[ENTRY], path) if ENTRY in texts else None


def serialized(tensors: Mapping[str, Tensor], description: Mapping[str, Any]) -> bytes:
    """The whole file. "format" is what other readers look for."""
    check_can_write()
    from safetensors.torch import save

    return save(dict(tensors), {"format": "pt", ENTRY: json.dumps(description, allow_nan=False)})


def check_can_write() -> None:
    """Refuses where the library is missing."""
    _library("writing a safetensors file")


def _library(what: str) -> Any:
    try:
        import safetensors
    except ImportError:
        raise InputError(f"{what} needs the package safetensors: pip install safetensors") from None
    return safetensors
