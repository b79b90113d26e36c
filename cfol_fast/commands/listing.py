"""`cfol-fast methods`, `models` and `datasets`: the names that `train` takes, as a table or as JSON."""

from __future__ import annotations

import argparse
import json
from typing import Any

from cfol_fast.plain_text import aligned

Rows = list[dict[str, Any]]
# Names of models that are not ours are formed like these.
FORMS = (
    ("wrn-DEPTH-WIDTH", "any Wide ResNet, such as wrn-28-10"),
    ("torchvision:NAME", "a network of torchvision, with its stem for larger images"),
    ("timm:NAME", "a network of timm; it needs the extra [timm]"),
    ("package.module:factory", "your own: (num_classes, in_channels, image_size) -> module"),
)


def add_json(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print a JSON list instead of a table")


def show(rows: Rows, as_json: bool) -> int:
    """The rows as JSON with everything, or as a table of names and titles."""
    if as_json:
        print(json.dumps(rows, indent=2))
    else:
        print("\n".join(aligned([[row["name"], row["title"]] for row in rows], left=(0, 1))))
    return 0


def methods() -> Rows:
    from cfol_fast.methods import METHODS

    return [
        {
            "name": method.name,
            "title": f"{method.title} ({method.section})",
            "summary": method.summary,
            "parameters": {name: method.default_in_words(name) for name in method.defaults},
        }
        for method in METHODS.values()
    ]


def models() -> Rows:
    from cfol_fast import models

    ours = [{"name": name, "title": "made for small images, such as 32 px"} for name in models.names()]
    added = [{"name": name, "title": "registered by a plugin"} for name in models.registered_names()]
    return [*ours, *added, *({"name": name, "title": title} for name, title in FORMS)]


def datasets() -> Rows:
    from cfol_fast.data import registry

    return [
        {"name": name, "title": spec.title, "size": spec.size, "eps": spec.eps, "model": spec.model}
        for name, spec in registry.SPECS.items()
    ]
