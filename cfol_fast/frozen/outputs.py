"""What models of others return: logits as a tensor, or inside the objects that Hugging Face, timm and
torchvision wrap them in.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from cfol_fast.errors import InputError


def logits_in(output: Any) -> Any:
    """The logits in a model's output: itself, its `.logits`, the entry "logits" of a dict, or the first of a
    tuple.
    """
    # A dict first: some dicts of others have attributes too, and named tuples an attribute and a first entry.
    if isinstance(output, Mapping):
        return output.get("logits", output)
    if hasattr(output, "logits"):
        return output.logits
    if isinstance(output, (tuple, list)) and output:
        return output[0]
    return output


def described(output: Any) -> str:
    """What an output without logits is, for a message."""
    if isinstance(output, Mapping):
        return f"a {type(output).__name__} with the entries {', '.join(map(str, output)) or 'none'}"
    return f"shape {tuple(output.shape)}" if hasattr(output, "shape") else type(output).__name__


@contextmanager
def precision_told(model: nn.Module, x: Tensor) -> Iterator[None]:
    """What torch says of images in another precision than the model's weights, as a sentence.

    A model may convert them itself.
    """
    try:
        yield
    except (RuntimeError, TypeError) as error:
        weights = next((p.dtype for p in model.parameters() if p.is_floating_point()), x.dtype)
        if weights == x.dtype or isinstance(error, torch.OutOfMemoryError):
            raise
        images, wanted = (str(dtype).removeprefix("torch.") for dtype in (x.dtype, weights))
        raise InputError(
            f"the images are {images}, the model's weights {wanted}: convert the images with"
            f" x.to(torch.{wanted})"
        ) from error
