"""`cf.train("cfol", data=..., model=..., epochs=...)` is the configuration that these words mean."""

import pytest
import torch
from torch.utils.data import TensorDataset

import cfol_fast as cf
from cfol_fast.errors import InputError
from cfol_fast.training.keywords import configured

NETWORK = "demo-cnn@0.25"


def test_keywords_set_the_fields_that_a_configuration_has():
    meant = cf.TrainConfig(
        {"method": "cfol", "data.name": "fashion-mini", "model.name": NETWORK},
        {"epochs": 3, "optimizer.lr": 0.25, "attack.steps": 2, "params.eta": 0.5},
    )
    words = {"data": "fashion-mini", "model": NETWORK, "epochs": 3, "lr": 0.25, "eta": 0.5}
    assert configured("cfol", {**words, "attack": {"steps": 2}}) == meant
    assert configured(None, {**words, "method": "cfol", "attack": {"steps": 2}}) == meant
    assert configured({"method": "cfol"}, {**words, "attack.steps": 2}) == meant


def test_a_folder_is_taken_by_its_path(tmp_path):
    (tmp_path / "train/a").mkdir(parents=True)
    for folder in (tmp_path, str(tmp_path)):
        config = configured("erm", {"data": folder})
        assert (config.data.name, config.data.root) == ("folder", str(tmp_path))


def test_a_configuration_stays_or_is_changed_by_keywords():
    config = cf.TrainConfig(method="erm", epochs=4)
    assert configured(config, {}) is config
    assert configured(config, {"epochs": 7}) == config.replace(epochs=7)


@pytest.mark.parametrize(
    ("given", "settings", "parts"),
    [
        ("cfl", {}, ["'cfl'", "did you mean 'cfol'"]),
        (None, {}, ["which method?"]),
        ("cfol", {"method": "erm"}, ["'cfol'", "'erm'"]),
        (3, {}, ["got int", "the name of a method"]),
        ("cfol", {"epoch": 3}, ["'epoch'", "did you mean 'epochs'"]),
        ("cfol", {"epochs": "three"}, ["epochs takes a whole number", "'three'"]),
        ("cfol", {"data": "cifar11"}, ["'cifar11'", "did you mean 'cifar10'"]),
        ("cfol", {"data": "/nowhere/images"}, ["/nowhere/images"]),
        ("cfol", {"data": 3}, ["data is the name", "type int", "ClassSampler"]),
        ("cfol", {"model": "resnet-18"}, ["did you mean 'resnet18'"]),
        ("cfol", {"model": torch.nn.Linear(1, 1)}, ["type Linear", "package.module:factory", "ClassSampler"]),
        ("cfol", {"data": TensorDataset(torch.zeros(1))}, ["type TensorDataset", "data='DIR'"]),
    ],
)
def test_what_is_no_name_is_refused_with_a_way_out(given, settings, parts):
    with pytest.raises(InputError) as error:
        cf.train(given, **settings)
    assert [part for part in parts if part not in str(error.value)] == []


@pytest.mark.slow
def test_the_run_of_keywords_is_that_of_the_configuration(tmp_path):
    few = {"epochs": 1, "steps_per_epoch": 2, "batch_size": 16, "device": "cpu", "out": str(tmp_path / "a")}
    few |= {"attack": {"steps": 1}, "validation": {"steps": 1}, "test": {"steps": 1}}
    by_words = cf.train("cfol", model=NETWORK, quiet=True, **few)
    config = cf.TrainConfig(method="cfol", model={"name": NETWORK}, **{**few, "out": str(tmp_path / "b")})
    assert by_words.result["test"] == cf.train(config, quiet=True).result["test"]
