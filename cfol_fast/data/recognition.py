"""Which data set a folder holds, for a run whose user named the folder alone.

A folder of images and FFCV files are taken for what they are. A published data set has settings of its own
(200 epochs, another network), so its name is asked for.
"""

from __future__ import annotations

from pathlib import Path

from cfol_fast.data.folders import LAYOUT
from cfol_fast.data.registry import FFCV_TRAIN
from cfol_fast.errors import InputError

# What each published data set leaves in the folder that is given with --data, or is itself: unpacked, and as
# an archive.
PUBLISHED: dict[str, tuple[str, ...]] = {
    "cifar10": ("cifar-10-batches-py", "cifar-10-python.tar.gz", "data_batch_1"),
    "cifar100": ("cifar-100-python", "cifar-100-python.tar.gz"),
    "stl10": ("stl10_binary", "stl10_binary.tar.gz", "train_X.bin"),
    "fashion-mnist": (
        "FashionMNIST",
        "train-images-idx3-ubyte",
        "train-images-idx3-ubyte.gz",
        "raw/train-images-idx3-ubyte",
        "raw/train-images-idx3-ubyte.gz",
    ),
    "tiny-imagenet": ("tiny-imagenet-200", "tiny-imagenet-200.zip", "wnids.txt"),
    "imagenette": ("imagenette2-160", "imagenette2-160.tgz"),
}


def recognised(root: str | Path, usual: str | None = None) -> str:
    """ "folder" or "beton", as the folder is; a folder that holds anything else, or several data sets, is
    refused. usual: the one to take where the folder holds it, too.
    """
    folder = Path(root).expanduser()
    if not folder.is_dir():
        what = "is a file, not a folder" if folder.exists() else "is not there"
        raise InputError(f"data.root {root} {what}: give the folder with the data set's files")
    found = [name for name, signs in PUBLISHED.items() if _is_published(folder, signs)]
    # Tiny ImageNet and Imagenette have such a folder too.
    images = (folder / "train").is_dir() and not found
    found += ["beton"] * (folder / FFCV_TRAIN).is_file() + ["folder"] * images
    if usual in found:
        return str(usual)
    if found in (["folder"], ["beton"]):
        return found[0]
    if found:
        known = " or ".join(f"--dataset {name}" for name in found)
        raise InputError(f"data.root {root} holds {' and '.join(found)}: name the data set, {known}")
    raise InputError(
        f"data.root {root} is no data set that we recognise: expected is {LAYOUT}, or {FFCV_TRAIN}. "
        "Name any other one with --dataset NAME"
    )


def _is_published(folder: Path, signs: tuple[str, ...]) -> bool:
    return folder.resolve().name == signs[0] or any((folder / sign).exists() for sign in signs)
