"""`make hostile MINUTES=30`: attempts on every area in turn until the time is over, with a table of what was
tried, held and failed.

A failure prints its traceback and the values that led to it, and the exit status is 1. The seed of the first
round is --seed.
"""

from __future__ import annotations

import argparse
import resource
import sys
import tempfile
import time
from pathlib import Path

# Nothing here needs more; whatever a file makes the program ask for beyond it fails.
MEMORY = 24 << 30
READING_ATTEMPTS, MEANING_ATTEMPTS, WRITING_ATTEMPTS = 100, 25, 6


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.hostile", description=__doc__)
    parser.add_argument("--minutes", type=float, default=1.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--area", default="", help="only areas whose name begins so, such as meanings")
    args = parser.parse_args()
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, resource.RLIM_INFINITY))

    import cfol_fast  # isort: skip  # before torch: it may have to tell oneDNN what this CPU cannot do
    import torch

    from tests.hostile import meanings, reading, recipes, writing
    from tests.hostile.attempts import Tally, attack

    torch.set_num_threads(1)
    began = time.monotonic()
    until = began + 60 * args.minutes
    with tempfile.TemporaryDirectory(prefix="hostile-") as name, writing.process_without_threads() as forking:
        root = Path(name)
        areas = [(area, READING_ATTEMPTS) for area in [*reading.AREAS, *recipes.AREAS]]
        areas += [(area, MEANING_ATTEMPTS) for area in meanings.AREAS]
        areas += [(area, WRITING_ATTEMPTS) for area in writing.AREAS]
        if writing.may_mount(root):
            areas.append((writing.FULL_DISK, WRITING_ATTEMPTS))
        areas = [item for item in areas if item[0].name.startswith(args.area)]
        tallies = {area.name: Tally() for area, _ in areas}
        number = 0
        while time.monotonic() < until:
            for area, attempts in areas:
                number += 1
                tally = tallies[area.name]
                folder = root / f"round-{number}"
                folder.mkdir()
                failed, seed = len(tally.failures), args.seed + number
                if attempts == WRITING_ATTEMPTS:
                    tally.add(forking.submit(writing.attack_here, area.name, folder, attempts, seed).result())
                else:
                    with reading.few_embedded_images():
                        tally.add(attack(area, folder, attempts, seed))
                print(
                    f"{area.name}: {tally.tried} tried, {len(tally.failures)} failed",
                    file=sys.stderr,
                    flush=True,
                )
                for text in tally.failures[failed:]:
                    print(text, file=sys.stderr, flush=True)
                if time.monotonic() > until:
                    break
    print(
        f"\ncfol_fast {cfol_fast.__version__}, {(time.monotonic() - began) / 60:.1f} minutes, seed"
        f" {args.seed}\n"
    )
    print("| area | tried | held | failed |\n|---|---:|---:|---:|")
    for name, tally in tallies.items():
        print(f"| {name} | {tally.tried} | {tally.held} | {len(tally.failures)} |")
    print(
        f"| all | {sum(t.tried for t in tallies.values())} | {sum(t.held for t in tallies.values())} |"
        f" {sum(len(t.failures) for t in tallies.values())} |"
    )
    return 1 if any(tally.failures for tally in tallies.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
