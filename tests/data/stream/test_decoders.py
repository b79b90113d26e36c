"""`decode(bytes)`: Pillow's pixels bit for bit, whoever decodes, and no words of the libraries."""

from __future__ import annotations

import io
import os
import struct
import subprocess
import sys
import zlib
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from cfol_fast.data import decoders
from cfol_fast.data.decoders import NVJPEG, SCALED, Decoder, Nvjpeg
from cfol_fast.data.image_file import FORMATS, MOST_PIXELS, UNREADABLE, pixels_of
from tests.data.stream.image_folders import deep, encoded, picture

needs_torchcodec = pytest.mark.skipif(
    decoders.torchcodec_functions() is None, reason="needs torchcodec, the extra [stream]"
)


def white() -> float:
    return 65535.0


def by_pillow(data: bytes, size: int | None = None) -> np.ndarray | None:
    try:
        with Image.open(io.BytesIO(data), formats=FORMATS) as image:
            return pixels_of(image, size, white)
    except UNREADABLE:
        return None


def by_us(data: bytes, size: int | None = None) -> np.ndarray | None:
    try:
        return Decoder(size, white)(data)
    except UNREADABLE:
        return None


def same(data: bytes, size: int | None = None) -> bool:
    ours, pillows = by_us(data, size), by_pillow(data, size)
    if ours is None or pillows is None:
        return ours is pillows
    return np.array_equal(ours, pillows)


def with_alpha(image: Image.Image) -> Image.Image:
    image.putalpha(picture(image.height, image.width, 5).convert("L"))
    return image


PICTURE = picture(37, 52)
FILES: dict[str, Callable[[], bytes]] = {
    "jpeg": lambda: encoded(PICTURE, "JPEG"),
    "jpeg 4:4:4": lambda: encoded(PICTURE, "JPEG", quality=100, subsampling=0),
    "jpeg 4:2:2": lambda: encoded(PICTURE, "JPEG", subsampling=1),
    "jpeg progressive": lambda: encoded(PICTURE, "JPEG", progressive=True),
    "jpeg grey": lambda: encoded(PICTURE.convert("L"), "JPEG"),
    "jpeg cmyk": lambda: encoded(PICTURE.convert("CMYK"), "JPEG"),
    "jpeg rgb": lambda: encoded(PICTURE, "JPEG", keep_rgb=True),
    "jpeg 1x1": lambda: encoded(picture(1, 1), "JPEG"),
    "mpo": lambda: encoded(PICTURE, "MPO", save_all=True, append_images=[PICTURE]),
    **{f"png {mode}": lambda mode=mode: encoded(PICTURE.convert(mode), "PNG") for mode in ("1", "L", "P")},
    "png RGBA": lambda: encoded(with_alpha(PICTURE.convert("RGBA")), "PNG"),
    "png LA": lambda: encoded(with_alpha(PICTURE.convert("LA")), "PNG"),
    "png 16 bits": lambda: encoded(deep(20, 30), "PNG"),
    "png transparent colour": lambda: encoded(PICTURE, "PNG", transparency=(3, 4, 5)),
    "png transparent palette": lambda: encoded(PICTURE.convert("P"), "PNG", transparency=bytes(range(256))),
    "png 4 bits": lambda: encoded(PICTURE.quantize(16), "PNG", bits=4),
    "png animated": lambda: encoded(PICTURE, "PNG", save_all=True, append_images=[picture(37, 52, 3)]),
    "webp": lambda: encoded(PICTURE, "WEBP"),
    "webp lossless": lambda: encoded(PICTURE, "WEBP", lossless=True),
    "webp alpha": lambda: encoded(with_alpha(PICTURE.convert("RGBA")), "WEBP"),
    "webp animated": lambda: encoded(PICTURE, "WEBP", save_all=True, append_images=[picture(37, 52, 3)]),
    "gif": lambda: encoded(PICTURE, "GIF"),
    "bmp": lambda: encoded(PICTURE, "BMP"),
    "tiff": lambda: encoded(PICTURE, "TIFF"),
    "ppm": lambda: encoded(PICTURE, "PPM"),
}


@pytest.mark.parametrize("size", [None, 16, 64])
@pytest.mark.parametrize("kind", FILES)
def test_the_pixels_are_pillows(kind: str, size: int | None) -> None:
    data = FILES[kind]()
    assert by_pillow(data, size) is not None
    assert same(data, size)


@needs_torchcodec
@pytest.mark.parametrize("kind", ["jpeg", "jpeg grey", "png L", "png RGBA", "webp", "mpo"])
def test_torchcodec_decodes_the_usual_files(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decoders, "pixels_of", None)
    assert by_us(FILES[kind]()) is not None


def test_without_torchcodec_the_pixels_are_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    with_it = {kind: by_us(make()) for kind, make in FILES.items()}
    monkeypatch.setattr(decoders, "torchcodec_functions", lambda: None)
    assert all(np.array_equal(by_us(make()), with_it[kind]) for kind, make in FILES.items())
    assert "Pillow" in decoders.description()


def exif(order: bytes, kind: int, count: int, value: int, entries: int = 1) -> bytes:
    """EXIF data with the orientation `value`, in a form that may be unusual."""
    e = ">" if order == b"MM" else "<"
    word = {3: struct.pack(e + "HH", value, 0), 4: struct.pack(e + "I", value), 1: bytes([value, 0, 0, 0])}
    entry = struct.pack(e + "HHI", 0x0112, kind, count) + word[kind]
    head = b"Exif\0\0" + order + struct.pack(e + "IH", 42, 8)[:4] + struct.pack(e + "I", 8)[2:]
    head = b"Exif\0\0" + order + struct.pack(e + "HI", 42, 8)
    return head + struct.pack(e + "H", entries) + entry * entries + struct.pack(e + "I", 0)


def chunk(name: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))


def with_chunk(png: bytes, made: bytes, before: bytes = b"IDAT") -> bytes:
    at = png.index(before) - 4
    return png[:at] + made + png[at:]


@pytest.mark.parametrize("order", [b"MM", b"II"])
@pytest.mark.parametrize("kind", [3, 4, 1])
def test_images_are_turned_as_pillow_turns_them(order: bytes, kind: int) -> None:
    square, png = picture(24, 24), encoded(picture(24, 24), "PNG")
    for count, entries, value in [(c, n, v) for c in (1, 2, 0) for n in (1, 2) for v in (1, 3, 6, 9)]:
        data = exif(order, kind, count, value, entries)
        assert same(encoded(square, "JPEG", exif=data)), (count, entries, value)
        assert same(with_chunk(png, chunk(b"eXIf", data[6:])))
        assert same(with_chunk(png, chunk(b"eXIf", data[6:]), before=b"IEND"))


@pytest.mark.parametrize("value", range(1, 9))
def test_every_orientation_is_made_upright(value: int) -> None:
    data = Image.Exif()
    data[0x0112] = value
    for kind, options in (("JPEG", {}), ("PNG", {}), ("WEBP", {"lossless": True})):
        assert same(encoded(PICTURE, kind, exif=data, **options))


def damaged(data: bytes, rng: np.random.Generator) -> bytes:
    changed = bytearray(data)
    for place in rng.integers(0, len(data), rng.integers(1, 4)):
        changed[place] = rng.integers(0, 256)
    return bytes(changed)


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP"])
def test_damaged_files_give_pillows_pixels_or_none(kind: str) -> None:
    rng, data = np.random.default_rng(0), encoded(picture(32, 40), kind)
    wrong = [one for one in (damaged(data, rng) for _ in range(150)) if not same(one)]
    cut = [data[:end] for end in (1, 20, len(data) // 2, len(data) - 1)]
    assert not wrong
    assert all(map(same, cut))


def test_too_many_pixels_are_refused_by_the_header(monkeypatch: pytest.MonkeyPatch) -> None:
    def never(data: Any) -> Any:
        raise AssertionError("decoded")

    side = int(MOST_PIXELS**0.5) + 1
    header = struct.pack(">IIBBBBB", side, side, 8, 2, 0, 0, 0)
    bomb = (
        b"\x89PNG\r\n\x1a\n"
        + chunk(b"IHDR", header)
        + chunk(b"IDAT", zlib.compress(b"0"))
        + chunk(b"IEND", b"")
    )
    monkeypatch.setattr(decoders, "torchcodec_functions", lambda: dict.fromkeys(("PNG",), never))
    with pytest.raises(ValueError, match="pixels, at most"):
        Decoder(None, white)(bomb)


ODD_PNG = """
import ctypes
from torchcodec.decoders import decode_png
from tests.data.stream.test_decoders import FILES, Decoder, chunk, white, with_chunk
from cfol_fast.data.library_words import caught
odd = with_chunk(FILES["png L"](), chunk(b"iCCP", b"x\\0\\0abc"))
with caught():
    Decoder(None, white)(odd)
    ctypes.CDLL(None).perror(b"another library")
# Without the catch libpng does say something of this file.
decode_png(odd)
"""


@needs_torchcodec
@pytest.mark.slow
def test_libpng_s_words_are_caught_and_those_of_others_are_not() -> None:
    done = subprocess.run(
        [sys.executable, "-c", ODD_PNG], capture_output=True, text=True, check=True, timeout=300
    )
    first, second = done.stderr.splitlines()
    assert first == f"another library: {os.strerror(0)}"
    assert second.startswith("libpng warning")


def test_scaled_decoding_is_another_way_with_the_same_size() -> None:
    data = encoded(picture(160, 240), "JPEG")
    whole, scaled = Decoder(20, white)(data), Decoder(20, white, SCALED)(data)
    assert whole.shape == scaled.shape == (20, 30, 3)
    assert not np.array_equal(whole, scaled)
    assert np.abs(whole.astype(int) - scaled).mean() < 12
    lying = Image.Exif()
    lying[0x0112] = 6
    turned = encoded(picture(160, 240), "JPEG", exif=lying)
    assert Decoder(20, white, SCALED)(turned).shape == (30, 20, 3)


def test_nvjpeg_decodes_the_jpeg_files_of_a_batch_and_leaves_the_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With torchcodec's decoder of the CPU in the place of the GPU's."""
    batches = []

    def decode_jpeg(encoded: list[torch.Tensor], device: torch.device) -> list[torch.Tensor]:
        batches.append(len(encoded))
        decoded = [by_pillow(bytes(one.numpy())) for one in encoded]
        return [torch.from_numpy(one).permute(2, 0, 1) for one in decoded if one is not None]

    monkeypatch.setattr(
        Nvjpeg,
        "_decode",
        lambda self, batch: decode_jpeg(
            [torch.frombuffer(one, dtype=torch.uint8) for one in batch], self.device
        ),
    )
    batch = [bytearray(FILES[kind]()) for kind in ("jpeg", "png L", "jpeg grey", "jpeg cmyk")]
    found = Nvjpeg(Decoder(None, white, NVJPEG), torch.device("cpu"))(batch)
    assert batches == [2]
    assert all(
        np.array_equal(one.numpy(), by_pillow(bytes(data))) for one, data in zip(found, batch, strict=True)
    )
    small = Nvjpeg(Decoder(16, white, NVJPEG), torch.device("cpu"))(batch)
    assert [one.shape for one in small] == [(16, 22, 3)] * 4 or [one.shape[0] for one in small] == [16] * 4
    close = (small[0].int() - torch.from_numpy(by_pillow(bytes(batch[0]), 16)).int()).abs()  # type: ignore[arg-type]
    assert close.float().mean() < 2
