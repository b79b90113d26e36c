"""Data sets that are folders of image files: Tiny ImageNet, Imagenette, and the user's own.

Each is listed by one function, once. What is listed is read into memory (`reader`), or goes to FFCV files
image by image (`cfol_fast.data.ffcv.convert`).
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from unicodedata import category, normalize

from cfol_fast.data.classes import same_text
from cfol_fast.data.decoding import cache_folder, decode
from cfol_fast.data.image_sizes import MIXED_SIZE, common_size
from cfol_fast.data.listing import Listing, ignored_note, shown
from cfol_fast.data.part_folders import NAMES, TRAIN, chosen_holdout, holdout_folder, test_folder
from cfol_fast.data.reading import ReadOptions, TrainAndTest, need_root
from cfol_fast.data.room import size_text
from cfol_fast.data.white_of_files import WhitePoint
from cfol_fast.errors import InputError, one_line

SizeOf = Callable[[Listing, bool, Path | None], tuple[int, int] | None]
Lister = Callable[[Path, str], Listing]
EXTENSIONS = (".jpg", ".jpeg", ".png", ".bmp", ".ppm", ".pgm", ".tif", ".tiff", ".webp", ".gif")
# Of macOS, Synology's disks, Windows and Linux: with previews of images, or nothing of interest.
OF_SYSTEMS = ("__MACOSX", "@eaDir", "Thumbs.db", "desktop.ini", "lost+found")
# Of Unicode: control characters, line and paragraph separators. No table could show a class of such a name.
CONTROLS = ("Cc", "Zl", "Zp")
TINY_URL = "https://cs231n.stanford.edu/tiny-imagenet-200.zip"
# Stanford publishes none. This one stands in the Git LFS pointer of a public copy, and unrelated projects
# recorded the same:
# https://huggingface.co/datasets/cnak47/cv-datasets/commit/6931f66584bf3a507711a644f6803fa5f419faf1
TINY_SHA256 = "6198c8ae015e2b3e007c7841da39ec069199b9aa3bfa943a462022fe5e43c821"


@dataclass(frozen=True)
class Files:
    """The files of a data set, listed and not yet read. test: None where there is no test part. holdout: the
    user's own, where it was asked for.

    size: the short side that images are stored with; None keeps them. batch_size: (h, w) of the batches.
    """

    train: Listing
    test: Listing | None
    size: int | None
    batch_size: tuple[int, int]
    notes: list[str]
    holdout: Listing | None = None

    @property
    def parts(self) -> list[Listing]:
        return list(self.by_name.values())

    @property
    def by_name(self) -> dict[str, Listing]:
        parts = {"train": self.train, "test": self.test, "holdout": self.holdout}
        return {name: part for name, part in parts.items() if part is not None}


ListFiles = Callable[..., Files]
LAYOUT = "train/<class>/ with image files, and test/<class>/ and val/<class>/ if there are such"


def reader(list_files: ListFiles) -> Callable[[Path | None, ReadOptions], TrainAndTest]:
    """Reads what is listed into memory, by way of the cache."""

    def read(root: Path | None, options: ReadOptions) -> TrainAndTest:
        return in_memory(list_files(root, options), options)

    return read


def in_memory(files: Files, options: ReadOptions) -> TrainAndTest:
    """What is listed, decoded into memory."""
    base = files.train.root
    cache = cache_folder(base, options.cache)
    white = WhitePoint(files.parts, options, cache)
    notes, found = list(files.notes), {}
    for name, part in files.by_name.items():
        found[name], more = decode(part, options, files.size, cache, white)
        notes += more
    notes += white.notes + unused_white_note(options, white)
    if cache is not None:
        size = size_text(sum(images.images.nbytes for images in found.values()))
        notes.append(f"decoded images are kept in {cache}: {size} (data.cache=off keeps none)")
    elif options.cache == "auto":
        notes.append(
            f"{base} cannot be written: its images are decoded again each time (data.cache=DIR keeps them"
            " in DIR)"
        )
    return TrainAndTest(
        found["train"],
        found.get("test"),
        files.batch_size,
        notes,
        white=white.value,
        files=files.by_name,
        holdout=found.get("holdout"),
    )


def unused_white_note(options: ReadOptions, white: WhitePoint) -> list[str]:
    unused = options.white is not None and white.value is None
    return [f"data.white={options.white:g} has no effect: no image has more than 8 bits"] if unused else []


def folder(
    root: Path | None, options: ReadOptions, size_of: SizeOf = common_size, lister: Lister | None = None
) -> Files:
    """`root`/train/<class>/..., and test/ (or val/) with the same classes; without either, the caller holds
    out a part. With `options.holdout` a third folder is the hold-out. lister: instead of `list_classes`.
    """
    root, lister = need_root(root, LAYOUT), lister or list_classes
    train, test = _parts(root, lister)
    if len(train.classes) < 2:
        raise InputError(
            f"{root / train.split} has one class, {train.classes[0]!r}: a classifier needs at least 2,"
            " each in a folder of its own"
        )
    held = None if options.holdout is None else _held_out(root, options.holdout, lister)
    notes = _folders_note(root, test, held)
    parts = [part for part in (train, test, held) if part is not None]
    notes += [note for part in parts for note in ignored_note(part)]
    for part in parts[1:]:
        _same_classes(train, part)
    size = options.size
    if size is None:
        cache = cache_folder(root, options.cache)
        sizes = {part.split: size_of(part, options.progress, cache) for part in parts}
        common = set(sizes.values())
        if None not in common and len(common) > 1:
            both = " and ".join(f"{size[1]}x{size[0]} in {split}/" for split, size in sizes.items() if size)
            raise InputError(
                f"{root}: images of {both}. Choose one size for both with --set"
                f" data.size={min(sizes['train'] or (1,))} (--size outside of training)."
            )
        one = common.pop() if len(common) == 1 else None
        if one is not None:
            return Files(train, test, None, one, notes, held)
        size = MIXED_SIZE
        notes.append(
            f"images of different sizes: stored with a short side of {size} px (change it with size=)"
        )
    return Files(train, test, size, (size, size), notes, held)


def _held_out(root: Path, holdout: str, lister: Lister) -> Listing:
    """The files of a hold-out of the user's own."""
    above, name = chosen_holdout(root, holdout)
    if above == root.resolve():
        return lister(root, name)
    # Another folder may be called like a part of this one.
    return replace(list_classes(above, name), split="holdout")


def _folders_note(root: Path, test: Listing | None, held: Listing | None) -> list[str]:
    """Which folder is which part, where more than train/ and test/ are there."""
    inside = [entry.name for entry in os.scandir(root) if entry.is_dir() and not _is_hidden(entry.name)]
    used = [TRAIN, *([] if test is None else [test.split])]
    notes = []
    if held is not None:
        used += [held.split] if held.root == root else []
        where = f"{held.split}/" if held.root == root else str(held.root / held.paths[0].split(os.sep)[0])
        of_test = "" if test is None else f"; {test.split}/ is the test part"
        notes.append(f"train/ is the training part; {where} is the hold-out{of_test}")
    elif (name := holdout_folder(root)) is not None:
        notes.append(f"{name}/ is not used: the hold-out is not taken from it (--holdout val takes it)")
        used.append(name)
    elif test is not None and test.split != "test":
        notes.append(f"{test.split}/ is the test part, as there is no test/")
    if others := sorted(shown(name) for name in inside if name not in used):
        names = ", ".join(f"{name}/" for name in NAMES)
        notes.append(f"{', '.join(others[:5])}: not used, as the parts are called {names}")
    return notes


def _parts(root: Path, lister: Lister) -> tuple[Listing, Listing | None]:
    """The files of both parts; None where there is no test part."""
    if not (root / "train").is_dir():
        raise InputError(f"{root / 'train'} is not there: a folder of images has {LAYOUT}")
    test = test_folder(root)
    return lister(root, "train"), None if test is None else lister(root, test)


def list_parts(root: str | Path | None) -> tuple[Path, list[Listing]]:
    """The folder, and the files of its parts."""
    root = need_root(None if root is None else Path(root).expanduser(), LAYOUT)
    return root, [part for part in _parts(root, list_classes) if part is not None]


def imagenette(
    root: Path | None, options: ReadOptions, size_of: SizeOf = common_size, lister: Lister | None = None
) -> Files:
    """The 160 px version, as torchvision finds it: random crops in training, the centre in evaluation, both
    160 x 160.
    """
    # Importing torchvision takes as long as importing torch: only whose data needs it waits.
    from torchvision.datasets import Imagenette

    url = Imagenette._ARCHIVES["160px"][0]
    expected = f"imagenette2-160/ with train/ and val/ from {url}"
    root = need_root(root, expected)
    root = root.parent if root.name == "imagenette2-160" else root
    base = root / "imagenette2-160"
    parts = []
    for split in ("train", "val"):
        if not options.download and not (base / split).is_dir():
            raise InputError(f"{base / split} is not there: expected is {expected}; or add --download")
        try:
            data = Imagenette(str(root), split, "160px", download=options.download)
        except (RuntimeError, KeyError, FileNotFoundError) as error:
            raise InputError(
                f"{base} is not Imagenette ({one_line(error)}): expected is {expected}"
            ) from error
        parts.append(
            Listing(
                base,
                split,
                [os.path.relpath(path, base) for path, _ in data._samples],
                [label for _, label in data._samples],
                [names[0] for names in data.classes],
            )
        )
    _same_classes(*parts)
    return Files(parts[0], parts[1], 160, (160, 160), [])


def tiny_imagenet(
    root: Path | None, options: ReadOptions, size_of: SizeOf = common_size, lister: Lister | None = None
) -> Files:
    """tiny-imagenet-200/ as published: wnids.txt, words.txt, train/<wnid>/images/, val/images/ with
    val_annotations.txt.
    """
    expected = f"tiny-imagenet-200/ with wnids.txt, words.txt, train/ and val/ from {TINY_URL}"
    root = need_root(root, expected)
    base = root if root.name == "tiny-imagenet-200" else root / "tiny-imagenet-200"
    if options.download and not base.is_dir():
        _download_tiny_imagenet(base.parent)
    for name in ("wnids.txt", "words.txt", "train", "val/val_annotations.txt"):
        if not (base / name).exists():
            raise InputError(f"{base / name} is not there: expected is {expected}; or add --download")
    wnids = sorted({word for line in _lines(base / "wnids.txt") for word in line.split()})
    words = dict(line.split("\t", 1) for line in _lines(base / "words.txt") if "\t" in line)
    wrong = next((wnid for wnid in wnids if Path(wnid).name != wnid), None)
    if wrong or not wnids:
        raise InputError(f"{base / 'wnids.txt'} must list the folders of the classes, got {wrong!r}")
    classes = [words.get(wnid, wnid).split(",")[0] for wnid in wnids]
    classes = [
        name if classes.count(name) == 1 else f"{name} ({wnid})"
        for name, wnid in zip(classes, wnids, strict=True)
    ]
    number = {wnid: c for c, wnid in enumerate(wnids)}

    train: list[tuple[str, int]] = []
    for wnid in wnids:
        images = base / "train" / wnid / "images"
        if not images.is_dir():
            raise InputError(f"{images} is not there, but {wnid} is in wnids.txt: expected is {expected}")
        train += [
            (f"train/{wnid}/images/{name}", number[wnid])
            for name in sorted(os.listdir(images))
            if _is_image(name)
        ]
    val: list[tuple[str, int]] = []
    for line in _lines(base / "val" / "val_annotations.txt"):
        name, _, rest = line.partition("\t")
        wnid = rest.partition("\t")[0]
        if Path(name).name != name:
            raise InputError(f"{base / 'val/val_annotations.txt'}: {name!r} is not the name of a file")
        if wnid not in number:
            raise InputError(
                f"{base / 'val/val_annotations.txt'}: {name} has the class {wnid}, which is not in wnids.txt"
            )
        val.append((f"val/images/{name}", number[wnid]))
    listings = [
        Listing(base, split, [path for path, _ in part], [label for _, label in part], classes)
        for split, part in (("train", train), ("val", val))
    ]
    return Files(listings[0], listings[1], 64, (64, 64), [])


def _download_tiny_imagenet(folder: Path) -> None:
    """Fetches the archive over https and unpacks it only if its SHA-256 is the known one."""
    from torchvision.datasets.utils import download_url, extract_archive

    archive = folder / Path(TINY_URL).name
    try:
        if not archive.is_file():
            download_url(TINY_URL, str(folder), archive.name)
        with open(archive, "rb") as file:
            found = hashlib.file_digest(file, "sha256").hexdigest()
        if found != TINY_SHA256:
            raise InputError(
                f"{archive} has the SHA-256 {found}, expected {TINY_SHA256}: remove it and try again"
            )
        extract_archive(str(archive), str(folder))
    except (RuntimeError, OSError) as error:
        raise InputError(f"{TINY_URL} could not be downloaded ({one_line(error)})") from error


def list_classes(root: Path, split: str) -> Listing:
    """Every image under `root`/`split`/<class>, sorted; the class names are the folders' names."""
    base = root / split
    classes = sorted(
        entry.name for entry in os.scandir(base) if entry.is_dir() and not _is_hidden(entry.name)
    )
    if not classes:
        raise InputError(f"{base} has no folders in it: one folder per class is expected")
    unreadable = [name for name in classes if not _is_utf8(name)]
    if unreadable:
        raise InputError(
            f"{base}: the name of the class folder {os.fsencode(unreadable[0])!r} is not UTF-8: rename it"
        )
    unprintable = [name for name in classes if any(category(c) in CONTROLS for c in name)]
    if unprintable:
        raise InputError(
            f"{base}: the name of the class folder {unprintable[0]!r} has a line break or control character:"
            " rename it"
        )
    _check_different(base, classes)
    paths: list[str] = []
    labels: list[int] = []
    prefix = os.path.join(base, "")
    # A link may lead back to a folder above it, or into another class: each folder is looked into once.
    visited = {_identity(above): above for above in (base, *base.resolve().parents)}
    for name in classes:
        before = visited.setdefault(_identity(base / name), base / name)
        if before != base / name:
            raise InputError(f"{base / name} is the same folder as {before}: remove one of them")
    ignored = [entry.name for entry in os.scandir(base) if not entry.is_dir() and not _is_hidden(entry.name)]
    ignored = [os.path.join(split, name) for name in sorted(ignored)]
    for number, name in enumerate(classes):
        images, others = _files_under(base / name, visited)
        found = sorted(images)
        ignored += [os.path.join(split, path[len(prefix) :]) for path in sorted(others)]
        if not found:
            raise InputError(
                f"{base / name} has no image in it ({', '.join(EXTENSIONS)}): add some or remove the folder"
            )
        # Not relpath, which takes 10 µs for each of a million files.
        paths += [os.path.join(split, path[len(prefix) :]) for path in found]
        labels += [number] * len(found)
    above = base.resolve().parents
    folders = [str(folder) for folder in visited.values() if folder not in above]
    return Listing(root, split, paths, labels, classes, ignored, folders)


def _check_different(base: Path, classes: list[str]) -> None:
    """Refuses names that differ in white space, or in the form of an accent, alone: no table could tell them
    apart.
    """
    seen: dict[str, str] = {}
    for name in classes:
        other = seen.setdefault(" ".join(normalize("NFC", name).split()), name)
        if other != name:
            raise InputError(
                f"{base}: the names of the class folders {other!a} and {name!a} are written alike:"
                " rename one of them, or join the two"
            )


def _files_under(base: Path, visited: dict[tuple[int, int], Path]) -> tuple[list[str], list[str]]:
    """The image files, and the other ones.

    What systems keep beside images (thumbnails, earlier versions) is neither.
    """

    # os.walk would silently skip a folder that it may not read.
    def refuse(error: OSError) -> None:
        raise error

    found: list[str] = []
    others: list[str] = []
    for folder, below, names in os.walk(base, onerror=refuse, followlinks=True):
        for name in names:
            if not _is_hidden(name):
                (found if _is_image(name) else others).append(os.path.join(folder, name))
        # In the order of the names, so that of two ways to a folder the same one is taken on every machine.
        paths = {name: Path(folder, name) for name in sorted(below) if not _is_hidden(name)}
        below[:] = [name for name, path in paths.items() if visited.setdefault(_identity(path), path) is path]
    return found, others


def _identity(folder: Path) -> tuple[int, int]:
    status = os.stat(folder)
    return status.st_dev, status.st_ino


def _is_utf8(name: str) -> bool:
    """False for a name whose bytes Python could only keep as surrogates: no terminal and no JSON reader could
    show it.
    """
    return name.encode("utf-8", "ignore").decode() == name


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text(encoding="utf-8").splitlines()
    except UnicodeDecodeError as error:
        raise InputError(f"{path} is not a text file (byte {error.start} is not UTF-8)") from None


def _is_image(name: str) -> bool:
    return name.lower().endswith(EXTENSIONS) and not _is_hidden(name)


def _is_hidden(name: str) -> bool:
    """What a system or a program keeps for itself."""
    return name.startswith(".") or name in OF_SYSTEMS


def _same_classes(train: Listing, test: Listing) -> None:
    if train.classes == test.classes:
        return
    if sorted(same_text(train.classes)) == sorted(same_text(test.classes)):
        one, other = next((a, b) for a, b in zip(train.classes, test.classes, strict=True) if a != b)
        raise InputError(
            f"{train.root}: the class folders of {train.split}/ and {test.split}/ differ in the form of their"
            f" accents alone ({one!a}, {other!a}): give them the same names"
        )
    only = [
        f"only in {a.split}/: {', '.join(sorted(set(a.classes) - set(b.classes))[:5])}"
        for a, b in ((train, test), (test, train))
        if set(a.classes) - set(b.classes)
    ]
    raise InputError(
        f"{train.root}: the class folders of {train.split}/ and {test.split}/ differ ({'; '.join(only)})"
    )
