"""FFCV is an extra, and importing it sets torch's number of threads to 1: every use of it goes through `quietly`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from cfol_fast.errors import InputError

HOW = "apt-get install -y --no-install-recommends libopencv-dev libturbojpeg0-dev pkg-config && pip install ffcv==1.0.2 pillow"


@contextmanager
def quietly() -> Iterator[None]:
    """FFCV may be imported and set up inside; torch's thread count is the same afterwards."""
    threads = torch.get_num_threads()
    try:
        yield
    except ImportError as error:
        raise InputError(f"FFCV cannot be imported ({error}); it is the extra [ffcv]: {HOW}") from error
    finally:
        if torch.get_num_threads() != threads:
            torch.set_num_threads(threads)
