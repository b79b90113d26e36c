"""`cfol-fast train`: the command line's way to fill a TrainConfig and start the loop."""

from __future__ import annotations

import argparse
import json
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cfol_fast import processes
from cfol_fast.errors import InputError
from cfol_fast.runs.config import settings
from cfol_fast.user_input import THREADS, Range

if TYPE_CHECKING:
    from cfol_fast.ranks import Ranks
    from cfol_fast.runs.config import TrainConfig

NAME = "train"
SECONDS = Range(1, 1_000_000, whole=False)
DESCRIPTION = """\
Trains a classifier under attack with METHOD and writes a run folder: config.json, metrics.jsonl,
checkpoints, result.json.

examples:
  cfol-fast train cfol --dataset fashion-mini --out runs/first          minutes on a laptop, no data needed
  cfol-fast train cfol --dataset cifar10 --data ~/data --device cuda    the paper's recipe, 200 epochs
  cfol-fast train erm --set attack.eps=12/255 --set optimizer.lr=0.05   any field of the configuration
  cfol-fast train --resume --out runs/first                             continue a stopped or killed run
  torchrun --nproc-per-node 8 -m cfol_fast train cfol --device cuda ...   one run on eight GPUs
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "method", nargs="?", metavar=settings()["method"].option, help=settings()["method"].help
    )
    for key, chosen in settings().items():
        match chosen.flag:
            case (flag, None):
                parser.add_argument(flag, dest=key, action="store_true", default=None, help=chosen.help)
            case (flag, metavar):
                parser.add_argument(flag, dest=key, metavar=metavar, help=chosen.help)
    parser.add_argument(
        "--config",
        metavar="FILE",
        help="a TOML or JSON file of settings, such as the output of --print-config or a run's config.json",
    )
    parser.add_argument(
        "--set",
        dest="assignments",
        metavar="KEY=VALUE",
        action="append",
        default=[],
        help="set any field, e.g. attack.steps=10 or, for the method's own parameters, eta=1e-4 (repeatable)",
    )
    parser.add_argument(
        "--resume", action="store_true", help="continue the run in --out exactly where it was"
    )
    # An option of its own, since an optional value of --resume would swallow the METHOD that follows.
    parser.add_argument(
        "--resume=auto",
        dest="resume",
        action="store_const",
        const="auto",
        help="continue the run in --out if there is one, else start it",
    )
    parser.add_argument(
        "--overwrite",
        action="store_true",
        help=(
            "start afresh in an existing run folder; the old one is renamed to RUN.old-1 after the first step"
        ),
    )
    parser.add_argument(
        "--force", action="store_true", help="resume although the thread count or instruction set changed"
    )
    parser.add_argument(
        "--changed-data", action="store_true", help="resume although the data changed; result.json says so"
    )
    parser.add_argument("--threads", type=THREADS, metavar="N", help="CPU threads (default: torch's choice)")
    parser.add_argument(
        "--patience",
        type=SECONDS,
        default=processes.PATIENCE,
        metavar="SECONDS",
        help="under torchrun: how long a process waits for another before the run ends (default: 600)",
    )
    parser.add_argument("--quiet", action="store_true", help="print nothing but the result")
    parser.add_argument(
        "--log",
        action="append",
        default=[],
        choices=["tensorboard", "wandb"],
        help=(
            "hand the rows of metrics.jsonl to TensorBoard (RUN/tensorboard) or Weights & Biases too"
            " (repeatable)"
        ),
    )
    parser.add_argument(
        "--offsets",
        action="store_true",
        help=(
            "when done, fit class offsets on the hold-out: the run then has plain and adjusted figures (see"
            " cfol-fast offsets)"
        ),
    )
    parser.add_argument(
        "--export", metavar="FILE", help="when done, the same as cfol-fast export RUN --out FILE"
    )
    parser.add_argument(
        "--list-methods",
        action="store_true",
        help="show every method with its parameters, the data sets and the models, and exit",
    )
    parser.add_argument(
        "--print-config", action="store_true", help="show the complete configuration, and exit"
    )


def run(args: argparse.Namespace) -> int:
    if args.list_methods:
        print(methods_table())
        return 0
    import torch

    if args.resume and args.overwrite:
        raise InputError("--resume and --overwrite contradict each other")
    if args.force and not args.resume:
        raise InputError("--force belongs to --resume: a run that begins has nothing to continue")
    if args.threads is not None:
        torch.set_num_threads(args.threads)
    with processes.joined(vars(args)["device"] or "auto", args.patience) as ranks:
        # The first process reads the run folder for all.
        config = ranks.from_first(lambda: completed(args))
        return train_as(config, args, ranks)


def completed(args: argparse.Namespace) -> TrainConfig:
    from cfol_fast.runs.config import TrainConfig

    try:
        return TrainConfig(open_settings(args))
    except InputError as error:
        raise InputError(name_option(str(error), vars(args))) from None


def train_as(config: TrainConfig, args: argparse.Namespace, ranks: Ranks) -> int:
    if args.print_config and not ranks.is_first:
        return 0
    if args.print_config:
        from cfol_fast.runs.config import to_dict

        print(json.dumps(to_dict(config), indent=2))
        return 0

    from cfol_fast.runs.exporting import SUFFIXES, check_target, export
    from cfol_fast.runs.run_folder import check_output
    from cfol_fast.training.loop import train

    callbacks = []
    if args.offsets:
        from cfol_fast.training.offsets import TakesOffsets, check_holdout, fit_offsets

        check_holdout(config, "--offsets: the run")
        callbacks.append(TakesOffsets())
    to = SUFFIXES.get(Path(args.export or "").suffix, "torch")
    if args.export:
        # Found at the end it would cost the whole run's time.
        target, folder = Path(args.export).expanduser(), Path(config.out).expanduser()
        ranks.from_first(lambda: check_output("--export", target, folder))
        ranks.from_first(lambda: check_target(target, to, folder))
    result = train(
        config,
        resume=args.resume,
        overwrite=args.overwrite,
        force=args.force,
        changed_data=args.changed_data,
        quiet=args.quiet,
        log=args.log,
        patience=args.patience,
        callbacks=callbacks,
    )
    if not ranks.is_first:
        return 0
    if args.offsets:
        from cfol_fast.progress import printed

        with printed(args.quiet):
            fit = fit_offsets(result.folder, device=config.device, model_name=config.model.name)
        for name, title in (("before", "plain"), ("adjusted", "with class offsets")):
            found = fit.test[name]["robust"]
            print(f"test, {title}: robust {found['average']:.1%}, worst class {found['worst']:.1%}")
    if args.export:
        print(f"weights: {export(result.folder, args.export, to, config.model.name).file}")
    print(f"run: {result.folder}")
    if not args.quiet:
        print(f"next: cfol-fast report {shlex.quote(str(result.folder))}")
    return 0


def name_option(message: str, options: dict[str, Any]) -> str:
    """A complaint about a field begins with the option that set it, where there is one."""
    for key, chosen in settings().items():
        if chosen.flag and options[key] is not None and message.startswith(f"{key} "):
            return f"{chosen.flag[0]}: {message}"
    return message


def open_settings(args: argparse.Namespace) -> dict[str, Any]:
    """What the run folder says when a run is resumed, then the file, then the options, then --set."""
    from cfol_fast.models import check_named
    from cfol_fast.runs import run_folder
    from cfol_fast.runs.open_settings import assignment, merged, of_file

    options = vars(args)
    if args.resume and args.config is None and args.method is None and options["out"] is None:
        raise InputError("--resume needs --out RUN, or the options the run was started with")
    folder = None if options["out"] is None else Path(options["out"]).expanduser()
    stored: dict[str, Any] = {}
    if folder is not None and (
        args.resume is True or (args.resume and (folder / run_folder.CONFIG).exists())
    ):
        stored = run_folder.read_config(folder).given
    in_files = merged(stored, {} if args.config is None else of_file(args.config))
    words = {
        key: options[key] for key, chosen in settings().items() if chosen.flag and options[key] is not None
    }
    typed = merged({"method": args.method} if args.method is not None else {}, words)
    typed = merged(typed, *map(assignment, args.assignments))
    given = merged(in_files, typed)
    if stored and given["method"] != stored["method"]:
        # Said here, because the stored parameters would be refused as unknown to the new method.
        raise InputError(
            f"cannot resume {folder} with a changed configuration: method (was {stored['method']!r}, now"
            f" {given['method']!r})"
        )
    if "model.name" not in typed:
        check_named(in_files.get("model.name"), None, str(args.config or folder))
    if "method" not in given:
        raise InputError("which METHOD? for example: cfol-fast train cfol (--list-methods shows them all)")
    return given


def methods_table() -> str:
    """One paragraph per method: name, title, section of the paper, what it does, its parameters."""
    from cfol_fast import data, models
    from cfol_fast.methods import METHODS

    lines = []
    for method in METHODS.values():
        lines.append(f"{method.name:16} {method.title} ({method.section})")
        lines.append(f"{'':16} {method.summary}")
        if method.defaults:
            lines.append(
                f"{'':16} " + ", ".join(f"{name}={method.default_in_words(name)}" for name in method.defaults)
            )
    lines += [
        "",
        f"data sets: {', '.join(data.names())}",
        f"models: {', '.join(models.names())}, torchvision:NAME, timm:NAME, package.module:factory",
    ]
    return "\n".join(lines)
