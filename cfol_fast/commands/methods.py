"""`cfol-fast methods`: the training methods."""

from __future__ import annotations

import argparse

from cfol_fast.commands import listing

NAME = "methods"
DESCRIPTION = """\
Lists the training methods, each with where it was published. --json adds a summary of each method and
the defaults of its parameters, and `cfol-fast train --list-methods` prints all of it as text.

examples:
  cfol-fast methods
  cfol-fast methods --json
  cfol-fast train cfol
"""

add_arguments = listing.add_json


def run(args: argparse.Namespace) -> int:
    return listing.show(listing.methods(), args.json)
