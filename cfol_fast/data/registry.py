"""The data sets by name, each with what the paper does to it: one row per data set, and `load`.

Normalisation, augmentation and the size of the attack belong to the data, so they are set here and nowhere
else.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from cfol_fast import ops
from cfol_fast.data import embedded_images, folders, groups, images
from cfol_fast.data.decoders import WAYS, WHOLE
from cfol_fast.data.ffcv import data_set as ffcv_files
from cfol_fast.data.images import ChannelSums, ImageData, Images, check_every_class, holdout
from cfol_fast.data.parallel import map_in_order
from cfol_fast.data.reading import ReadOptions, TrainAndTest
from cfol_fast.data.stream import choice
from cfol_fast.data.stream import data_set as stream_files
from cfol_fast.errors import InputError
from cfol_fast.user_input import did_you_mean

PAPER_EPS = 8 / 255
FOLDER_TEST_FRACTION = 0.2
NO_TEST_PART = (
    f"there is neither test/ nor val/: {FOLDER_TEST_FRACTION:.0%} of train/ is held out as the test set"
    " (seed 0)"
)
# Images that mean and standard deviation are measured on.
MOST_MEASURED = 5000
# What a folder of FFCV files holds.
FFCV_TRAIN = ffcv_files.TRAIN


def paper_augment(size: int, pad: int | None = None, colour: bool = True) -> ops.Augment:
    """Appendix "Experimental setup": crop after black padding, flip, colour jitter, rotation by up to 2
    degrees.

    pad: in pixels; without it an eighth of the side, as the paper pads CIFAR.
    """
    return ops.Augment(
        pad=math.ceil(4 * size / 32) if pad is None else pad,
        crop=True,
        flip=True,
        brightness=0.25,
        contrast=0.25,
        saturation=0.25 if colour else 0.0,
        degrees=2.0,
    )


AUGMENTATIONS = ("none", "crop", "crop-flip", "paper")


def default_augmentation(own: bool) -> str:
    """Of `AUGMENTATIONS`. For images of the user's own without a flip, since a mirrored traffic sign is
    another sign; measured, see docs/own-data.md."""
    return "crop" if own else "paper"


def augmentation(word: str, size: int, paper: ops.Augment) -> ops.Augment | None:
    """What one of `AUGMENTATIONS` does to images of this side. paper: what the paper does to the data set."""
    if word == "paper":
        return paper
    if word == "none":
        return None
    return ops.Augment(pad=math.ceil(size / 16), crop=True, flip=word == "crop-flip")


@dataclass(frozen=True)
class DataSpec:
    """One data set: how it is read and what goes with it. mean/std None: measured on the training images.

    augment: of the images' side; what `--augment paper` does. files: where it is a folder of image files,
    what lists them.
    own: the images are the user's, for whom the paper has no settings. embedded: it is inside the package and
    reads no folder.
    """

    name: str
    title: str
    read: Callable[[Path | None, ReadOptions], TrainAndTest]
    size: int | None
    mean: tuple[float, ...] | None
    std: tuple[float, ...] | None
    augment: Callable[[int], ops.Augment]
    eps: float = PAPER_EPS
    model: str = "resnet18"
    files: folders.ListFiles | None = None
    own: bool = False
    embedded: bool = False

    @property
    def can_fetch(self) -> bool:
        """Whether it is published, and so can be downloaded."""
        return not (self.own or self.embedded)


def _published(name: str) -> Callable[[Path | None, ReadOptions], TrainAndTest]:
    def read(root: Path | None, options: ReadOptions) -> TrainAndTest:
        # It imports torchvision, which takes as long as importing torch: only whose data needs it waits.
        from cfol_fast.data import published

        found: TrainAndTest = getattr(published, name)(root, options)
        return found

    return read


def _image_files(list_files: folders.ListFiles) -> Callable[[Path | None, ReadOptions], TrainAndTest]:
    """Reads a folder of image files: into memory, or as files that are decoded while the run goes on."""

    def read(root: Path | None, options: ReadOptions) -> TrainAndTest:
        if options.source == choice.RESIDENT:
            return folders.in_memory(list_files(root, options), options)
        files, indexes = stream_files.listed(list_files, root, options)
        source, why = options.source, ""
        if source == choice.AUTO:
            source, why = choice.chosen(files, options)
            files.notes.append(f"source: {source} (auto), as {why}")
        if source == choice.RESIDENT:
            return folders.in_memory(files, options)
        return stream_files.streamed(files, indexes, options)

    return read


IMAGENET = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
_FASHION = ((0.2860,), (0.3530,))

SPECS: dict[str, DataSpec] = {
    spec.name: spec
    for spec in (
        DataSpec(
            "fashion-mini",
            "8,000 Fashion-MNIST images inside the package (500 training and 300 test images per class)",
            embedded_images.read,
            28,
            *_FASHION,
            augment=lambda size: ops.Augment(crop=False, flip=True),
            eps=0.1,
            model="demo-cnn",
            embedded=True,
        ),
        DataSpec(
            "fashion-mnist",
            "Fashion-MNIST",
            _published("fashion_mnist"),
            28,
            *_FASHION,
            augment=lambda size: paper_augment(size, colour=False),
        ),
        DataSpec(
            "cifar10",
            "CIFAR-10",
            _published("cifar10"),
            32,
            (0.4914, 0.4822, 0.4465),
            (0.2470, 0.2435, 0.2616),
            paper_augment,
        ),
        DataSpec(
            "cifar100",
            "CIFAR-100",
            _published("cifar100"),
            32,
            (0.5071, 0.4865, 0.4409),
            (0.2673, 0.2564, 0.2762),
            paper_augment,
        ),
        DataSpec(
            "stl10",
            "STL10, the labelled part",
            _published("stl10"),
            96,
            (0.4467, 0.4398, 0.4066),
            (0.2603, 0.2566, 0.2713),
            # The authors' code.
            augment=lambda size: paper_augment(size, pad=8),
        ),
        DataSpec(
            "tiny-imagenet",
            "Tiny ImageNet; its validation images are the test set, as labels of the test images are not"
            " published",
            _image_files(folders.tiny_imagenet),
            64,
            (0.4802, 0.4481, 0.3975),
            (0.2770, 0.2691, 0.2821),
            # The authors' code.
            augment=lambda size: paper_augment(size, pad=4),
            files=folders.tiny_imagenet,
        ),
        DataSpec(
            "imagenette",
            "Imagenette, 160 px",
            _image_files(folders.imagenette),
            160,
            *IMAGENET,
            augment=lambda size: paper_augment(size, pad=0),
            files=folders.imagenette,
        ),
        DataSpec(
            "folder",
            "a folder of images: train/<class>/..., test/ and val/",
            _image_files(folders.folder),
            None,
            None,
            None,
            paper_augment,
            files=folders.folder,
            own=True,
        ),
        DataSpec(
            ffcv_files.NAME,
            "FFCV files: train.beton, and test.beton or val.beton; nothing is kept in memory",
            ffcv_files.read,
            None,
            None,
            None,
            paper_augment,
            own=True,
        ),
    )
}


def register(row: DataSpec) -> DataSpec:
    """Adds a data set of one's own, from outside of this package; `row.read` is given what `--data` says."""
    if row.name in SPECS:
        raise InputError(f"there is a data set {row.name!r} already: give yours another name")
    SPECS[row.name] = row
    return row


def names() -> list[str]:
    return list(SPECS)


def spec(name: str) -> DataSpec:
    if name not in SPECS:
        raise InputError(f"unknown data set {name!r}{did_you_mean(name, SPECS)}")
    return SPECS[name]


def reads_files(name: str) -> bool:
    """Whether a data set is a folder of image files."""
    return name in SPECS and SPECS[name].files is not None


def is_own(name: str, root: str | Path | None) -> bool:
    """Whether the images are the user's own. FFCV files are what they were written from."""
    row = spec(name)
    if name != ffcv_files.NAME or root is None:
        return row.own
    found = ffcv_files.holds_own(Path(root).expanduser())
    return row.own if found is None else found


def check_size(row: DataSpec, size: int | None) -> None:
    """Refuses to resize the images of a data set that has a size of its own."""
    if size is not None and row.size is not None and size != row.size:
        raise InputError(
            f"{row.name} has images of {row.size} px, got size={size}: only `folder` can be resized"
        )
    if size is not None and size < 1:
        raise InputError(f"size must be at least 1 px, got {size}")


def check_white(row: DataSpec, white: float | None) -> None:
    """Refuses a white point for a data set that is not made of image files."""
    if white is not None and row.files is None:
        raise InputError(f"data.white is for image files, and {row.name} has pixels of 8 bits: leave it out")
    if white is not None and not 0 < white < math.inf:
        raise InputError(f"white must be a number above 0, got {white:g}")


def check_source(row: DataSpec, source: str | None, decode: str = WHOLE) -> None:
    """Refuses a source that the data set does not have. None: the usual one."""
    if source is not None and source not in choice.SOURCES:
        raise InputError(f"data.source must be one of {', '.join(choice.SOURCES)}, got {source!r}")
    if decode not in WAYS:
        raise InputError(f"data.decode must be one of {', '.join(WAYS)}, got {decode!r}")
    is_beton = row.name == ffcv_files.NAME
    if is_beton and source in (choice.RESIDENT, choice.STREAM):
        raise InputError(
            f"FFCV files are read by FFCV, got data.source={source}: leave it out, or name the folder of"
            " images with --dataset folder --data DIR"
        )
    if source == choice.BETON and not is_beton:
        raise InputError(
            f"data.source=beton reads FFCV files, got {row.name}: write them with cfol-fast data to-ffcv"
            f" --dataset {row.name} --split all --out FILES, and give --dataset beton --data FILES"
        )
    if source == choice.STREAM and row.files is None:
        raise InputError(
            f"data.source=stream reads folders of image files, got {row.name}: leave it out, its images fit"
            " into memory"
        )
    if decode != WHOLE and source != choice.STREAM:
        raise InputError(
            f"data.decode belongs to data.source=stream, got {decode} with data.source={source or 'auto'}:"
            " leave it out"
        )


def check_options(
    row: DataSpec,
    root: str | Path | None = None,
    download: bool = False,
    size: int | None = None,
    skip_corrupt: bool = False,
    white: float | None = None,
) -> None:
    """Refuses what the data set would not look at."""
    if row.embedded and root is not None:
        raise InputError(
            f"data.root is for data on the disk, and {row.name} is inside the package, got {root}: leave out"
            " --data, or name the data set with --dataset (folder, beton, cifar10, ...)"
        )
    if download and not row.can_fetch:
        raise InputError(f"data.download is for published data sets, got {row.name}: leave out --download")
    if skip_corrupt and row.files is None:
        raise InputError(f"data.skip_corrupt is for folders of image files, got {row.name}: leave it out")
    if size is not None and row.name == ffcv_files.NAME:
        raise InputError("data.size is chosen when FFCV files are written: cfol-fast data to-ffcv --size PX")
    check_size(row, size)
    check_white(row, white)


def load(
    name: str,
    root: str | Path | None = None,
    download: bool = False,
    imbalance: float | None = None,
    *,
    seed: int = 0,
    size: int | None = None,
    skip_corrupt: bool = False,
    white: float | None = None,
    cache: str = "auto",
    holdout_folder: str | None = None,
    holdout_groups: str | None = None,
    progress: bool = True,
    source: str | None = None,
    decode: str = WHOLE,
    device: torch.device | str = "cpu",
) -> ImageData:
    """Data set `name` from the folder `root`.

    imbalance: thin the training classes exponentially by this factor (seeded by `seed`); the test set keeps
    all its images.
    size: the short side a folder of differently sized images is stored with; only for `folder`.
    skip_corrupt: leave out images that cannot be decoded, and count them in the notes, instead of stopping at
    the first.
    white: the value of white in images with more than 8 bits a channel; None decides by the largest value of
    all such images.
    cache: where decoded images are kept: "auto" (beside the data), "off" or a folder.
    holdout_folder: of a folder of images, "val" or another folder with the same classes, whose images are a
    third part. holdout_groups: of image files, a regular expression or FILE.csv that says which belong
    together (`groups.groups_of`): neither the test part, where it is made here, nor a hold-out divides
    a group.
    source: of a folder of image files, None or "resident" (decoded into memory), "stream" (decoded while they
    are needed) or "auto", which looks at the memory of `device`. decode: how the stream decodes, see
    docs/own-data.md.
    """
    row = spec(name)
    check_options(row, root, download, size, skip_corrupt, white)
    check_source(row, source, decode)
    options = ReadOptions(
        download,
        size,
        skip_corrupt,
        progress,
        white,
        cache,
        source or choice.RESIDENT,
        decode,
        device,
        holdout_folder,
    )
    found = row.read(None if root is None else Path(root).expanduser(), options)
    notes = list(found.notes)
    train, test = found.train, found.test
    check_every_class(train, f"{name}, training part")
    belongs = None if holdout_groups is None else _groups(name, found, holdout_groups)
    if test is None:
        kept, held = own_test_part(train.labels, train.classes, belongs)
        train, test = train.subset(kept), train.subset(held)
        belongs = None if belongs is None else belongs[kept]
        notes.append(NO_TEST_PART)
    check_every_class(test, f"{name}, test part")
    if found.holdout is not None:
        check_every_class(found.holdout, f"{name}, hold-out")
    elif holdout_folder is not None:
        raise InputError(
            f"--holdout {holdout_folder} is a folder of images, which {name} does not read: give a share"
            " of the training images such as 0.2"
        )
    if imbalance is not None:
        rows = images.thinned(train.labels.numpy(), len(train.classes), imbalance, seed)
        if rows is not None:
            train, belongs = train.subset(rows), None if belongs is None else belongs[rows]
        notes.append(thinned_note(imbalance, train.class_counts().tolist()))
    # A reader of differently sized images says which size the batches have.
    shape = found.size or train.size
    assert shape is not None
    mean, std = found.mean or row.mean, found.std or row.std
    if mean is None or std is None:
        mean, std = channel_statistics(train)
    paper = found.augment or row.augment(min(shape))
    default = default_augmentation(row.own if found.own is None else found.own)
    augment = augmentation(default, min(shape), paper)
    return ImageData(
        name,
        train,
        test,
        shape,
        mean,
        std,
        augment,
        paper,
        row.eps,
        row.model,
        notes,
        found.white,
        found.files,
        found.holdout,
        belongs,
    )


def _groups(name: str, found: TrainAndTest, rule: str) -> Tensor:
    """int64 (n,): the group of each training image."""
    files = found.files.get("train")
    if files is None:
        raise InputError(
            f"data.holdout_groups names groups by the names of image files, and {name} has none: leave it out"
        )
    if len(files) != len(found.train):
        broken = len(files) - len(found.train)
        raise InputError(
            f"data.holdout_groups={rule} needs all images, and {broken} of {len(files)}"
            " cannot be decoded: remove them, and leave out data.skip_corrupt"
        )
    return torch.from_numpy(groups.numbered(groups.groups_of(files, rule), len(files)))


def own_test_part(
    labels: Tensor, classes: Sequence[str], groups: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """The rows of the training part and of the test part, of images that have none."""
    counts = torch.bincount(labels, minlength=len(classes)).tolist()
    if lone := [repr(name) for name, count in zip(classes, counts, strict=True) if count == 1]:
        raise InputError(
            f"class {lone[0]} has 1 image, and a fifth of every class is to be the test part: add images, or"
            " a folder test/"
        )
    return holdout(labels, FOLDER_TEST_FRACTION, seed=0, classes=classes, groups=groups)


def thinned_note(factor: float, counts: list[int]) -> str:
    shown = ", ".join(map(str, counts[:10])) + (", ..." if counts[10:] else "")
    return f"training classes thinned exponentially by {factor:g}: [{shown}] images"


def channel_statistics(
    part: Images, most: int = MOST_MEASURED
) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and standard deviation of each channel in [0, 1], over at most `most` evenly spaced images."""
    sums = ChannelSums(part.channels)
    # By all cores: the images may have to be decoded.
    for image in map_in_order(part.image, range(0, len(part), math.ceil(len(part) / most))):
        sums.add(image.numpy())
    return sums.mean_and_std()
