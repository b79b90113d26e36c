"""What no sampler can be made of, learn from or continue from is a sentence, and changes nothing."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from cfol_fast.errors import InputError
from cfol_fast.integrations.learning import LearningSampler
from cfol_fast.sampling import ClassSampler, ExampleSampler, FixedClassSampler, IndexSampler, UniformSampler
from tests.sampling.test_every_sampler import LABELS, SAMPLERS, Maker, assert_same, every, step


class Odd:
    def __init__(self, targets: Any) -> None:
        self.targets = targets


NO_LABELS: dict[str, Callable[[], Any]] = {
    "None": lambda: None,
    "a dict": lambda: {0: 1, 1: 0},
    "a generator": lambda: (y for y in (0, 1, 2)),
    "a map": lambda: map(int, "012"),
    "a set": lambda: {0, 1},
    "a word": lambda: "012",
    "bytes": lambda: b"012",
    "words": lambda: ["cat", "dog"],
    "lists of two lengths": lambda: [[0], [1, 2]],
    "None inside": lambda: [0, None, 1],
    "objects": lambda: np.array(["a", 1], dtype=object),
    "an object": object,
    "a number beyond 64 bits": lambda: [0, 10**30],
    "one number": lambda: 3,
    "floats": lambda: [0.0, 1.0],
    "a data set with a dict": lambda: Odd({"a": 1}),
    "a data set with a generator": lambda: Odd(iter([0, 1])),
}


@pytest.mark.parametrize("make", [ClassSampler, FixedClassSampler])
@pytest.mark.parametrize("name", list(NO_LABELS))
def test_what_is_no_row_of_labels_is_a_sentence(make: Callable[[Any], IndexSampler], name: str) -> None:
    with pytest.raises(InputError, match=r"^labels must be integers of shape \(N,\)") as error:
        make(NO_LABELS[name]())
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("labels", [[0, 1, 10**12], [0, 2], [1]])
def test_a_class_without_examples_is_told_before_memory_is_taken(labels: list) -> None:
    with pytest.raises(InputError, match=r"class \d has no examples"):
        ClassSampler(labels)


def test_empty_labels_are_an_empty_data_set() -> None:
    with pytest.raises(InputError, match="the data set is empty"):
        ClassSampler([])


NO_NUMBER = [None, "5", 5.0, math.nan, True, [1, 2], torch.arange(3), {}, object()]


def name_of(value: object) -> str:
    """The same in every process of pytest: the text of an object has its address."""
    return "object" if type(value) is object else repr(value)


@pytest.mark.parametrize("n", [*NO_NUMBER, 0, -1], ids=name_of)
@pytest.mark.parametrize("make", [ExampleSampler, UniformSampler])
def test_what_is_no_number_of_examples_is_a_sentence(make: Callable[[Any], IndexSampler], n: Any) -> None:
    with pytest.raises(
        InputError, match=r"^n, the number of examples, must be a whole number of at least 1, got"
    ):
        make(n)


@pytest.mark.parametrize("n", [*NO_NUMBER, -1], ids=name_of)
@every
def test_what_is_no_number_of_draws_is_a_sentence(make: Maker, n: Any) -> None:
    s = make()
    before = s.state_dict()
    with pytest.raises(InputError, match=r"^n must be a whole number of at least 0, got"):
        s.draw(n)
    assert_same(s.state_dict(), before)
    assert len(s.draw(np.int64(3))) == len(s.draw(torch.tensor(3))) == 3  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "options",
    [
        {"seed": None},
        {"seed": 1.5},
        {"seed": "1"},
        {"gamma": True},
        {"gamma": "half"},
        {"gamma": math.nan},
        {"eta": math.nan},
        {"eta": None},
        {"num_classes": "4"},
        {"num_classes": 0},
        {"num_classes": 4.0},
        {"num_classes": True},
        {"prior": [0.2, 0.3, 0.5, math.nan]},
        {"base": {}},
        {"reweight": "no"},
        {"draws": math.nan},
    ],
    ids=repr,
)
def test_a_bad_option_is_a_sentence_with_its_name(options: dict[str, Any]) -> None:
    with pytest.raises(InputError, match=f"^{next(iter(options))} must be"):
        ClassSampler(LABELS, **options)


@pytest.mark.parametrize("bad", [None, [1, 0, 1, 0], 3, np.ones(4)], ids=["None", "list", "number", "array"])
@pytest.mark.parametrize("make", [SAMPLERS["class"], SAMPLERS["example"]], ids=["class", "example"])
def test_feedback_that_is_no_tensor_is_a_sentence(make: Maker, bad: Any) -> None:
    s = make()
    idx = s.draw(4)
    rows = idx if isinstance(s, ExampleSampler) else LABELS[idx]
    for y, loss in ((bad, torch.ones(4)), (rows, bad)):
        with pytest.raises(TypeError, match=r"must be a tensor of shape \(B,\)"):
            s.update(y, loss)  # type: ignore[attr-defined]


def changed(key: str, value: Any) -> Callable[[dict[str, Any]], Any]:
    return lambda state: {**state, key: value(state[key]) if callable(value) else value}


def without(key: str) -> Callable[[dict[str, Any]], Any]:
    return lambda state: {name: value for name, value in state.items() if name != key}


def nan_at_0(t: Tensor) -> Tensor:
    return torch.cat([torch.full_like(t[:1], math.nan), t[1:]])


BAD_STATES: dict[str, list[Callable[[dict[str, Any]], Any]]] = {
    "class": [
        *(changed("eta", value) for value in (math.nan, math.inf, 0.0, -1.0, "auto", None, True)),
        *(changed("gamma", value) for value in (math.nan, 0.0, 1.5, "x", None)),
        *(changed("reweight", value) for value in (None, "yes", 1)),
        changed("w", nan_at_0),
        changed("w", lambda w: w.float()),
        changed("w", lambda w: w.tolist()),
        changed("base", nan_at_0),
        changed("base", lambda p: -p),
        changed("drawn", lambda p: p[:2]),
        changed("drawn", lambda p: 0 * p),
        changed("drawn", lambda p: p[None]),
        *(without(key) for key in ("eta", "gamma", "w", "base", "rng", "size", "reweight", "kind")),
    ],
    "example": [
        changed("eta", math.nan),
        changed("gamma", 2.0),
        changed("tree", lambda tree: tree[:2]),
        changed("tree", lambda tree: [tree[0][:5], *tree[1:]]),
        changed("tree", lambda tree: [tree[0] * 0, *tree[1:]][::-1]),
        changed("tree", lambda tree: [torch.cat([tree[0][:1] + 1, tree[0][1:]]), *tree[1:]]),
        changed("tree", lambda tree: [-tree[0], *tree[1:]]),
        changed("tree", None),
        changed("drawn", nan_at_0),
        changed("drawn", lambda p: p.float()),
        *(without(key) for key in ("eta", "gamma", "tree", "rng", "size")),
    ],
    "uniform": [
        *(changed("position", value) for value in (-1, 120, 1.5, None, "3", True)),
        changed("position", lambda p: p + 120),
        *(without(key) for key in ("position", "rng", "size")),
    ],
    "fixed": [
        changed("p", nan_at_0),
        changed("p", lambda p: p - 0.2),
        changed("p", None),
        *(without(key) for key in ("p", "rng", "size")),
    ],
}
# Of every sampler.
OF_ALL = [
    lambda _: None,
    lambda _: [],
    lambda _: "state",
    lambda _: {},
    changed("rng", lambda rng: rng[:1]),
    changed("rng", lambda rng: rng.double()),
    changed("rng", lambda rng: -rng - 1),
    changed("size", 7),
    changed("size", None),
    changed("kind", "other"),
]


@pytest.mark.parametrize("name", list(BAD_STATES))
def test_a_damaged_state_is_a_sentence_and_changes_nothing(name: str) -> None:
    s, twin = SAMPLERS[name](seed=3), SAMPLERS[name](seed=3)
    for sampler in (s, twin):
        step(sampler)
    good = s.state_dict()
    for change in (*BAD_STATES[name], *OF_ALL):
        with pytest.raises(InputError, match=r"^the state") as error:
            s.load_state_dict(change(dict(good)))
        assert "\n" not in str(error.value)
        assert_same(s.state_dict(), good)
    s.load_state_dict(good)
    assert torch.equal(step(s), step(twin))


@pytest.mark.parametrize("name", ["class", "fixed"])
def test_a_state_of_another_number_of_classes_names_both(name: str) -> None:
    other = {"class": ClassSampler, "fixed": FixedClassSampler}[name](LABELS % 3)
    with pytest.raises(InputError, match="the state has 3 classes, this sampler has 4"):
        SAMPLERS[name]().load_state_dict(other.state_dict())


def test_a_state_without_a_draw_is_taken() -> None:
    for name in BAD_STATES:
        fresh, other = SAMPLERS[name](seed=3), SAMPLERS[name](seed=5)
        other.load_state_dict(fresh.state_dict())
        assert torch.equal(step(other), step(fresh))


@pytest.mark.parametrize("bad", [None, 3, LABELS, range(5)], ids=["None", "number", "labels", "range"])
def test_what_is_no_sampler_is_told_to_the_integrations(bad: Any) -> None:
    with pytest.raises(TypeError, match=r"the sampler must be one of cfol_fast\.sampling"):
        LearningSampler(bad)


def test_labels_are_not_taken_for_indices() -> None:
    """ExampleSampler learns by index; the other samplers' call would credit the first few examples."""
    s = ExampleSampler(120, eta=0.01, seed=3)
    before = s.tree.w.clone()
    idx = s.draw(16)
    for other in (LABELS[idx], idx.flip(0)):
        with pytest.raises(InputError, match="learns by index"):
            s.update(other, torch.ones(16))
    assert torch.equal(s.tree.w, before)
    s.update(idx, torch.ones(16))
    # Others by the p that drew them.
    s.update(LABELS[idx], torch.ones(16), p=torch.full((16,), 1 / 120, dtype=torch.float64))
