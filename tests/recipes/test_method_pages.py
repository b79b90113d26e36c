"""The site's pages of methods: what results/ has of a method is said with its figures, and what it has not is
said too.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from cfol_fast import methods
from tests.recipes import fake_frontier
from tools import method_pages

RESULTS = Path(__file__).resolve().parents[2] / "results"


@pytest.fixture
def pages_of() -> Any:
    return method_pages.method_pages


def recipe(*entries: dict[str, Any]) -> str:
    kept = {"datasets": ["fashion-mini"], "checkpoint": "best-average", "command": "cfol-fast reproduce x"}
    return json.dumps({**kept, "blocks": [{"entries": list(entries)}]})


def entry(
    method: str, worst: float, attack: dict[str, Any] | None = None, seeds: tuple[int, ...] = (0,)
) -> dict[str, Any]:
    values = {"robust.average": {"mean": 0.5}, "robust.worst": {"mean": worst}}
    return {"method": method, "model": "demo-cnn", "seeds": list(seeds), "attack": attack, "values": values}


def test_a_method_without_a_run_says_so(pages_of, tmp_path):
    assert set(pages_of(tmp_path)) == {*methods.METHODS, "index"}
    assert pages_of(tmp_path)["dafa"].endswith("No run of this method is kept in `results/` yet.\n")


def test_every_method_has_a_result_in_the_committed_ones(pages_of):
    pages, figures = (
        pages_of(RESULTS),
        r"% on average, [\d.]+ (± [\d.]+ )?% in the worst class",
    )
    # Among classes of one size, which all committed data have, it is erm with replacement.
    not_run = ["balanced"]
    assert [name for name in methods.METHODS if not re.search(figures, pages[name])] == not_run


def test_figures_of_a_weaker_attack_are_not_a_methods_result(pages_of, tmp_path):
    (tmp_path / "mini").mkdir()
    small = entry("clean", 0.25, {"kind": "pgd", "eps": 0.0125}, seeds=(0, 1))
    (tmp_path / "mini" / "a.json").write_text(recipe(small))
    (tmp_path / "mini" / "b.json").write_text(recipe(entry("clean", 0.01)))
    page = pages_of(tmp_path)["clean"]
    assert "50.0 % on average, 1.0 % in the worst class (one seed" in page
    assert "25.0" not in page


@pytest.mark.slow
def test_a_row_of_the_comparison_of_all_methods_is_its_methods_result(pages_of, tmp_path):
    facts = fake_frontier.make(
        tmp_path, {"erm": [8, 12], "cfol": [40, 38], "dafa": [50, 47]}, {"erm": 70, "cfol": 66, "dafa": 60}
    )
    kept = tmp_path / "results" / "mini"
    kept.mkdir(parents=True)
    (kept / "frontier.json").write_text(json.dumps(facts))
    pages = pages_of(kept.parent)
    assert "58.9 ± 1.9 % on average, 48.5 ± 19.1 % in the worst class (2 seeds" in pages["dafa"]
    assert "ERM-AT beside it: 64.0 ± 2.5 % on average, 10.0 ± 25.4 % in the worst class." in pages["dafa"]
    assert "beside it" not in pages["erm"]
    assert "Settings, chosen on a hold-out: eta 0.0002." in pages["cfol"]
    assert "The comparison of all methods has no row of it" in pages["faal"]
    (kept / "frontier.json").write_text(
        json.dumps({**facts, "settings_from": "mini", "eta_times": {"CFOL-AT": 0.381}})
    )
    assert (
        "Settings, chosen on a hold-out at the mini scale: eta 0.0002, the step size times 0.381 here."
        in pages_of(kept.parent)["cfol"]
    )


@pytest.mark.slow
def test_a_method_on_trades_stands_beside_trades(pages_of, tmp_path):
    worst = {"erm": [8, 12], "trades": [10, 14], "wat": [30, 28]}
    facts = fake_frontier.make(tmp_path, worst, {"erm": 70, "trades": 68, "wat": 66})
    kept = tmp_path / "results" / "mini"
    kept.mkdir(parents=True)
    (kept / "frontier.json").write_text(json.dumps(facts))
    pages = pages_of(kept.parent)
    assert "TRADES beside it: " in pages["wat"]
    assert "ERM-AT beside it" not in pages["wat"]
    assert "beside it" not in pages["trades"]
