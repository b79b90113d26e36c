"""Images that look the same: re-encoded, resized or moved by a few pixels.

Candidates differ in few bits of a perceptual hash of 64 bits: the signs of the lowest frequencies of a grey
thumbnail. A candidate counts where the thumbnails, moved by up to two pixels, correlate.
"""

from __future__ import annotations

from itertools import product

import numpy as np
from PIL import Image

from cfol_fast.data.images import ImageSet

SIDE, FREQUENCIES = 32, 8
# Of the 64 bits; unrelated images differ in about 32.
MOST_BITS = 18
MOST_MOVED = 2
CORRELATION = 0.95
# Of the grey levels of a thumbnail: a surface without structure looks like any other.
LEAST_DEVIATION = 2.0
ROWS = 2048


def thumbnail(pixels: np.ndarray) -> np.ndarray:
    """uint8 (SIDE, SIDE), of an image (h, w, c) of one or three channels."""
    image = Image.fromarray(pixels[:, :, 0] if pixels.shape[2] == 1 else pixels).convert("L")
    return np.asarray(image.resize((SIDE, SIDE), Image.Resampling.BILINEAR))


def sampled(images: ImageSet, count: int) -> np.ndarray:
    """The thumbnails of at most `count` evenly spaced images."""
    rows = range(0, len(images), -(-len(images) // count))
    return np.stack([thumbnail(images.image(row).numpy()) for row in rows])


def hashes(thumbnails: np.ndarray) -> np.ndarray:
    """bool (n, 64)."""
    angles = np.arange(FREQUENCIES)[:, None] * (2 * np.arange(SIDE) + 1) * np.pi / (2 * SIDE)
    basis = np.cos(angles).astype(np.float32)
    found = []
    for start in range(0, len(thumbnails), ROWS):
        part = thumbnails[start : start + ROWS].astype(np.float32)
        terms = (basis @ part @ basis.T).reshape(len(part), -1)
        # The mean is not of the image's structure.
        found.append(terms > np.median(terms[:, 1:], axis=1, keepdims=True))
    return np.concatenate(found) if found else np.zeros((0, FREQUENCIES**2), bool)


def pairs(one: np.ndarray, other: np.ndarray | None = None) -> np.ndarray:
    """int64 (m, 2): the rows of thumbnails that look the same, of one set and another, or within one (the
    first row is then the smaller).
    """
    within = other is None
    other = one if other is None else other
    signs = [np.where(hashes(part), np.float32(1), np.float32(-1)) for part in (one, other)]
    found = [np.zeros((0, 2), np.int64)]
    for start in range(0, len(one), ROWS):
        agree = signs[0][start : start + ROWS] @ signs[1].T
        rows, columns = np.nonzero(agree >= FREQUENCIES**2 - 2 * MOST_BITS)
        rows += start
        if within:
            rows, columns = rows[rows < columns], columns[rows < columns]
        for piece in range(0, len(rows), ROWS):
            mine, theirs = rows[piece : piece + ROWS], columns[piece : piece + ROWS]
            same = _alike(one[mine], other[theirs])
            found.append(np.stack([mine[same], theirs[same]], 1))
    return np.concatenate(found)


def _alike(one: np.ndarray, other: np.ndarray) -> np.ndarray:
    """bool (m,): whether two thumbnails correlate in some position."""
    moves = range(-MOST_MOVED, MOST_MOVED + 1)
    alike = np.zeros(len(one), bool)
    for down, right in product(moves, moves):
        left = np.flatnonzero(~alike)
        if not len(left):
            break
        alike[left] = (
            _correlation(_cut(one[left], down, right), _cut(other[left], -down, -right)) >= CORRELATION
        )
    return alike


def _cut(part: np.ndarray, down: int, right: int) -> np.ndarray:
    return part[:, max(down, 0) : SIDE + min(down, 0), max(right, 0) : SIDE + min(right, 0)]


def _correlation(one: np.ndarray, other: np.ndarray) -> np.ndarray:
    """(m,); 0 where one of the two has no structure."""
    a, b = (part.reshape(len(part), -1).astype(np.float32) for part in (one, other))
    a, b = a - a.mean(1, keepdims=True), b - b.mean(1, keepdims=True)
    norms = np.linalg.norm(a, axis=1), np.linalg.norm(b, axis=1)
    least = LEAST_DEVIATION * np.sqrt(a.shape[1])
    plain = (norms[0] < least) | (norms[1] < least)
    found: np.ndarray = (a * b).sum(1) / np.where(plain, 1, norms[0] * norms[1])
    return np.where(plain, 0, found)
