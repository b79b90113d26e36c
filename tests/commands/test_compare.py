"""`cfol-fast compare`: two equal runs are equal in every entry, and each kind of change is found, with its
place and size.
"""

import json
import shutil
from pathlib import Path

import pytest
import torch

from cfol_fast.commands import main as cli
from cfol_fast.runs import checkpoints
from cfol_fast.runs.run_differences import compare
from tests.training import tiny


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "run"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tiny.data, "load", tiny.few_images())
        tiny.run(folder, epochs=1)
    return folder


@pytest.fixture
def pair(finished: Path, tmp_path: Path) -> tuple[Path, Path]:
    for name in ("a", "b"):
        shutil.copytree(finished, tmp_path / name)
    return tmp_path / "a", tmp_path / "b"


def edit_json(path: Path, key: str, value: object) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text()), key: value}))


def edit_last(run: Path, edit) -> None:
    path = run / "checkpoints" / "last.pt"
    state = checkpoints.read(path)
    edit(state)
    checkpoints.write(path, state)


def test_a_copy_is_equal_in_every_file(pair):
    found = compare(*pair)
    assert found.differences == []
    assert {"config.json", "metrics.jsonl", "result.json", "predictions.json"} < found.compared.keys()
    assert found.compared["checkpoints/last.pt"] > 30
    assert cli.main(["compare", *map(str, pair), "--assert-equal"]) == 0


def test_the_last_bit_of_one_weight_is_found(pair, capsys):
    weight = {}

    def edit(state):
        name, tensor = next(iter(state["model"].items()))
        tensor.view(-1)[0] = torch.nextafter(tensor.view(-1)[0], torch.tensor(9.0))
        weight["name"] = name

    edit_last(pair[1], edit)
    (difference,) = compare(*pair).differences
    assert (difference.file, difference.key) == ("checkpoints/last.pt", f"model.{weight['name']}")
    assert 0 < difference.largest < 1e-6
    assert difference.first.startswith("1 of ")
    assert cli.main(["compare", *map(str, pair)]) == 0
    assert cli.main(["compare", *map(str, pair), "--assert-equal"]) == 1


@pytest.mark.parametrize(
    ("edit", "key"),
    [
        (lambda state: state["model"].popitem(), "model."),
        (lambda state: state["sampler"]["rng"].add_(1), "sampler.rng"),
        (lambda state: state["position"].update(step=99), "position.step"),
        (lambda state: state.update(extra=1), "extra"),
        (lambda state: state.update(seed=0.0), "seed"),
    ],
)
def test_every_entry_of_a_checkpoint_counts(pair, edit, key):
    edit_last(pair[1], edit)
    files = [run / "checkpoints" / "last.pt" for run in pair]
    (difference,) = compare(*files).differences
    assert difference.key.startswith(key)


def test_zeros_of_two_signs_and_nan_differ_in_bits(tmp_path):
    files = [tmp_path / "a.pt", tmp_path / "b.pt"]
    for file, value in zip(files, (0.0, -0.0), strict=True):
        checkpoints.write(file, {"zero": torch.tensor([value]), "nan": torch.tensor([float("nan")])})
    (difference,) = compare(*files).differences
    assert (difference.key, difference.largest) == ("zero", 0.0)


@pytest.mark.parametrize("file", ["result.json", "config.json"])
def test_a_value_of_a_file_is_named(pair, file):
    edit_json(pair[1] / file, "seed", 5)
    (difference,) = compare(*pair).differences
    assert (difference.file, difference.key, difference.largest) == (file, "seed", 5)


def test_times_and_places_do_not_count(pair):
    edit_json(pair[1] / "result.json", "seconds", 1e6)
    edit_json(pair[1] / "config.json", "out", "elsewhere")
    assert compare(*pair).differences == []


def test_rows_and_files_that_one_run_lacks_are_differences(pair, tmp_path):
    rows = (pair[1] / "metrics.jsonl").read_text().splitlines(keepends=True)
    (pair[1] / "metrics.jsonl").write_text("".join(rows[:-1]))
    (pair[1] / "checkpoints" / "best-worst.pt").unlink()
    found = compare(*pair).differences
    assert any((one.file, one.key) == ("metrics.jsonl", ".length") for one in found)
    assert any((one.file, one.second) == ("checkpoints/best-worst.pt", "missing") for one in found)
    listed = tmp_path / "differences.json"
    assert cli.main(["compare", *map(str, pair), "--json", str(listed)]) == 0
    assert len(json.loads(listed.read_text())["differences"]) == len(found)


@pytest.mark.parametrize("second", ["nowhere", "a/checkpoints/last.pt", "a/checkpoints"])
def test_what_cannot_be_compared_is_refused(pair, tmp_path, capsys, second):
    assert cli.main(["compare", str(pair[0]), str(tmp_path / second)]) == 2
    assert second.split("/")[-1] in capsys.readouterr().err
