"""The white point of the image files of a data set, found when the first of them needs it."""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Sequence
from pathlib import Path

from cfol_fast import atomic
from cfol_fast.data import white_point
from cfol_fast.data.file_states import fingerprint_of
from cfol_fast.data.image_file import open_image, tried
from cfol_fast.data.listing import Listing
from cfol_fast.data.parallel import map_in_order
from cfol_fast.data.reading import ReadOptions
from cfol_fast.errors import InputError
from cfol_fast.progress import track


class WhitePoint:
    """What is white in the images of a data set that have more than 8 bits: found when the first of them is
    met, as most data sets have none.
    """

    def __init__(self, parts: Sequence[Listing], options: ReadOptions, cache: Path | None = None) -> None:
        self.parts, self.options, self.cache = parts, options, cache
        self.value: float | None = None
        self.notes: list[str] = []
        self._lock = threading.Lock()
        self._doubt: InputError | None = None

    def __call__(self) -> float:
        with self._lock:
            if self._doubt is not None:
                # The other images that were being decoded ask too.
                raise self._doubt
            if self.value is None:
                try:
                    self.value = self._found()
                except InputError as error:
                    self._doubt = error
                    raise
            return self.value

    def _found(self) -> float:
        levels, where, given = self._levels(), str(self.parts[0].root), self.options.white
        if given is None:
            white = white_point.decided(levels, where)
        else:
            white = given
            white_point.checked_against(levels, white, where)
        self.notes.append(white_point.note(levels, white, given is not None))
        return white

    def _levels(self) -> white_point.Levels:
        fingerprint = [fingerprint_of(part, None, False) for part in self.parts]
        known = None if self.cache is None else self.cache / "white.json"
        if known is not None:
            with contextlib.suppress(OSError, ValueError, KeyError, TypeError, RecursionError):
                cached = json.loads(known.read_text())
                if cached["fingerprint"] == fingerprint:
                    whole, fractional = (
                        [float(top) for top in cached[kind]] for kind in ("whole", "fractional")
                    )
                    return white_point.Levels(whole, fractional)
        levels = white_point.Levels()
        for part in self.parts:

            def found(path: str, part: Listing = part) -> white_point.Deep | None:
                with open_image(part.root / path) as image:
                    return white_point.deep(image)

            seen = map_in_order(tried(found), part.paths)
            for deep in track(seen, len(part), f"white point of {part.split}", self.options.progress):
                # What cannot be read is refused, or left out, where the pixels are wanted.
                if isinstance(deep, white_point.Deep) and deep.white is None:
                    levels.add(deep)
        if known is not None:
            with contextlib.suppress(OSError):
                known.parent.mkdir(exist_ok=True)
                contents = {
                    "fingerprint": fingerprint,
                    "whole": levels.whole,
                    "fractional": levels.fractional,
                }
                atomic.write_json(known, contents)
        return levels
