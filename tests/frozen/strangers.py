"""Small models written as people on GitHub write them, each in the manner of one well-known repository or
tutorial.
"""

from __future__ import annotations

import copy
import functools
import math
import types
from collections import namedtuple
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

CLASSES, SIDE = 5, 16
FAST, PLAIN = "fast", "plain"

STRANGERS: dict[str, tuple[str, Callable[[], nn.Module]]] = {}


def stranger(name: str, runs: str = FAST) -> Callable[[Any], Any]:
    def add(make: Callable[[], nn.Module]) -> Callable[[], nn.Module]:
        assert name not in STRANGERS
        STRANGERS[name] = runs, make
        return make

    return add


@stranger("LeNet")
class LeNet(nn.Module):
    def __init__(self):
        super(LeNet, self).__init__()  # noqa: UP008
        self.conv1 = nn.Conv2d(3, 6, 5)
        self.pool = nn.MaxPool2d(2, 2)
        self.conv2 = nn.Conv2d(6, 8, 3)
        self.fc1 = nn.Linear(8 * 2 * 2, 12)
        self.fc2 = nn.Linear(12, CLASSES)

    def forward(self, x):
        x = self.pool(F.relu(self.conv1(x)))
        x = self.pool(F.relu(self.conv2(x)))
        x = x.view(-1, 8 * 2 * 2)
        x = F.relu(self.fc1(x))
        return self.fc2(x)


@stranger("MNIST example of PyTorch")
class MnistNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(3, 6, 3, 1)
        self.conv2 = nn.Conv2d(6, 8, 3, 1)
        self.dropout1, self.dropout2 = nn.Dropout(0.25), nn.Dropout(0.5)
        self.fc1, self.fc2 = nn.Linear(8 * 36, 16), nn.Linear(16, CLASSES)

    def forward(self, x):
        x = F.relu(self.conv1(x))
        x = F.relu(self.conv2(x))
        x = F.max_pool2d(x, 2)
        x = self.dropout1(x)
        x = torch.flatten(x, 1)
        x = self.dropout2(F.relu(self.fc1(x)))
        return F.log_softmax(self.fc2(x), dim=1)


@stranger("VGG of a list")
class VGG(nn.Module):
    cfg = (6, "M", 8, 8, "M")

    def __init__(self):
        super().__init__()
        self.features = self._make_layers(self.cfg)
        self.avgpool = nn.AdaptiveAvgPool2d((2, 2))
        self.classifier = nn.Sequential(
            nn.Linear(32, 16), nn.ReLU(True), nn.Dropout(), nn.Linear(16, CLASSES)
        )
        for m in self.modules():
            if isinstance(m, nn.Conv2d):
                nn.init.kaiming_normal_(m.weight, mode="fan_out", nonlinearity="relu")

    def _make_layers(self, cfg):
        layers, width = [], 3
        for x in cfg:
            if x == "M":
                layers += [nn.MaxPool2d(kernel_size=2, stride=2)]
            else:
                layers += [nn.Conv2d(width, x, 3, padding=1), nn.BatchNorm2d(x), nn.ReLU(inplace=True)]
                width = x
        return nn.Sequential(*layers, nn.AvgPool2d(kernel_size=1, stride=1))

    def forward(self, x):
        x = self.avgpool(self.features(x))
        x = x.view(x.size(0), -1)
        return self.classifier(x)


class BasicBlock(nn.Module):
    expansion = 1

    def __init__(self, in_planes, planes, stride=1):
        super().__init__()
        self.conv1 = nn.Conv2d(in_planes, planes, kernel_size=3, stride=stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(planes)
        self.conv2 = nn.Conv2d(planes, planes, kernel_size=3, stride=1, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(planes)
        self.shortcut = nn.Sequential()
        if stride != 1 or in_planes != self.expansion * planes:
            self.shortcut = nn.Sequential(
                nn.Conv2d(in_planes, self.expansion * planes, kernel_size=1, stride=stride, bias=False),
                nn.BatchNorm2d(self.expansion * planes),
            )

    def forward(self, x):
        out = F.relu(self.bn1(self.conv1(x)))
        out = self.bn2(self.conv2(out))
        out += self.shortcut(x)
        return F.relu(out)


@stranger("ResNet of pytorch-cifar")
class ResNet(nn.Module):
    def __init__(self, block=BasicBlock):
        super().__init__()
        self.conv1 = nn.Conv2d(3, 6, kernel_size=3, stride=1, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(6)
        self.layer1 = nn.Sequential(block(6, 6), block(6, 6))
        self.layer2 = nn.Sequential(block(6, 8, 2), block(8, 8))
        self.linear = nn.Linear(8, CLASSES)

    def forward(self, x):
        out = F.relu(self.bn1(self.conv1(x)))
        out = self.layer1(out)
        out = self.layer2(out)
        out = F.avg_pool2d(out, 8)
        out = out.view(out.size(0), -1)
        return self.linear(out)


@stranger("Wide ResNet of TRADES")
class WideResNet(nn.Module):
    class Block(nn.Module):
        def __init__(self, in_planes, out_planes, stride, dropRate=0.3):
            super().__init__()
            self.bn1 = nn.BatchNorm2d(in_planes)
            self.relu1 = nn.ReLU(inplace=True)
            self.conv1 = nn.Conv2d(in_planes, out_planes, 3, stride, padding=1, bias=False)
            self.bn2 = nn.BatchNorm2d(out_planes)
            self.relu2 = nn.ReLU(inplace=True)
            self.conv2 = nn.Conv2d(out_planes, out_planes, 3, 1, padding=1, bias=False)
            self.droprate = dropRate
            self.equalInOut = in_planes == out_planes
            self.convShortcut = (
                not self.equalInOut and nn.Conv2d(in_planes, out_planes, 1, stride, bias=False)
            ) or None

        def forward(self, x):
            if not self.equalInOut:
                x = self.relu1(self.bn1(x))
            else:
                out = self.relu1(self.bn1(x))
            out = self.relu2(self.bn2(self.conv1(out if self.equalInOut else x)))
            if self.droprate > 0:
                out = F.dropout(out, p=self.droprate, training=self.training)
            out = self.conv2(out)
            return torch.add(x if self.equalInOut else self.convShortcut(x), out)

    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(3, 6, 3, 1, 1, bias=False)
        self.block1, self.block2 = self.Block(6, 6, 1), self.Block(6, 8, 2)
        self.bn1, self.relu = nn.BatchNorm2d(8), nn.ReLU(inplace=True)
        self.fc = nn.Linear(8, CLASSES)
        self.nChannels = 8

    def forward(self, x):
        out = self.block2(self.block1(self.conv1(x)))
        out = self.relu(self.bn1(out))
        out = F.avg_pool2d(out, 8)
        out = out.view(-1, self.nChannels)
        return self.fc(out)


@stranger("DenseNet")
class DenseNet(nn.Module):
    class Bottleneck(nn.Module):
        def __init__(self, in_planes, growth):
            super().__init__()
            self.bn1, self.conv1 = nn.BatchNorm2d(in_planes), nn.Conv2d(in_planes, 8, 1, bias=False)
            self.bn2, self.conv2 = nn.BatchNorm2d(8), nn.Conv2d(8, growth, 3, padding=1, bias=False)

        def forward(self, x):
            out = self.conv1(F.relu(self.bn1(x)))
            out = self.conv2(F.relu(self.bn2(out)))
            return torch.cat([out, x], 1)

    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(3, 4, 3, padding=1, bias=False)
        self.dense = nn.Sequential(*[self.Bottleneck(4 + 4 * i, 4) for i in range(2)])
        self.bn, self.linear = nn.BatchNorm2d(12), nn.Linear(12, CLASSES)

    def forward(self, x):
        out = F.avg_pool2d(self.dense(self.conv1(x)), 2)
        out = torch.squeeze(F.adaptive_avg_pool2d(F.relu(self.bn(out)), 1))
        return self.linear(out)


@stranger("DenseNet of torchvision, with lists of features")
class DenseNetLists(nn.Module):
    class Layer(nn.Module):
        def __init__(self, width):
            super().__init__()
            self.add_module("norm", nn.BatchNorm2d(width))
            self.add_module("relu", nn.ReLU(inplace=True))
            self.add_module("conv", nn.Conv2d(width, 4, 3, padding=1, bias=False))

        def forward(self, input):
            prev = [input] if isinstance(input, Tensor) else input
            return self.conv(self.relu(self.norm(torch.cat(prev, 1))))

    def __init__(self):
        super().__init__()
        self.stem = nn.Conv2d(3, 4, 3, padding=1)
        self.layers = nn.ModuleDict({f"denselayer{i}": self.Layer(4 + 4 * i) for i in range(3)})
        self.fc = nn.Linear(16, CLASSES)

    def forward(self, x):
        features = [self.stem(x)]
        for _name, layer in self.layers.items():
            features.append(layer(features))
        return self.fc(torch.cat(features, 1).mean([2, 3]))


@stranger("MobileNet with squeeze-and-excitation")
class MobileNetSE(nn.Module):
    class SE(nn.Module):
        def __init__(self, width):
            super().__init__()
            self.avg_pool = nn.AdaptiveAvgPool2d(1)
            self.fc = nn.Sequential(
                nn.Linear(width, 2, bias=False),
                nn.ReLU(inplace=True),
                nn.Linear(2, width, bias=False),
                nn.Sigmoid(),
            )

        def forward(self, x):
            b, c, _, _ = x.size()
            y = self.avg_pool(x).view(b, c)
            y = self.fc(y).view(b, c, 1, 1)
            return x * y.expand_as(x)

    def __init__(self):
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(3, 8, 3, 2, 1, bias=False), nn.BatchNorm2d(8), nn.Hardswish(inplace=True)
        )
        self.block = nn.Sequential(
            nn.Conv2d(8, 8, 3, 1, 1, groups=8, bias=False),
            nn.BatchNorm2d(8),
            nn.ReLU6(inplace=True),
            self.SE(8),
            nn.Conv2d(8, 8, 1, bias=False),
            nn.BatchNorm2d(8),
        )
        self.use_res_connect = True
        self.classifier = nn.Linear(8, CLASSES)

    def forward(self, x):
        x = self.stem(x)
        x = x + self.block(x) if self.use_res_connect else self.block(x)
        x = nn.functional.adaptive_avg_pool2d(x, (1, 1)).reshape(x.shape[0], -1)
        return self.classifier(x)


GoogLeNetOutputs = namedtuple("GoogLeNetOutputs", ["logits", "aux_logits2", "aux_logits1"])


@stranger("GoogLeNet with auxiliary heads")
class GoogLeNet(nn.Module):
    def __init__(self, aux_logits=True):
        super().__init__()
        self.aux_logits = aux_logits
        self.conv1 = nn.Conv2d(3, 6, 3, padding=1)
        self.branches = nn.ModuleList(
            [
                nn.Conv2d(6, 2, 1),
                nn.Sequential(nn.Conv2d(6, 2, 1), nn.Conv2d(2, 4, 3, padding=1)),
                nn.MaxPool2d(3, 1, 1),
            ]
        )
        self.aux = nn.Linear(6, CLASSES) if aux_logits else None
        self.fc = nn.Linear(12, CLASSES)

    def _forward(self, x):
        x = F.relu(self.conv1(x), inplace=True)
        aux = self.aux(x.mean((2, 3))) if self.aux is not None and self.training else None
        x = torch.cat([branch(x) for branch in self.branches], 1)
        return self.fc(torch.flatten(F.adaptive_avg_pool2d(x, 1), 1)), aux

    def forward(self, x):
        x, aux = self._forward(x)
        if self.training and self.aux_logits:
            return GoogLeNetOutputs(x, aux, None)
        return x


@stranger("AdvProp's two BatchNorms")
class AdvProp(nn.Module):
    class DualNorm(nn.Module):
        def __init__(self, width):
            super().__init__()
            self.bn = nn.ModuleList([nn.BatchNorm2d(width), nn.BatchNorm2d(width)])
            self.batch_type = "adv"

        def forward(self, x):
            if self.batch_type == "adv":
                return self.bn[0](x)
            return self.bn[1](x)

    def __init__(self):
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(3, 6, 3, padding=1), self.DualNorm(6)
        self.conv2, self.bn2 = nn.Conv2d(6, 6, 3, padding=1), self.DualNorm(6)
        self.fc = nn.Linear(6, CLASSES)

    def forward(self, x):
        x = F.relu(self.bn1(self.conv1(x)))
        x = F.relu(self.bn2(self.conv2(x)))
        return self.fc(F.avg_pool2d(x, x.size()[2:]).view(x.size(0), -1))


class GhostBatchNorm(nn.BatchNorm2d):
    """Split BatchNorm of the airbench and davidcpage repositories."""

    def __init__(self, num_features, num_splits=2, **kw):
        super().__init__(num_features, **kw)
        self.num_splits = num_splits

    def forward(self, input):
        if self.training or not self.track_running_stats:
            _, c, h, w = input.shape
            return F.batch_norm(input.view(-1, c * self.num_splits, h, w), None, None, None, None, True)
        return F.batch_norm(
            input, self.running_mean, self.running_var, self.weight, self.bias, False, 0.1, self.eps
        )


@stranger("Split BatchNorm")
class SplitNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(
            nn.Conv2d(3, 6, 3, padding=1, bias=False),
            GhostBatchNorm(6),
            nn.CELU(0.3),
            nn.Conv2d(6, 6, 3, bias=False),
            GhostBatchNorm(6),
            nn.CELU(0.3),
            nn.AdaptiveMaxPool2d(1),
            nn.Flatten(),
            nn.Linear(6, CLASSES, bias=False),
        )

    def forward(self, x):
        return self.net(x) / 8


class LoRAConv(nn.Module):
    def __init__(self, conv: nn.Conv2d, r: int = 2):
        super().__init__()
        self.conv = conv
        self.lora_A = nn.Parameter(torch.randn(r, conv.in_channels * 9) * 0.3)
        self.lora_B = nn.Parameter(torch.randn(conv.out_channels, r) * 0.3)
        self.scaling, self.merged = 0.5, False

    def forward(self, x):
        if self.merged:
            return self.conv(x)
        weight = self.conv.weight + (self.lora_B @ self.lora_A).view(self.conv.weight.shape) * self.scaling
        return self.conv._conv_forward(x, weight, self.conv.bias)


@stranger("LoRA around convolutions")
def lora() -> nn.Module:
    net = ResNet()
    net.conv1 = LoRAConv(net.conv1)
    net.layer1[0].conv2 = LoRAConv(net.layer1[0].conv2)
    return net


@stranger("LoRA in a replaced forward")
def lora_patched() -> nn.Module:
    net = ResNet()
    conv = net.layer1[0].conv1
    adapter = nn.Sequential(nn.Conv2d(6, 2, 1, bias=False), nn.Conv2d(2, 6, 1, bias=False))
    conv.add_module("adapter", adapter)

    def forward(self, x):
        return nn.Conv2d.forward(self, x) + self.adapter(x)

    conv.forward = forward.__get__(conv)
    return net


class FakeQuantize(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, bits):
        scale = x.abs().max() / (2 ** (bits - 1) - 1)
        return torch.round(x / scale) * scale

    @staticmethod
    def backward(ctx, grad):
        return grad, None


@stranger("Fake quantisation", PLAIN)
class QuantNet(nn.Module):
    class QConv(nn.Conv2d):
        def forward(self, x):
            weight = FakeQuantize.apply(self.weight, 4)
            x = FakeQuantize.apply(x, 8)
            return F.conv2d(x, weight, self.bias, self.stride, self.padding, self.dilation, self.groups)

    def __init__(self):
        super().__init__()
        self.conv1, self.conv2 = self.QConv(3, 6, 3, padding=1), self.QConv(6, 6, 3, 2, padding=1)
        self.bn, self.fc = nn.BatchNorm2d(6), nn.Linear(6, CLASSES)

    def forward(self, x):
        x = F.hardtanh(self.bn(self.conv1(x)))
        return self.fc(self.conv2(x).mean((-2, -1)))


@stranger("Binarised weights without autograd.Function")
class BinaryNet(nn.Module):
    class BinaryConv(nn.Conv2d):
        def forward(self, x):
            real = self.weight
            alpha = real.abs().mean((1, 2, 3), keepdim=True).detach()
            binary = alpha * torch.sign(real)
            clipped = torch.clamp(real, -1.0, 1.0)
            return F.conv2d(
                x, binary.detach() - clipped.detach() + clipped, stride=self.stride, padding=self.padding
            )

    def __init__(self):
        super().__init__()
        self.conv = self.BinaryConv(3, 6, 3, padding=1, bias=False)
        self.bn, self.act, self.fc = nn.BatchNorm2d(6), nn.PReLU(6), nn.Linear(6, CLASSES)

    def forward(self, x):
        return self.fc(self.act(self.bn(self.conv(x))).mean((2, 3)))


@stranger("Monte Carlo dropout")
class MCDropout(nn.Module):
    def __init__(self):
        super().__init__()
        self.net, self.fc, self.samples = ResNet(), nn.Linear(CLASSES, CLASSES), 3

    def forward(self, x):
        h = self.net(x)
        return torch.stack([self.fc(F.dropout(h, 0.5, training=True)) for _ in range(self.samples)]).mean(0)


@stranger("Ensemble of a list comprehension")
class Ensemble(nn.Module):
    def __init__(self):
        super().__init__()
        self.models = nn.ModuleList([LeNet(), ResNet(), SplitNet()])

    def forward(self, x):
        outputs = [F.softmax(m(x), dim=-1) for m in self.models]
        return torch.log(torch.mean(torch.stack(outputs), dim=0) + 1e-8)


@stranger("Manifold mixup")
class ManifoldMixup(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(3, 6, 3, padding=1), nn.Conv2d(6, 6, 3, stride=2)
        self.fc, self.alpha = nn.Linear(6, CLASSES), 1.0

    def forward(self, x, target=None, mixup_hidden=False, lam=None):
        layer_mix = torch.randint(0, 3, ()).item() if mixup_hidden else None
        out = x
        for i, conv in enumerate((self.conv1, self.conv2)):
            if layer_mix == i and lam is not None:
                out = lam * out + (1 - lam) * out.flip(0)
            out = F.leaky_relu(conv(out), 0.1)
        out = self.fc(out.mean(dim=(2, 3)))
        if target is not None:
            return out, target
        return out


@stranger("BlurPool")
class BlurPoolNet(nn.Module):
    class BlurPool(nn.Module):
        def __init__(self, channels):
            super().__init__()
            a = torch.tensor([1.0, 2.0, 1.0])
            kernel = a[:, None] * a[None, :]
            self.register_buffer("filt", (kernel / kernel.sum())[None, None].repeat(channels, 1, 1, 1))
            self.channels, self.pad = channels, nn.ReflectionPad2d(1)

        def forward(self, inp):
            return F.conv2d(self.pad(inp), self.filt, stride=2, groups=inp.shape[1])

    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(
            nn.Conv2d(3, 6, 3, padding=1),
            nn.ReLU(inplace=True),
            nn.MaxPool2d(2, stride=1),
            self.BlurPool(6),
            nn.Conv2d(6, 6, 3),
            nn.BatchNorm2d(6),
            nn.ReLU(inplace=True),
            self.BlurPool(6),
        )
        self.head = nn.Linear(6 * 9, CLASSES)

    def forward(self, x):
        return self.head(self.net(x).flatten(1))


@stranger("Space to depth and pixel shuffle")
class PixelShuffleNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(12, 8, 3, padding=1), nn.Conv2d(2, 6, (1, 5), padding=(0, 2))
        self.conv3, self.fc = nn.Conv2d(6, 6, (5, 1), dilation=(2, 1)), nn.Linear(6, CLASSES)

    def forward(self, x):
        b, c, h, w = x.shape
        x = x.view(b, c, h // 2, 2, w // 2, 2).permute(0, 1, 3, 5, 2, 4).reshape(b, c * 4, h // 2, w // 2)
        x = F.pixel_shuffle(F.elu(self.conv1(x)), 2)
        x = self.conv3(F.gelu(self.conv2(x)))
        return self.fc(torch.logsumexp(x.flatten(2), dim=-1))


@stranger("ViT with a patch convolution")
class ViT(nn.Module):
    class Block(nn.Module):
        def __init__(self, dim, heads=2):
            super().__init__()
            self.heads, self.scale = heads, (dim // heads) ** -0.5
            self.norm1, self.norm2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
            self.qkv, self.proj = nn.Linear(dim, dim * 3, bias=False), nn.Linear(dim, dim)
            self.mlp = nn.Sequential(
                nn.Linear(dim, 2 * dim), nn.GELU(), nn.Dropout(0.1), nn.Linear(2 * dim, dim)
            )

        def attn(self, x):
            B, N, C = x.shape
            qkv = self.qkv(x).reshape(B, N, 3, self.heads, C // self.heads).permute(2, 0, 3, 1, 4)
            q, k, v = qkv[0], qkv[1], qkv[2]
            attn = (q @ k.transpose(-2, -1)) * self.scale
            x = (attn.softmax(dim=-1) @ v).transpose(1, 2).reshape(B, N, C)
            return self.proj(x)

        def forward(self, x):
            x = x + self.attn(self.norm1(x))
            return x + self.mlp(self.norm2(x))

    def __init__(self, dim=8, patch=4):
        super().__init__()
        self.patch_embed = nn.Conv2d(3, dim, patch, patch)
        self.cls_token = nn.Parameter(torch.randn(1, 1, dim))
        self.pos_embed = nn.Parameter(0.1 * torch.randn(1, (SIDE // patch) ** 2 + 1, dim))
        self.blocks = nn.ModuleList([self.Block(dim) for _ in range(2)])
        self.norm, self.head = nn.LayerNorm(dim), nn.Linear(dim, CLASSES)

    def forward_features(self, x):
        x = self.patch_embed(x).flatten(2).transpose(1, 2)
        x = torch.cat((self.cls_token.expand(x.shape[0], -1, -1), x), dim=1)
        x = x + self.pos_embed
        for blk in self.blocks:
            x = blk(x)
        return self.norm(x)[:, 0]

    def forward(self, x):
        return self.head(self.forward_features(x))


@stranger("nn.TransformerEncoder on patches")
class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Conv2d(3, 8, 4, 4)
        layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, norm_first=True)
        self.encoder = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False)
        self.head = nn.Linear(8, CLASSES)

    def forward(self, x):
        return self.head(self.encoder(self.embed(x).flatten(2).mT).mean(1))


@stranger("ConvNeXt")
class ConvNeXt(nn.Module):
    class LayerNorm2d(nn.Module):
        def __init__(self, width, eps=1e-6):
            super().__init__()
            self.weight, self.bias = nn.Parameter(torch.ones(width)), nn.Parameter(torch.zeros(width))
            self.eps = eps

        def forward(self, x):
            u = x.mean(1, keepdim=True)
            s = (x - u).pow(2).mean(1, keepdim=True)
            x = (x - u) / torch.sqrt(s + self.eps)
            return self.weight[:, None, None] * x + self.bias[:, None, None]

    class Block(nn.Module):
        def __init__(self, dim):
            super().__init__()
            self.dwconv = nn.Conv2d(dim, dim, kernel_size=7, padding=3, groups=dim)
            self.norm = nn.LayerNorm(dim, eps=1e-6)
            self.pwconv1, self.act, self.pwconv2 = nn.Linear(dim, 4 * dim), nn.GELU(), nn.Linear(4 * dim, dim)
            self.gamma = nn.Parameter(0.5 * torch.ones(dim))
            self.drop_path = nn.Identity()

        def forward(self, x):
            input = x
            x = self.dwconv(x)
            x = x.permute(0, 2, 3, 1)
            x = self.pwconv2(self.act(self.pwconv1(self.norm(x))))
            if self.gamma is not None:
                x = self.gamma * x
            x = x.permute(0, 3, 1, 2)
            return input + self.drop_path(x)

    def __init__(self):
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 6, 2, 2), self.LayerNorm2d(6))
        self.blocks = nn.Sequential(self.Block(6), self.Block(6))
        self.norm, self.head = nn.LayerNorm(6), nn.Linear(6, CLASSES)

    def forward(self, x):
        return self.head(self.norm(self.blocks(self.stem(x)).mean([-2, -1])))


@stranger("Cosine classifier")
class CosineNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = ResNet()
        self.encoder.linear = nn.Identity()
        self.weight = nn.Parameter(torch.randn(CLASSES, 8))
        self.scale = nn.Parameter(torch.tensor(2.0))

    def forward(self, x):
        return self.scale.exp() * F.linear(
            F.normalize(self.encoder(x), dim=1), F.normalize(self.weight, dim=1)
        )


@stranger("Lipschitz layers with power iteration in the forward pass", PLAIN)
class LipschitzNet(nn.Module):
    class SNConv(nn.Conv2d):
        def __init__(self, *args, **kwargs):
            super().__init__(*args, **kwargs)
            self.register_buffer("u", F.normalize(torch.randn(1, self.out_channels), dim=1))

        def forward(self, x):
            weight = self.weight.view(self.out_channels, -1)
            with torch.no_grad():
                v = F.normalize(self.u @ weight, dim=1)
                u = F.normalize(v @ weight.t(), dim=1)
                self.u.copy_(u)
            sigma = (u @ weight @ v.t()).squeeze()
            return F.conv2d(x, self.weight / sigma, self.bias, self.stride, self.padding)

    def __init__(self):
        super().__init__()
        self.conv1, self.conv2 = self.SNConv(3, 6, 3, padding=1), self.SNConv(6, 6, 3, 2)
        self.fc = nn.Linear(6, CLASSES)

    def forward(self, x):
        a, b = self.conv1(x).chunk(2, 1)
        x = torch.cat([torch.max(a, b), torch.min(a, b)], 1)
        return self.fc(self.conv2(x).mean((2, 3)))


@stranger("Feature extractor with hooks", PLAIN)
class FeatureExtractor(nn.Module):
    def __init__(self):
        super().__init__()
        self.model, self._features = ResNet(), {}
        for name in ("layer1", "layer2"):
            getattr(self.model, name).register_forward_hook(self.save_outputs_hook(name))
        self.fc = nn.Linear(14, CLASSES)

    def save_outputs_hook(self, layer_id) -> Callable:
        def fn(_, __, output):
            self._features[layer_id] = output

        return fn

    def forward(self, x):
        _ = self.model(x)
        return self.fc(torch.cat([f.mean((2, 3)) for f in self._features.values()], 1))


@stranger("EMA wrapper")
class EMA(nn.Module):
    def __init__(self):
        super().__init__()
        self.online = ResNet()
        self.ema = copy.deepcopy(self.online).requires_grad_(False)
        self.decay, self.updates, self.use_ema = lambda n: 0.999 * (1 - math.exp(-n / 2000)), 0, True

    def update(self):
        self.updates += 1
        d = self.decay(self.updates)
        for slow, quick in zip(self.ema.parameters(), self.online.parameters(), strict=True):
            slow.data.mul_(d).add_(quick.data, alpha=1 - d)

    def forward(self, x):
        return (self.ema if self.use_ema and not self.training else self.online)(x)


@stranger("accelerate's forward wrapper", PLAIN)
def accelerated() -> nn.Module:
    def convert_to_fp32(tensor):
        return (
            tensor.to(torch.float64) if isinstance(tensor, Tensor) and tensor.is_floating_point() else tensor
        )

    class ConvertOutputsToFp32:
        def __init__(self, model_forward):
            self.model_forward = model_forward
            functools.update_wrapper(self, model_forward)

        def __call__(self, *args, **kwargs):
            return convert_to_fp32(self.model_forward(*args, **kwargs))

    model = VGG()
    model._original_forward = model.forward
    new_forward = torch.autocast("cpu", torch.bfloat16, enabled=False)(model.forward.__func__)
    model.forward = types.MethodType(new_forward, model)
    model.forward = types.MethodType(ConvertOutputsToFp32(model.forward.__func__), model)
    return model


@stranger("autocast around forward", PLAIN)
class AutocastNet(ResNet):
    @torch.autocast("cpu", dtype=torch.bfloat16)
    def forward(self, x):
        return super().forward(x)


@stranger("Hugging Face's outputs and configuration", PLAIN)
class HubModel(nn.Module):
    class Output(dict):
        __getattr__ = dict.__getitem__

    def __init__(self):
        super().__init__()
        self.config = types.SimpleNamespace(
            num_labels=CLASSES, hidden_act="gelu", use_return_dict=True, output_hidden_states=False
        )
        self.act = {"gelu": F.gelu, "relu": F.relu}[self.config.hidden_act]
        self.embedder, self.classifier = nn.Conv2d(3, 6, 3, 2, 1), nn.Linear(6, self.config.num_labels)

    def forward(self, pixel_values=None, labels=None, output_hidden_states=None, return_dict=None):
        return_dict = return_dict if return_dict is not None else self.config.use_return_dict
        output_hidden_states = output_hidden_states or self.config.output_hidden_states
        hidden = self.act(self.embedder(pixel_values))
        logits = self.classifier(hidden.mean(dim=(2, 3)))
        if not return_dict:
            return (logits, hidden) if output_hidden_states else (logits,)
        return self.Output(loss=None, logits=logits, hidden_states=hidden if output_hidden_states else None)


@stranger("Normalisation with a closure, RobustBench's style")
def normalised() -> nn.Module:
    class ImageNormalizer(nn.Module):
        def __init__(self, mean, std):
            super().__init__()
            self.register_buffer("mean", torch.as_tensor(mean).view(1, 3, 1, 1))
            self.register_buffer("std", torch.as_tensor(std).view(1, 3, 1, 1))

        def forward(self, input):
            return (input - self.mean) / self.std

        def extra_repr(self):
            return f"mean={self.mean}, std={self.std}"

    from collections import OrderedDict

    layers = OrderedDict(
        [("normalize", ImageNormalizer((0.49, 0.48, 0.45), (0.25, 0.24, 0.26))), ("model", WideResNet())]
    )
    return nn.Sequential(layers)


@stranger("Purification with noise in front")
class Purified(nn.Module):
    def __init__(self):
        super().__init__()
        self.denoise, self.net, self.sigma = nn.Conv2d(3, 3, 3, padding=1), LeNet(), 0.1

    def forward(self, x):
        noisy = torch.clamp(x + self.sigma * torch.randn(x.shape, dtype=x.dtype, device=x.device), 0, 1)
        return self.net(noisy - self.denoise(noisy))


@stranger("JPEG-like defence: rounding and bit depth")
class BitDepth(nn.Module):
    def __init__(self):
        super().__init__()
        self.bits, self.net = 5, MnistNet()

    def forward(self, x):
        levels = 2**self.bits - 1
        return self.net(x + (torch.round(x * levels) / levels - x).detach())


@stranger("Capsule routing")
class Capsules(nn.Module):
    def __init__(self, routings=2):
        super().__init__()
        self.conv, self.routings = nn.Conv2d(3, 8, 5, stride=3), routings
        self.weight = nn.Parameter(0.3 * torch.randn(CLASSES, 32, 3, 4))

    @staticmethod
    def squash(s, dim=-1):
        norm = torch.norm(s, dim=dim, keepdim=True)
        return norm**2 / (1 + norm**2) * s / (norm + 1e-8)

    def forward(self, x):
        u = self.conv(x).view(x.size(0), 32, 4)
        u_hat = torch.einsum("ckdi,bki->bckd", self.weight, u)
        b = torch.zeros_like(u_hat[..., :1])
        for i in range(self.routings):
            c = b.softmax(dim=1)
            v = self.squash((c * u_hat).sum(dim=2, keepdim=True))
            if i < self.routings - 1:
                b = b + (u_hat * v).sum(-1, keepdim=True)
        return 4 * v.squeeze(2).norm(dim=-1)


@stranger("Early exits chosen by an attribute")
class EarlyExit(nn.Module):
    def __init__(self):
        super().__init__()
        self.stages = nn.ModuleList([nn.Conv2d(3, 6, 3, padding=1), nn.Conv2d(6, 6, 3, 2, 1)])
        self.exits = nn.ModuleList([nn.Linear(6, CLASSES) for _ in self.stages])
        self.exit_at = 1

    def forward(self, x):
        outputs = []
        for stage, head in zip(self.stages, self.exits, strict=True):
            x = torch.relu(stage(x))
            outputs.append(head(x.mean((2, 3))))
        return outputs[self.exit_at]
