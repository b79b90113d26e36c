"""A network in one line: its name, its size, and what its first layers make of an image."""

from __future__ import annotations

from torch import nn

# Of a stem that leaves so few pixels in a row, a network for large images was taken for small ones.
FEWEST = 16


def in_words(model: nn.Module, name: str, image_size: int) -> str:
    """'resnet18: 11,173,962 parameters; stem 3x3, 28 px in and out'."""
    parameters = sum(one.numel() for one in model.parameters())
    stem, stride = _stem(model)
    if stem is None:
        return f"{name}: {parameters:,} parameters, no convolution"
    side = max(1, -(-image_size // stride))
    small = stride >= 4 and side < FEWEST
    warning = f" (made for larger images: {image_size} px is little for it)" if small else ""
    return f"{name}: {parameters:,} parameters; stem {stem}, {image_size} px become {side}{warning}"


def _stem(model: nn.Module) -> tuple[str | None, int]:
    """The first convolution, with the pooling right after it, in words; and by how much both shrink a row."""
    found, stride, said = False, 1, ""
    for module in model.modules():
        if isinstance(module, nn.Conv2d):
            if found:
                break
            found, stride = True, int(module.stride[0])
            height, width = module.kernel_size
            said = f"{height}x{width}" + (f" with stride {stride}" if stride > 1 else "")
        elif found and isinstance(module, (nn.MaxPool2d, nn.AvgPool2d)):
            step = module.stride if isinstance(module.stride, int) else module.stride[0]
            return f"{said} and pooling", stride * int(step)
    return (said if found else None), stride
