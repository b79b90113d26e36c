"""`cfol-fast offsets`: what class offsets alone reach on a finished run."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from cfol_fast.errors import InputError
from cfol_fast.plain_text import aligned
from cfol_fast.user_input import Range

if TYPE_CHECKING:
    from cfol_fast.training.offsets import Fit

NAME = "offsets"
DESCRIPTION = """\
Fits one offset per class, added to the logits of a finished run's tested checkpoint, so that the worst
class of the hold-out holds up under attack. The offsets become part of the model: attacks see them. Each
round moves the offsets on: of the rounds whose worst class is within one standard error of the best, the one
with the best average is taken. The whole path is printed, since it is a trade-off. Writes
RUN/checkpoints/offsets.pt, which eval takes, and prints the test accuracies before and after. A method that
cannot beat this is not worth its training.

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
        "--keep-average",
        type=Range(0, 100, whole=False),
        default=2.0,
        metavar="POINTS",
        help=(
            "take only rounds that lose at most so many points of the hold-out's average, perhaps the one"
            " without offsets; the adjusted figures of tables and reports never have this limit (default:"
            " %(default)g)"
        ),
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
        fit = fit_offsets(
            args.folder,
            args.rounds,
            args.rate,
            args.device,
            args.model,
            args.checkpoint,
            args.keep_average / 100,
        )
    print("\n".join(path_table(fit)))
    print(said(fit, args.keep_average))
    before, after = (fit.test[name]["robust"] for name in ("before", "after"))
    print(f"hold-out, worst class: {fit.holdout[0]:.1%} -> {fit.holdout[1]:.1%}")
    for title, name in (("average", "average"), ("20 % tail", "tail"), ("worst class", "worst")):
        print(f"test, robust {title}: {before[name]:.1%} -> {after[name]:.1%}")
    print(f"checkpoint: {fit.checkpoint}")
    return 0


def path_table(fit: Fit) -> list[str]:
    """Every round on the hold-out, with what was taken."""
    marks = {fit.chosen: "by the rule of all tables"}
    marks[fit.kept] = "taken" if fit.kept != fit.chosen else f"taken, {marks[fit.chosen]}"
    rows: list[list[str] | None] = [["round", "worst class", "average", ""], None]
    for number, one in enumerate(fit.path):
        rows.append([str(number), f"{one.worst:.1%}", f"{one.average:.1%}", marks.get(number, "")])
    return aligned(rows, left=(3,))


def said(fit: Fit, points: float) -> str:
    """Which rule took the round, and what the limit on the average did."""
    from cfol_fast.training.offset_path import standard_error

    error = standard_error(max(one.worst for one in fit.path), fit.images)
    text = (
        f"one standard error of the worst class: {error:.1%} ({fit.images} hold-out images in the smallest"
        " class)"
    )
    if fit.kept == fit.chosen:
        return text
    kept = "no offsets are kept" if fit.kept == 0 else f"round {fit.kept} is kept"
    lost = fit.path[0].average - fit.path[fit.chosen].average
    return (
        f"{text}\n{kept}: round {fit.chosen} would lose {100 * lost:.1f} points of the average, and"
        f" --keep-average allows {points:g}"
    )
