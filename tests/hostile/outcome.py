"""`python -m tests.hostile.outcome RUN`: what two equal runs have alike, as one line, for `make ckpt-chaos`
to compare.
"""

from __future__ import annotations

import hashlib
import json
import sys
from pathlib import Path

from tests.training import tiny


def main() -> None:
    weights, rows, result = tiny.outcome(Path(sys.argv[1]))
    digest = hashlib.sha256(json.dumps([rows, result], sort_keys=True).encode())
    for name, tensors in weights.items():
        for key, tensor in tensors.items():
            digest.update(f"{name} {key} {tuple(tensor.shape)}".encode() + tensor.numpy().tobytes())
    print(digest.hexdigest())


if __name__ == "__main__":
    main()
