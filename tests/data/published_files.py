"""Writes small data sets in the official on-disk formats, with the official names of files and folders."""

from __future__ import annotations

import gzip
import hashlib
import pickle
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from torchvision import datasets

WNIDS = ["n01440764", "n02102040", "n02979186"]


def pixels(seed: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, shape, np.uint8)


def md5(path: Path) -> str:
    return hashlib.md5(path.read_bytes()).hexdigest()


def cifar10(root: Path, patch: pytest.MonkeyPatch) -> dict[str, np.ndarray]:
    """Five training batches and one of tests, 20 rows each; torchvision's table of hashes is set to these
    files.
    """
    folder = root / "cifar-10-batches-py"
    folder.mkdir(parents=True)
    made: dict[str, list[np.ndarray]] = {"train": [], "test": []}
    hashes = {}
    for number, name in enumerate([f"data_batch_{i}" for i in range(1, 6)] + ["test_batch"]):
        rows = pixels(number, 20, 3072)
        labels = [i % 10 for i in range(20)]
        (folder / name).write_bytes(pickle.dumps({"data": rows, "labels": labels}))
        hashes[name] = md5(folder / name)
        made["train" if number < 5 else "test"].append(rows.reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1))
    names = ["airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"]
    (folder / "batches.meta").write_bytes(pickle.dumps({"label_names": names}))
    kind = datasets.CIFAR10
    patch.setattr(kind, "train_list", [[f"data_batch_{i}", hashes[f"data_batch_{i}"]] for i in range(1, 6)])
    patch.setattr(kind, "test_list", [["test_batch", hashes["test_batch"]]])
    patch.setattr(kind, "meta", {**kind.meta, "md5": md5(folder / "batches.meta")})
    return {split: np.concatenate(parts) for split, parts in made.items()}


def cifar100(root: Path, patch: pytest.MonkeyPatch) -> None:
    folder = root / "cifar-100-python"
    folder.mkdir(parents=True)
    for number, name in enumerate(("train", "test")):
        rows = {"data": pixels(number, 200, 3072), "fine_labels": [i % 100 for i in range(200)]}
        (folder / name).write_bytes(pickle.dumps(rows))
    (folder / "meta").write_bytes(pickle.dumps({"fine_label_names": [f"fine {i}" for i in range(100)]}))
    kind = datasets.CIFAR100
    patch.setattr(kind, "train_list", [["train", md5(folder / "train")]])
    patch.setattr(kind, "test_list", [["test", md5(folder / "test")]])
    patch.setattr(kind, "meta", {**kind.meta, "md5": md5(folder / "meta")})


def stl10(root: Path, patch: pytest.MonkeyPatch) -> np.ndarray:
    """Returns the training images, (N, H, W, C). The files hold columns before rows, and labels from 1 on."""
    from cfol_fast.data.published import LabelledSTL10

    folder = root / "stl10_binary"
    folder.mkdir(parents=True)
    images = {"train": pixels(1, 20, 96, 96, 3), "test": pixels(2, 10, 96, 96, 3)}
    for split, values in images.items():
        (folder / f"{split}_X.bin").write_bytes(np.ascontiguousarray(values.transpose(0, 3, 2, 1)).tobytes())
        (folder / f"{split}_y.bin").write_bytes(bytes(1 + i % 10 for i in range(len(values))))
    (folder / "class_names.txt").write_text("\n".join(f"thing {i}" for i in range(10)))
    for split in ("train", "test"):
        listed = [[f"{split}_{kind}.bin", md5(folder / f"{split}_{kind}.bin")] for kind in "Xy"]
        patch.setattr(LabelledSTL10, f"{split}_list", listed)
    return images["train"]


def idx(values: np.ndarray) -> bytes:
    sizes = b"".join(int(n).to_bytes(4, "big") for n in values.shape)
    return bytes([0, 0, 8, values.ndim]) + sizes + values.astype(np.uint8).tobytes()


def fashion_mnist(root: Path, zipped: bool, train: int = 30, test: int = 20, side: int = 28) -> np.ndarray:
    root.mkdir(parents=True, exist_ok=True)
    images = {"train": pixels(1, train, side, side), "t10k": pixels(2, test, side, side)}
    for prefix, values in images.items():
        labels = np.arange(len(values)) % 10
        for name, data in (
            (f"{prefix}-images-idx3-ubyte", idx(values)),
            (f"{prefix}-labels-idx1-ubyte", idx(labels)),
        ):
            path = root / (f"{name}.gz" if zipped else name)
            path.write_bytes(gzip.compress(data, 1) if zipped else data)
    return images["train"]


def save(path: Path, seed: int, height: int, width: int, mode: str = "RGB") -> np.ndarray:
    """An image file with random pixels (lossless unless the name says .JPEG)."""
    path.parent.mkdir(parents=True, exist_ok=True)
    values = pixels(seed, height, width) if mode == "L" else pixels(seed, height, width, 3)
    Image.fromarray(values).save(path)
    return values


def imagenette(root: Path) -> None:
    """Short side 160 as published, the long side different from image to image."""
    for split, count in (("train", 3), ("val", 2)):
        for c, wnid in enumerate(WNIDS):
            for i in range(count):
                height, width = (160, 160 + 7 * i) if i % 2 else (160 + 20 * i, 160)
                save(root / "imagenette2-160" / split / wnid / f"{wnid}_{i}.JPEG", 10 * c + i, height, width)


def tiny_imagenet(root: Path) -> None:
    base = root / "tiny-imagenet-200"
    base.mkdir(parents=True)
    (base / "wnids.txt").write_text("\n".join(reversed(WNIDS)) + "\n")
    (base / "words.txt").write_text(
        "n01440764\ttench, Tinca tinca\nn02102040\tspaniel\nn02979186\tspaniel\nn00000001\tunused\n"
    )
    for c, wnid in enumerate(WNIDS):
        for i in range(3):
            mode = "L" if i == 0 else "RGB"  # some of the published files are grey
            save(base / "train" / wnid / "images" / f"{wnid}_{i}.JPEG", 10 * c + i, 64, 64, mode)
    lines = []
    for i in range(6):
        save(base / "val" / "images" / f"val_{i}.JPEG", 100 + i, 64, 64)
        lines.append(f"val_{i}.JPEG\t{WNIDS[i % 3]}\t0\t0\t62\t62\n")
    (base / "val" / "val_annotations.txt").write_text("".join(lines))


def folder(
    root: Path, splits: tuple[str, ...] = ("train", "test"), side: int = 8, count: int = 4
) -> dict[str, np.ndarray]:
    """Classes ant, bee, cat; the pixels by path."""
    made = {}
    for s, split in enumerate(splits):
        for c, name in enumerate(("ant", "bee", "cat")):
            for i in range(count):
                path = f"{split}/{name}/{i}.png"
                made[path] = save(root / path, 100 * s + 10 * c + i, side, side)
    return made
