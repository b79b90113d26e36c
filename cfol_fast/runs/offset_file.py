"""RUN/offsets.json: class offsets fitted on the run's hold-out, their path and the test with them.

Tables and pages show what one rule gives for every run (`RULE`); a fit with other options is somebody's own.
"""

from __future__ import annotations

from pathlib import Path

from cfol_fast.runs.json_files import read_object
from cfol_fast.runs.run_folder import OFFSETS

# The best average among the rounds whose worst class is within one standard error of the best, of the tested
# checkpoint, with the default rounds and rate.
RULE = "one-standard-error"
# The key of result.json with the offset-adjusted figures.
ADJUSTED = "adjusted"


def has_rules(folder: Path) -> bool:
    """Whether the folder has offsets that were fitted by the rule of all tables."""
    path = folder / OFFSETS
    return path.exists() and read_object(path).get("rule") == RULE
