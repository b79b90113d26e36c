"""Which files of the package does one warm training step pass through, and how many lines do they have?

Usage: python tools/step_path.py [TREE [METHOD]]

TREE is a checkout (default: this one). A few steps of a small run are taken on the CPU; the step after them
is traced, from the end of one `on_step` of a callback to the next, with all that the training loop does in
between. Prints each file with its lines and those of them that ran, and the sums. What a file only defines is
not passed.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections import defaultdict
from pathlib import Path
from types import FrameType
from typing import Any

WARM = 6
SETTINGS = {
    "epochs": 1,
    "batch_size": 32,
    "steps_per_epoch": WARM + 3,
    "device": "cpu",
    "data.images": 400,
    "attack.steps": 2,
    "validation.steps": 1,
    "test.steps": 1,
}


def traced(package: Path, method: str) -> dict[str, set[int]]:
    """file -> the lines of it that the step after `WARM` others ran."""
    from cfol_fast.runs import config as configuration
    from cfol_fast.training import Callback, train

    passed: dict[str, set[int]] = defaultdict(set)
    root = f"{package}{os.sep}"

    def trace(frame: FrameType, event: str, argument: Any) -> Any:
        file = frame.f_code.co_filename
        if not file.startswith(root):
            return None
        if event == "line":
            passed[file.removeprefix(root)].add(frame.f_lineno)
        return trace

    class Watch(Callback):
        def on_step(self, step: int) -> None:
            if step == WARM:
                frame: FrameType | None = sys._getframe(1)
                while frame is not None:
                    if frame.f_code.co_filename.startswith(root):
                        frame.f_trace = trace
                    frame = frame.f_back
                sys.settrace(trace)
            elif step == WARM + 1:
                sys.settrace(None)

    with tempfile.TemporaryDirectory() as folder:
        settings = {**SETTINGS, "method": method, "out": folder}
        if hasattr(configuration, "assign"):
            # A tree of version 0.2 or older, whose configurations are filled in one by one.
            config = configuration.TrainConfig()
            for key, value in settings.items():
                configuration.assign(config, key, value)
        else:
            config = configuration.TrainConfig(settings)
        train(config, overwrite=True, quiet=True, callbacks=[Watch()])
    return dict(passed)


def main() -> None:
    tree = Path(sys.argv[1] if len(sys.argv) > 1 else Path(__file__).parents[1]).resolve()
    method = sys.argv[2] if len(sys.argv) > 2 else "cfol"
    sys.path.insert(0, str(tree))
    package = tree / "cfol_fast"
    passed = traced(package, method)
    lengths = {file: len((package / file).read_text().splitlines()) for file in passed}
    for file in sorted(passed):
        print(f"{lengths[file]:5} lines, {len(passed[file]):4} ran  {file}")
    ran = sum(len(lines) for lines in passed.values())
    behind = sum(file.startswith(f"frozen{os.sep}") for file in passed)
    print(
        f"{len(passed)} files of {sum(lengths.values()):,} lines, of which {ran:,} ran; {behind} of frozen/"
    )


if __name__ == "__main__":
    main()
