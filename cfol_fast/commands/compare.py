"""`cfol-fast compare`: what differs between two runs or two checkpoints."""

from __future__ import annotations

import argparse
from itertools import groupby
from operator import attrgetter
from pathlib import Path

NAME = "compare"
DESCRIPTION = """\
Compares two run folders (settings, metrics, result, predictions and every checkpoint) or two checkpoint
files, tensor by tensor and number by number. Times, versions and places are ignored. With --assert-equal
the exit status is 1 if anything differs.

examples:
  cfol-fast compare runs/a runs/b
  cfol-fast compare runs/a/checkpoints/last.pt runs/b/checkpoints/last.pt --assert-equal
"""
# Differences of one file that are shown; --json has them all.
SHOWN = 8


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("first", type=Path, metavar="A", help="a run folder or a checkpoint file")
    parser.add_argument("second", type=Path, metavar="B", help="another one of the same kind")
    parser.add_argument(
        "--assert-equal", action="store_true", help="end with status 1 if anything differs (for scripts)"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write all differences as JSON")


def run(args: argparse.Namespace) -> int:
    from cfol_fast import atomic
    from cfol_fast.runs.run_differences import compare
    from cfol_fast.runs.run_folder import check_output

    if args.json is not None:
        check_output("--json", args.json)
    found = compare(args.first.expanduser(), args.second.expanduser())
    of_file = {file: list(some) for file, some in groupby(found.differences, attrgetter("file"))}
    for file in dict.fromkeys([*found.compared, *of_file]):
        some = of_file.get(file, [])
        if file in found.compared:
            print(f"{file}: {len(some) or 'none'} of {found.compared[file]} entries differ")
        for one in some[:SHOWN]:
            size = "" if one.largest is None else f" (largest difference {one.largest:.3g})"
            print(f"  {one.key or file}: {one.first} | {one.second}{size}")
        if len(some) > SHOWN:
            print(f"  and {len(some) - SHOWN} more; --json FILE lists all")
    print("equal" if not found.differences else f"different in {len(of_file)} of {len(found.compared)} files")
    if args.json is not None:
        tree = {"compared": found.compared, "differences": [one.to_json() for one in found.differences]}
        atomic.write_json(args.json, tree)
    return 1 if args.assert_equal and found.differences else 0
