"""`cfol-fast export`: the weights of a run for use without this package."""

from __future__ import annotations

import argparse
from pathlib import Path

from cfol_fast.errors import InputError

NAME = "export"
DESCRIPTION = """\
Writes the tested checkpoint of a run, or a checkpoint, with its classes, its normalisation (the model's
first layer) and its name, and beside it FILE.load.py: Python code that loads it and needs torch (for
ONNX: onnxruntime), but not cfol-fast. eval reads torch and safetensors back.

examples:
  cfol-fast export runs/first --out weights.safetensors
  cfol-fast export runs/first --to onnx --out weights.onnx
"""
# Longer code, that of a network of ours, is only written.
MOST_LINES = 45


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("what", metavar="RUN|CHECKPOINT", help="a run folder, or one of our checkpoints")
    parser.add_argument(
        "--to", choices=("torch", "safetensors", "onnx"), help="default: what the name of FILE ends with"
    )
    parser.add_argument("--out", type=Path, required=True, metavar="FILE", help="the file to write")
    parser.add_argument(
        "--model",
        metavar="NAME",
        help="its model's name, needed where that is your own code: package.module:factory",
    )
    parser.add_argument("--quiet", action="store_true", help="do not print the code that loads it")


def run(args: argparse.Namespace) -> int:
    from cfol_fast.runs.exporting import export, format_of
    from cfol_fast.runs.run_folder import check_output

    file = args.out.expanduser()
    check_output("--out", file)
    if not file.resolve().parent.is_dir():
        raise InputError(f"--out {args.out}: there is no folder {file.resolve().parent}")
    made = export(args.what, file, format_of(file, args.to), args.model)
    print(f"weights: {made.file}")
    if made.code is not None:
        print(f"code that loads them: {made.code}")
        lines = made.code.read_text().splitlines()
        if not args.quiet and len(lines) <= MOST_LINES:
            print("", *(f"    {line}" for line in lines), sep="\n")
    return 0
