"""The examples come in pairs, a program as it was and the same with CFOL: what changed, and the pictures that
both train on.
"""

from __future__ import annotations

import difflib
from pathlib import Path

import torch
from PIL import Image

EXAMPLES = Path(__file__).parents[2] / "examples"


def code(name: str) -> list[str]:
    """The lines of an example below its docstring."""
    return (EXAMPLES / name).read_text().split('"""\n', 2)[1].splitlines()


def changed_lines(before: str, after: str) -> list[str]:
    """The lines of `after` that are not in `before`, without empty ones."""
    difference = difflib.unified_diff(code(before), code(after), lineterm="", n=0)
    return [
        line[1:]
        for line in difference
        if line.startswith("+") and not line.startswith("+++") and line[1:].strip()
    ]


def write_pictures(folder: Path) -> Path:
    """Three classes of 12 x 12 pixels, each with a brightness of its own."""
    generator = torch.Generator().manual_seed(0)
    for part, count in (("train", 12), ("test", 6)):
        for c, name in enumerate(("cat", "dog", "sign")):
            (folder / part / name).mkdir(parents=True)
            for i in range(count):
                pixels = torch.randint(80 * c, 80 * c + 60, (12, 12, 3), generator=generator).to(torch.uint8)
                Image.fromarray(pixels.numpy()).save(folder / part / name / f"{i}.png")
    return folder
