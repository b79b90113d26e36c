"""`cfol-fast data`: work on data sets outside of training. So far one thing: writing an FFCV file."""

from __future__ import annotations

import argparse
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from cfol_fast.errors import InputError
from cfol_fast.user_input import SEED, Range

if TYPE_CHECKING:
    from cfol_fast.data import ImageData

NAME = "data"
HELP = "write a data set to an FFCV file, for data that does not fit on the device"
DESCRIPTION = """\
Writes a data set to an FFCV file (.beton), which training reads at full speed when the images do not fit on the device.

examples:
  cfol-fast data to-ffcv --dataset cifar10 --data ~/data --out cifar10.beton
  cfol-fast data to-ffcv --dataset folder --data ~/photos --mode jpg --split all --out photos
  cfol-fast train cfol --dataset beton --data photos

Needs the extra [ffcv]. A file is compared with the images before it gets its name. `train --dataset beton` takes normalisation and
augmentation from the files; radius, network and schedule are the paper's unless given.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(title="actions", metavar="ACTION", dest="action", required=True)
    write = actions.add_parser(
        "to-ffcv",
        help="write a data set, or one part of it, to FFCV files",
        description=DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    write.add_argument("--dataset", required=True, metavar="NAME", help="fashion-mini, cifar10, ..., folder")
    write.add_argument("--data", metavar="DIR", help="the folder with the data set's files")
    write.add_argument(
        "--out",
        required=True,
        metavar="FILE.beton",
        help="the file to write; with --split all the folder, for train.beton and test.beton",
    )
    write.add_argument(
        "--split",
        choices=("train", "test", "all"),
        default="train",
        help="the part to write (default: train)",
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
    write.add_argument("--overwrite", action="store_true", help="replace files that exist")


def run(args: argparse.Namespace) -> int:
    from cfol_fast.data import load

    out = Path(args.out).expanduser()
    if args.split == "all":
        if out.exists() and not out.is_dir():
            raise InputError(f"--out {out} is a file: --split all writes to a folder")
        # The training part last: where it is, the other one is complete.
        files = {"test": out / "test.beton", "train": out / "train.beton"}
    else:
        if out.is_dir():
            raise InputError(
                f"--out {out} is a folder: give the name of a file, or write both parts with --split all"
            )
        files = {args.split: out}
    for file in files.values():
        if file.exists() and not args.overwrite:
            raise InputError(f"{file} exists: choose another name or add --overwrite")
    if not out.parent.is_dir():
        raise InputError(f"{out.parent} is not a folder: make it first")
    if args.dataset == "beton":
        raise InputError("--dataset beton is made of FFCV files already")
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
    # With --split all a folder that was not there, and what is written to it until something fails, does not stay.
    new = [file for file in files.values() if not file.exists()]
    new_folder = args.split == "all" and not out.exists()
    if new_folder:
        out.mkdir()
    try:
        for split, file in files.items():
            _write(args, data, split, file)
    except BaseException:
        for file in new:
            file.unlink(missing_ok=True)
        if new_folder:
            out.rmdir()
        raise
    for note in data.notes:
        print(f"note: {note}")
    return 0


def _write(args: argparse.Namespace, data: ImageData, split: str, out: Path) -> None:
    from cfol_fast.data import BetonSet, beton

    description = {
        "dataset": data.name,
        "split": split,
        "size": list(data.size),
        "mean": list(data.mean),
        "std": list(data.std),
        "augment": asdict(data.augment),
        "eps": data.eps,
        "imbalance": args.imbalance,
        "notes": data.notes,
    }
    images = data.train if split == "train" else data.test
    assert not isinstance(images, BetonSet)
    file = beton.write(out, images, args.mode, args.quality, description, progress=True)
    print(
        f"{out}: {len(file):,} images of {len(images.classes)} classes, {args.mode}, {out.stat().st_size / 2**20:,.1f} MiB; "
        "read back and compared"
    )
