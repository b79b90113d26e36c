"""Is it the same run? Two configurations that compute the same thing have the same identity."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from cfol_fast.runs.config import TrainConfig, to_dict

# Where a run is carried out and how often it saves: not what is computed. The test attack's batch size is of this kind too.
INCIDENTAL = ("out", "device", "data.root", "data.download", "data.beton", "compile", "test.batch_size")
INCIDENTAL_GROUPS = ("checkpoint.",)


def identity(completed: TrainConfig) -> dict[str, Any]:
    """What is computed: every setting that is not at the configuration's own default.

    Fields at their default are left out, so that a field added to the configuration later does not orphan the runs there are.
    """
    defaults = dict(_leaves(to_dict(TrainConfig())))
    found = {}
    for key, value in _leaves(to_dict(completed)):
        if key in INCIDENTAL or key.startswith(INCIDENTAL_GROUPS):
            continue
        if value is None or (
            key in defaults and defaults[key] == value and key not in ("method", "data.name", "seed")
        ):
            continue
        found[key] = float(f"{value:.12g}") if isinstance(value, float) else value
    if completed.data.name == "folder":
        found["data.root"] = str(Path(completed.data.root or "").expanduser().resolve())
    return found


def _leaves(tree: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in tree.items():
        if isinstance(value, Mapping):
            yield from _leaves(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value
