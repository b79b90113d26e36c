"""What models of others return: logits as a tensor, or inside the objects that Hugging Face, timm and torchvision wrap them in."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def logits_in(output: Any) -> Any:
    """The logits in a model's output: itself, its `.logits`, the entry "logits" of a dict, or the first of a tuple."""
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
