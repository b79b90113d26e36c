"""Trains ten small runs with two checkouts of the repository and compares them bit for bit: does a
refactoring change nothing?

Usage: python tools/twins.py OLD NEW [--work DIR] [--only NAME ...] [--page] [--grown]
                                    [--reuse] [--accept FILE:PREFIX ...]

OLD and NEW are work trees (`git worktree add`), each with its native library built or copied. Both train on
this machine with one thread and the fixed choice of kernels; `cfol-fast compare` of NEW compares every
tensor, every number of metrics.jsonl and result.json, and every setting. --page also compares the report's
page byte by byte, for changes that mean to change none.
--grown: entries that NEW adds to a file are counted, not compared. --accept leaves out entries that are meant
to differ, such as `config.json:data.augment`. The exit status is 1 if anything else differs. Against version
0.2 (f068079), where `true` was the word for "paper" and FFCV had two settings more:
`--grown --accept config.json:data. stage-1/config.json:data.`.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

# What `cfol-fast compare` says of an entry that one side does not have, and of a file that the other one has.
MISSING, PRESENT = "missing", "present"
TINY = [
    *("--epochs", "2", "--batch-size", "32", "--model", "demo-cnn@0.25", "--device", "cpu", "--quiet"),
    *("--set=steps_per_epoch=4", "--set=attack.steps=2", "--set=validation.steps=2", "--set=test.steps=2"),
]
# A default that depends on the data set may change, and is not what is compared.
OWN_IMAGES = ["--lr", "0.01", "--set=optimizer.schedule=steps", "--set=data.augment=true", "--set=eta=1e-3"]
# The same for a setting that 0.2 does not have: it is given to a tree whose methods know it.
SINCE_0_2 = {"folder": "baseline=none", "ffcv": "baseline=none"}
EMBEDDED = ["--dataset", "fashion-mini", "--set=data.images=400"]
# name -> the arguments of `cfol-fast train`. {folder} and {beton} are made for each of the two.
RUNS: dict[str, list[str]] = {
    "erm": ["erm", *EMBEDDED],
    "cfol": ["cfol", *EMBEDDED],
    "fol": ["fol", *EMBEDDED],
    "dafa-trades": ["dafa-trades", *EMBEDDED, "--set=params.begin=0.5"],
    "two-run": ["two-run", *EMBEDDED],
    "wat-shards": ["wat", *EMBEDDED, "--shards", "2"],
    "cfol-extras": ["cfol", *EMBEDDED, "--ema", "0.9", "--ensemble", "2", "--set=awp=0.005"],
    "cfol-killed": ["cfol", *EMBEDDED, "--set=epochs=6", "--set=checkpoint.steps=1"],
    "folder": [
        *("cfol", "--dataset", "folder", "--data", "{folder}"),
        *("--crop", "random-resized", *OWN_IMAGES),
    ],
    "ffcv": ["cfol", "--dataset", "beton", "--data", "{beton}", "--set=data.lag=1", *OWN_IMAGES],
}


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("old", type=Path)
    parser.add_argument("new", type=Path)
    parser.add_argument("--work", type=Path, help="keep the runs here (default: a temporary folder)")
    parser.add_argument("--reuse", action="store_true", help="take OLD's runs that --work has already")
    parser.add_argument("--only", nargs="+", choices=sorted(RUNS), default=list(RUNS), metavar="NAME")
    parser.add_argument("--page", action="store_true", help="compare the report's page byte by byte, too")
    parser.add_argument("--grown", action="store_true", help="leave out the entries that NEW adds")
    parser.add_argument("--accept", nargs="+", default=[], metavar="FILE:PREFIX")
    args = parser.parse_args()
    work = args.work or Path(tempfile.mkdtemp(prefix="twins-"))
    trees = {"old": args.old.resolve(), "new": args.new.resolve()}
    different = []
    for name in args.only:
        folders = {}
        for side, tree in trees.items():
            folders[side] = work / side / name
            if side == "old" and args.reuse and (folders[side] / "result.json").exists():
                continue
            shutil.rmtree(folders[side], ignore_errors=True)
            folders[side].parent.mkdir(parents=True, exist_ok=True)
            words = [*RUNS[name], *since(tree, name)]
            train(tree, folders[side], words, killed=name.endswith("killed"))
        wrong, added = compare(trees["new"], folders["old"], folders["new"], args.accept)
        if args.grown:
            left_out = f" ({len(added)} entries are new)"
        else:
            wrong, left_out = wrong + added, ""
        said = f"{name}: {'DIFFERENT' if wrong else 'equal'}{left_out}"
        print(said, *wrong[:12], sep="\n  ", flush=True)
        if wrong:
            different.append(name)
    if args.page:
        # Both write about the same runs, since a page shows times and places.
        pages = [page(tree, work / "old", args.only, work / "page.html") for tree in trees.values()]
        if pages[0] != pages[1]:
            different.append("page")
        print(f"page: {'equal' if pages[0] == pages[1] else 'DIFFERENT'}")
    if args.work is None and not different:
        shutil.rmtree(work)
    print(f"{len(different)} of {len(args.only) + args.page} differ" if different else "twins")
    return 1 if different else 0


def since(tree: Path, name: str) -> list[str]:
    """Settings that keep a run of a newer tree what it was."""
    setting = SINCE_0_2.get(name)
    known = (tree / "cfol_fast" / "methods.py").read_text(encoding="utf-8")
    return [f"--set={setting}"] if setting and f'"{setting.partition("=")[0]}"' in known else []


def command(tree: Path, *arguments: str) -> list[str]:
    return [sys.executable, "-m", "cfol_fast", *arguments]


def environment(tree: Path) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(tree), "OMP_NUM_THREADS": "1", "CFOL_CHOICES": "fixed"}


def call(tree: Path, *arguments: str) -> None:
    done = subprocess.run(command(tree, *arguments), env=environment(tree), cwd=tree, capture_output=True)
    if done.returncode:
        sys.exit(f"{tree}: {' '.join(arguments)}\n{done.stderr.decode()}")


def train(tree: Path, out: Path, arguments: list[str], killed: bool) -> None:
    made = {"{folder}": folder_of_images, "{beton}": ffcv_files}
    filled = [str(made[word](tree, out.parent)) if word in made else word for word in arguments]
    # Later options win: what a run says itself stands behind what all share.
    method, *own = filled
    words = ["train", method, *TINY, *own, "--out", str(out)]
    if killed:
        kill_after_first_checkpoint(tree, words, out)
        words.append("--resume")
    call(tree, *words)


def kill_after_first_checkpoint(tree: Path, words: list[str], out: Path) -> None:
    process = subprocess.Popen(command(tree, *words), env=environment(tree), cwd=tree)
    while not (out / "checkpoints" / "previous.pt").exists() and process.poll() is None:
        time.sleep(0.02)
    process.send_signal(signal.SIGKILL)
    process.wait()
    if (out / "result.json").exists():
        sys.exit(f"{out}: the run ended before it could be killed")


def folder_of_images(tree: Path, work: Path) -> Path:
    """Three classes of grey noise at three levels, as PNG files."""
    folder = work / "images"
    if folder.exists():
        return folder
    import numpy as np
    from PIL import Image

    numbers = np.random.default_rng(0)
    for part, count in (("train", 40), ("test", 10)):
        for level, name in enumerate(("dark", "grey", "light")):
            place = folder / part / name
            place.mkdir(parents=True)
            for i in range(count):
                pixels = numbers.normal(70 + 50 * level, 40, (32, 32, 3)).clip(0, 255)
                Image.fromarray(pixels.astype(np.uint8)).save(place / f"{i:03}.png")
    return folder


def ffcv_files(tree: Path, work: Path) -> Path:
    folder = work / "beton"
    if not folder.exists():
        images = folder_of_images(tree, work)
        words = ["--dataset", "folder", "--data", str(images), "--split", "all", "--out", str(folder)]
        call(tree, "data", "to-ffcv", *words)
    return folder


def compare(tree: Path, old: Path, new: Path, accepted: list[str]) -> tuple[list[str], list[str]]:
    """The entries that differ and are not accepted, as text; and apart from them those that `new` adds."""
    findings = old.with_suffix(".json")
    call(tree, "compare", str(old), str(new), "--json", str(findings))
    different: list[str] = []
    added: list[str] = []
    for one in json.loads(findings.read_text())["differences"]:
        place = f"{one['file']}:{one['key']}"
        if not any(place.startswith(prefix) for prefix in accepted):
            # A whole file that one of them lacks is "missing" beside "present".
            is_new = one["first"] == MISSING and one["second"] != PRESENT
            found = added if is_new else different
            found.append(f"{place}: {one['first']} | {one['second']} ({one['largest']})")
    return different, added


def page(tree: Path, runs: Path, names: list[str], out: Path) -> bytes:
    """The page that a tree writes about these runs on the embedded images."""
    words = [str(runs / name) for name in ("erm", "cfol") if name in names]
    call(tree, "report", *words, "--out", str(out), "--no-pictures")
    return out.read_bytes()


if __name__ == "__main__":
    sys.exit(main())
