"""What every test image was taken for by every kept run, in one compressed file per scale:
results/SCALE/predictions.json.gz.

    {"format": 1, "labels": [P, ...], "runs": {name: [RESULT, ...]}}
    RESULT: {"of": "best-average", "images": N, "labels": i, "clean": P, "robust": P}

P is a packed list of classes (docs/evaluation-format.md), `labels` the number of the list of true classes
that it belongs to; `of` is a checkpoint, "offsets" (the tested checkpoint with class offsets), or the kind of
another attack on the tested checkpoint.
"""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from cfol_fast import atomic
from cfol_fast.errors import InputError, one_line
from cfol_fast.runs import offset_file, predictions
from cfol_fast.runs.accuracy import Accuracy
from cfol_fast.runs.json_files import check_shape, parse_object, read_object
from cfol_fast.runs.records import read_finished
from cfol_fast.runs.run_folder import OFFSETS

FILE = "predictions.json.gz"
FORMAT = 1
LIST = {"of!": str, "images!": int, "labels!": int, "clean": str, "robust": str}
SHAPE = {"format!": int, "labels!": [str], "runs!": {str: [LIST]}}
# Of what is unpacked: a thousand runs with three lists of 10,000 images take a quarter of it.
MOST_BYTES = 1 << 28


def read(place: Path) -> dict[str, Any]:
    """The file of a scale's folder, empty where there is none."""
    path = place / FILE
    if not path.exists():
        return {"format": FORMAT, "labels": [], "runs": {}}
    try:
        # A pipe of that name would wait forever.
        if not path.is_file():
            raise InputError(f"{path} is not a file of predictions: it is no file")
        with gzip.open(path) as file:
            unpacked = file.read(MOST_BYTES + 1)
        if len(unpacked) > MOST_BYTES:
            raise InputError(
                f"{path} holds more than {MOST_BYTES >> 20} MiB, which no file of predictions does"
            )
        text = unpacked.decode()
    except (OSError, EOFError, zlib.error, UnicodeDecodeError) as error:
        raise InputError(f"{path} is not a file of predictions: {one_line(error)}") from None
    found = parse_object(text, path)
    if found.get("format") != FORMAT:
        raise InputError(f"{path} is not a file of predictions of format {FORMAT}")
    check_shape(found, SHAPE, str(path))
    return found


def add(place: Path, runs: Path, names: Sequence[str]) -> None:
    """Adds those of the named runs that have kept predictions.

    The same runs give the same file, byte by byte.
    """
    tree = read(place)
    for name in names:
        if found := list(_lists_of(runs / name)):
            for one in found:
                if one["labels"] not in tree["labels"]:
                    tree["labels"].append(one["labels"])
                one["labels"] = tree["labels"].index(one["labels"])
            tree["runs"][name] = found
    if tree["runs"]:
        tree["runs"] = dict(sorted(tree["runs"].items()))
        atomic.write_bytes(place / FILE, gzip.compress(json.dumps(tree).encode(), 9, mtime=0))


def _lists_of(folder: Path) -> Iterator[dict[str, Any]]:
    """Every list of a run, its labels as the packed text."""
    if (folder / predictions.FILE).exists():
        predictions.read(folder, read_finished(folder))
        tree = read_object(folder / predictions.FILE, predictions.SHAPE)
        for name, kept in tree["checkpoints"].items():
            yield {"of": name, "images": tree["images"], "labels": tree["labels"], **kept}
    fitted = offset_file.has_rules(folder)
    made = [("offsets", read_object(folder / OFFSETS)["test"])] if fitted else []
    evaluations = [read_object(path) for path in sorted(folder.glob("eval-*.json"))]
    made += [(str(one["attack"]["kind"]), one) for one in evaluations if "attack" in one]
    for name, found in made:
        if "predicted" in found:
            yield {"of": name, "images": found["examples"], "labels": found["labels"], **found["predicted"]}


def accuracy(tree: Mapping[str, Any], run: str, of: str, kind: str, classes: Sequence[str]) -> Accuracy:
    """The figures of one list again, from the images."""
    (found,) = [one for one in tree["runs"][run] if one["of"] == of]
    labels = predictions.unpack(tree["labels"][found["labels"]], found["images"], "labels")
    return predictions.accuracy(
        labels, predictions.unpack(found[kind], found["images"], f"{run}: {of}"), classes
    )
