"""Makes `fashion_mini.npz`, the 8,000 images inside the package, from Debian's package
`dataset-fashion-mnist`.

    apt-get install -y dataset-fashion-mnist
    python -m cfol_fast.data.embedded.make [SOURCE_FOLDER] [OUTPUT.npz]

500 training and 300 test images per class, a seeded choice kept in the order of the original files. The
indices chosen are stored too, so that every image can be found in the original.
"""

from __future__ import annotations

import gzip
import sys
from pathlib import Path

import numpy as np

DEBIAN_FOLDER = Path("/usr/share/datasets/fashion-mnist")
OUTPUT = Path(__file__).parent / "fashion_mini.npz"
SEED = 20230517
PER_CLASS = {"train": ("train", 500), "test": ("t10k", 300)}


def read_idx(path: Path) -> np.ndarray:
    """An array from an IDX file, gzipped or not: two zero bytes, type 8 (uint8), rank, then the big-endian
    sizes.
    """
    packed = path.read_bytes()
    data = gzip.decompress(packed) if packed[:2] == b"\x1f\x8b" else packed
    if data[:3] != b"\x00\x00\x08":
        raise ValueError(f"{path} is not an IDX file of bytes")
    rank = data[3]
    shape = np.frombuffer(data, ">u4", rank, 4).astype(int)
    return np.frombuffer(data, np.uint8, int(np.prod(shape)), 4 + 4 * rank).reshape(shape)


def choose(labels: np.ndarray, per_class: int, seed: list[int]) -> np.ndarray:
    """`per_class` indices of each class, sorted."""
    rng = np.random.default_rng(seed)
    chosen = [rng.permutation(np.flatnonzero(labels == c))[:per_class] for c in range(10)]
    return np.sort(np.concatenate(chosen)).astype(np.int32)


def make(source: Path, output: Path) -> None:
    arrays: dict[str, np.ndarray] = {}
    for number, (split, (prefix, per_class)) in enumerate(PER_CLASS.items()):
        images = read_idx(source / f"{prefix}-images-idx3-ubyte.gz")
        labels = read_idx(source / f"{prefix}-labels-idx1-ubyte.gz")
        chosen = choose(labels, per_class, [SEED, number])
        arrays[f"{split}_images"] = images[chosen]
        arrays[f"{split}_labels"] = labels[chosen]
        arrays[f"{split}_indices"] = chosen
    np.savez_compressed(output, **arrays)  # type: ignore[arg-type]


if __name__ == "__main__":
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else DEBIAN_FOLDER
    target = Path(sys.argv[2]) if len(sys.argv) > 2 else OUTPUT
    make(folder, target)
    print(f"{target}: {target.stat().st_size / 1e6:.2f} MB")
