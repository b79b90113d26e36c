"""Parameters that a run leaves as they are (`model.freeze`), and the statistics of their BatchNorm layers."""

from __future__ import annotations

import re
from collections.abc import Iterator

from torch import nn

from cfol_fast.errors import InputError

# The network inside the model, after the normalisation; the names in messages leave it out.
INSIDE = "net."
BatchNorm = nn.modules.batchnorm._BatchNorm


def freeze(model: nn.Module, pattern: str) -> str:
    """Freezes the parameters in whose names the regular expression is found; says which, in words.

    A BatchNorm layer of which all parameters are frozen keeps its statistics too: it is in evaluation mode,
    also in training. One without parameters goes by the names of its statistics.
    """
    try:
        found = re.compile(pattern)
    except re.error as error:
        raise InputError(
            f"model.freeze={pattern!r} is not a regular expression ({error}). A name stands for itself:"
            r" --freeze '^layer1\.'"
        ) from None
    named = {name.removeprefix(INSIDE): parameter for name, parameter in model.named_parameters()}
    frozen = [name for name in named if found.search(name)]
    if not frozen:
        raise InputError(
            f"model.freeze={pattern!r} is found in no parameter. The model has {_some(list(named))}"
        )
    if len(frozen) == len(named):
        raise InputError(
            f"model.freeze={pattern!r} freezes all {len(named)} parameters, and nothing is left to train."
            f" Leave one out, such as the last: {list(named)[-1]}"
        )
    for name in frozen:
        named[name].requires_grad_(False)
    layers = [layer for name, layer in _batchnorms(model) if _keeps_statistics(name, layer, found)]
    for layer in layers:
        layer.eval()
    numbers = sum(named[name].numel() for name in frozen)
    statistics = f", and the statistics of {len(layers)} BatchNorm layers" if layers else ""
    return (
        f"frozen by {pattern!r}: {len(frozen)} of {len(named)} parameters ({numbers:,} of"
        f" {sum(each.numel() for each in named.values()):,} numbers{statistics}): {_some(frozen)}"
    )


def _batchnorms(model: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    for name, layer in model.named_modules():
        if isinstance(layer, BatchNorm):
            yield name.removeprefix(INSIDE), layer


def _keeps_statistics(name: str, layer: nn.Module, found: re.Pattern[str]) -> bool:
    own = list(layer.parameters(recurse=False))
    if own:
        return not any(parameter.requires_grad for parameter in own)
    return any(found.search(f"{name}.{buffer}") for buffer, _ in layer.named_buffers(recurse=False))


def _some(names: list[str]) -> str:
    """The first and the last names of a list."""
    return ", ".join(names if len(names) <= 6 else [*names[:3], "...", *names[-2:]])
