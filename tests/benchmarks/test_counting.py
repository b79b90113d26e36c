"""What the benchmarks compute beside times: operations, exponents, the layers of a network, flags, tenths of
a run.
"""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from benchmarks import bfloat16, gpu, ranks, step_profile
from benchmarks.active_set import STEPS, account, image_passes
from benchmarks.autoattack import difference
from benchmarks.bfloat16 import measure, why_not
from benchmarks.limit import WINOGRAD, Layer, layers_of, ways
from benchmarks.peak import Operations, operations
from benchmarks.pgd import FORMATS
from benchmarks.scaling import exponent
from benchmarks.steps import DEMO, RESNET, Problem, UsualStep, tiny_of
from benchmarks.timing import Timing, winner
from benchmarks.week import Tenth, compared
from cfol_fast import evaluate


def test_an_exponent_is_the_slope_of_the_logarithms():
    assert exponent([1, 2, 4, 8], [3.0, 12.0, 48.0, 192.0]) == pytest.approx(2)
    assert exponent([10, 100], [5.0, 5.0]) == pytest.approx(0)


def test_the_operations_of_a_step_are_those_of_all_its_passes():
    """A pass of all gradients costs three forward passes, one of input gradients alone two; the first layer's
    inputs need none.
    """
    none, two = (
        operations(Problem("demo-cnn", batch=2, steps=0)),
        operations(Problem("demo-cnn", batch=2, steps=2)),
    )
    forward = (two - none) / (2 * 2)
    # In each direction 32 places for 3 taps, of which two lie on the padding.
    first_layer = 2 * 2 * 16 * 3 * (3 * 32 - 2) ** 2
    assert none == 3 * forward - first_layer


@pytest.mark.parametrize(
    ("size", "weight", "stride", "padding", "dilation", "groups"),
    [
        ((4, 4), (5, 3, 3, 3), 1, 1, 1, 1),
        ((9, 6), (6, 1, 3, 2), (2, 1), (1, 0), 1, 3),
        ((7, 8), (2, 3, 3, 5), 3, (2, 4), (2, 1), 1),
        ((5, 5), (2, 3, 1, 1), 2, 0, 1, 1),
    ],
)
def test_taps_on_the_padding_are_no_operations(size, weight, stride, padding, dilation, groups):
    """Of ones, a convolution adds up one for each product that is not with the padding."""
    x, ones = torch.ones(2, 3, *size), torch.ones(weight)
    products = F.conv2d(x, ones, None, stride, padding, dilation, groups).sum()
    with Operations() as forward:
        y = F.conv2d(x.requires_grad_(), ones.requires_grad_(), None, stride, padding, dilation, groups)
    with Operations() as backward:
        y.sum().backward()
    assert (forward.total, backward.total) == (2 * products, 4 * products)


def test_the_layers_of_resnet18_are_counted_by_shape():
    layers = layers_of(tiny_of(Problem()))
    assert sum(layers.values()) == 20
    assert max(layers.values()) == 4


WINOGRADS = Layer((4, 16, 9, 8), (32, 16, 3, 3), (1, 1), (1, 1), (1, 1), 1)


@pytest.mark.parametrize(("layer", "backward", "forward"), [(None, 3, 5), (WINOGRADS, 3, 6)])
def test_every_way_of_a_convolution_computes_the_same(layer, backward, forward):
    if layer is None:
        (layer, *_) = layers_of(tiny_of(DEMO))
        assert layer.x == (4, 1, 28, 28)
    calls = ways(layer)
    own = ("our op", WINOGRAD)
    gradients = [
        call() if way in own else call()[0] for (_, which, way), call in calls.items() if which != "forward"
    ]
    outputs = [call().relu() for (_, which, _), call in calls.items() if which == "forward"]
    assert (len(gradients), len(outputs)) == (backward, forward)
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


@pytest.mark.parametrize("why", [None, "it has none"])
def test_the_profile_is_of_the_networks_whose_rows_it_explains(why, monkeypatch):
    asked = []
    monkeypatch.setattr(
        step_profile, "table", lambda problem, _, *precision: str(asked.append((problem, *precision)))
    )
    monkeypatch.setattr(step_profile, "why_not", lambda: why)
    assert ("it has none" in step_profile.profiles(False)) == (why is not None)
    assert set(asked) == {(RESNET,), (DEMO,)} | ({(RESNET, "bfloat16")} if why is None else set())


def test_oneDNNs_product_is_no_convolution():
    assert step_profile.group_of("mkldnn::_linear_pointwise") == "matrix products"
    assert step_profile.group_of("mkldnn::_convolution_pointwise") == "convolutions, forward"


def test_the_passes_of_an_evaluation_are_counted_by_the_image():
    """Two of four images are right from the start, and stay so; the model is asked about the clean and about
    the last images.
    """
    model, x = nn.Sequential(nn.Flatten(), nn.Linear(4, 2)), torch.rand(4, 1, 2, 2)
    nn.init.zeros_(model[1].weight)
    model[1].bias.data = torch.tensor([1.0, 0.0])
    labels, attack = torch.tensor([0, 0, 1, 1]), {"eps": 0.1, "steps": STEPS}
    active, everything = (
        image_passes(
            model, lambda chosen=chosen: evaluate(model, x, labels, attack=attack, active_set=chosen)
        )
        for chosen in (True, False)
    )
    assert everything == (4 * STEPS, 4 + 4)
    assert active == (2 * STEPS, 4 + 2)
    assert account((10, 5), (20, 10)).endswith("at 2.00x")


@pytest.mark.parametrize(("share", "reached"), [(0.004, True), (0.006, False)])
def test_a_draw_that_takes_more_than_its_share_of_a_step_is_seen(share, reached, monkeypatch):
    """However slowly it grows with ranks."""

    def interleaved(calls, *repetitions, **options):
        return {(name, size): Timing([1.0 if name == "step" else share]) for name, size in calls}

    monkeypatch.setattr(ranks, "OurStep", lambda problem: None)
    monkeypatch.setattr(ranks, "interleaved", interleaved)
    assert {row.reached for row in ranks.draws(True)} == {reached}


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
    monkeypatch.setattr(bfloat16, "winner", lambda calls, _: next(name for name in calls if name == layout))
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
