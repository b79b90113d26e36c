"""Networks that code of the user's makes: `package.module:factory`."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

from cfol_fast import models
from cfol_fast.errors import InputError

CODE = """\
from torch import nn

def small(num_classes, in_channels=3, image_size=32):
    return nn.Sequential(nn.Flatten(), nn.Linear(in_channels * image_size**2, num_classes))

def any_options(**options):
    return small(**options)

class Nets:
    flat = staticmethod(small)

def without_classes(width):
    return small(width)

def not_a_network(num_classes):
    return "network"

def failing(num_classes):
    raise KeyError("weights")

number = 3
"""


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The name of a module in the working folder, which is not on the path."""
    (tmp_path / "my_nets.py").write_text(CODE)
    monkeypatch.chdir(tmp_path)
    yield "my_nets"
    sys.modules.pop("my_nets", None)


def test_a_factory_is_given_the_numbers_that_it_has_a_place_for(module: str) -> None:
    model = models.create(f"{module}:small", 7, image_size=8, in_channels=1)
    assert model(torch.rand(2, 1, 8, 8)).shape == (2, 7)
    assert models.create(f"{module}:any_options", 7)(torch.rand(2, 3, 32, 32)).shape == (2, 7)
    assert models.create(f"{module}:Nets.flat", 7)(torch.rand(2, 3, 32, 32)).shape == (2, 7)


def test_the_path_is_as_before(module: str) -> None:
    before = list(sys.path)
    models.create(f"{module}:small", 7)
    assert sys.path == before


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("my_nets:none", "my_nets:none cannot be imported: .*no attribute 'none'"),
        ("no_such_module:none", "cannot be imported: No module named 'no_such_module'"),
        ("my_nets:without_classes", "must have an argument num_classes .* got width"),
        ("my_nets:not_a_network", "must return a torch.nn.Module, got str"),
        ("my_nets:failing", "cannot be built: 'weights'"),
        ("my_nets:number", "must be a function of num_classes, got int"),
        ("my nets:small", "written as package.module:factory, got 'my nets:small'"),
        ("my_nets:", "written as package.module:factory"),
    ],
)
def test_what_is_no_factory_is_refused_with_the_reason(module: str, name: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        models.create(name, 10)


def test_a_file_cannot_make_us_import_code(module: str) -> None:
    stored = models.ModelSpec(f"{module}:small", 7, 8, 1, (0.0,), (1.0,)).to_dict()
    for named in (None, "other:small"):
        with pytest.raises(InputError, match=r"asks for the code 'my_nets:small'.* add --model"):
            models.ModelSpec.from_dict(stored, named)
    assert module not in sys.modules
    assert models.ModelSpec.from_dict(stored, f"{module}:small").create()


def test_names_of_libraries_are_no_code() -> None:
    for name in ("torchvision:resnet18", "timm:resnet18", "resnet18", None):
        models.check_named(name, None, "a file")
