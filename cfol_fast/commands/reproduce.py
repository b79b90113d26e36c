"""`cfol-fast reproduce`: the paper's tables and figures, each one command."""

from __future__ import annotations

import argparse
from pathlib import Path

from cfol_fast.errors import InputError
from cfol_fast.plain_text import aligned
from cfol_fast.user_input import Range

NAME = "reproduce"
FRONTIER = "frontier"
MOVED = ("--index", "--collect")
DESCRIPTION = """\
Carries out recipes: each is a table or figure of the paper. Runs are kept in OUT/runs under the hash of
their configuration and shared between recipes; what is there is not trained again, and what was
interrupted continues. Written are OUT/NAME/table.md, table.tex, table.json, the figures and report.html,
with the paper's numbers, the differences and the seeds.

--scale paper is the paper's experiment; --scale mini makes the same comparison in minutes on the
embedded images, or on a folder of images given with --data.

frontier is no table of the paper: the paper's methods and later ones, on one network and schedule. At
the mini scale it takes the embedded images, every method with the best of three settings, over five
seeds; at the small scale any copy of CIFAR-10, with the settings of the mini scale and seven of its
rows; at the paper's scale it prints the commands.

examples:
  cfol-fast reproduce --list                                   what there is, and what it costs
  cfol-fast reproduce cifar10 --data ~/data --parallel         the main table, one run per GPU
  cfol-fast reproduce cifar10 --scale mini                     without a GPU
  cfol-fast reproduce larger-models --data ~/data --checkpoint erm=cifar_linf_8.pt
  cfol-fast reproduce all --scale mini                         every table and figure, in reproduction/mini
  cfol-fast reproduce frontier --scale mini --parallel         the comparison of all methods: hours
  cfol-fast reproduce frontier --scale small --data ~/cifar10 --parallel
  cfol-fast reproduce frontier --scale mini --keep runs.tar.xz   its finished runs in one file
  cfol-fast reproduce frontier --scale mini --take runs.tar.xz --parallel
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "recipes",
        nargs="*",
        metavar="NAME",
        help="recipes by name (see --list), 'all', or a recipe file of your own (.toml)",
    )
    parser.add_argument(
        "--list", action="store_true", help="one line per recipe: name, runs, cost, what it is"
    )
    parser.add_argument(
        "--scale",
        default="paper",
        choices=("paper", "small", "mini"),
        help="small is frontier's alone (default: %(default)s)",
    )
    parser.add_argument(
        "--out", type=Path, metavar="DIR", help="where runs and tables go (default: reproduction/SCALE)"
    )
    parser.add_argument(
        "--data",
        type=Path,
        metavar="DIR",
        help=(
            "the folder with the data sets; at the mini scale a folder of images; for frontier --scale small"
            " a copy of CIFAR-10, its own files or a folder of images"
        ),
    )
    parser.add_argument(
        "--download", action="store_true", help="fetch data sets that are missing, where they can be fetched"
    )
    parser.add_argument(
        "--checkpoint",
        action="append",
        default=[],
        metavar="COLUMN=FILE",
        help="a trained model for a column, such as erm=cifar_linf_8.pt for larger-models",
    )
    parser.add_argument(
        "--parallel",
        nargs="?",
        type=Range(0, 1024),
        const=0,
        metavar="N",
        help="runs at a time, one per GPU; alone: as many as there are GPUs, or cores without one",
    )
    parser.add_argument(
        "--settings",
        type=Path,
        metavar="FILE",
        help=(
            "for frontier --scale small: the frontier.json whose settings are taken (default: that of the"
            " mini scale)"
        ),
    )
    parser.add_argument(
        "--keep",
        type=Path,
        metavar="FILE",
        help=(
            "for frontier: write what its table needs of the finished runs to FILE (.tar.xz), with what FILE"
            " holds already, and stop; also while another process trains the others"
        ),
    )
    parser.add_argument(
        "--take",
        type=Path,
        metavar="FILE",
        help=(
            "for frontier: first take the finished runs in FILE, which --keep wrote on any machine; they are"
            " not trained again (a run from a folder of images is known by its images, wherever they lie)"
        ),
    )
    parser.add_argument("--device", default="auto", help="auto, cpu or cuda (default: %(default)s)")
    parser.add_argument(
        "--dry-run",
        action="store_true",
        help="show which runs are missing and what would stop them (data, checkpoints), and stop",
    )
    parser.add_argument(
        "--force",
        action="store_true",
        help="continue interrupted runs although the thread count or the instructions changed",
    )
    parser.add_argument("--quiet", action="store_true", help="no progress of the runs")
    # Now `python -m tools.index`; still parsed, so that the error can name the new command.
    for option in MOVED:
        parser.add_argument(option, help=argparse.SUPPRESS)


def run(args: argparse.Namespace) -> int:
    from cfol_fast.recipes.recipe import list_recipes
    from cfol_fast.recipes.reproduction import reproduce

    if args.index is not None or args.collect is not None:
        raise InputError(
            "--index and --collect are a maintainer's command: from a checkout of the repository run "
            "python -m tools.index DIR --collect REPRODUCTION"
        )
    if args.list:
        _list(args)
        return 0
    if not args.recipes:
        raise InputError("name a recipe, or 'all' (cfol-fast reproduce --list shows them)")
    if FRONTIER in args.recipes:
        return _frontier(args)
    if args.scale == "small" or args.settings is not None or args.keep is not None or args.take is not None:
        raise InputError(
            f"--scale small, --settings, --keep and --take belong to {FRONTIER}: cfol-fast reproduce"
            f" {FRONTIER} --scale small"
        )
    names = [name for given in args.recipes for name in (list_recipes() if given == "all" else [given])]
    if args.dry_run:
        _dry_run(names, args)
        return 0
    written = reproduce(
        list(dict.fromkeys(names)),
        args.scale,
        args.out,
        args.data,
        args.parallel,
        checkpoints=_checkpoints(args.checkpoint),
        device=args.device,
        download=args.download,
        force=args.force,
        quiet=args.quiet,
    )
    if len(written) == 1:
        print((written[0] / "table.md").read_text(encoding="utf-8"))
    return 0


def _frontier(args: argparse.Namespace) -> int:
    from cfol_fast.recipes.frontier import carrying_out

    if len(args.recipes) > 1 or args.checkpoint:
        raise InputError(f"{FRONTIER} runs alone, and takes no --checkpoint")
    if (args.keep is not None) + (args.take is not None) + args.dry_run > 1:
        raise InputError("--keep, --take and --dry-run are three commands: give one of them")
    if args.keep is not None:
        carrying_out.keep_finished(args.scale, args.keep, args.out, args.data, settings=args.settings)
        return 0
    if args.dry_run:
        for line in carrying_out.dry_run(args.scale, args.out, args.data):
            print(line)
        return 0
    written = carrying_out.reproduce_frontier(
        args.scale,
        args.out,
        args.data,
        args.parallel,
        settings=args.settings,
        device=args.device,
        download=args.download,
        force=args.force,
        quiet=args.quiet,
        take=args.take,
    )
    if written is not None:
        print((written / "table.md").read_text(encoding="utf-8"))
    return 0


def _checkpoints(given: list[str]) -> dict[str, Path]:
    found = {}
    for text in given:
        column, equals, path = text.partition("=")
        if not equals or not column or not path:
            raise InputError(f"--checkpoint takes COLUMN=FILE, got {text!r}; example: erm=cifar_linf_8.pt")
        found[column] = Path(path)
    return found


def _list(args: argparse.Namespace) -> None:
    """Prints one line per recipe, its name first, so that a script can read it."""
    from cfol_fast.recipes import paper
    from cfol_fast.recipes.frontier import plan as frontier
    from cfol_fast.recipes.planning import plan
    from cfol_fast.recipes.recipe import list_recipes, load_recipe
    from cfol_fast.recipes.reproduction import default_out

    out = args.out or default_out(args.scale)
    rows = []
    for name in list_recipes() if args.scale != "small" else []:
        made = plan(load_recipe(name), args.scale, args.data)
        jobs, missing = made.jobs(), made.missing(out)
        done = f", {len(jobs) - len(missing)} there" if len(missing) < len(jobs) else ""
        runs = f"{len(jobs)} run{'s' if len(jobs) != 1 else ''}{done}"
        rows.append((name, runs, made.cost(), f"{paper.reference(name)}: {made.recipe.title}"))
    table = frontier.read()
    count, cost = frontier.outline(table, table.scales[args.scale])
    rows.append((FRONTIER, f"{count} runs", cost, table.title))
    print("\n".join(aligned(rows, left=range(4))))


def _dry_run(names: list[str], args: argparse.Namespace) -> None:
    """What would be done, and what would stop it: nothing is trained or written."""
    from cfol_fast.recipes.planning import plan
    from cfol_fast.recipes.recipe import load_recipe
    from cfol_fast.recipes.reproduction import Loader, check, checkpoints_for, default_out

    out = args.out or default_out(args.scale)
    given, loader, seen = _checkpoints(args.checkpoint), Loader(), dict[str, bool]()
    for name in names:
        made = plan(load_recipe(name), args.scale, args.data, checkpoints_for(name, given, len(names)))
        for text in made.empty_columns():
            print(f"without   {text}")
        for job in made.jobs():
            if job.name not in seen:
                seen[job.name] = job.finished(out)
                settings = ", ".join(f"{key}={value}" for key, value in job.settings.items())
                print(f"{'there  ' if seen[job.name] else 'missing'}  {job.name}  {settings}")
        try:
            check(made, out, loader)
        except InputError as error:
            print(f"not ready {error}")
    print(f"{len(seen)} runs, {sum(not there for there in seen.values())} missing, in {out / 'runs'}")
