"""`cfol-fast data`: work on data sets outside of training: writing FFCV files, and checking a folder."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from cfol_fast.errors import InputError
from cfol_fast.user_input import SEED, WHITE, Range

if TYPE_CHECKING:
    from cfol_fast.data.ffcv.convert import FromFiles, FromMemory

NAME = "data"
DESCRIPTION = """\
cfol-fast data check DIR looks at a folder of images for what spoils a split (see its --help).

cfol-fast data to-ffcv writes a data set to an FFCV file (.beton), which training reads at full speed when
the images do not fit on the device.

examples:
  cfol-fast data to-ffcv --dataset cifar10 --data ~/data --out cifar10.beton
  cfol-fast data to-ffcv --dataset folder --data ~/photos --split all --out photos
  cfol-fast data to-ffcv --dataset folder --data ~/imagenet --split all --out imagenet-256 --size 256
  cfol-fast train cfol --dataset beton --data photos

Needs the extra [ffcv]. Folders of image files are converted one image at a time, by all cores; CMYK,
EXIF-rotated and misnamed files are re-encoded and counted. A file is compared with what was written
before it gets its name, and both parts take their names together. `train --dataset beton` takes
normalisation and augmentation from the files, and epochs and learning rate of a folder or of the paper
by what they were written from. Radius and network are the paper's unless given, and the bandit's eta is
`auto`, for CIFAR-10's files too: give --set eta=2e-6 for the paper's.
"""

CHECK = """\
Looks for what a user may not know of a folder of images: exact and near copies within a part and across
parts, groups of images by their names, images whose mirror image looks like another class, broken files,
modes, sizes and imbalance. The status is 1 where parts share images, and 0 otherwise.

example:
  cfol-fast data check ~/photos
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
        help=(
            "raw keeps every bit; jpg is smaller, and stores JPEG files of a folder as they are (default: jpg"
            " for folder, else raw)"
        ),
    )
    write.add_argument("--quality", type=Range(1, 100), metavar="Q", help="of the jpg, 1..100 (default: 90)")
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
        help=(
            "short side that the images of a folder are resized to (default: none, or 160 where their sizes"
            " differ)"
        ),
    )
    write.add_argument(
        "--skip-corrupt", action="store_true", help="leave out images that cannot be decoded, and count them"
    )
    write.add_argument(
        "--white",
        type=WHITE,
        metavar="VALUE",
        help=(
            "white in images with more than 8 bits, e.g. 4095 (default: decided by the largest value of all"
            " images)"
        ),
    )
    write.add_argument("--download", action="store_true", help="fetch the official files first")
    write.add_argument("--overwrite", action="store_true", help="replace files that exist")

    look = actions.add_parser(
        "check",
        help="look for copies, groups, broken files and imbalance in a folder of images",
        description=CHECK,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    look.add_argument(
        "data", metavar="DIR", help="the folder, with train/ and, where they are, test/ and val/"
    )


def run(args: argparse.Namespace) -> int:
    return _check(args) if args.action == "check" else _to_ffcv(args)


def _check(args: argparse.Namespace) -> int:
    from cfol_fast.data.checking import check
    from cfol_fast.data.checking_text import lines

    found = check(args.data, progress=True)
    print("\n".join(lines(found)))
    return 1 if found.shared else 0


def _to_ffcv(args: argparse.Namespace) -> int:
    from cfol_fast import atomic
    from cfol_fast.data import registry
    from cfol_fast.data.ffcv.reader import open_beton
    from cfol_fast.data.ffcv.writer import told_when_full

    out = Path(args.out).expanduser()
    if args.split == "all":
        if out.exists() and not out.is_dir():
            raise InputError(f"--out {out} is a file: --split all writes to a folder")
        # The training part takes its place last: where it is, the other one is complete.
        files = {"test": out / "test.beton", "train": out / "train.beton"}
    else:
        if out.is_dir():
            raise InputError(
                f"--out {out} is a folder: give the name of a file, or write both parts with --split all"
            )
        files = {args.split: out}
    for file in files.values():
        if file.exists() and not file.is_file():
            raise InputError(f"{file} is not a file, and FFCV reads only files: choose another name")
        if file.exists() and not args.overwrite:
            raise InputError(f"{file} exists: choose another name or add --overwrite")
    if not out.parent.is_dir():
        raise InputError(f"{out.parent} is not a folder: make it first")
    if args.dataset == "beton":
        raise InputError("--dataset beton is made of FFCV files already")
    if args.seed < 0:
        raise InputError(f"--seed must be at least 0, got {args.seed}")
    mode = args.mode or ("jpg" if args.dataset == "folder" else "raw")
    if args.quality is not None and mode == "raw":
        raise InputError("--quality is for --mode jpg, and raw keeps every bit: leave out --quality")
    if args.imbalance is not None and args.split == "test":
        raise InputError("--imbalance thins the training part, got --split test: leave it out")
    args.quality = 90 if args.quality is None else args.quality
    streams = registry.spec(args.dataset).files is not None
    writing = from_files(args, mode, files) if streams else from_memory(args, mode)
    folder = next(iter(files.values())).parent
    with (
        told_when_full(out),
        atomic.replacing_together(folder, [file.name for file in files.values()]) as drafts,
    ):
        opened = dict(zip(files, drafts, strict=True))
        # The training part first: its mean and deviation are noted in both.
        for split in sorted(files, reverse=True):
            writing.write(split, opened[split], files[split])
    for file in files.values():
        found = open_beton(file)
        print(
            f"{file}: {len(found):,} images of {len(found.description['classes'])} classes, {mode}, "
            f"{file.stat().st_size / 2**20:,.1f} MiB; read back and compared"
        )
    for note in writing.notes:
        print(f"note: {note}")
    return 0


def from_memory(args: argparse.Namespace, mode: str) -> FromMemory:
    """A data set that is read into memory as a whole."""
    from cfol_fast.data import load
    from cfol_fast.data.ffcv.convert import FromMemory

    data = load(
        args.dataset,
        args.data,
        args.download,
        args.imbalance,
        seed=args.seed,
        size=args.size,
        skip_corrupt=args.skip_corrupt,
        white=args.white,
    )
    return FromMemory(data, mode, args.quality, args.imbalance)


def from_files(args: argparse.Namespace, mode: str, files: dict[str, Path]) -> FromFiles:
    """A folder of image files, which are converted one by one."""
    from cfol_fast.data import registry
    from cfol_fast.data.ffcv.convert import FromFiles
    from cfol_fast.data.reading import ReadOptions

    spec = registry.spec(args.dataset)
    registry.check_options(spec, args.data, args.download, args.size, args.skip_corrupt, args.white)
    # A conversion goes through the folder once: there is nothing to keep.
    options = ReadOptions(args.download, args.size, args.skip_corrupt, True, args.white, cache="off")
    root = None if args.data is None else Path(args.data).expanduser()
    conversion = FromFiles(spec, root, options, mode, args.quality, args.imbalance, args.seed)
    folder = next(iter(files.values())).parent
    conversion.check_room(list(files), folder if folder.is_dir() else folder.parent)
    return conversion
