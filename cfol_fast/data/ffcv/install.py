"""FFCV is an optional package, and importing it sets torch's number of threads to 1: import it inside
`using_ffcv`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from cfol_fast.errors import InputError

INSTALL = (
    "apt-get install -y --no-install-recommends libopencv-dev libturbojpeg0-dev pkg-config && pip install"
    " ffcv==1.0.2 pillow"
)


@contextmanager
def using_ffcv() -> Iterator[None]:
    """A block that imports and sets up FFCV: says how to install it where it is missing, and keeps torch's
    thread count.
    """
    threads = torch.get_num_threads()
    try:
        yield
    except ImportError as error:
        raise InputError(f"FFCV cannot be imported ({error}); it is the extra [ffcv]: {INSTALL}") from error
    finally:
        if torch.get_num_threads() != threads:
            torch.set_num_threads(threads)
