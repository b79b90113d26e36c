"""`cfol-fast eval` for pipelines: requirements as an exit status, and accuracy over the radius."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from cfol_fast.commands import main as cli

pytestmark = pytest.mark.slow


def evaluate(weights: Path, *options: str) -> int:
    common = ["--dataset", "fashion-mini", "--limit", "40", "--steps", "2", "--device", "cpu"]
    return cli.main(["eval", str(weights), *common, *options])


def test_what_is_met_is_status_0(weights: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert evaluate(weights, "--require", "worst>=0", "--require", "clean.average>=0%", "--quiet") == 0
    assert capsys.readouterr().err == ""


def test_what_is_not_met_is_status_1_and_a_sentence(
    weights: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "e.json"
    options = ["--require", "worst>=0.9", "--require", "average>=0", "--require", "Ankle boot>=0.95"]
    assert evaluate(weights, *options, "--quiet", "--json", str(out)) == 1
    said = capsys.readouterr().err.splitlines()
    assert len(said) == 2
    assert said[0].startswith("cfol-fast: not met: robust worst >= 0.9: it is ")
    assert said[1].startswith("cfol-fast: not met: robust Ankle boot >= 0.95: it is ")
    written = json.loads(out.read_text())["requirements"]
    assert [one["met"] for one in written] == [False, True, False]


def test_a_result_in_doubt_is_said_above_the_table_and_meets_no_requirement(
    weights: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """With a radius of 0 the attack raises no loss."""
    out = tmp_path / "e.json"
    options = ["--eps", "0", "--require", "average>=0", "--json", str(out)]
    assert evaluate(weights, *options) == 1
    shown = capsys.readouterr()
    written = json.loads(out.read_text())
    assert [one["warning"] for one in written["warnings"]] == ["attack without effect"]
    lines = shown.out.splitlines()
    warning = lines.index(f"warning: {written['warnings'][0]['reason']}")
    head = next(number for number, line in enumerate(lines) if line.startswith("class "))
    assert warning < head
    assert written["requirements"][0]["met"] is False
    assert written["warnings"][0]["reason"] in shown.err
    assert evaluate(weights, *options, "--quiet") == 1
    shown = capsys.readouterr()
    assert shown.err.splitlines()[0] == f"cfol-fast: warning: {written['warnings'][0]['reason']}"
    # Without a requirement it is said, and no more.
    assert evaluate(weights, "--eps", "0", "--quiet") == 0


def test_a_curve_is_in_table_and_json(
    weights: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "e.json"
    assert evaluate(weights, "--eps", "0,2/255, 4/255", "--json", str(out)) == 0
    written = json.loads(out.read_text())
    assert [at["eps"] for at in written["curve"]] == pytest.approx([0, 2 / 255, 4 / 255])
    assert written["curve"][0]["robust"]["per_class"] == written["clean"]["per_class"]
    assert written["curve"][-1]["robust"] == written["robust"]
    assert written["attacks"][0]["attack"]["eps"] == pytest.approx(4 / 255)
    shown = capsys.readouterr()
    assert "accuracy over the radius" in shown.out
    assert "80 of 80" in shown.err


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--require", "wurst>=0.3"], "did you mean 'worst'"),
        (["--require", "worst>=0.3", "--attack", "none"], "needs an attack"),
        (["--eps", "0,1/255", "--attack", "none"], "several radii need an attack"),
        (["--eps", "0,1/255", "--attack", "autoattack", "--state", "s"], "--state belongs to one radius"),
        (["--sanity", "--attack", "fgsm"], "--sanity checks what PGD found"),
        (["--eps", "0,,1"], "--eps must be a number"),
        (["--eps", "1/255,8"], "--eps must be at most 1 for linf"),
    ],
)
def test_a_mistake_is_one_line_and_status_two(
    weights: Path, options: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert evaluate(weights, "--quiet", *options) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1


def test_sanity_says_which_class_fails_which_check(
    weights: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from cfol_fast.evaluation import sanity

    found = [sanity.Check("Square", "a", {"Shirt": "why"}), sanity.Check("large radius", "b")]
    asked = []
    monkeypatch.setattr(
        sanity, "check_gradients", lambda *_, **options: asked.append(options["attack"]) or found
    )
    out = tmp_path / "e.json"
    assert evaluate(weights, "--sanity", "--eps", "4/255", "--json", str(out)) == 1
    assert asked[0]["eps"] == pytest.approx(4 / 255)
    shown = capsys.readouterr()
    assert "  Square        FAILED  a\n    Shirt: why\n" in shown.out
    assert "figures too high: Shirt (Square)" in shown.err
    written = json.loads(out.read_text())["sanity"]
    assert [check["passed"] for check in written] == [False, True]
    found.pop(0)
    assert evaluate(weights, "--sanity", "--quiet") == 0


@pytest.mark.slow
def test_sanity_runs_for_real(weights: Path, tmp_path: Path) -> None:
    out = tmp_path / "e.json"
    assert evaluate(weights, "--sanity", "--eps", "0.1", "--quiet", "--json", str(out)) in (0, 1)
    names = [check["check"] for check in json.loads(out.read_text())["sanity"]]
    assert names == ["more steps and restarts", "Square", "large radius"]
