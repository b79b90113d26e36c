"""`cfol-fast data`: work on data sets outside of training. So far one thing: writing an FFCV file."""

from __future__ import annotations

import argparse
from dataclasses import asdict
from pathlib import Path

from cfol_fast.errors import InputError
from cfol_fast.user_input import SEED, Range

NAME = "data"
HELP = "write a data set to an FFCV file, for data that does not fit on the device"
DESCRIPTION = """\
Writes a data set to an FFCV file (.beton), which training reads at full speed when the images do not fit on the device.

examples:
  cfol-fast data to-ffcv --dataset cifar10 --data ~/data --out cifar10.beton
  cfol-fast data to-ffcv --dataset folder --data ~/photos --mode jpg --out photos.beton
  cfol-fast train cfol --dataset cifar10 --data ~/data --set data.source=ffcv --set data.beton=cifar10.beton

Needs the extra [ffcv]. The file is compared with the images before it gets its name.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(title="actions", metavar="ACTION", dest="action", required=True)
    write = actions.add_parser(
        "to-ffcv",
        help="write one part of a data set to an FFCV file",
        description=DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    write.add_argument("--dataset", required=True, metavar="NAME", help="fashion-mini, cifar10, ..., folder")
    write.add_argument("--data", metavar="DIR", help="the folder with the data set's files")
    write.add_argument("--out", required=True, metavar="FILE.beton", help="the file to write")
    write.add_argument(
        "--split", choices=("train", "test"), default="train", help="the part to write (default: train)"
    )
    write.add_argument(
        "--mode",
        choices=("raw", "jpg"),
        default="raw",
        help="raw keeps every bit, jpg is smaller (default: raw)",
    )
    write.add_argument(
        "--quality", type=Range(1, 100), default=90, metavar="Q", help="of the jpg, 1..100 (default: 90)"
    )
    write.add_argument(
        "--imbalance",
        type=Range(1, 1e6, whole=False),
        metavar="FACTOR",
        help="thin the training classes exponentially",
    )
    write.add_argument("--seed", type=SEED, default=0, metavar="S", help="of the imbalance (default: 0)")
    write.add_argument(
        "--size",
        type=Range(1, 4096),
        metavar="PX",
        help="short side for a folder of differently sized images",
    )
    write.add_argument(
        "--skip-corrupt", action="store_true", help="leave out images that cannot be decoded, and count them"
    )
    write.add_argument("--download", action="store_true", help="fetch the official files first")
    write.add_argument("--overwrite", action="store_true", help="replace FILE.beton if it exists")


def run(args: argparse.Namespace) -> int:
    from cfol_fast.data import beton, load

    out = Path(args.out).expanduser()
    if out.is_dir():
        raise InputError(f"--out {out} is a folder: give the name of a file")
    if out.exists() and not args.overwrite:
        raise InputError(f"{out} exists: choose another name or add --overwrite")
    if not out.parent.is_dir():
        raise InputError(f"{out.parent} is not a folder: make it first")
    if args.seed < 0:
        raise InputError(f"--seed must be at least 0, got {args.seed}")
    data = load(
        args.dataset,
        args.data,
        args.download,
        args.imbalance,
        seed=args.seed,
        size=args.size,
        skip_corrupt=args.skip_corrupt,
    )
    description = {
        "dataset": data.name,
        "split": args.split,
        "size": list(data.size),
        "mean": list(data.mean),
        "std": list(data.std),
        "augment": asdict(data.augment),
        "eps": data.eps,
        "imbalance": args.imbalance,
        "notes": data.notes,
    }
    images = data.train if args.split == "train" else data.test
    file = beton.write(out, images, args.mode, args.quality, description, progress=True)
    for note in data.notes:
        print(f"note: {note}")
    print(
        f"{out}: {len(file):,} images of {len(images.classes)} classes, {args.mode}, {out.stat().st_size / 2**20:,.1f} MiB; "
        "read back and compared"
    )
    return 0
