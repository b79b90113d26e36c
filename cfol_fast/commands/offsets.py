"""`cfol-fast offsets`: what class offsets alone reach on a finished run."""

from __future__ import annotations

import argparse
from pathlib import Path

from cfol_fast.errors import InputError
from cfol_fast.user_input import Range

NAME = "offsets"
DESCRIPTION = """\
Fits one offset per class, added to the logits of a finished run's tested checkpoint, so that the worst
class of the hold-out holds up best under attack. The offsets become part of the model: attacks see them.
Writes RUN/checkpoints/offsets.pt, which eval takes, and prints the test accuracies before and after. A
method that cannot beat this is not worth its training.

example:
  cfol-fast offsets runs/erm
  cfol-fast eval runs/erm/checkpoints/offsets.pt --attack autoattack
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "folder", type=Path, metavar="RUN", help="the folder of a finished run with a hold-out"
    )
    parser.add_argument(
        "--checkpoint",
        metavar="NAME",
        help="which of the run's, such as ema-best-worst (default: the tested one)",
    )
    parser.add_argument(
        "--rounds",
        type=Range(1, 10_000),
        default=20,
        metavar="N",
        help="how often the offsets are changed (default: %(default)s)",
    )
    parser.add_argument(
        "--rate",
        type=Range(0, 1e3, whole=False, above=True),
        default=1.0,
        metavar="RATE",
        help="change of an offset for each unit of error above the mean (default: %(default)s)",
    )
    parser.add_argument(
        "--model",
        metavar="NAME",
        help="the run's model, needed where that is your own code: package.module:factory",
    )
    parser.add_argument("--device", default="auto", metavar="DEV", help="auto, cpu, cuda (default: auto)")
    parser.add_argument("--quiet", action="store_true", help="print nothing but the result")


def run(args: argparse.Namespace) -> int:
    from cfol_fast.progress import printed
    from cfol_fast.training.offsets import fit_offsets

    if not args.folder.is_dir():
        raise InputError(f"no run folder {args.folder}")
    with printed(args.quiet):
        fit = fit_offsets(args.folder, args.rounds, args.rate, args.device, args.model, args.checkpoint)
    before, after = (fit.test[name]["robust"] for name in ("before", "after"))
    print(f"hold-out, worst class: {fit.holdout[0]:.1%} -> {fit.holdout[1]:.1%}")
    for title, name in (("average", "average"), ("20 % tail", "tail"), ("worst class", "worst")):
        print(f"test, robust {title}: {before[name]:.1%} -> {after[name]:.1%}")
    print(f"checkpoint: {fit.checkpoint}")
    return 0
