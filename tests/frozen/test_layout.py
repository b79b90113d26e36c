"""Memory layout is the attack's own affair: idioms that depend on it, or that write in place, give what the
plain model gives.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from cfol_fast.attacks import PGD, TRADES, how
from cfol_fast.evaluation import evaluate
from tests.frozen.changing_models import batch

x, y = batch()


def _in_place_after(net: Idiom, h: Tensor) -> Tensor:
    v = h.view(h.size(0), -1)
    v += 1.0
    return h.flatten(1)


def _in_place_before(net: Idiom, h: Tensor) -> Tensor:
    v = h.view(h.size(0), -1)
    h += 1.0
    return v


def _unread(net: Idiom, h: Tensor) -> Tensor:
    v = h.view(h.size(0), -1)
    v *= 2.0
    return F.relu(v, inplace=True)


def _alias(net: Idiom, h: Tensor) -> Tensor:
    kept = h
    h **= 2
    return kept.flatten(1)


def _contiguous(net: Idiom, h: Tensor) -> Tensor:
    assert h.is_contiguous()
    return h.flatten(1)


def _told_contiguous(net: Idiom, h: Tensor) -> Tensor:
    torch._assert(h.is_contiguous(), "must be contiguous")
    return h.flatten(1)


def _strided(net: Idiom, h: Tensor) -> Tensor:
    return h.as_strided((h.size(0), 512), (512, 1))


# After a convolution: (what is done, how it runs).
AFTER: dict[str, tuple[Callable[[Idiom, Tensor], Tensor], str]] = {
    "view": (lambda net, h: h.view(h.size(0), -1), "fast"),
    "view of a number": (lambda net, h: h.view(-1, 512), "fast"),
    "view by a shape": (lambda net, h: h.view(h.shape[0], 8, 64).view(-1, 512), "fast"),
    "view_as": (lambda net, h: h.view_as(h.flatten(1)), "fast"),
    "Tensor.view": (lambda net, h: torch.Tensor.view(h, -1, 512), "plain"),
    "reshape": (lambda net, h: torch.reshape(h, (h.size(0), -1)), "fast"),
    "relu of relu": (lambda net, h: F.relu(F.relu(h)).flatten(1), "fast"),
    "relu of relu in place": (lambda net, h: F.relu(net.act(h)).flatten(1), "fast"),
    "view written to, and nothing else read": (_unread, "fast"),
    "view written to, the maps read": (_in_place_after, "plain"),
    "maps written to, the view read": (_in_place_before, "plain"),
    "a power in place with an alias": (_alias, "fast"),
    "contiguous maps asked for": (_contiguous, "plain"),
    "contiguous maps asserted": (_told_contiguous, "plain"),
    "as_strided": (_strided, "plain"),
    "a stride read": (lambda net, h: h.flatten(1) * (1 + h.stride()[1] % 2), "plain"),
}
# On the images themselves.
BEFORE: dict[str, tuple[Callable[[Tensor], Tensor], str]] = {
    "clamp_": (lambda x: x.clamp_(0.3, 0.7), "fast"),
    "sub_ and div_": (lambda x: x.sub_(0.5).div_(0.25), "fast"),
    "a view of it": (lambda x: x.view(-1, 3 * 64).mul_(2).view(-1, 3, 8, 8), "fast"),
    "contiguous images asked for": (lambda x: x if x.is_contiguous() else x / 0, "plain"),
}


class Idiom(nn.Module):
    def __init__(self, before: Callable | None = None, after: Callable | None = None) -> None:
        super().__init__()
        self.before, self.after = before, after
        self.conv, self.bn, self.act = nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU()
        self.head = nn.Linear(512, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = x if self.before is None else self.before(x)
        h = self.bn(self.conv(x))
        return self.head(h.flatten(1) if self.after is None else self.after(self, h))


@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize(
    ("part", "name"), [("after", name) for name in AFTER] + [("before", name) for name in BEFORE]
)
def test_an_idiom_gives_what_the_plain_model_gives(
    part: str, name: str, memory_format: torch.memory_format
) -> None:
    idiom, expected = (AFTER if part == "after" else BEFORE)[name]
    torch.manual_seed(0)
    model = Idiom(**{part: idiom}).double().eval()
    images = x.double().contiguous(memory_format=memory_format)
    for kind in (PGD, TRADES):
        options = {"seed": 1, "steps": 2} if kind is TRADES else {"random_start": False, "steps": 2}
        plain = kind(model, 0.1, fast=False, **options)(x.double(), y)
        fast = kind(model, 0.1, **options)(images, y)
        assert ((fast - plain).abs() < 1e-6).double().mean() > 0.998
    assert how(model).partition(":")[0] == expected
    assert torch.equal(images, x.double())


@pytest.mark.parametrize("name", [name for name in BEFORE if "asked" not in name])
def test_images_that_a_model_writes_to_are_whole_in_an_evaluation(name: str) -> None:
    torch.manual_seed(0)
    model, images = Idiom(before=BEFORE[name][0]).eval(), x.clone()
    fast, plain = (
        evaluate(model, images, y, {"eps": 0.05, "steps": 2, "fast": way, "random_start": False})
        for way in (True, False)
    )
    assert torch.equal(images, x)
    assert fast.clean.correct.tolist() == plain.clean.correct.tolist()
    assert fast.robust.correct.tolist() == plain.robust.correct.tolist()
