"""`--precision`: settled once, when the run is created, kept when it is resumed, and named in the
first line.
"""

import json

import pytest
import torch

from cfol_fast.errors import InputError
from cfol_fast.machine import choose_precision, computing, precision_in_words
from cfol_fast.recipes.planning import configure
from cfol_fast.recipes.recipe import list_recipes, load_recipe
from cfol_fast.runs.identity import identity
from cfol_fast.training import train
from tests.training.tiny import run, run_until, tiny_config

GPU = torch.device("cuda", 1)


@pytest.fixture
def gpu(monkeypatch):
    """A GPU of the given compute capability."""

    def of(*capability):
        def ask(device):
            assert device == GPU
            return capability

        monkeypatch.setattr(torch.cuda, "get_device_capability", ask)

    return of


@pytest.mark.parametrize(
    ("capability", "expected"), [((7, 5), "float32"), ((8, 0), "tf32"), ((12, 0), "tf32")]
)
def test_auto_is_tf32_where_the_gpu_has_it(gpu, capability, expected):
    gpu(*capability)
    assert choose_precision("auto", GPU) == expected
    assert choose_precision("auto", GPU, deterministic=True) == "float32"
    assert choose_precision("auto", torch.device("cpu")) == "float32"


@pytest.mark.parametrize("name", ["float32", "tf32", "bfloat16"])
def test_what_is_asked_for_stays(name):
    assert choose_precision(name, GPU) == name


def test_tf32_and_deterministic_contradict_each_other(tmp_path):
    with pytest.raises(InputError, match="--deterministic computes without TF32"):
        tiny_config(tmp_path, precision="tf32", deterministic=True)


@pytest.mark.parametrize(("precision", "tf32"), [("float32", False), ("tf32", True), ("bfloat16", True)])
def test_float32_is_not_tf32(precision, tf32):
    before = torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32
    with computing(precision):
        assert torch.backends.cudnn.allow_tf32 == torch.backends.cuda.matmul.allow_tf32 == tf32
    assert (torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32) == before


def test_the_words_tell_tf32_from_float32():
    assert precision_in_words("float32", GPU) == "float32"
    assert precision_in_words("tf32", GPU).startswith("TF32: float32 whose products are rounded")
    assert precision_in_words("tf32", torch.device("cpu")) == "float32 (TF32 is for GPUs)"


def test_a_run_stores_what_auto_was_and_says_it_first(few_images, tmp_path, capsys):
    train(tiny_config(tmp_path / "run", precision="auto"))
    assert json.loads((tmp_path / "run" / "config.json").read_text())["precision"] == "float32"
    printed = capsys.readouterr()
    assert (printed.out + printed.err).splitlines()[0] == "cpu: float32"


@pytest.mark.slow
def test_a_resumed_run_keeps_the_precision_it_was_created_with(few_images, tmp_path, monkeypatch):
    run_until(monkeypatch, 2, tmp_path, precision="bfloat16")
    with pytest.raises(InputError, match="precision"):
        run(tmp_path, resume=True, precision="float32")
    run(tmp_path, resume=True)
    assert json.loads((tmp_path / "config.json").read_text())["precision"] == "bfloat16"


def test_a_run_of_version_0_1_is_the_same_run(tmp_path):
    assert "precision" not in identity(tiny_config(tmp_path))
    assert "precision" not in identity(tiny_config(tmp_path, precision="float32"))
    assert identity(tiny_config(tmp_path, precision="tf32"))["precision"] == "tf32"


@pytest.mark.parametrize("name", list_recipes())
def test_recipes_are_computed_in_float32(name):
    recipe = load_recipe(name)
    for block in recipe.blocks:
        for entry in recipe.entries:
            assert configure(recipe, block, entry, "paper", None)["precision"] == "float32"
