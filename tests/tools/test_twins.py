"""What `tools/twins.py` counts as a difference; its ten runs are trained by hand, for minutes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from cfol_fast.commands.main import main
from tools import twins

# (file, key, first, second) -> where the entry is put: None for accepted ones.
ENTRIES = [
    ("result.json", "test.robust.worst", 0.5, 0.25, "different"),
    ("last.pt", "model.weight", "missing", "3 values", "added"),
    ("last.pt", "model.bias", "3 values", "missing", "different"),
    ("checkpoints/ema-last.pt", "", "missing", "present", "different"),
    ("config.json", "data.augment", True, "paper", None),
]


def test_only_an_entry_that_the_new_tree_adds_is_no_difference(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = ("file", "key", "first", "second")
    found = [{**dict(zip(keys, entry[:4], strict=True)), "largest": None} for entry in ENTRIES]

    def call(tree: Path, *words: str) -> None:
        Path(words[-1]).write_text(json.dumps({"differences": found}))

    monkeypatch.setattr(twins, "call", call)
    sides = dict(
        zip(
            ("different", "added"),
            twins.compare(tmp_path, tmp_path / "a", tmp_path / "b", ["config.json:data.augment"]),
            strict=True,
        )
    )
    for side, lines in sides.items():
        expected = [f"{file}:{key}" for file, key, _, _, where in ENTRIES if where == side]
        assert [line.partition(": ")[0] for line in lines] == expected


def test_every_run_of_the_ten_is_a_configuration_that_this_version_takes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert len(twins.RUNS) == 10
    for method, *own in twins.RUNS.values():
        words = [str(tmp_path) if word in ("{folder}", "{beton}") else word for word in own]
        assert main(["train", method, *twins.TINY, *words, "--print-config"]) == 0
        assert json.loads(capsys.readouterr().out)["method"] == method
