"""What a user's editor and prompt say of the public names: types that catch a misspelt argument, and reprs
with the settings.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

import cfol_fast as cf
from cfol_fast import attacks, sampling

ROOT = Path(__file__).parents[1]
SNIPPET = """\
import torch
import cfol_fast as cf

labels = torch.arange(10)
cf.ClassSampler(labels, etta=3)
cf.ExampleSampler("ten")
cf.PGD(torch.nn.Linear(2, 2), eps="8/255")
cf.loader([], cf.ExampleSampler(10), batch_size="2")
{reveals}
"""


@pytest.mark.slow
def test_a_type_checker_knows_every_public_name_and_finds_a_misspelt_argument(tmp_path: Path) -> None:
    names = [name for name in cf.__all__ if name != "__version__"]
    reveals = "\n".join(f"reveal_type(cf.{name})" for name in names)
    file = tmp_path / "snippet.py"
    file.write_text(SNIPPET.format(reveals=reveals))
    command = [
        sys.executable,
        "-m",
        "mypy",
        "--ignore-missing-imports",
        "--cache-dir",
        str(tmp_path),
        str(file),
    ]
    # From another folder, as a user would: the types come from the installed package.
    env = {**os.environ, "MYPYPATH": str(ROOT)}
    said = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True).stdout
    assert 'snippet.py:5: error: Unexpected keyword argument "etta"' in said
    assert re.search(r'snippet.py:6: error: .*"ExampleSampler" has incompatible type "str"', said)
    assert re.search(r'snippet.py:7: error: .*"PGD" has incompatible type "str"', said)
    assert re.search(r'snippet.py:8: error: .*"loader" has incompatible type "str"', said)
    revealed = re.findall(r'Revealed type is "(.*)"', said)
    assert len(revealed) == len(names)
    assert not {"Any", "builtins.Any", "typing.Any"} & set(revealed)


@pytest.mark.parametrize(
    ("sampler", "said"),
    [
        (
            sampling.ClassSampler(torch.arange(6) % 3, eta=0.25),
            "ClassSampler(n=6, num_classes=3, eta=0.25, gamma=0.5, draws=180, device='cpu')",
        ),
        (
            sampling.ExampleSampler(6, eta=0.125),
            "ExampleSampler(n=6, eta=0.125, gamma=0.5, draws=180, device='cpu')",
        ),
        (sampling.UniformSampler(6), "UniformSampler(n=6, device='cpu')"),
        (sampling.FixedClassSampler([0, 1]), "FixedClassSampler(n=2, num_classes=2, device='cpu')"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_sampler_says_what_it_is(sampler: sampling.IndexSampler, said: str) -> None:
    assert repr(sampler) == said


def test_a_reweighted_sampler_says_so() -> None:
    assert "reweight=True" in repr(sampling.ClassSampler([0, 1], reweight=True))


@pytest.mark.parametrize("kind", list(attacks.KINDS))
def test_an_attack_says_what_it_does(kind: str) -> None:
    attack = attacks.create(kind, nn.Linear(2, 2), **({} if kind == "none" else {"eps": 0.125}))
    assert repr(attack).startswith(f"{type(attack).__name__}(Linear")
    assert ("eps=0.125" in repr(attack)) == (kind != "none")


def test_a_result_says_its_figures() -> None:
    model = nn.Sequential(nn.Flatten(), nn.Linear(4, 2))
    model[1].weight.data.zero_()
    model[1].bias.data.copy_(torch.tensor([1.0, 0.0]))
    x, y = torch.rand(4, 1, 2, 2), torch.tensor([0, 0, 0, 1])
    inside = "ClassAccuracy(average 75.0%, 20 % tail 0.0%, worst 0.0% (1), 4 examples)"
    assert repr(cf.evaluate(model, x, y)) == f"Evaluation(no attack, clean={inside})"
    attacked = cf.evaluate(model, x, y, attack={"eps": 0.1})
    assert repr(attacked) == f"Evaluation(pgd, clean={inside}, robust={inside})"


def test_a_loader_says_what_it_reads() -> None:
    loader = cf.loader([0, 1], sampling.UniformSampler(2), batch_size=2)
    assert repr(loader) == "loader(list, UniformSampler(n=2, device='cpu'), batch_size=2, workers=0, lag=4)"
