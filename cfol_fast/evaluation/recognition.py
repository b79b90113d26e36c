"""Which of our networks a file's weights belong to, by the names and shapes of their layers. A network of a
library is one that the user names: libraries have several with the same layers that compute something else.

Building every network to compare its layers would take long. A layer that a family has says which are tried.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from cfol_fast import models

# A layer of each family, with the beginnings of its networks' names.
FAMILIES = {
    "linear.weight": ("resnet", "preact", "demo"),
    "block3.layer.0.bn1.weight": ("wrn",),
    "classifier.weight": ("vgg",),
}


def recognise(layers: Iterable[str], fits: Callable[[str], bool]) -> str | None:
    """The network that has these layers, or None. fits: whether the weights fit a network, by its name."""
    names = list(layers)
    begins = sum((family for layer, family in FAMILIES.items() if _has(names, layer)), ())
    tried = [*(name for name in models.names() if name.startswith(begins)), *models.registered_names()]
    return next((name for name in tried if fits(name)), None)


def _has(layers: Iterable[str], layer: str) -> bool:
    """Whether the layer is there, under whatever prefix."""
    return any(f".{name}".endswith(f".{layer}") for name in layers)
