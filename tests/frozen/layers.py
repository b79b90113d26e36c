"""Layers of the grammar: what turns images into maps, and what turns maps into logits, as people
write them.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

CLASSES, SIDE = 5, 8
# Read by models of `changes`, from another module.
GAIN = 2.0


def written(forward: Callable[..., Any], **parts: Any) -> nn.Module:
    """A module of a class of its own with this forward pass and these attributes."""
    module = type("Written", (nn.Module,), {"forward": forward, "__module__": __name__})()
    for name, part in parts.items():
        setattr(module, name, part)
    return module


class OwnConv(nn.Conv2d):
    """A name of its own, nothing else."""


class StandardisedConv(nn.Conv2d):
    def forward(self, x: Tensor) -> Tensor:
        weight = self.weight - self.weight.mean((1, 2, 3), keepdim=True)
        weight = weight / (weight.std((1, 2, 3), keepdim=True) + 1e-5)
        return F.conv2d(x, weight, self.bias, self.stride, self.padding, self.dilation, self.groups)


class DeeperConv(nn.Conv2d):
    def _conv_forward(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        return super()._conv_forward(x, 1.5 * weight, bias)


class OwnNorm(nn.BatchNorm2d):
    """A name of its own, nothing else."""


class ShiftedNorm(nn.BatchNorm2d):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) + 0.7


class CappedReLU(nn.ReLU):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x).clamp(max=0.5)


class OwnReLU(nn.ReLU):
    """A name of its own, nothing else."""


class OwnLinear(nn.Linear):
    """A name of its own, nothing else."""


class CosineLinear(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        return 8 * F.linear(F.normalize(x), F.normalize(self.weight))


class OwnSequential(nn.Sequential):
    def forward(self, x: Tensor) -> Tensor:
        for layer in self:
            x = layer(x) * 1.1
        return x


def conv(**options: Any) -> nn.Conv2d:
    options = {"kernel_size": 3, "padding": 1, **options}
    return nn.Conv2d(3, 4, **options)


def then(*parts: nn.Module) -> nn.Module:
    return nn.Sequential(*parts)


def _residual(add: Callable[[Tensor, Tensor], Tensor]) -> nn.Module:
    return written(
        lambda self, x: F.relu(add(self.bn(self.conv(x)), self.shortcut(x))),
        conv=conv(bias=False),
        bn=nn.BatchNorm2d(4),
        shortcut=nn.Conv2d(3, 4, 1),
    )


def _iadd(a: Tensor, b: Tensor) -> Tensor:
    a += b
    return a


def _after(function: Callable[[Tensor], Tensor]) -> nn.Module:
    """A convolution, then the function."""
    return written(lambda self, x: function(self.conv(x)), conv=conv())


def _block(layers: nn.Module) -> nn.Module:
    def forward(self: Any, x: Tensor) -> Tensor:
        for layer in self.layers.values() if isinstance(self.layers, nn.ModuleDict) else self.layers:
            x = F.relu(layer(x))
        return x

    return written(forward, layers=layers)


def _attention() -> nn.Module:
    def forward(self: Any, x: Tensor) -> Tensor:
        b, _, h, w = x.shape
        tokens = self.embed(x).flatten(2).transpose(1, 2)
        q, k, v = self.qkv(self.norm(tokens)).chunk(3, dim=-1)
        tokens = tokens + F.scaled_dot_product_attention(q, k, v)
        return tokens.transpose(1, 2).reshape(b, 4, h // 2, w // 2)

    return written(forward, embed=nn.Conv2d(3, 4, 2, 2), qkv=nn.Linear(4, 12), norm=nn.LayerNorm(4))


def _squeeze_excite() -> nn.Module:
    def forward(self: Any, x: Tensor) -> Tensor:
        h = F.relu(self.conv(x))
        scale = torch.sigmoid(self.up(F.relu(self.down(F.adaptive_avg_pool2d(h, 1)))))
        return h * scale

    return written(forward, conv=conv(), down=nn.Conv2d(4, 2, 1), up=nn.Conv2d(2, 4, 1))


def _channels_last_norm() -> nn.Module:
    def forward(self: Any, x: Tensor) -> Tensor:
        h = self.conv(x).permute(0, 2, 3, 1)
        return self.out(F.gelu(self.norm(h))).permute(0, 3, 1, 2)

    return written(forward, conv=conv(), norm=nn.LayerNorm(4), out=nn.Linear(4, 4))


def _twice(self: Any, x: Tensor) -> Tensor:
    h = self.relu(self.bn(self.stem(x)))
    h = self.relu(self.bn(self.conv(h)))
    return self.relu(self.bn(self.conv(h)))


def _dense(self: Any, x: Tensor) -> Tensor:
    first = F.relu(self.first(x))
    return torch.cat([first, self.second(torch.cat([x, first], 1))], 1)


FEATURES: dict[str, Callable[[], nn.Module]] = {
    "conv": lambda: conv(),
    "conv without bias": lambda: then(conv(bias=False), nn.Tanh()),
    "conv bn relu": lambda: then(conv(bias=False), nn.BatchNorm2d(4), nn.ReLU()),
    "conv bias bn": lambda: then(conv(), nn.BatchNorm2d(4), nn.SiLU()),
    "bn conv": lambda: then(nn.BatchNorm2d(3), nn.ReLU(), conv(bias=False)),
    "bn without affine": lambda: then(conv(), nn.BatchNorm2d(4, affine=False), nn.ReLU()),
    "bn without statistics": lambda: then(conv(), nn.BatchNorm2d(4, track_running_stats=False), nn.ReLU()),
    "grouped": lambda: then(conv(), nn.Conv2d(4, 4, 3, padding=1, groups=2), nn.BatchNorm2d(4), nn.ReLU()),
    "depthwise": lambda: then(
        nn.Conv2d(3, 3, 3, padding=1, groups=3), nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4), nn.ReLU6()
    ),
    "stride": lambda: then(conv(stride=2), nn.BatchNorm2d(4), nn.ReLU(inplace=True)),
    "padding same": lambda: then(conv(padding="same"), nn.ReLU()),
    "padding valid": lambda: then(conv(padding="valid"), nn.BatchNorm2d(4), nn.ReLU()),
    "padding mode reflect": lambda: then(conv(padding_mode="reflect"), nn.BatchNorm2d(4), nn.ReLU()),
    "padding mode circular": lambda: then(conv(padding_mode="circular"), nn.ReLU()),
    "dilation": lambda: then(conv(dilation=2, padding=2), nn.BatchNorm2d(4), nn.ReLU()),
    "conv 1x1": lambda: then(conv(kernel_size=1, padding=0), nn.ReLU()),
    "conv not square": lambda: then(
        conv(kernel_size=(1, 3), padding=(0, 1)), nn.Conv2d(4, 4, (3, 1), padding=(1, 0)), nn.ReLU()
    ),
    "relu functional": lambda: _after(F.relu),
    "relu functional in place": lambda: _after(lambda h: F.relu(h, inplace=True)),
    "relu_": lambda: _after(F.relu_),
    "relu method": lambda: _after(lambda h: h.relu()),
    "relu_ method": lambda: _after(lambda h: h.relu_()),
    "relu of relu": lambda: then(conv(), nn.ReLU(), nn.ReLU()),
    "relu of relu, functions": lambda: _after(lambda h: torch.relu(torch.relu(h))),
    "relu read twice": lambda: _after(lambda h: F.relu(h) + 0.5 * h),
    "clamp as relu": lambda: _after(lambda h: h.clamp(min=0)),
    "leaky relu": lambda: then(conv(), nn.BatchNorm2d(4), nn.LeakyReLU(0.2, inplace=True)),
    "prelu": lambda: then(conv(), nn.PReLU(4)),
    "gelu": lambda: _after(F.gelu),
    "sum": lambda: _residual(lambda a, b: a + b),
    "sum in place": lambda: _residual(_iadd),
    "torch.add": lambda: _residual(torch.add),
    "torch.add with alpha": lambda: _residual(lambda a, b: torch.add(a, b, alpha=0.5)),
    "add_": lambda: _residual(lambda a, b: a.add_(b)),
    "sum with itself": lambda: _after(lambda h: F.relu(h + h)),
    "max pool": lambda: then(conv(), nn.ReLU(), nn.MaxPool2d(2)),
    "average pool": lambda: then(conv(), nn.AvgPool2d(2), nn.ReLU()),
    "pool functions": lambda: _after(lambda h: F.max_pool2d(F.relu(h), 2) + F.avg_pool2d(h, 2)),
    "adaptive pool": lambda: then(conv(), nn.ReLU(), nn.AdaptiveAvgPool2d(3)),
    "dropout": lambda: then(conv(), nn.BatchNorm2d(4), nn.Dropout(0.5), nn.ReLU(), nn.Dropout2d(0.3)),
    "dropout function": lambda: written(
        lambda self, x: F.dropout(F.relu(self.conv(x)), 0.5, self.training), conv=conv()
    ),
    "own conv": lambda: then(OwnConv(3, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU()),
    "standardised conv": lambda: then(StandardisedConv(3, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU()),
    "deeper conv": lambda: then(DeeperConv(3, 4, 3, padding=1), nn.ReLU()),
    "own norm": lambda: then(conv(), OwnNorm(4), nn.ReLU()),
    "shifted norm": lambda: then(conv(), ShiftedNorm(4), nn.ReLU()),
    "own relu": lambda: then(conv(), nn.BatchNorm2d(4), OwnReLU()),
    "capped relu": lambda: then(conv(), nn.BatchNorm2d(4), CappedReLU()),
    "own sequential": lambda: OwnSequential(conv(), nn.BatchNorm2d(4), nn.ReLU()),
    "ordered dict": lambda: nn.Sequential(
        OrderedDict(conv1=conv(), bn1=nn.BatchNorm2d(4), relu1=nn.ReLU(inplace=True))
    ),
    "module list": lambda: _block(nn.ModuleList([conv(), nn.BatchNorm2d(4), nn.Conv2d(4, 4, 1)])),
    "module dict": lambda: _block(nn.ModuleDict({"a": conv(), "b": nn.BatchNorm2d(4)})),
    "module called twice": lambda: written(
        _twice,
        stem=conv(),
        conv=nn.Conv2d(4, 4, 3, padding=1),
        bn=nn.BatchNorm2d(4),
        relu=nn.ReLU(inplace=True),
    ),
    "group norm": lambda: then(conv(), nn.GroupNorm(2, 4), nn.ReLU()),
    "instance norm": lambda: then(conv(), nn.InstanceNorm2d(4, affine=True), nn.ReLU()),
    "layer norm": _channels_last_norm,
    "attention": _attention,
    "squeeze excite": _squeeze_excite,
    "interpolate": lambda: _after(lambda h: F.interpolate(F.relu(h), scale_factor=2, mode="bilinear")),
    "dense": lambda: written(_dense, first=conv(), second=nn.Conv2d(7, 2, 3, padding=1)),
    "chunk": lambda: _after(lambda h: torch.cat([a * torch.sigmoid(b) for a, b in [h.chunk(2, 1)]], 1)),
    "split in a loop": lambda: _after(lambda h: torch.stack(torch.split(h, 2, 1)).amax(0)),
    "slices": lambda: _after(lambda h: F.relu(h[:, :2]) - h[:, 2:, ::1]),
    "transposed conv": lambda: then(nn.ConvTranspose2d(3, 4, 2, stride=2), nn.BatchNorm2d(4), nn.ReLU()),
    "pixel shuffle": lambda: then(nn.PixelUnshuffle(2), nn.Conv2d(12, 8, 3, padding=1), nn.PixelShuffle(2)),
    "zero pad": lambda: then(nn.ZeroPad2d(1), conv(padding=0), nn.BatchNorm2d(4), nn.ReLU()),
    "conv function": lambda: written(
        lambda self, x: F.relu(F.conv2d(x, self.weight, padding=1)),
        weight=nn.Parameter(0.3 * torch.randn(4, 3, 3, 3)),
    ),
    "where": lambda: _after(lambda h: torch.where(h > 0, h, 0.1 * h)),
    "maximum": lambda: written(
        lambda self, x: torch.maximum(self.a(x), self.b(x)), a=conv(), b=conv(bias=False)
    ),
    "gated": lambda: _after(lambda h: h * torch.sigmoid(h)),
    "normalize": lambda: _after(lambda h: F.normalize(h, dim=1)),
    "lambda layer": lambda: then(conv(), written(lambda self, x: self.f(x), f=lambda h: F.relu(h))),
    "no convolution": lambda: written(lambda self, x: self.norm(torch.tanh(3 * x)), norm=nn.BatchNorm2d(3)),
}


def _view_then(linear: nn.Module, flat: Callable[[Tensor], Tensor]) -> nn.Module:
    return written(lambda self, h: self.fc(flat(h)), fc=linear)


def _linear(c: int, h: int, w: int, kind: type[nn.Linear] = nn.Linear, **options: Any) -> nn.Linear:
    return kind(c * h * w, CLASSES, **options)


HEADS: dict[str, Callable[[int, int, int], nn.Module]] = {
    "pool flatten linear": lambda c, h, w: then(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(c, CLASSES)),
    "view(h.size(0), -1)": lambda c, h, w: _view_then(_linear(c, h, w), lambda t: t.view(t.size(0), -1)),
    "view(-1, n)": lambda c, h, w: _view_then(_linear(c, h, w), lambda t: t.view(-1, c * h * w)),
    "flatten(1)": lambda c, h, w: _view_then(_linear(c, h, w), lambda t: t.flatten(1)),
    "flatten(start_dim=1)": lambda c, h, w: _view_then(_linear(c, h, w), lambda t: t.flatten(start_dim=1)),
    "torch.flatten": lambda c, h, w: _view_then(_linear(c, h, w), lambda t: torch.flatten(t, 1)),
    "reshape": lambda c, h, w: _view_then(_linear(c, h, w), lambda t: t.reshape(t.shape[0], -1)),
    "nn.Flatten": lambda c, h, w: then(nn.Flatten(), _linear(c, h, w)),
    "view of another order": lambda c, h, w: _view_then(
        _linear(c, h, w), lambda t: t.permute(0, 2, 3, 1).contiguous().view(len(t), -1)
    ),
    "view written to": lambda c, h, w: _view_then(
        _linear(c, h, w), lambda t: (t + 0.1).view(len(t), -1).mul_(1.5)
    ),
    "mean([2, 3])": lambda c, h, w: _view_then(nn.Linear(c, CLASSES), lambda t: t.mean([2, 3])),
    "mean of views": lambda c, h, w: _view_then(
        nn.Linear(c, CLASSES), lambda t: t.view(t.size(0), t.size(1), -1).mean(2)
    ),
    "amax": lambda c, h, w: _view_then(nn.Linear(c, CLASSES), lambda t: t.amax((2, 3))),
    "pool squeeze": lambda c, h, w: _view_then(
        nn.Linear(c, CLASSES), lambda t: F.adaptive_avg_pool2d(t, 1).squeeze(-1).squeeze(-1)
    ),
    "conv head": lambda c, h, w: written(
        lambda self, t: self.conv(t).mean((2, 3)), conv=nn.Conv2d(c, CLASSES, 1)
    ),
    "own linear": lambda c, h, w: then(nn.Flatten(), _linear(c, h, w, OwnLinear)),
    "cosine linear": lambda c, h, w: then(nn.Flatten(), _linear(c, h, w, CosineLinear, bias=False)),
    "two layers": lambda c, h, w: then(
        nn.Flatten(), nn.Linear(c * h * w, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, CLASSES)
    ),
    "einsum": lambda c, h, w: written(
        lambda self, t: torch.einsum("bchw,kc->bk", t, self.weight),
        weight=nn.Parameter(0.1 * torch.randn(CLASSES, c)),
    ),
    "log softmax": lambda c, h, w: _view_then(_linear(c, h, w), lambda t: torch.flatten(t, 1).log_softmax(1)),
    "tuple": lambda c, h, w: written(lambda self, t: (self.fc(t.flatten(1)), t), fc=_linear(c, h, w)),
    "dict": lambda c, h, w: written(
        lambda self, t: {"features": t, "logits": self.fc(t.flatten(1))}, fc=_linear(c, h, w)
    ),
    "object": lambda c, h, w: written(
        lambda self, t: SimpleNamespace(logits=self.fc(t.flatten(1)), loss=None), fc=_linear(c, h, w)
    ),
}


class Network(nn.Module):
    def __init__(self, features: nn.Module, head: nn.Module) -> None:
        super().__init__()
        self.features, self.head = features, head

    def forward(self, x: Tensor) -> Any:
        return self.head(self.features(x))


def network(features: str, head: str) -> nn.Module:
    maps = FEATURES[features]()
    # A copy of the random state: weights must not depend on how the shape is found.
    state = torch.get_rng_state()
    with torch.no_grad():
        shape = maps.eval()(torch.rand(2, 3, SIDE, SIDE)).shape
    torch.set_rng_state(state)
    return Network(maps, HEADS[head](*shape[1:]))
