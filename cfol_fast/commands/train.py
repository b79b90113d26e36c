"""`cfol-fast train`: the command line's way to fill a TrainConfig and start the loop."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cfol_fast import processes
from cfol_fast.errors import InputError
from cfol_fast.user_input import THREADS, Range

if TYPE_CHECKING:
    from cfol_fast.ranks import Ranks
    from cfol_fast.runs.config import TrainConfig

NAME = "train"
SECONDS = Range(1, 1_000_000, whole=False)
HELP = "train a robust classifier with one of the paper's methods"
DESCRIPTION = """\
Trains a classifier under attack with METHOD and writes a run folder: config.json, metrics.jsonl, checkpoints, result.json.

examples:
  cfol-fast train cfol --dataset fashion-mini --out runs/first          minutes on a laptop, no data needed
  cfol-fast train cfol --dataset cifar10 --data ~/data --device cuda    the paper's recipe, 200 epochs
  cfol-fast train erm --set attack.eps=12/255 --set optimizer.lr=0.05   any field of the configuration
  cfol-fast train --resume --out runs/first                             continue a run that was stopped or killed
  torchrun --nproc-per-node 8 -m cfol_fast train cfol --device cuda ... one run on eight GPUs (docs/many-gpus.md)
"""

# Options that are one field of the configuration each: (option, key, metavar, help).
FIELDS: tuple[tuple[str, str, str, str], ...] = (
    (
        "--dataset",
        "data.name",
        "NAME",
        "fashion-mini (embedded), fashion-mnist, cifar10, cifar100, stl10, tiny-imagenet, imagenette, folder, beton (default: folder or beton, as --data is; without --data fashion-mini)",
    ),
    ("--data", "data.root", "DIR", "the folder with the data set's files"),
    (
        "--model",
        "model.name",
        "NAME",
        "for small images: resnet18 (34, 50, 101, 152), preact-resnet18, wrn-34-10 (any depth and width), vgg16, demo-cnn; resnet18@0.25 has "
        "a quarter of the width; "
        "torchvision:NAME, timm:NAME, or your own package.module:factory (default: the data set's)",
    ),
    (
        "--init",
        "model.init",
        "CHECKPOINT",
        "start from these weights: a run, a checkpoint, or another project's weights",
    ),
    (
        "--epochs",
        "epochs",
        "N",
        "default: 200 as in the paper, 12 for fashion-mini, 30 for images of your own",
    ),
    ("--batch-size", "batch_size", "N", "of all processes together (default: 128)"),
    (
        "--shards",
        "shards",
        "N",
        "divide a batch into N parts for BatchNorm and gradients; the processes of torchrun must divide N (default: their number)",
    ),
    (
        "--batchnorm",
        "batchnorm",
        "KIND",
        "shard: BatchNorm sees a shard; sync: torch's SyncBatchNorm, on GPUs with one shard for each process (default: shard)",
    ),
    (
        "--lr",
        "optimizer.lr",
        "RATE",
        "peak learning rate (default: 0.1; fashion-mini 0.05; images of your own 0.05, or 0.02 for demo-cnn and vgg16)",
    ),
    ("--eps", "attack.eps", "EPS", "radius of the attack, such as 8/255 (default; fashion-mini 0.1)"),
    (
        "--holdout",
        "data.holdout",
        "SHARE",
        "part of the training images for early stopping; 'test' uses the test set, as some of the paper's tables do, 'none' keeps the last epoch (default: 0.2)",
    ),
    (
        "--imbalance",
        "data.imbalance",
        "FACTOR",
        "thin the classes exponentially: the largest has FACTOR times the smallest",
    ),
    (
        "--augment",
        "data.augment",
        "KIND",
        "of the training images: none; crop: a window of the padded image; crop-flip: mirrored too; paper: what the paper does to "
        "the data set (default: crop for images of your own, else paper)",
    ),
    (
        "--crop",
        "data.crop",
        "KIND",
        "random-resized: what ImageNet training does, for large images (data.crop_scale, data.crop_ratio); own: the data set's (default: own)",
    ),
    ("--seed", "seed", "S", "default: 0"),
    ("--device", "device", "DEV", "auto, cpu, cuda, cuda:1 (default: auto)"),
    (
        "--precision",
        "precision",
        "KIND",
        "float32, tf32, bfloat16 or auto: tf32 on a GPU that has it, else float32 (default: auto)",
    ),
    (
        "--graph",
        "graph",
        "on|off",
        "on a GPU: capture the whole step as a CUDA graph and replay it; make test-gpu tells whether it pays (default: off)",
    ),
    (
        "--ema",
        "ema.decay",
        "DECAY",
        "also keep a moving average of the weights, such as 0.999, validated and tested beside them; --set ema.per=epoch and ema.gate=0.2 "
        "make it FAWA with 0.88 (default: 0, none)",
    ),
    (
        "--ensemble",
        "ensemble",
        "N",
        "keep N members drawn from all steps, for the guarantee of the paper's Theorem 1",
    ),
    ("--out", "out", "RUN", "the run folder (default: runs/DATASET-METHOD-seedS)"),
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "method", nargs="?", metavar="METHOD", help="erm, cfol, lcvar, ...; --list-methods shows them all"
    )
    for option, key, metavar, text in FIELDS:
        parser.add_argument(option, dest=key, metavar=metavar, help=text)
    parser.add_argument(
        "--pretrained",
        action="store_true",
        default=None,
        help="start from the weights that torchvision or timm publish, with their normalisation and, for a folder of images, their size",
    )
    parser.add_argument(
        "--classes-by-position",
        action="store_true",
        default=None,
        help="with --init: take a checkpoint's first class for the data's first, whatever their names are",
    )
    parser.add_argument("--compile", action="store_true", default=None, help="use torch.compile")
    parser.add_argument(
        "--deterministic",
        action="store_true",
        default=None,
        help="on a GPU: only kernels that repeat their result bit for bit, without TF32; slower",
    )
    parser.add_argument(
        "--download", action="store_true", default=None, help="fetch the data set if it is missing"
    )
    parser.add_argument("--config", metavar="FILE", help="a TOML file with the same keys as config.json")
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
        help="start afresh in an existing run folder; the old one is renamed to RUN.old-1 after the first step",
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
        help="hand the rows of metrics.jsonl to TensorBoard (RUN/tensorboard) or Weights & Biases too (repeatable)",
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
    from cfol_fast.runs.defaults import complete

    try:
        return complete(read_config(args))
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

    to = SUFFIXES.get(Path(args.export or "").suffix, "torch")
    if args.export:
        # Found at the end it would cost the whole run's time.
        target, folder = Path(args.export).expanduser(), Path(str(config.out)).expanduser()
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
    )
    if not ranks.is_first:
        return 0
    if args.export:
        print(f"weights: {export(result.folder, args.export, to, config.model.name).file}")
    print(f"run: {result.folder}")
    return 0


def name_option(message: str, options: dict[str, Any]) -> str:
    """A complaint about a field begins with the option that set it, where there is one."""
    for option, key, _, _ in FIELDS:
        if options[key] is not None and message.startswith(f"{key} "):
            return f"{option}: {message}"
    return message


def read_config(args: argparse.Namespace) -> TrainConfig:
    """Defaults (or, when resuming, what the run folder says), then the file, then the options, then --set."""
    from cfol_fast.models import check_named
    from cfol_fast.runs import run_folder
    from cfol_fast.runs.config import TrainConfig, assign, assign_text, merge_toml

    options = vars(args)
    config, named, stored = TrainConfig(), args.method is not None, False
    if args.resume and args.config is None and not named and options["out"] is None:
        raise InputError("--resume needs --out RUN, or the options the run was started with")
    folder = None if options["out"] is None else Path(options["out"]).expanduser()
    if folder is not None and (
        args.resume is True or (args.resume and (folder / run_folder.CONFIG).exists())
    ):
        config, named, stored = run_folder.read_config(folder), True, True
    before = config.method
    if args.config is not None:
        config.method = ""
        merge_toml(config, args.config)
        named, config.method = named or bool(config.method), config.method or before
    if args.method is not None:
        config.method = args.method
    # Until it is clear whether the user named the same.
    model_in_file, config.model.name = config.model.name, None
    for _, key, _, _ in FIELDS:
        if options[key] is not None:
            assign(config, key, options[key])
    if args.pretrained:
        config.model.pretrained = True
    if args.classes_by_position:
        config.model.init_by_position = True
    if args.compile:
        config.compile = True
    if args.deterministic:
        config.deterministic = True
    if args.download:
        config.data.download = True
    for assignment in args.assignments:
        assign_text(config, assignment)
        named = named or assignment.partition("=")[0].strip() == "method"
    if stored and config.method != before:
        # Said here, because the stored parameters would be refused as unknown to the new method.
        raise InputError(
            f"cannot resume {folder} with a changed configuration: method (was {before!r}, now {config.method!r})"
        )
    if config.model.name is None:
        check_named(model_in_file, None, str(args.config or folder))
        config.model.name = model_in_file
    if not named:
        raise InputError("which METHOD? for example: cfol-fast train cfol (--list-methods shows them all)")
    return config


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
