"""`cfol-fast demo`: the effect of the paper in minutes, on images inside the package.

Two ordinary runs (ERM-AT and CFOL-AT, the defaults of fashion-mini, all 500 training images per class,
the last epoch tested with PGD-20), then the comparison as a table, as bars in the terminal, as a picture
and as a report page.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from cfol_fast.user_input import COUNT, SEED

if TYPE_CHECKING:
    from cfol_fast.runs.config import TrainConfig

NAME = "demo"
DESCRIPTION = """\
Trains the same small network twice under attack on 5,000 embedded Fashion-MNIST images: with ordinary
adversarial training (ERM-AT) and with CFOL-AT, which learns which classes fail and draws them more
often. Tests both with PGD-20 on 3,000 other images and shows what became of the weakest class. Takes a
few minutes on two cores; needs no data, no GPU and no network. Started again it continues where it was
stopped.

example:
  cfol-fast demo --out demo
"""
METHODS = ("erm", "cfol")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--out", default="demo", metavar="DIR", help="where the two runs and the report go (default: demo)"
    )
    parser.add_argument("--seed", type=SEED, default=0, metavar="S", help="default: 0")
    parser.add_argument("--epochs", type=COUNT, metavar="N", help="epochs of each run (default: 12)")
    parser.add_argument("--device", default="cpu", metavar="DEV", help="cpu, cuda or auto (default: cpu)")
    parser.add_argument("--overwrite", action="store_true", help="train again, although the runs are there")
    parser.add_argument("--quiet", action="store_true", help="show the comparison only")


def run(args: argparse.Namespace) -> int:
    from cfol_fast.runs.run_folder import Resume
    from cfol_fast.training.loop import train

    out = Path(args.out).expanduser()
    runs = []
    for method in METHODS:
        config = configuration(method, out, args.seed, args.epochs, args.device)
        if not args.quiet:
            print(f"training {method}: {out / method}", flush=True)
        resume: Resume = False if args.overwrite else "auto"
        runs.append(train(config, resume=resume, overwrite=args.overwrite, quiet=args.quiet))
    write_comparison(out, [finished.folder for finished in runs])
    return 0


def configuration(method: str, out: Path, seed: int, epochs: int | None, device: str) -> TrainConfig:
    """One run of the demo: no hold-out, since 500 images per class are few and the last epoch of the
    one-cycle schedule is the best.
    """
    from cfol_fast.runs.config import TrainConfig

    return TrainConfig(
        method=method,
        seed=seed,
        epochs=epochs,
        device=device,
        out=str(out / method),
        data={"name": "fashion-mini", "holdout": "none"},
    )


def write_comparison(out: Path, runs: list[Path]) -> None:
    """Prints the comparison, and writes it as a picture and as a page."""
    from cfol_fast import reporting

    print()
    print(reporting.comparison_table(*runs))
    print()
    print(reporting.terminal_bars(*runs))
    print()
    print(f"picture: {reporting.picture(runs, out / 'comparison.png')}")
    print(f"report:  {reporting.write_report(runs, out / 'report.html')}")
