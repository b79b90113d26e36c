"""What the benchmarks compute beside times: operations, exponents, the layers of a network, flags, tenths of a run."""

import pytest
import torch

from benchmarks import bfloat16, gpu
from benchmarks.autoattack import difference
from benchmarks.bfloat16 import measure, why_not
from benchmarks.limit import layers_of, ways
from benchmarks.peak import operations
from benchmarks.pgd import FORMATS
from benchmarks.scaling import exponent
from benchmarks.steps import DEMO, RESNET, Problem, UsualStep, tiny_of
from benchmarks.timing import Timing, winner
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


def test_the_winner_of_a_race_has_the_least_time(monkeypatch):
    times = {"a": Timing([2.0, 1.5]), "b": Timing([9.0, 1.0])}
    monkeypatch.setattr("benchmarks.timing.interleaved", lambda *race, **options: times)
    assert winner(dict.fromkeys(times, print)) == "b"


@pytest.mark.parametrize("layout", FORMATS)
def test_the_usual_step_computes_in_the_layout_it_is_given(layout):
    problem, seen = tiny_of(RESNET), []
    step = UsualStep(problem)
    step.use(problem.model(), FORMATS[layout])
    step.model.register_forward_pre_hook(
        lambda _, given: seen.append(given[0].is_contiguous(memory_format=FORMATS[layout]))
    )
    step()
    assert seen == [True] * (problem.steps + 1)


@pytest.mark.parametrize("layout", FORMATS)
def test_the_peers_step_in_bfloat16_has_the_layout_that_wins(layout, monkeypatch):
    timed = {}

    def interleaved(calls, repetitions):
        timed.update(calls)
        return {name: Timing([1.0], [1.0]) for name in calls}

    monkeypatch.setattr(bfloat16, "OurStep", lambda *problem, **options: None)
    monkeypatch.setattr(bfloat16, "winner", lambda calls: next(name for name in calls if name == layout))
    monkeypatch.setattr(bfloat16, "interleaved", interleaved)
    assert bfloat16.step(True).note.startswith(f"theirs {layout};")
    assert timed["usual"].memory_format is FORMATS[layout]


def test_memory_on_a_gpu_counts_the_momentum_of_both(monkeypatch):
    """A stand-in of a GPU: a step of each contestant allocates, and the second one counts."""
    held = []
    for name in ("empty_cache", "reset_peak_memory_stats"):
        monkeypatch.setattr(torch.cuda, name, lambda: None)
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda: len(held))
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda: len(held))
    assert gpu.CONTESTANTS["bare"].keywords == {"momentum": True}
    monkeypatch.setattr(
        gpu, "CONTESTANTS", dict.fromkeys(gpu.CONTESTANTS, lambda problem: lambda: held.append(1))
    )
    (row,) = gpu.memory(tiny_of(RESNET))
    assert (row.ratio, row.target, len(held)) == (1.0, "<= 1", 4)


def test_memory_that_grows_is_seen():
    flat, grown = Tenth(1e-5, 2e-5, 100 << 20), Tenth(1e-5, 2e-5, 110 << 20)
    assert [row.reached for row in compared("w", 10, [flat, grown])] == [True, True, False]
