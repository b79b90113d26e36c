"""Where evaluations under another attack are kept: beside the run they belong to, named by what was evaluated."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cfol_fast.recipes.planning import Cell


def evaluation_path(folder: Path, attack: Mapping[str, Any], checkpoint: str) -> Path:
    """The file of one evaluation of a run's checkpoint."""
    return folder / f"eval-{_name(attack, checkpoint)}.json"


def pretrained_path(out: Path, cell: Cell) -> Path:
    """The file of the evaluation of a checkpoint given by path: the path and the file's size and time tell it."""
    assert cell.checkpoint is not None
    path = cell.checkpoint.expanduser().resolve()
    state = path.stat()
    what = {"path": str(path), "size": state.st_size, "time": state.st_mtime_ns, "block": cell.block.name}
    return out / "runs" / f"pretrained-{cell.entry.name}-{_name(cell.attack or {}, json.dumps(what))}.json"


def _name(attack: Mapping[str, Any], what: str) -> str:
    text = json.dumps([dict(attack), what], sort_keys=True)
    return f"{attack.get('kind', 'pgd')}-{hashlib.sha256(text.encode()).hexdigest()[:8]}"
