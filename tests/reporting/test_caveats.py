"""Figures of different attacks, test sets or sizes stand in one table only with a word on it, and without a
difference.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from cfol_fast.reporting import tables, terminal
from cfol_fast.reporting.groups import Comparison, compare
from cfol_fast.runs.records import load_run, same_attack
from tests.reporting.synthetic_runs import make_run

PGD = {"kind": "pgd", "eps": 0.1, "step": 0.0125, "steps": 20, "norm": "linf", "seed": 0}


def comparison(*paths: Path) -> Comparison:
    return compare([load_run(path) for path in paths])


def evaluation(file: Path, run: Path, attack: dict[str, Any] = PGD, part: int = 1, **settings: Any) -> Path:
    """An evaluation's file with the accuracies of a run's result; part: on this share of its images."""
    test = json.loads((run / "result.json").read_text())["test"]
    for accuracy in test.values():
        accuracy["count"] = {name: count // part for name, count in accuracy["count"].items()}
        accuracy.pop("confusion", None)
    settings = {"dataset": "fashion-mini", **settings}
    value = {
        "kind": "evaluation",
        **test,
        "attacks": [{"attack": attack, "robust": test["robust"]}],
        "settings": settings,
    }
    value["classes"] = list(test["clean"]["per_class"])
    file.write_text(json.dumps(value))
    return file


@pytest.fixture
def runs(tmp_path: Path) -> dict[str, Path]:
    return {name: make_run(tmp_path / name, name) for name in ("erm", "cfol")}


def differences(table: Any) -> list[Any]:
    return [cell.difference for row in table.rows for cell in row.cells]


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"attack": {**PGD, "steps": 50}}, "another attack"),
        ({"attack": {**PGD, "step": 0.05}}, "another attack"),
        ({"attack": {**PGD, "eps": 0.05}}, "another attack"),
        ({"active_set": True}, "another attack"),
        ({"part": 10}, "300 test images, not 3,000"),
    ],
)
def test_evaluations_of_another_kind_have_no_difference(
    runs: dict[str, Path], tmp_path: Path, changed: dict[str, Any], reason: str
) -> None:
    one, other = (
        evaluation(tmp_path / f"{name}.json", runs[name], **options)
        for name, options in (("erm", {}), ("cfol", changed))
    )
    found = comparison(one, other)
    assert found.caveats() == [
        f"cfol was tested in another way than erm ({reason}): the two cannot be compared, and no difference"
        " is given."
    ]
    for table in (tables.comparison_table(found), tables.classes(found)):
        assert table is not None
        assert set(differences(table)) == {None}
        assert not any(cell.best for row in table.rows for cell in row.cells)
    assert reason in terminal.table_text(found, colour=False)
    assert found.focus is None


def test_evaluations_of_one_kind_are_compared(runs: dict[str, Path], tmp_path: Path) -> None:
    one, other = (evaluation(tmp_path / f"{n}.json", runs[n], {**PGD, "seed": i}) for i, n in enumerate(runs))
    found = comparison(one, other)
    assert found.caveats() == []
    assert any(difference is not None for difference in differences(tables.comparison_table(found)))


def test_folders_of_images_are_told_apart_by_their_path(runs: dict[str, Path], tmp_path: Path) -> None:
    one, other = (
        evaluation(tmp_path / f"{name}.json", runs[name], dataset="folder", data=f"/data/{name}")
        for name in runs
    )
    assert "other images (/data/cfol, not /data/erm)" in comparison(one, other).caveats()[0]


def test_images_that_are_known_by_their_digest_may_lie_anywhere(runs: dict[str, Path]) -> None:
    for number, run in enumerate(runs.values()):
        result = json.loads((run / "result.json").read_text())
        (run / "result.json").write_text(json.dumps({**result, "dataset": "folder"}))
        config = json.loads((run / "config.json").read_text())
        config["data"].update(name="folder", root=f"/data/{number}", content="ab" * 32)
        (run / "config.json").write_text(json.dumps(config))
    assert comparison(*runs.values()).caveats() == []
    config["data"]["content"] = "cd" * 32
    (run / "config.json").write_text(json.dumps(config))
    assert "other images" in comparison(*runs.values()).caveats()[0]


def test_saved_evaluations_of_different_sizes_stand_in_blocks_of_their_own(runs: dict[str, Path]) -> None:
    for part, run in zip((1, 10), runs.values(), strict=True):
        evaluation(run / "eval.json", run, {**PGD, "steps": 50}, part)
    table = tables.evaluations(comparison(*runs.values()))
    assert table is not None
    assert [row.stubs[0] for row in table.rows if row.stubs[0]] == [
        "PGD-50, ε = 0.1, 3,000 images",
        "PGD-50, ε = 0.1, 300 images",
    ]
    assert set(differences(table)) == {None}


def test_an_attack_is_the_same_whatever_its_seed_and_where_older_files_say_less() -> None:
    assert same_attack(PGD, {**PGD, "seed": 3})
    assert same_attack(PGD, {"kind": "pgd", "eps": 0.1})
    assert not same_attack(PGD, {**PGD, "kind": "fgsm"})
    both = {"kind": "worst case", "of": [PGD, {"kind": "autoattack", "eps": 0.1}]}
    assert same_attack(both, both)
    assert not same_attack(both, {"kind": "worst case", "of": [PGD, {"kind": "autoattack", "eps": 0.2}]})
    assert not same_attack(both, {"kind": "worst case", "of": [PGD]})
