"""`cfol-fast datasets`: the data sets."""

from __future__ import annotations

import argparse

from cfol_fast.commands import listing

NAME = "datasets"
DESCRIPTION = """\
Lists the data sets that --dataset takes. --json adds the side of the images, the radius of the attack and
the network that each has by default.

examples:
  cfol-fast datasets
  cfol-fast datasets --json
  cfol-fast train cfol --dataset cifar10 --data DIR
"""

add_arguments = listing.add_json


def run(args: argparse.Namespace) -> int:
    return listing.show(listing.datasets(), args.json)
