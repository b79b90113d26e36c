"""A few examples to look at: images of one class before and after the attack, with the model's prediction for
each.
"""

from __future__ import annotations

import base64
from typing import Any

import torch
from torch import Tensor, nn

from cfol_fast.attacks.pixels import check_pixels
from cfol_fast.errors import InputError
from cfol_fast.evaluation.evaluator import attack_images, make_attack
from cfol_fast.evaluation.inputs import as_source, logits_of
from cfol_fast.frozen import evaluation_mode


def gallery(model: nn.Module, source: Any, attack: Any, class_index: int, n: int = 6) -> dict[str, Any]:
    """The first `n` images of a class, as JSON: raw uint8 (H, W, C) bytes in base64, predictions and
    confidences.

    Those that the attack turns from right to wrong come first: they show what an attack does.
    """
    source = as_source(source, None)
    names = list(source.classes) or [str(c) for c in range(int(source.labels.max()) + 1)]
    if not 0 <= class_index < len(names):
        raise InputError(f"class_index must be 0..{len(names) - 1}, got {class_index}")
    idx, x = _images_of(source, class_index, 4 * n)
    if not len(idx):
        raise InputError(f"the data set has no image of class {names[class_index]!r}")
    device = next((p.device for p in model.parameters()), x.device)
    x, y = x.to(device), torch.full((len(idx),), class_index, dtype=torch.int64, device=device)
    with evaluation_mode(model), torch.no_grad():
        adversarial = attack_images(make_attack(attack, model), model, x, y)
        clean, fooled = (logits_of(model, images, 0).softmax(1) for images in (x, adversarial))
    before, after = clean.argmax(1), fooled.argmax(1)
    turned = (before == y) & (after != y)
    order = torch.sort((~turned).long(), stable=True).indices[:n].tolist()
    pixels = [_bytes(images) for images in (x, adversarial)]
    return {
        "format": 1,
        "class": names[class_index],
        "shape": [x.shape[2], x.shape[3], x.shape[1]],
        "examples": [
            {
                "index": int(idx[i]),
                "clean": pixels[0][i],
                "adversarial": pixels[1][i],
                "predicted": names[int(after[i])],
                "confidence": round(float(fooled[i, after[i]]), 6),
                "clean_predicted": names[int(before[i])],
            }
            for i in order
        ],
    }


def _images_of(source: Any, class_index: int, most: int) -> tuple[Tensor, Tensor]:
    indices, images = [], []
    found = 0
    for number, (idx, x, y) in enumerate(source.batches(256)):
        rows = (y == class_index).nonzero().squeeze(1)[: most - found]
        check_pixels(x, f"batch {number}: ")
        indices.append(idx[rows.to(idx.device)].cpu())
        images.append(x[rows])
        found += len(rows)
        if found >= most:
            break
    return torch.cat(indices), torch.cat(images)


def _bytes(images: Tensor) -> list[str]:
    """(B, C, H, W) in [0, 1] -> the bytes of each image as base64."""
    pixels = (images * 255).round().clamp(0, 255).to(torch.uint8).permute(0, 2, 3, 1).contiguous().cpu()
    return [base64.b64encode(image.numpy().tobytes()).decode() for image in pixels]
