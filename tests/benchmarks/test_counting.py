"""What the benchmarks compute beside times: operations, exponents, the layers of a network, flags, tenths of a run."""

from dataclasses import asdict

import pytest
import torch

from benchmarks import readme
from benchmarks.autoattack import difference
from benchmarks.bfloat16 import measure, why_not
from benchmarks.limit import layers_of, title_of, ways
from benchmarks.peak import operations
from benchmarks.rows import Row
from benchmarks.scaling import exponent
from benchmarks.steps import DEMO, Problem, tiny_of
from benchmarks.week import Tenth, compared


def test_an_exponent_is_the_slope_of_the_logarithms():
    assert exponent([1, 2, 4, 8], [3.0, 12.0, 48.0, 192.0]) == pytest.approx(2)
    assert exponent([10, 100], [5.0, 5.0]) == pytest.approx(0)


def test_the_operations_of_a_step_are_those_of_all_its_passes():
    """A pass of all gradients costs three forward passes, one of input gradients alone two; the first layer's inputs need none."""
    none, two = (
        operations(Problem("demo-cnn", batch=2, steps=0)),
        operations(Problem("demo-cnn", batch=2, steps=2)),
    )
    forward = (two - none) / (2 * 2)
    first_layer = 2 * 2 * 16 * 3 * 9 * 32 * 32
    assert none == 3 * forward - first_layer


def test_the_layers_of_resnet18_are_counted_by_shape():
    layers = layers_of(tiny_of(Problem()))
    assert sum(layers.values()) == 20
    assert max(layers.values()) == 4


def test_every_way_of_a_convolution_computes_the_same():
    (layer, *_) = layers_of(tiny_of(DEMO))
    assert layer.x == (4, 1, 28, 28)
    calls = ways(layer)
    gradients = [
        call()[0] if way != "our op" else call()
        for (_, which, way), call in calls.items()
        if which != "forward"
    ]
    outputs = [call().relu() for (_, which, _), call in calls.items() if which == "forward"]
    assert (len(gradients), len(outputs)) == (3, 5)
    for output in outputs[1:]:
        torch.testing.assert_close(output, outputs[0], atol=1e-4, rtol=1e-4)
    for gradient in gradients[1:]:
        torch.testing.assert_close(gradient, gradients[0], atol=1e-3, rtol=1e-4)


def test_a_paragraph_on_the_attack_does_not_explain_its_limit():
    missed = Row(title_of("PGD-7, ResNet-18"), "x", 1.2, "<= 1.06", 1.0, 1.0, "n")
    page = f"{readme.MISSED}\n- **PGD-7**: slow"
    assert readme.unexplained([{"questions": [asdict(missed)]}], page) == [missed.name]


def test_each_flag_that_differs_is_listed():
    share, _, note = difference(torch.tensor([True, False, True]), torch.tensor([True, True, True]))
    assert share == pytest.approx(1 / 3)
    assert note == "1 of 3 images: 1 (ours broken, theirs held)"


def test_equal_flags_are_a_share_of_nothing():
    flags = torch.tensor([True, False])
    assert difference(flags, flags)[::2] == (0.0, "0 of 2 images")


def test_a_processor_without_bfloat16_is_told_why(monkeypatch):
    monkeypatch.setattr("benchmarks.bfloat16.cpu_flags", lambda: {"avx2"})
    assert "no bfloat16 instructions" in why_not()
    rows = measure(False)
    assert rows
    assert all(row.ratio is None and row.note == why_not() for row in rows)


def test_memory_that_grows_is_seen():
    flat, grown = Tenth(1e-5, 2e-5, 100 << 20), Tenth(1e-5, 2e-5, 110 << 20)
    assert [row.reached for row in compared("w", 10, [flat, grown])] == [True, True, False]
