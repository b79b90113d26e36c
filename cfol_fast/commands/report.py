"""`cfol-fast report`: one page about one or several runs."""

from __future__ import annotations

import argparse
from pathlib import Path

from cfol_fast.user_input import Range

NAME = "report"
DESCRIPTION = """\
Writes one self-contained HTML page about the runs: the comparison table, accuracies by class with
intervals, the learned class distribution, training curves, confusions under attack, a gallery and the
configuration. Every chart is also written as SVG and every table as CSV and LaTeX, into a folder beside
the page. Runs of one configuration with different seeds become one column with mean and deviation. A
folder that holds runs stands for all of them; a recipe's folder gives its page beside the paper's
numbers; an unfinished run is shown with what there is.

example:
  cfol-fast report runs/erm runs/cfol --out report.html
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "runs",
        nargs="+",
        type=Path,
        metavar="RUN",
        help="a run folder, a folder of runs, or an evaluation's JSON file",
    )
    parser.add_argument(
        "--out",
        type=Path,
        default=Path("report.html"),
        metavar="FILE",
        help="the page to write (default: %(default)s)",
    )
    parser.add_argument(
        "--separate", action="store_true", help="show runs on different data sets one after another"
    )
    parser.add_argument(
        "--baseline",
        metavar="METHOD",
        help="the method differences are measured from (default: erm, else the first run)",
    )
    parser.add_argument(
        "--floor",
        type=Range(0, 1, whole=False),
        default=0.1,
        metavar="SHARE",
        help="accuracy below which a class counts as failing (default: %(default)s)",
    )
    parser.add_argument("--title", default="", help="a line above the headline")
    parser.add_argument(
        "--no-pictures", action="store_true", help="do not write the charts as SVG files beside the page"
    )


def run(args: argparse.Namespace) -> int:
    from cfol_fast.recipes import page as recipe_page
    from cfol_fast.reporting import terminal
    from cfol_fast.reporting.report import files_folder, read_comparisons, write_report
    from cfol_fast.reporting.wording import headline
    from cfol_fast.runs.run_folder import check_output

    check_output("--out", Path(args.out).expanduser())
    if len(args.runs) == 1 and recipe_page.is_recipe_folder(args.runs[0]):
        print(f"page:  {recipe_page.write_page(args.runs[0], args.out)}")
        return 0
    out = write_report(
        args.runs,
        args.out,
        args.separate,
        baseline=args.baseline,
        title=args.title,
        pictures=not args.no_pictures,
        floor=args.floor,
    )
    for comparison in read_comparisons(args.runs, args.separate, args.baseline, args.floor):
        print(headline(comparison)[0] + "\n")
        print(terminal.table_text(comparison) + "\n")
    print(f"page:  {out}")
    if files_folder(out).is_dir():
        print(f"files: {files_folder(out)}")
    return 0
