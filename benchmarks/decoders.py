"""JPEG files of 224 pixels: torchcodec, Pillow and simplejpeg on the same bytes, and the stream against
FFCV's feed and torch's DataLoader.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch.utils.data import DataLoader, Dataset

from benchmarks import images as pictures
from benchmarks.rows import Row, faster, main
from benchmarks.timing import THREADS, interleaved
from cfol_fast import data, ops
from cfol_fast.data import decoders
from cfol_fast.data.decoders import Decoder
from cfol_fast.data.folders import list_classes
from cfol_fast.data.stream.data_set import StreamSet
from cfol_fast.data.stream.index import index_of

SIDE, BATCH, QUALITY = 224, 64, 90
AUGMENT = ops.Augment(pad=4, crop=True, flip=True)


def measure(tiny: bool) -> list[Row]:
    count = BATCH if tiny else 8 * BATCH
    images = pictures.smooth_images(count, SIDE)
    with photos(images) as root:
        rows = one_image(sorted(root.rglob("*.jpg"))[: 16 if tiny else 128], tiny)
        return rows + whole_batches(images, root, tiny)


@contextmanager
def photos(images: data.ImageSet) -> Iterator[Path]:
    """The images as a folder of JPEG files."""
    with TemporaryDirectory() as folder:
        for number in range(len(images)):
            path = Path(folder) / f"train/{images.classes[int(images.labels[number])]}/{number}.jpg"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(images.image(number).numpy()).save(path, quality=QUALITY)
        yield Path(folder)


def one_image(paths: list[Path], tiny: bool) -> list[Row]:
    """Bytes to pixels, on one core."""
    files = [bytearray(path.read_bytes()) for path in paths]

    def of_all(decode: Callable[[bytearray], Any]) -> Callable[[], None]:
        def run() -> None:
            for encoded in files:
                decode(encoded)

        return run

    contestants = {
        "ours": of_all(Decoder(None, lambda: 65535.0)),
        "pillow": of_all(lambda encoded: np.array(Image.open(io.BytesIO(encoded)).convert("RGB"))),
    }
    names = {"pillow": "Pillow"}
    try:
        import simplejpeg
    except ImportError:
        pass
    else:
        contestants["simplejpeg"] = of_all(lambda encoded: simplejpeg.decode_jpeg(encoded, colorspace="RGB"))
        names["simplejpeg"] = "simplejpeg"
    if (functions := decoders.torchcodec_functions()) is not None:
        decode = functions["JPEG"]
        contestants["torchcodec"] = of_all(
            lambda encoded: decode(torch.frombuffer(encoded, dtype=torch.uint8))
        )
        names["torchcodec"] = "torchcodec's function alone"
    timings = interleaved(contestants, 2 if tiny else 15)
    rates = {name: len(files) / timing.cpu_best for name, timing in timings.items()}
    note = ", ".join(f"{name} {rate:,.0f}" for name, rate in rates.items()) + " images/s per core"
    name = f"decode(bytes) of a JPEG of {SIDE} px, time an image"
    goals = {"pillow": 1.0, "simplejpeg": 0.9, "torchcodec": 0.8}
    return [
        faster(name, who, timings["ours"], timings[key], goals[key], note, per=len(files))
        for key, who in names.items()
    ]


class Files(Dataset[tuple[torch.Tensor, int]]):
    """As torchvision's ImageFolder: an image at a time, by Pillow, cropped and mirrored."""

    def __init__(self, images: StreamSet) -> None:
        from torchvision.transforms import v2

        self.paths = [images.index.listing.root / path for path in images.index.listing.paths]
        self.labels = images.labels.tolist()
        self.transform = v2.Compose(
            [
                v2.PILToTensor(),
                v2.RandomCrop(SIDE, padding=4),
                v2.RandomHorizontalFlip(),
                v2.ToDtype(torch.float32, scale=True),
            ]
        )

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, row: int) -> tuple[torch.Tensor, int]:
        with Image.open(self.paths[row]) as image:
            return self.transform(image.convert("RGB")), self.labels[row]


def whole_batches(images: data.ImageSet, root: Path, tiny: bool) -> list[Row]:
    """A pass over all images in batches, augmented, with the same number of workers each."""
    stream = StreamSet(index_of(list_classes(root, "train")), Decoder(None, lambda: 65535.0), (SIDE, SIDE))
    source = data.StreamSource(stream, 1, augment=AUGMENT, workers=THREADS)
    count = len(stream)

    def fed(source: Any) -> Callable[[], None]:
        def run() -> None:
            parts = iter(torch.randperm(count).split(BATCH))
            for _ in source.feed(lambda: next(parts), count // BATCH):
                pass

        return run

    loader = DataLoader(
        Files(stream), BATCH, shuffle=True, num_workers=THREADS, persistent_workers=True, drop_last=True
    )

    def usual() -> None:
        for _ in loader:
            pass

    with pictures.written_beton(images, "jpg") as path:
        ffcv = data.FFCVSource(path, 1, augment=AUGMENT, workers=THREADS)
        contestants = {"ours": fed(source), "ffcv": fed(ffcv), "loader": usual}
        timings = interleaved(contestants, 2 if tiny else 9)
        ffcv.close()
    source.close()
    rates = {who: count / timing.best for who, timing in timings.items()}
    note = ", ".join(f"{who} {rate:,.0f}" for who, rate in rates.items())
    note += f" images/s with {THREADS} threads"
    name = f"stream of JPEG files of {SIDE} px with lag 1, batch {BATCH}, time an image"
    against = {
        "ffcv": ("our FFCV feed, JPEG in a file", 1.0),
        "loader": (f"DataLoader with Pillow, {THREADS} workers", 2.0),
    }
    return [
        faster(name, words, timings["ours"], timings[who], goal, note, per=count)
        for who, (words, goal) in against.items()
    ]


if __name__ == "__main__":
    main(measure)
