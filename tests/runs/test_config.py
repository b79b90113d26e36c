"""The configuration tree: one set of fields for the command line, TOML, --set and Python."""

from __future__ import annotations

import copy
import json
import pickle
from typing import Any

import pytest

import cfol_fast as cf
from cfol_fast.errors import InputError
from cfol_fast.runs.config import TrainConfig, by_path, settings, to_dict
from cfol_fast.runs.defaults import holdout_label
from cfol_fast.runs.open_settings import assignment, merged, of_file


def given(*texts: str) -> dict[str, Any]:
    """What --set says."""
    return merged(*map(assignment, texts))


def assigned(*texts: str) -> TrainConfig:
    return TrainConfig(*map(assignment, texts))


def test_fractions_are_understood():
    assert assigned("attack.eps=8/255").attack.eps == 8 / 255


def test_a_field_can_be_set_by_its_last_name_where_only_one_has_it():
    assert assigned("lr=0.05").optimizer.lr == 0.05


def test_a_name_that_several_fields_have_is_refused_with_their_keys():
    with pytest.raises(InputError, match=r"attack.steps or validation.steps or test.steps"):
        given("steps=10")


@pytest.mark.parametrize(
    ("key", "nearest"),
    [
        ("atack.eps", "attack.eps"),
        ("epoch", "epochs"),
        ("attack.epsilon", "attack.eps"),
        ("gama", "params.gamma"),
    ],
)
def test_an_unknown_key_is_refused_with_the_nearest_known_one(key, nearest):
    with pytest.raises(InputError, match=f"unknown configuration key '{key}'; did you mean '{nearest}'"):
        given(f"{key}=1")


def test_parameters_of_the_method_are_set_by_their_names():
    assert given("eta=1e-4", "params.gamma=9/10", "prior=empirical") == {
        "params.eta": 1e-4,
        "params.gamma": 0.9,
        "params.prior": "empirical",
    }


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("epochs=many", "epochs takes a whole number, got 'many'"),
        ("epochs=1.5", "epochs takes a whole number"),
        ("attack.eps=8/0", "attack.eps takes a number"),
        ("compile=perhaps", "compile takes true or false"),
        ("optimizer.milestones=ten", "optimizer.milestones takes a list of whole numbers"),
        ("epochs", "takes key=value"),
        ("batch_size=none", "batch_size needs a value"),
    ],
)
def test_values_of_the_wrong_kind_are_refused(text, message):
    with pytest.raises(InputError, match=message):
        given(text)


def test_lists_booleans_and_none_are_understood():
    texts = [
        "optimizer.milestones=[10, 20]",
        "data.augment=false",
        "data.imbalance=10",
        "data.imbalance=none",
    ]
    assert given(*texts) == {"optimizer.milestones": (10, 20), "data.augment": "none"}


def test_the_tree_survives_json():
    config = assigned("attack.eps=8/255", "optimizer.milestones=10,20", "eta=1e-4", "data.name=cifar10")
    tree = json.loads(json.dumps(to_dict(config)))
    assert TrainConfig.recorded(tree) == TrainConfig(tree) == config


def test_a_toml_file_sets_the_same_fields(tmp_path):
    path = tmp_path / "run.toml"
    path.write_text(
        'method = "erm"\nepochs = 3\n[attack]\neps = "8/255"\n[params]\neta = 1e-4\n[data]\nholdout = 0.1\n'
    )
    assert of_file(path) == {
        "method": "erm",
        "epochs": 3,
        "attack.eps": 8 / 255,
        "params.eta": 1e-4,
        "data.holdout": "0.1",
    }


def test_a_toml_file_with_a_mistake_is_refused(tmp_path):
    path = tmp_path / "run.toml"
    path.write_text("[atack]\neps = 0.1\n")
    with pytest.raises(InputError, match="unknown configuration group 'atack'; did you mean 'attack'"):
        of_file(path)
    path.write_text("epochs = = 3")
    with pytest.raises(InputError, match="is not TOML"):
        of_file(path)
    with pytest.raises(InputError, match="no file"):
        of_file(tmp_path / "none.toml")


def test_every_setting_can_be_given_by_its_path_or_in_its_group():
    config = assigned("data.name=cifar10", "method=cfol", "attack.eps=0.2")
    values = {key: value for key, value in by_path(config).items() if key != "params"}
    assert values.keys() == settings().keys() - {"params"}
    assert TrainConfig(values, params=config.params) == TrainConfig(to_dict(config)) == config


def test_the_papers_recipe_is_the_default():
    config = assigned("data.name=cifar10", "method=cfol")
    assert (config.epochs, config.batch_size, config.model.name) == (200, 128, "resnet18")
    assert config.optimizer.milestones == (100, 150)
    assert (config.optimizer.lr, config.optimizer.momentum, config.optimizer.weight_decay) == (0.1, 0.9, 5e-4)
    assert config.attack.eps == pytest.approx(8 / 255)
    assert config.attack.step == pytest.approx(2 / 255)
    assert (config.attack.steps, config.test.steps) == (7, 20)
    assert config.test.step == pytest.approx(2.5 * 8 / 255 / 20)
    assert (config.params["eta"], config.params["gamma"]) == (2e-6, 0.5)


def test_the_embedded_images_have_the_demos_recipe():
    config = assigned("method=cfol")
    assert (config.data.name, config.epochs, config.model.name) == ("fashion-mini", 12, "demo-cnn")
    assert (config.optimizer.schedule, config.optimizer.lr) == ("one-cycle", 0.05)
    assert (config.attack.eps, config.attack.step) == (0.1, pytest.approx(0.25 / 7))
    assert config.params["eta"] == 1e-4


def test_imagenette_scales_eta_as_the_paper_does():
    assert assigned("method=cfol", "data.name=imagenette").params["eta"] == 5e-6


def test_a_larger_radius_scales_the_steps():
    config = assigned("data.name=cifar10", "attack.eps=12/255")
    assert config.attack.step == pytest.approx(3 / 255)
    assert config.test.eps == pytest.approx(12 / 255)
    assert config.test.step == pytest.approx(2.5 * 12 / 255 / 20)


OPEN = ("attack.eps", "attack.steps", "attack.kind", "optimizer.lr", "epochs", "model.name", "out", "shards")


@pytest.mark.parametrize("method", ["cfol", "erm", "clean", "trades"])
def test_a_configuration_has_a_value_for_all_that_follows_others(method):
    config = TrainConfig(method=method)
    following = [key for key, chosen in settings().items() if chosen.follows]
    assert set(OPEN) <= set(following)
    assert [key for key in following if by_path(config)[key] is None] == []


def test_what_the_user_gave_stays_and_what_follows_it_follows():
    first = cf.TrainConfig(method="erm", attack={"steps": 3}, **{"attack.eps": "8/255"})
    second = first.replace(attack={"eps": "4/255"}, seed=1)
    assert (first.attack.eps, second.attack.eps) == (8 / 255, 4 / 255)
    assert second.attack.steps == 3
    assert second.attack.step == pytest.approx(first.attack.step / 2)
    assert second.test.eps == 4 / 255
    assert second.test.step == pytest.approx(first.test.step / 2)
    assert (second.method, second.out) == ("erm", "runs/fashion-mini-erm-seed1")
    assert second == cf.TrainConfig(second.given)


def test_none_takes_back_what_was_given():
    given = TrainConfig(method="cfol", params={"eta": 0.5}, attack={"eps": 0.2})
    assert given.replace(attack={"eps": None}) == TrainConfig(method="cfol", params={"eta": 0.5})
    assert given.replace(method="erm", params=None) == TrainConfig(method="erm", attack={"eps": 0.2})
    with pytest.raises(InputError, match="erm has no parameter 'eta'"):
        given.replace(method="erm")


def test_later_layers_win_and_keywords_over_all():
    layers = {"epochs": 3, "attack": {"eps": 0.1}}, {"attack.eps": 0.2, "epochs": 4}
    config = TrainConfig(*layers, epochs=5)
    assert (config.epochs, config.attack.eps) == (5, 0.2)


@pytest.mark.parametrize("path", ["seed", "attack.eps", "params.eta", "data.root", "nonsense"])
def test_assignment_is_refused_with_the_way_out(path):
    config = TrainConfig(method="cfol")
    *groups, name = path.split(".")
    owner: Any = config
    for group in groups:
        owner = getattr(owner, group)
    before = copy.deepcopy(config)
    assign = type(owner).__setitem__ if isinstance(owner, dict) else setattr
    with pytest.raises(InputError, match=r"config\.replace\("):
        assign(owner, name, 1)
    assert config == before


def test_a_configuration_travels_between_processes():
    config = TrainConfig(method="cfol", attack={"eps": 0.2})
    for copied in (pickle.loads(pickle.dumps(config)), copy.deepcopy(config)):
        assert copied == config
        assert copied.given == config.given
        with pytest.raises(InputError):
            copied.params["eta"] = 1


def test_a_value_that_a_run_has_settled_changes_nothing_else():
    config = TrainConfig(method="cfol")
    there = config.with_settled({"device": "cuda:1", "attack.eps": 0.5})
    assert (there.device, there.attack.eps) == ("cuda:1", 0.5)
    assert there.attack.step == config.attack.step
    assert there.given == config.given


def test_a_group_takes_a_mapping_and_a_setting_takes_none():
    with pytest.raises(InputError, match="unknown configuration key 'attack'"):
        TrainConfig(attack=3)
    with pytest.raises(InputError, match="epochs takes no group of settings"):
        TrainConfig(epochs={"a": 1})


def test_a_stored_configuration_that_lacks_a_setting_is_refused_by_its_name():
    tree = to_dict(TrainConfig())
    del tree["shards"]
    with pytest.raises(InputError, match="no value of shards"):
        TrainConfig.recorded(tree)


@pytest.mark.parametrize(
    ("text", "label"), [("0.2", "20%"), ("25%", "25%"), ("1/10", "10%"), ("test", "test"), ("none", "none")]
)
def test_the_hold_out_is_labelled(text, label):
    assert holdout_label(text) == label


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("method=cfoll", "did you mean 'cfol'"),
        ("data.name=cifar11", "did you mean 'cifar10'"),
        ("data.holdout=2", "holdout must be a share between 0 and 1"),
        ("data.holdout=some", "holdout must be a share"),
        ("epochs=0", "epochs must be at least 1, got 0"),
        ("attack.eps=-0.1", "attack.eps must be at least 0"),
        ("optimizer.lr=0", "optimizer.lr must be above 0, got 0"),
        (
            "optimizer.schedule=sawtooth",
            "optimizer.schedule must be one of steps, one-cycle, cosine, constant",
        ),
        ("attack.kind=pdg", "attack.kind must be one of"),
        ("precision=float16", "precision must be one of"),
        ("alpha=0.5", "cfol has no parameter 'alpha'"),
        ("data.crop=centre", "data.crop must be one of own, random-resized, got 'centre'"),
        ("data.crop_scale=0", "data.crop_scale must be above 0, got 0"),
        ("device=gpu", "unknown device 'gpu'"),
        ("seed=-1", "seed must be at least 0"),
    ],
)
def test_bad_values_are_refused_when_the_configuration_is_completed(text, message):
    with pytest.raises(InputError, match=message):
        assigned(text)
