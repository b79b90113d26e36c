"""The table says above its figures what they were measured with."""

import pytest
import torch

import cfol_fast as cf


def measured(attack, **options) -> list[str]:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(12, 3))
    report = cf.evaluate(
        model, torch.rand(9, 3, 2, 2), torch.arange(9) % 3, attack=attack, device="cpu", **options
    )
    lines = report.table().splitlines()
    head = next(number for number, line in enumerate(lines) if line.startswith("class "))
    return [line for line in lines[:head] if not line.startswith("warning: ")] + [lines[head]]


@pytest.mark.parametrize(
    ("attack", "line"),
    [
        ({"eps": 8 / 255, "steps": 3, "step": 2 / 255}, "attack: pgd, linf radius 8/255, 3 steps of 2/255"),
        (
            {"kind": "pgd", "eps": 0.5, "norm": "l2", "steps": 2, "step": 0.1, "restarts": 2, "loss": "cw"},
            "attack: pgd, l2 radius 0.5, 2 steps of 0.1, 2 restarts, loss cw",
        ),
        ({"kind": "fgsm", "eps": 0.25}, "attack: fgsm, linf radius 0.25, 1 step of 0.3125"),
    ],
)
def test_the_attack_its_radius_and_steps_the_data_and_the_device_stand_above_the_figures(attack, line):
    *head, columns = measured(attack)
    assert head == [line, "data: 9 images", "device: cpu"]
    assert columns.split()[2:] == ["clean", "robust", "robust", "95", "%", "interval"]


def test_without_an_attack_the_interval_is_of_the_clean_accuracy():
    *head, columns = measured(None)
    assert head[0] == "attack: none"
    assert columns.split("  ")[-1].strip() == "95 % interval"
    assert "robust" not in columns
