"""FFCV's file format, `.beton`: the numbers that its writer and its reader share."""

from __future__ import annotations

# FFCV's limit; an image does not cross the border between two pages.
SMALLEST_PAGE = 1 << 21
# FFCV keeps the sides of an image in 16 bits.
LONGEST_SIDE = (1 << 16) - 1
MARK = b"cfol_fast 1\0"
# FFCV's numbers for the kinds of fields, and for the ways an image is stored.
INT, RGB, ARRAY = 1, 2, 4
JPG, RAW = 0, 1
MODES = {"jpg": JPG, "raw": RAW}
