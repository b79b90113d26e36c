"""What torchvision says of its models; timm's are in tests/integrations."""

from __future__ import annotations

import pytest
import torch
import torchvision

from cfol_fast import models
from cfol_fast.errors import InputError
from cfol_fast.evaluation.foreign_weights import adopt_published, published_model
from cfol_fast.models.libraries import Published


def test_a_library_says_what_its_weights_were_trained_with() -> None:
    found = models.published("torchvision:resnet18")
    assert found == Published(1000, 224, (0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
    assert models.published("mobilenet_v3_small") == found
    assert found.normalisation(1) == ([pytest.approx(0.449)], [pytest.approx(0.226)])


@pytest.mark.parametrize("name", ["resnet18", "resnet18@0.25", "wrn-16-2", "package.module:factory"])
def test_networks_of_ours_and_of_users_have_no_published_weights(name: str) -> None:
    assert models.published(name) is None


@pytest.fixture
def cached(tmp_path, monkeypatch):
    """torchvision's weights of SqueezeNet, made up, where torch keeps what it fetched."""
    monkeypatch.setenv("TORCH_HOME", str(tmp_path))
    torch.manual_seed(0)
    state = torchvision.models.squeezenet1_1().state_dict()
    folder = tmp_path / "hub/checkpoints"
    folder.mkdir(parents=True)
    torch.save(state, folder / "squeezenet1_1-b8a52dc0.pth")
    return state


def test_published_weights_come_from_the_librarys_cache(cached) -> None:
    model = published_model("torchvision:squeezenet1_1", 1000, 64, 3)
    assert all(
        torch.equal(value, cached[name]) for name, value in model.get_submodule("net").state_dict().items()
    )
    assert model.get_submodule("normalize").mean.flatten().tolist() == pytest.approx([0.485, 0.456, 0.406])


def test_a_head_for_other_classes_is_new(cached) -> None:
    model = models.create("torchvision:squeezenet1_1", 10, image_size=64)
    own = {name: value.clone() for name, value in model.get_submodule("net").state_dict().items()}
    new = adopt_published(model, "torchvision:squeezenet1_1", 64, 3)
    assert new == ["classifier.1.weight", "classifier.1.bias"]
    for name, value in model.get_submodule("net").state_dict().items():
        assert torch.equal(value, own[name] if name in new else cached[name])


def test_published_classes_are_not_those_of_the_data_set() -> None:
    with pytest.raises(InputError, match="tell 1000 classes apart, the data set has 10"):
        published_model("torchvision:resnet18", 10, 64, 3)


def test_weights_that_cannot_be_fetched_are_one_sentence(tmp_path, monkeypatch) -> None:
    def no_network(*args, **options):
        raise OSError("no network")

    monkeypatch.setenv("TORCH_HOME", str(tmp_path))
    monkeypatch.setattr(torch.hub, "download_url_to_file", no_network)
    with pytest.raises(InputError, match=r"neither in the library's cache .*no network.* --init FILE"):
        published_model("torchvision:squeezenet1_1", 1000, 64, 3)


def test_shapes_are_known_without_memory_also_where_a_network_counts_with_tensors() -> None:
    model = models.create_without_numbers("torchvision:regnet_y_400mf", 10, 64, 3)
    assert all(parameter.is_meta for parameter in model.parameters())
    wanted = torchvision.models.regnet_y_400mf(num_classes=10).state_dict()
    found = model.get_submodule("net").state_dict()
    assert {name: value.shape for name, value in found.items()} == {
        name: value.shape for name, value in wanted.items()
    }


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("torchvision:resnet81", "no image classifier 'resnet81'; did you mean torchvision:resnet"),
        ("torchvision:squeezenet1_1", r"does not take 3x8x8 images \(its own are 224 px\)"),
    ],
)
def test_a_librarys_model_that_is_not_there_or_does_not_fit_is_refused(name: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        models.create(name, 10, image_size=8)
