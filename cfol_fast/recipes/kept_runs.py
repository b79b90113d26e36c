"""Finished runs in one small file, so that another machine goes on with an unfinished table: a .tar.xz of
plain files.

    MANIFEST.json        {"format": 1, "kind": "kept runs", "files": {"NAME/result.json": SHA-256, ...}}
    NAME/result.json     and whatever else is needed of the run NAME

A file is read whole and checked before a run of it is put anywhere: no other names than a run's own, nothing
but plain files, every digest right, and each run the one that its configuration says. A folder that is there
already is left as it is.
"""

from __future__ import annotations

import hashlib
import io
import json
import lzma
import os
import re
import shutil
import tarfile
from collections.abc import Mapping
from pathlib import Path

from cfol_fast import atomic
from cfol_fast.errors import InputError, one_line
from cfol_fast.recipes.planning import job
from cfol_fast.runs.checkpoints import BEST_AVERAGE, FOLDER
from cfol_fast.runs.config import TrainConfig
from cfol_fast.runs.json_files import check_shape, made_from, parse_object
from cfol_fast.runs.metrics_log import FILE as METRICS
from cfol_fast.runs.predictions import FILE as PREDICTIONS
from cfol_fast.runs.run_folder import CONFIG, GALLERY, OFFSETS, RESULT

MANIFEST, FORMAT, KIND = "MANIFEST.json", 1, "kept runs"
SHAPE = {"format!": int, "kind!": str, "files!": {str: str}}
CHECKPOINT = f"{FOLDER}/{BEST_AVERAGE}.pt"
ALWAYS = (CONFIG, METRICS, RESULT, PREDICTIONS)
FILES = (*ALWAYS, OFFSETS, GALLERY, CHECKPOINT)
EVALUATION = re.compile(r"eval-[A-Za-z0-9-]{1,60}\.json")
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9@._-]{0,150}")
# Of what is unpacked: a hundred and fifty runs take a tenth of it.
MOST_BYTES = 1 << 28
# {run: {file: its bytes}}
Runs = dict[str, dict[str, bytes]]


def of_folder(folder: Path, more: tuple[str, ...] = ()) -> dict[str, bytes]:
    """What is kept of a finished run: its records and evaluations, and of `more` what is there."""
    names = [*ALWAYS, *(path.name for path in sorted(folder.glob("eval-*.json"))), *more]
    kept = {name: (folder / name).read_bytes() for name in names if (folder / name).is_file()}
    if CONFIG in kept:
        kept[CONFIG] = _without_places(kept[CONFIG], folder / CONFIG)
    return kept


def _without_places(config: bytes, path: Path) -> bytes:
    """Without the run's folder and, where the images are named by their content, theirs: they had these on
    one machine.
    """
    before = parse_object(config.decode(), path)
    data = before.get("data")
    after = {**before, "out": None}
    if isinstance(data, dict) and data.get("content") is not None:
        after["data"] = {**data, "root": None}
    return config if after == before else json.dumps(after, indent=2).encode()


def write(path: Path, runs: Mapping[str, Mapping[str, bytes]]) -> None:
    """The same runs give the same file, byte by byte."""
    files = {
        f"{run}/{name}": held for run, kept in sorted(runs.items()) for name, held in sorted(kept.items())
    }
    digests = {name: hashlib.sha256(held).hexdigest() for name, held in files.items()}
    manifest = json.dumps({"format": FORMAT, "kind": KIND, "files": digests}, indent=0).encode()
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for name, held in {MANIFEST: manifest, **files}.items():
            entry = tarfile.TarInfo(name)
            entry.size, entry.mode = len(held), 0o644
            tar.addfile(entry, io.BytesIO(held))
    path.parent.mkdir(parents=True, exist_ok=True)
    atomic.write_bytes(path, lzma.compress(packed.getvalue(), preset=6 | lzma.PRESET_EXTREME))


def read(path: Path) -> Runs:
    """The runs of a file, checked."""
    with made_from(path):
        files = _unpack(path)
        manifest = parse_object(files.pop(MANIFEST, b"{}").decode(), path)
        check_shape(manifest, SHAPE, f"{path}: {MANIFEST}")
        if (manifest["format"], manifest["kind"]) != (FORMAT, KIND):
            raise InputError(f"{path} is not a file of kept runs of format {FORMAT}")
        if wrong := sorted(
            {
                name
                for name, held in files.items()
                if hashlib.sha256(held).hexdigest() != manifest["files"].get(name)
            }
            | manifest["files"].keys() - files.keys()
        ):
            raise InputError(f"{path} is damaged: {wrong[0]} is not the file that was kept")
        runs: Runs = {}
        for name, held in files.items():
            run, _, file = name.partition("/")
            if not NAME.fullmatch(run) or not (file in FILES or EVALUATION.fullmatch(file)):
                raise InputError(f"{path} holds {name!r}, which is no file of a kept run")
            runs.setdefault(run, {})[file] = held
        for run, kept in runs.items():
            if missing := [file for file in (CONFIG, RESULT) if file not in kept]:
                raise InputError(f"{path} is damaged: {run} has no {missing[0]}")
        return runs


def _unpack(path: Path) -> dict[str, bytes]:
    try:
        whole = lzma.LZMADecompressor(format=lzma.FORMAT_XZ)
        unpacked = whole.decompress(path.read_bytes(), MOST_BYTES + 1)
        if len(unpacked) > MOST_BYTES:
            raise InputError(
                f"{path} holds more than {MOST_BYTES >> 20} MiB, which no file of kept runs does"
            )
        if not whole.eof or whole.unused_data:
            raise InputError(
                f"{path} is not a file of kept runs: its end is {'elsewhere' if whole.eof else 'missing'}"
            )
        files: dict[str, bytes] = {}
        with tarfile.open(fileobj=io.BytesIO(unpacked), mode="r:") as tar:
            for entry in tar:
                inside = tar.extractfile(entry) if entry.isreg() and not entry.issparse() else None
                if inside is None or entry.name in files:
                    raise InputError(f"{path} holds {entry.name!r}, which is no plain file of its own name")
                files[entry.name] = inside.read()
        return files
    except FileNotFoundError:
        raise InputError(f"{path}: no such file") from None
    except (OSError, EOFError, lzma.LZMAError, tarfile.TarError) as error:
        raise InputError(f"{path} is not a file of kept runs: {one_line(error)}") from None


def is_named_so(run: str, kept: Mapping[str, bytes], path: Path) -> bool:
    """Whether this version gives a run of this configuration this name."""
    return job(TrainConfig(parse_object(kept[CONFIG].decode(), path))).name == run


def take(path: Path, runs: Path) -> tuple[list[str], list[str]]:
    """Puts the runs of a file into the folder `runs`, unless a folder of their name is there. Returns those
    that were put there, and those that this version knows by another name, which are left out: they are runs
    of another configuration to it."""
    kept = read(path)
    with made_from(path):
        known = {run for run, files in kept.items() if is_named_so(run, files, path)}
    taken = [run for run in kept if run in known and not (runs / run).exists()]
    for run in taken:
        _put(runs, run, kept[run])
    return taken, sorted(kept.keys() - known)


def _put(runs: Path, run: str, kept: Mapping[str, bytes]) -> None:
    """Under another name first: a process that is killed leaves no half of a finished run."""
    draft = runs / f".{run}.taken"
    shutil.rmtree(draft, ignore_errors=True)
    try:
        for name, held in kept.items():
            (draft / name).parent.mkdir(parents=True, exist_ok=True)
            atomic.write_bytes(draft / name, held)
        os.rename(draft, runs / run)
    except BaseException:
        shutil.rmtree(draft, ignore_errors=True)
        raise
    atomic.sync_folder(runs)
