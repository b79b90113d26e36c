"""`cfol-fast models`: the networks."""

from __future__ import annotations

import argparse

from cfol_fast.commands import listing

NAME = "models"
DESCRIPTION = """\
Lists the networks that --model takes. NAME@SCALE multiplies the widths of one of ours: demo-cnn@0.25.

examples:
  cfol-fast models
  cfol-fast models --json
  cfol-fast train cfol --model resnet34
"""

add_arguments = listing.add_json


def run(args: argparse.Namespace) -> int:
    return listing.show(listing.models(), args.json)
