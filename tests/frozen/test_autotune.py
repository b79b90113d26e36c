"""The race between the ways to compute a layer, with a clock of the test's own, and what is kept of it."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._subclasses import FakeTensorMode

from cfol_fast.attacks import PGD
from cfol_fast.errors import InputError
from cfol_fast.frozen import autotune
from cfol_fast.frozen.autotune import FORMAT, Choices, fastest, machine, using
from cfol_fast.frozen.convolution import FORMATS, FORWARD, OWN, FrozenConvolution, convolution
from cfol_fast.ranks import Ranks
from tests.attacks.small_models import EPS, Trained

WAYS = ("usual", "quick", "slow")


class Clock:
    """Time passes only while something runs: `run(name)` takes as long as `seconds` says, the first time
    `making` longer.
    """

    def __init__(self, making: float = 0.0, **seconds: float) -> None:
        self.now, self.making, self.seconds, self.ran = 0.0, making, seconds, list[str]()

    def __call__(self) -> float:
        return self.now

    def run(self, name: str) -> None:
        self.now += self.seconds[name] + (0 if name in self.ran else self.making)
        self.ran.append(name)


def raced(clock: Clock, ways: tuple[str, ...] = WAYS) -> str:
    return fastest(ways, clock.run, clock)


def test_the_fastest_way_wins() -> None:
    assert raced(Clock(usual=2e-3, quick=1e-3, slow=3e-3)) == "quick"


def test_what_is_hardly_faster_does_not_replace_the_usual_way() -> None:
    assert raced(Clock(usual=1e-3, quick=0.98e-3, slow=3e-3)) == "usual"


def test_the_time_that_making_a_kernel_takes_does_not_count() -> None:
    assert raced(Clock(making=1.0, usual=2e-3, quick=1e-3, slow=3e-3)) == "quick"


def test_a_hopeless_way_is_timed_once() -> None:
    clock = Clock(usual=1e-3, quick=0.9e-3, slow=1.4e-3)
    assert raced(clock) == "quick"
    # The run that makes it, and the one that is timed.
    assert clock.ran.count("slow") == 2
    assert clock.ran.count("quick") == 1 + autotune.ROUNDS


def test_what_is_far_behind_while_the_kernels_are_made_is_not_timed() -> None:
    clock = Clock(usual=1e-3, quick=0.9e-3, slow=3e-3)
    assert raced(clock) == "quick"
    assert clock.ran.count("slow") == 1


def test_the_usual_way_is_never_far_behind() -> None:
    clock = Clock(usual=1e-3, quick=1.2e-3, slow=3e-3)

    def run(name: str) -> None:
        clock.run(name)
        # It goes first, and may have to make what the others find made.
        if name == "usual" and clock.ran.count(name) == 1:
            clock.now += 1.0

    assert fastest(WAYS, run, clock) == "usual"


def test_the_usual_way_has_won_when_it_leads_after_two_rounds() -> None:
    clock = Clock(usual=1e-3, quick=1.05e-3, slow=1.06e-3)
    assert raced(clock) == "usual"
    assert len(clock.ran) == 3 * len(WAYS)


def test_a_race_of_slow_layers_has_one_round() -> None:
    clock = Clock(usual=1.0, quick=1.1, slow=1.2)
    assert raced(clock) == "usual"
    assert len(clock.ran) == 2 * len(WAYS)


def test_what_replaces_the_usual_way_of_a_slow_layer_leads_for_some_rounds() -> None:
    clock = Clock(usual=1.0, quick=0.9, slow=1.4)
    assert raced(clock) == "quick"
    assert clock.ran.count("quick") == clock.ran.count("usual") == 1 + autotune.ROUNDS_TO_WIN
    assert clock.ran.count("slow") == 2


def test_a_disturbance_does_not_throw_the_usual_way_out() -> None:
    clock = Clock(usual=1e-3, quick=1.2e-3, slow=3e-3)

    def run(name: str) -> None:
        clock.run(name)
        # Its first timed run.
        if name == "usual" and clock.ran.count(name) == 2:
            clock.now += 9e-3

    assert fastest(WAYS, run, clock) == "usual"


def test_a_disturbance_is_forgotten_because_the_shortest_time_counts() -> None:
    clock = Clock(usual=1e-3, quick=0.9e-3, slow=1.1e-3)

    def run(name: str) -> None:
        clock.run(name)
        if clock.ran.count(name) == 2 and name == "quick":
            clock.now += 0.2e-3

    assert fastest(WAYS, run, clock) == "quick"


def test_a_way_that_cannot_run_here_is_left_out() -> None:
    clock = Clock(usual=2e-3, slow=3e-3)

    def run(name: str) -> None:
        if name == "quick":
            raise RuntimeError("no such kernel")
        clock.run(name)

    assert fastest(WAYS, run, clock) == "usual"


def test_the_usual_way_must_run() -> None:
    def fail(name: str) -> None:
        raise RuntimeError(name)

    with pytest.raises(RuntimeError, match="usual"):
        fastest(WAYS, fail, Clock())


# ---------------------------------------------------------------- what is kept


def racing(file: Path | None = None, **seconds: float) -> tuple[Choices, Clock]:
    clock = Clock(**(seconds or {"usual": 2e-3, "quick": 1e-3, "slow": 3e-3}))
    return Choices("race", file, clock), clock


def test_a_layer_races_once() -> None:
    chosen, clock = racing()
    assert chosen.choose("layer", WAYS, clock.run) == "quick"
    ran = len(clock.ran)
    assert chosen.choose("layer", WAYS, clock.run) == "quick"
    assert len(clock.ran) == ran


def test_where_one_way_is_left_nothing_races() -> None:
    chosen, _ = racing()
    assert chosen.choose("layer", ("usual",), pytest.fail) == "usual"


def test_a_way_that_does_not_race_can_be_pinned() -> None:
    chosen, _ = racing()
    chosen.pin({"layer": "slow", "another": "unheard of"})
    assert chosen.choose("layer", ("usual",), pytest.fail, others=WAYS) == "slow"
    assert chosen.choose("another", ("usual",), pytest.fail, others=WAYS) == "usual"


def test_one_thread_is_timed_by_its_own_time_and_several_by_the_wall(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "thread_time", lambda: 1.0)
    monkeypatch.setattr(time, "perf_counter", lambda: 2.0)
    for threads in (1, 2):
        monkeypatch.setattr(torch, "get_num_threads", lambda threads=threads: threads)
        assert autotune.seconds() == threads


def test_without_a_race_the_usual_way_is_taken_and_noted() -> None:
    chosen = Choices("fixed")
    assert chosen.choose("layer", WAYS, pytest.fail) == "usual"
    assert chosen.used == {"layer": "usual"}


def test_a_process_that_has_raced_enough_takes_the_usual_way_and_leaves_the_race_to_the_next(
    tmp_path: Path,
) -> None:
    chosen, clock = racing(tmp_path / "file.json", usual=2.0, quick=1.0, slow=3.0)
    assert chosen.choose("first", WAYS, clock.run) == "quick"
    assert chosen.choose("second", WAYS, pytest.fail) == "usual"
    chosen.keep()
    assert autotune.read(tmp_path / "file.json", machine()) == {"first": "quick"}


def test_the_next_process_reads_what_was_raced(tmp_path: Path) -> None:
    file = tmp_path / "new" / "file.json"
    chosen, clock = racing(file)
    chosen.choose("layer", WAYS, clock.run)
    chosen.keep()
    assert Choices("race", file).choose("layer", WAYS, pytest.fail) == "quick"
    assert Choices("fixed", file).choose("layer", WAYS, pytest.fail) == "usual"


def test_of_two_processes_that_raced_the_first_is_right(tmp_path: Path) -> None:
    file = tmp_path / "file.json"
    first, second = racing(file), racing(file, usual=1e-3, quick=2e-3, slow=2e-3)
    for chosen, clock in (first, second):
        chosen.choose("layer", WAYS, clock.run)
    for chosen, _ in (first, second):
        chosen.keep()
    assert autotune.read(file, machine()) == {"layer": "quick"}


def kept(**changes: object) -> str:
    return json.dumps({"format": FORMAT, "machine": machine(), "choices": {"layer": "slow"}, **changes})


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        "[" * 100_000,
        "\x00\xff",
        kept(format=FORMAT + 1),
        kept(format=FORMAT - 1),  # there is more to choose from now
        kept(machine={**machine(), "processor": "another"}),
        kept(choices=["layer"]),
        kept(choices={"layer": 3}),
        kept(choices={"layer": "unheard of"}),
    ],
)
def test_a_damaged_or_foreign_cache_file_is_as_none(tmp_path: Path, text: str) -> None:
    file = tmp_path / "file.json"
    file.write_text(text, encoding="latin-1")
    chosen, clock = racing(file)
    assert chosen.choose("layer", WAYS, clock.run) == "quick"


def test_a_cache_folder_that_cannot_be_written_is_no_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    chosen, clock = racing(tmp_path / "file" / "below.json")
    assert chosen.choose("layer", WAYS, clock.run) == "quick"
    chosen.keep()


@pytest.mark.parametrize("written_as", [2, FORMAT])
def test_a_pinned_file_decides_and_nothing_races(tmp_path: Path, written_as: int) -> None:
    file = tmp_path / "pinned.json"
    file.write_text(kept(machine="any", format=written_as))
    chosen = Choices(str(file))
    assert chosen.choose("layer", WAYS, pytest.fail) == "slow"
    assert chosen.choose("another", WAYS, pytest.fail) == "usual"


@pytest.mark.parametrize("setting", ["race", "a file"])
def test_a_pipe_in_the_place_of_the_file_does_not_wait_forever(tmp_path: Path, setting: str) -> None:
    file = tmp_path / "file.json"
    os.mkfifo(file)
    if setting == "race":
        assert autotune.read(file, machine()) == {}
    else:
        with pytest.raises(InputError, match="it is no file"):
            Choices(str(file)).choose("layer", WAYS, pytest.fail)


@pytest.mark.parametrize("made_up", ["text", [1], {"layer": ["slow"]}, {1: "slow"}])
def test_a_checkpoints_choices_that_are_none_are_refused(made_up: Any) -> None:
    with pytest.raises(ValueError, match="these are no choices"):
        Choices("fixed").pin(made_up)


def test_a_relative_home_has_no_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "somewhere")
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    assert autotune.cache_file() is None


def test_tensors_without_values_do_not_race() -> None:
    chosen = Choices("race")
    with using(chosen), FakeTensorMode():
        convolution(torch.rand(2, 3, 9, 7), a_layer())
    assert chosen.used == {}


@pytest.mark.parametrize("text", [None, "{}", "nonsense"])
def test_a_pinned_file_that_is_none_is_refused(tmp_path: Path, text: str | None) -> None:
    file = tmp_path / "pinned.json"
    if text is not None:
        file.write_text(text)
    with pytest.raises(InputError, match="CFOL_CHOICES must be race, fixed or a file"):
        Choices(str(file)).choose("layer", WAYS, pytest.fail)


def test_a_checkpoints_choices_replace_those_of_the_process() -> None:
    chosen, clock = racing()
    chosen.choose("layer", WAYS, clock.run)
    chosen.pin({"layer": "slow"})
    assert chosen.choose("layer", WAYS, pytest.fail) == "slow"


def test_a_checkpoint_from_before_the_race_goes_on_without_one() -> None:
    chosen, clock = racing()
    chosen.choose("layer", WAYS, clock.run)
    chosen.pin(None)
    assert chosen.choose("layer", WAYS, pytest.fail) == "usual"


def test_many_ranks_take_the_usual_way_until_the_first_has_raced_for_all(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(autotune, "group_size", lambda: 2)
    chosen, clock = racing()
    assert chosen.choose("before", WAYS, pytest.fail) == "usual"
    # One rank of a Ranks of one does what rank 0 of two does.
    chosen.share(Ranks(world_size=1), lambda: chosen.choose("layer", WAYS, clock.run))
    assert chosen.choose("layer", WAYS, pytest.fail) == "quick"
    assert chosen.choose("after", WAYS, pytest.fail) == "usual"
    assert chosen.chosen == {"before": "usual", "layer": "quick", "after": "usual"}


@pytest.mark.parametrize(
    ("value", "there"), [("", ".cache"), ("relative", ".cache"), ("/absolute", "/absolute")]
)
def test_the_cache_file_lies_in_the_users_cache_folder(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, value: str, there: str
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", value)
    file = autotune.cache_file()
    assert file is not None
    assert file.parent == tmp_path / there / "cfol_fast"


def test_other_limits_of_the_processor_have_a_file_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    names = []
    for limit in ("AVX2", "AVX512_CORE"):
        monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", limit)
        names.append(autotune.cache_file())
    assert names[0] != names[1]


# ---------------------------------------------------------------- what is raced


class Always(Choices):
    """Takes the ways that the test names, wherever there are such."""

    def __init__(self, *preferred: str) -> None:
        super().__init__("fixed")
        self.preferred = preferred

    def choose(self, layer, names, run, others=()):  # type: ignore[no-untyped-def]
        self.used[layer] = next((name for name in self.preferred if name in (*names, *others)), names[0])
        return self.used[layer]

    def known(self, layer: str) -> str | None:
        return None


def passes(chosen: Choices, x: Tensor, layer: FrozenConvolution) -> tuple[Tensor, Tensor]:
    with using(chosen):
        leaf = x.clone(memory_format=torch.preserve_format).requires_grad_()
        y = convolution(leaf, layer)
        return y.detach(), torch.autograd.grad((y * torch.linspace(-1, 1, y.numel()).view_as(y)).sum(), leaf)[
            0
        ]


def a_layer(inputs: int = 3, relu: bool = True, stride: int = 1) -> FrozenConvolution:
    generator = torch.Generator().manual_seed(0)
    weight = torch.randn(6, inputs, 3, 3, generator=generator)
    bias = torch.randn(6, generator=generator)
    return FrozenConvolution(weight, bias, (stride, stride), (1, 1), (1, 1), 1, relu, own_gradient=False)


def images(inputs: int = 3, batch: int = 5) -> Tensor:
    x = torch.randn(batch, inputs, 9, 7, generator=torch.Generator().manual_seed(1))
    return x.contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize("relu", [True, False])
@pytest.mark.parametrize(("inputs", "stride"), [(1, 1), (3, 1), (3, 2), (5, 1)])
def test_all_ways_agree_up_to_rounding(inputs: int, stride: int, relu: bool) -> None:
    x, layer = images(inputs), a_layer(inputs, relu, stride)
    expected = passes(Choices("fixed"), x, layer)
    for forward in FORWARD:
        for backward in (*FORMATS, OWN):
            for result, right in zip(passes(Always(forward, backward), x, layer), expected, strict=True):
                torch.testing.assert_close(result, right, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("layout", FORMATS)
@pytest.mark.parametrize("way", FORWARD)
def test_the_gradient_has_the_layout_in_which_the_input_came(layout: str, way: str) -> None:
    x = images().contiguous(memory_format=FORMATS[layout])
    gradient = passes(Always(way, "contiguous"), x, a_layer())[1]
    assert gradient.is_contiguous(memory_format=FORMATS[layout])


def test_maps_of_one_shape_have_one_layout_whatever_the_layers_choose() -> None:
    class Alternating(Choices):
        def choose(self, layer, names, run, others=()):  # type: ignore[no-untyped-def]
            return "channels_last plain" if "-> 6, kernel 3x3, stride 1x1" in layer else "contiguous fused"

    with using(Alternating("fixed")):
        first = convolution(images(), a_layer())
        second = convolution(torch.randn(5, 3, 18, 14), a_layer(stride=2))
    assert first.shape == second.shape
    assert first.stride() == second.stride()


def test_both_passes_race_and_batches_of_any_size_above_share_the_choice() -> None:
    chosen, layer = Choices("race"), a_layer()
    passes(chosen, images(batch=8), layer)
    known = dict(chosen.used)
    assert {name.partition(",")[0] for name in known} == {"forward", "backward with relu", "layout of 6x9x7"}
    for batch in range(9, 16):
        passes(chosen, images(batch=batch), layer)
    assert chosen.used == known


def test_a_race_leaves_the_result_and_the_gradient_alone() -> None:
    x = images()
    layer = a_layer()
    layer.own_gradient = True
    chosen = Choices("race", clock=Clock())
    # No time passes: the usual ways win.
    for result, right in zip(passes(chosen, x, layer), passes(Choices("fixed"), x, layer), strict=True):
        assert torch.equal(result, right)


@pytest.mark.parametrize(
    ("batch", "channels", "side", "raced"),
    [
        # A millisecond's work is two of these images, of which each has pixels enough.
        (128, 64, 32, 2),
        # Enough work would be two again, but laying out the weights would be most of it.
        (128, 512, 4, 16),
        (128, 256, 8, 4),
        (9, 512, 4, 8),
        (1, 512, 4, 1),
    ],
)
def test_so_many_images_race_that_the_weights_do_not_decide(
    monkeypatch: pytest.MonkeyPatch, batch: int, channels: int, side: int, raced: int
) -> None:
    monkeypatch.setattr(torch, "get_num_threads", lambda: 1)
    weight = torch.zeros(channels, channels, 3, 3)
    layer = FrozenConvolution(weight, None, (1, 1), (1, 1), (1, 1), 1, True, own_gradient=False)
    assert layer.described(torch.zeros(batch, channels, side, side))[1] == raced


def test_layers_with_relu_and_without_share_the_forward_race() -> None:
    chosen = Choices("race")
    for relu in (False, True):
        passes(chosen, images(5), a_layer(5, relu))
    assert sum(name.startswith("forward") and "to any" in name for name in chosen.used) == 1


@pytest.fixture
def race(tmp_path: Path) -> Iterator[Choices]:
    with using(Choices("race", tmp_path / "file.json")) as chosen:
        yield chosen


def test_an_attack_keeps_what_it_raced_and_repeats_bit_for_bit(trained: Trained, race: Choices) -> None:
    first = PGD(trained.model, EPS, steps=2, seed=1)(trained.x, trained.y)
    assert race.file is not None
    with using(Choices("race", race.file)) as again:
        second = PGD(trained.model, EPS, steps=2, seed=1)(trained.x, trained.y)
    assert torch.equal(first, second)
    assert again.used.items() <= race.used.items()


def test_a_rehearsal_draws_nothing_and_knows_the_layers_afterwards(trained: Trained, race: Choices) -> None:
    attack = PGD(trained.model, EPS, steps=2, seed=1)
    attack.rehearse(trained.x)
    known = dict(race.used)
    result = attack(trained.x, trained.y)
    assert {key: way for key, way in race.used.items() if "to any" not in key}.keys() <= known.keys()
    assert torch.equal(result, PGD(trained.model, EPS, steps=2, seed=1)(trained.x, trained.y))
