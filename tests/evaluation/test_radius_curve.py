"""Accuracy over the radius: the same figures as one evaluation per radius, in one result."""

from __future__ import annotations

import pytest

from cfol_fast.errors import InputError
from cfol_fast.evaluation import evaluate, evaluate_radii
from cfol_fast.evaluation.radius_curve import radius_text, table
from cfol_fast.runs.metrics import METRICS
from tests.attacks.small_models import EPS, Trained

PGD = {"kind": "pgd", "steps": 3}


@pytest.mark.slow
def test_every_radius_has_the_figures_of_its_own_evaluation(trained: Trained) -> None:
    report = evaluate_radii(*trained, radii=[EPS, 0, EPS / 2], attack=PGD)
    curve = report.more["curve"]
    assert [at["eps"] for at in curve] == [0, EPS / 2, EPS]
    assert curve[0]["robust"] == report.clean.to_json()
    for at in curve[1:]:
        alone = evaluate(*trained, attack={**PGD, "eps": at["eps"]})
        assert at["robust"] == alone.robust.to_json()
    assert report.robust.to_json() == curve[-1]["robust"]
    assert report.to_json()["curve"] == curve


@pytest.mark.slow
def test_several_attacks_are_the_worst_case_at_each_radius(trained: Trained) -> None:
    kinds = [PGD, {"kind": "fgsm"}]
    curve = evaluate_radii(*trained, radii=[EPS / 2, EPS], attack=kinds).more["curve"]
    for at in curve:
        both = evaluate(*trained, attack=[{**kind, "eps": at["eps"]} for kind in kinds])
        assert at["robust"] == both.robust.to_json()


def test_the_table_has_a_line_per_class_and_a_column_per_radius(trained: Trained) -> None:
    report = evaluate_radii(*trained, radii=[0, 4 / 255, EPS], attack=PGD)
    _, head, *rows = table(report).splitlines()
    assert head.split() == ["eps", "0", "4/255", "0.037"]
    assert rows[0].split()[0] == report.robust.worst_class
    assert len(rows) == 10 + 1 + len(METRICS)
    worst = next(row for row in rows if row.startswith("worst class"))
    assert worst.split()[-2] == f"{100 * report.robust.worst:.1f}"


def test_progress_covers_all_radii(trained: Trained) -> None:
    seen: list[tuple[int, int]] = []
    evaluate_radii(
        *trained, radii=[0, 0.01, 0.02], attack=PGD, progress=lambda *at: seen.append(at), batch_size=100
    )
    assert seen == [(100, 400), (200, 400), (300, 400), (400, 400)]


def test_a_curve_without_a_radius_is_refused(trained: Trained) -> None:
    with pytest.raises(InputError, match="at least one radius above 0"):
        evaluate_radii(*trained, radii=[0.0], attack=PGD)


@pytest.mark.parametrize(("eps", "text"), [(8 / 255, "8/255"), (0, "0"), (0.1, "0.1"), (1, "1"), (3.0, "3")])
def test_a_radius_is_written_as_people_do(eps: float, text: str) -> None:
    assert radius_text(eps) == text
