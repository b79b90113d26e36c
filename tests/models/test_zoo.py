"""Models by name: shapes, names, the normalisation layer and what is refused."""

import copy

import pytest
import torch
from torch import nn

from cfol_fast import models
from cfol_fast.errors import InputError

SMALL = ["resnet18@0.125", "resnet50@0.125", "preact-resnet18@0.125", "wrn-10-1", "vgg16@0.125", "demo-cnn"]


def parameters(model: nn.Module) -> int:
    return sum(p.numel() for p in model.parameters())


@pytest.mark.parametrize("name", SMALL)
@pytest.mark.parametrize(("size", "channels"), [(28, 1), (32, 3), (45, 3)])
def test_every_model_gives_logits_for_every_image_size(name, size, channels):
    model = models.create(name, num_classes=7, image_size=size, in_channels=channels)
    assert model(torch.rand(2, channels, size, size)).shape == (2, 7)


@pytest.mark.parametrize("name", SMALL)
def test_every_parameter_gets_a_gradient(name):
    model = models.create(name, num_classes=5, image_size=28, in_channels=1)
    model(torch.rand(4, 1, 28, 28)).square().sum().backward()
    assert all(p.grad is not None and torch.isfinite(p.grad).all() for p in model.parameters())


@pytest.mark.parametrize("name", SMALL)
def test_every_model_can_be_traced_for_folding(name):
    model = models.create(name, num_classes=5).eval()
    x = torch.rand(2, 3, 32, 32)
    assert torch.equal(torch.fx.symbolic_trace(model)(x), model(x))


@pytest.mark.parametrize(
    ("name", "millions"),
    [
        ("resnet18", 11.174),
        ("resnet50", 23.521),
        ("preact-resnet18", 11.172),
        ("wrn-34-10", 46.160),
        ("vgg16", 14.724),
    ],
)
@pytest.mark.slow
def test_full_models_have_the_published_number_of_parameters(name, millions):
    with torch.device("meta"):
        model = models.create(name, num_classes=10)
    assert parameters(model) / 1e6 == pytest.approx(millions, abs=0.001)


def test_the_first_layer_normalises_pixels():
    model = models.create("demo-cnn", 10, mean=[0.5, 0.4, 0.3], std=[0.2, 0.1, 0.5])
    assert isinstance(model[0], models.Normalize)
    x = torch.tensor([0.7, 0.4, 0.8]).view(1, 3, 1, 1).expand(1, 3, 32, 32)
    assert torch.allclose(model[0](x)[0, :, 0, 0], torch.tensor([1.0, 0.0, 1.0]))


def test_without_mean_and_std_pixels_pass_unchanged():
    x = torch.rand(2, 3, 8, 8)
    assert torch.equal(models.create("demo-cnn", 10, image_size=8)[0](x), x)


def test_normalisation_travels_with_the_weights():
    model = models.create("demo-cnn", 10, mean=[0.5, 0.4, 0.3], std=[0.2, 0.1, 0.5])
    other = models.create("demo-cnn", 10)
    other.load_state_dict(model.state_dict())
    x = torch.rand(2, 3, 32, 32)
    assert torch.equal(model.eval()(x), other.eval()(x))


def test_a_width_factor_scales_the_channels():
    full, half = models.create("demo-cnn", 10), models.create("demo-cnn@0.5", 10)
    assert [m.out_channels for m in full.modules() if isinstance(m, nn.Conv2d)] == [16, 32, 64]
    assert [m.out_channels for m in half.modules() if isinstance(m, nn.Conv2d)] == [8, 16, 32]


def test_the_wide_resnet_has_the_layer_names_of_the_trades_checkpoint():
    keys = models.create("wrn-10-2", 10)[1].state_dict().keys()
    assert {
        "conv1.weight",
        "block1.layer.0.bn1.weight",
        "block2.layer.0.convShortcut.weight",
        "bn1.weight",
        "fc.bias",
    } <= keys


def test_the_resnet_has_the_layer_names_of_the_robustness_library():
    keys = models.create("resnet50@0.125", 10)[1].state_dict().keys()
    assert {"conv1.weight", "layer1.0.shortcut.1.weight", "layer4.2.bn3.bias", "linear.weight"} <= keys


@pytest.mark.slow
def test_torchvision_models_come_by_name():
    model = models.create("mobilenet_v3_small", 10, image_size=64).eval()
    assert model(torch.rand(2, 3, 64, 64)).shape == (2, 10)


@pytest.mark.slow
def test_the_prefix_chooses_torchvision_where_a_name_is_also_ours():
    ours, theirs = (
        models.create("resnet18@0.125", 10),
        models.create("torchvision:resnet18", 10, image_size=64),
    )
    assert ours[1].conv1.kernel_size == (3, 3)
    assert theirs[1].conv1.kernel_size == (7, 7)


def test_creation_is_seeded_by_torch():
    made = []
    for _ in range(2):
        torch.manual_seed(3)
        made.append(copy.deepcopy(models.create("demo-cnn", 10).state_dict()))
    assert all(torch.equal(made[0][key], made[1][key]) for key in made[0])


@pytest.mark.parametrize(
    ("name", "arguments", "message"),
    [
        ("resnet81", {}, "did you mean 'resnet18'"),
        ("resnet18@wide", {}, "width factor"),
        ("resnet18@0", {}, "width factor"),
        ("alexnet@0.5", {}, "no model 'alexnet' of ours"),
        ("wrn-33-10", {}, "6 n \\+ 4"),
        ("demo-cnn", {"num_classes": 1}, "at least 2 classes"),
        ("demo-cnn", {"mean": [0.5]}, "mean has 1 values, but the images have 3"),
        ("demo-cnn", {"std": [0.5, 0.0, 0.5]}, "std must be positive"),
        ("mobilenet_v3_small", {"in_channels": 1}, "takes 3 channels"),
        pytest.param("alexnet", {"image_size": 28}, "does not take 3x28x28 images", marks=pytest.mark.slow),
        ("fasterrcnn_resnet50_fpn", {}, "no model is called"),
        pytest.param("googlenet", {"image_size": 64}, "auxiliary outputs", marks=pytest.mark.slow),
        pytest.param("vit_b_16", {"image_size": 32}, "does not take 3x32x32 images", marks=pytest.mark.slow),
        ("wrn-100000-1", {}, "depth of at most 1000"),
        ("wrn-16-100000", {}, "width of at most 100"),
    ],
)
def test_bad_models_are_refused_with_the_reason(name, arguments, message):
    with pytest.raises(InputError, match=message):
        models.create(name, **{"num_classes": 10, **arguments})
