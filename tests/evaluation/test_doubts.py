"""A result that looks good by accident is said to, and no requirement is met by it."""

from __future__ import annotations

import copy
import functools
import json
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from cfol_fast.attacks import PGD
from cfol_fast.errors import InputError
from cfol_fast.evaluation import AutoAttack, Evaluation, doubts, evaluate, evaluate_radii, requirements
from cfol_fast.models import Normalize
from tests.attacks.small_models import EPS, SmallNet, Trained

STEPS = {"eps": EPS, "steps": 2}


def found(report: Evaluation) -> list[str]:
    return [one["warning"] for one in report.warnings]


def is_met(report: Evaluation, text: str = "average>=0") -> bool:
    return bool(requirements.parse(text, report.clean.classes, True).verdict(report)["met"])


class Changed(nn.Module):
    """The network with its logits changed."""

    def __init__(self, model: nn.Module, change: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.model, self.change = model, change

    def forward(self, x: Tensor) -> Tensor:
        return self.change(self.model(x))


def overflowing(logits: Tensor) -> Tensor:
    """As in float16: the largest logits are infinite, and the first of them is the answer."""
    return torch.where(logits > 3, torch.inf, logits)


def other_weights(model: nn.Module) -> nn.Module:
    other = copy.deepcopy(model)
    with torch.no_grad():
        for weight in other.parameters():
            weight.mul_(0.8)
    return other


def untrained() -> SmallNet:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return SmallNet().eval()


def away_from_the_mistake(model: nn.Module) -> Callable[[Tensor, Tensor], Tensor]:
    """An attack with its sign wrong."""

    def attack(x: Tensor, y: Tensor) -> Tensor:
        leaf = x.clone().requires_grad_()
        loss = nn.functional.cross_entropy(model(leaf), y)
        return (x - EPS * torch.autograd.grad(loss, leaf)[0].sign()).clamp(0, 1)

    return attack


BAD: dict[str, Callable[[Trained], tuple[nn.Module, Any, str]]] = {
    "infinite logits": lambda t: (
        Changed(t.model, overflowing),
        {**STEPS, "fast": False},
        "logits not finite",
    ),
    "minus infinity": lambda t: (
        Changed(t.model, lambda z: z.masked_fill(z < -4, -torch.inf)),
        STEPS,
        "logits not finite",
    ),
    "the sign is wrong": lambda t: (untrained(), away_from_the_mistake(untrained()), "robust above clean"),
    "nothing is changed": lambda t: (t.model, lambda x, y: x, "attack without effect"),
    "a copy in another layout": lambda t: (
        t.model,
        lambda x, y: x.clone(memory_format=torch.channels_last),
        "attack without effect",
    ),
    "a radius of 0": lambda t: (t.model, {"eps": 0.0}, "attack without effect"),
    "gradients that vanish": lambda t: (Changed(t.model, lambda z: z * 1e4), STEPS, "no gradient"),
    "logits that are rounded": lambda t: (
        Changed(t.model, lambda z: z.round() + 0 * z),
        STEPS,
        "no gradient",
    ),
    "another model": lambda t: (t.model, PGD(other_weights(t.model), EPS), "attack on another model"),
    "without its normalisation": lambda t: (
        nn.Sequential(Normalize(3, [0.4] * 3, [0.9] * 3), t.model).eval(),
        PGD(t.model, EPS, steps=2),
        "attack on another model",
    ),
    "another model in a library's attack": lambda t: (
        t.model,
        LibraryAttack(other_weights(t.model)),
        "attack on another model",
    ),
    "another model in a partial": lambda t: (
        t.model,
        functools.partial(PGD(SmallNet(4), EPS, steps=1), eps=0.0)
        and functools.partial(LibraryAttack(SmallNet(4)).run),
        "attack on another model",
    ),
}


def test_a_module_without_logits_is_no_model(trained: Trained) -> None:
    blur, loss = nn.AvgPool2d(3, 1, 1), nn.CrossEntropyLoss()
    report = evaluate(*trained, attack=lambda x, y: (blur(x), loss)[0])
    assert "attack on another model" not in found(report)


@pytest.mark.parametrize("y", ["abc", [None] * 200, {0: 1}, {1, 2}], ids=["text", "None", "dict", "set"])
def test_what_are_no_labels_is_a_sentence(trained: Trained, y: Any) -> None:
    with pytest.raises(InputError, match=r"^labels must be int64 \(N,\)"):
        evaluate(trained.model, trained.x, y)


class LibraryAttack:
    def __init__(self, model: nn.Module) -> None:
        self.model = model

    def run(self, x: Tensor, y: Tensor) -> Tensor:
        return (x + 0.05).clamp(0, 1)

    __call__ = run


@pytest.mark.parametrize("name", list(BAD))
def test_it_is_said_above_the_table_and_in_the_json_and_no_requirement_is_met(
    trained: Trained, name: str
) -> None:
    model, attack, warning = BAD[name](trained)
    report = evaluate(model, trained.x, trained.y, attack=attack, batch_size=64)
    assert warning in found(report)
    written = json.loads(json.dumps(report.to_json(), allow_nan=False))["warnings"]
    assert warning in [one["warning"] for one in written]
    lines = report.table().splitlines()
    assert lines[: len(written)] == [f"warning: {one['reason']}" for one in written]
    assert lines[len(written)].startswith("attack: ")
    assert not is_met(report)
    verdict = requirements.parse("clean.average>=0", report.clean.classes, True).verdict(report)
    assert written[0]["reason"] in verdict["reason"]


def test_the_counts_are_those_of_the_images(trained: Trained) -> None:
    model = Changed(trained.model, overflowing)
    report = evaluate(model, trained.x, trained.y, batch_size=64)
    count = int((trained.model(trained.x) > 3).any(1).sum())
    assert count > 0
    assert report.warnings[0]["reason"] == f"the model's logits for {count} of 200 images are infinite"
    report = evaluate(
        Changed(trained.model, lambda z: z * 1e4), trained.x, trained.y, attack=STEPS, batch_size=64
    )
    flat = next(one for one in report.warnings if one["warning"] == "no gradient")
    assert flat["attack"] == 0


SAME: dict[str, Callable[[SmallNet], nn.Module]] = {
    "itself": lambda model: model,
    "a copy": copy.deepcopy,
    "DataParallel": nn.DataParallel,
    "compiled": lambda model: torch.compile(model, backend="eager"),
    "a wrapper of one's own": lambda model: Changed(model, lambda z: z),
    "a copy in training mode": lambda model: copy.deepcopy(model).train(),
}


@pytest.mark.parametrize("name", list(SAME))
@pytest.mark.parametrize("library", [False, True])
def test_a_wrapper_or_a_copy_of_the_model_is_the_model(trained: Trained, name: str, library: bool) -> None:
    own = SAME[name](trained.model)
    attack = LibraryAttack(own) if library else PGD(own, EPS, steps=1)
    for model, given in (
        (trained.model, attack),
        (own, type(attack)(trained.model, *([EPS] * (not library)))),
    ):
        assert "attack on another model" not in found(evaluate(model, trained.x, trained.y, attack=given))


GOOD: dict[str, tuple[Any, dict[str, Any]]] = {
    "pgd": (STEPS, {}),
    "pgd, active set": (STEPS, {"active_set": True}),
    "trades": ({"kind": "trades", **STEPS}, {}),
    "fgsm": ({"kind": "fgsm", "eps": EPS}, {}),
    "l2": ({**STEPS, "norm": "l2", "eps": 0.5}, {}),
    "several": ([STEPS, {"kind": "fgsm", "eps": EPS}], {}),
    "without an attack": (None, {}),
    "noise": (lambda x, y: (x + 0.03 * torch.randn_like(x)).clamp(0, 1), {}),
    "the attack that is none": ({"kind": "none"}, {}),
}


@pytest.mark.parametrize("name", list(GOOD))
def test_nothing_is_said_of_what_is_right(trained: Trained, name: str) -> None:
    attack, options = GOOD[name]
    report = evaluate(*trained, attack=attack, batch_size=64, **options)
    assert report.to_json()["warnings"] == report.warnings == []
    assert is_met(report, "clean.average>=0")


def test_an_attack_that_turns_nothing_but_raises_a_loss_is_a_note(trained: Trained) -> None:
    model, x, y = trained
    x, y = x[:20], y[:20]
    report = evaluate(model, x, y, attack={"eps": 1e-4, "steps": 2})
    assert torch.equal(report.clean.correct, report.robust.correct)
    assert report.warnings == []
    assert ["raised the loss of" in note for note in report.notes] == [True]
    assert report.to_json()["attacks"][0]["loss_raised"] > 0
    assert is_met(report)


def test_a_model_that_is_always_wrong_does_not_look_good(trained: Trained) -> None:
    model, x, _ = trained
    wrong = (model(x).argmax(1) + 1) % 10
    assert evaluate(model, x, wrong, attack=STEPS, active_set=True).warnings == []


@pytest.mark.parametrize("works", [True, False])
@pytest.mark.parametrize("norm", ["linf", "l2"])
def test_an_autoattack_that_breaks_nothing_is_judged_by_a_step_of_its_radius(
    trained: Trained, monkeypatch: pytest.MonkeyPatch, works: bool, norm: str
) -> None:
    monkeypatch.setattr(AutoAttack, "run", lambda self, x, y, clean, *_: clean.clone())
    model = trained.model if works else Changed(trained.model, lambda z: z.round() + 0 * z)
    report = evaluate(model, trained.x, trained.y, attack=AutoAttack(model, 0.02, norm))
    assert found(report) == ([] if works else ["attack without effect"])
    undifferentiable = Changed(trained.model, lambda z: nn.functional.one_hot(z.argmax(1), 10).float())
    report = evaluate(undifferentiable, trained.x, trained.y, attack=AutoAttack(undifferentiable, 0.02))
    assert found(report) == ["attack without effect"]


def test_an_autoattack_that_breaks_some_raised_their_loss(
    trained: Trained, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run(self: AutoAttack, x: Tensor, y: Tensor, clean: Tensor, *_: Any) -> Tensor:
        return torch.where(torch.arange(len(y)) < 50, (y + 1) % 10, clean)

    monkeypatch.setattr(AutoAttack, "run", run)
    report = evaluate(*trained, attack=AutoAttack(trained.model, EPS))
    assert report.warnings == []
    assert report.to_json()["attacks"][0]["loss_raised"] == int(report.clean.correct[:50].sum())


def test_a_curve_has_the_warnings_of_all_its_radii(trained: Trained, monkeypatch: pytest.MonkeyPatch) -> None:
    """The smaller radius is blind, the largest is not."""
    climb = PGD.ascend_
    monkeypatch.setattr(PGD, "ascend_", lambda self, *a: climb(self, *a) if self.eps > 0.02 else a[0])
    attack = {"steps": 1, "random_start": False}
    report = evaluate_radii(*trained, radii=[0, 0.01, EPS], attack=attack)
    (one,) = report.warnings
    assert (one["warning"], one["eps"]) == ("attack without effect", 0.01)
    assert one["reason"].startswith("at radius 0.01: ")
    assert not is_met(report)
    infinite = evaluate_radii(
        Changed(trained.model, overflowing), trained.x, trained.y, radii=[0.01, EPS], attack=attack
    )
    assert sum(one["attack"] is None for one in infinite.warnings) == 1


def test_the_attack_is_left_without_an_observer(trained: Trained) -> None:
    attack = PGD(trained.model, EPS, steps=1)
    evaluate(*trained, attack=attack)
    assert attack.watch is None
    with pytest.raises(InputError):
        evaluate(trained.model, trained.x * 2, trained.y, attack=attack)
    assert attack.watch is None


def test_a_look_at_gradients_reads_nothing_back() -> None:
    seen = doubts.Gradients()
    counts = doubts.Counts(1, torch.device("meta"))
    for _ in range(2):
        seen(torch.empty(4, 3, 2, 2, device="meta"))
    logits, y = torch.empty(4, 10, device="meta"), torch.empty(4, dtype=torch.int64, device="meta")
    counts.clean(logits)
    counts.attacked(0, y, logits, logits)
    counts.gradients(0, seen)


def test_gradients_that_are_nan_are_said() -> None:
    seen = doubts.Gradients()
    for value in (1.0, torch.nan, 2.0):
        seen(torch.full((2, 2), value))
    counts = doubts.Counts(1, torch.device("cpu"))
    counts.gradients(0, seen)
    accuracy: Any = SimpleNamespace(labels=torch.zeros(4), correct=torch.tensor([True]))
    none: Any = SimpleNamespace(labels=torch.zeros(4), correct=torch.tensor([False]))
    warnings, _ = doubts.judge(counts._counts.tolist(), ["pgd"], accuracy, [none])
    assert [one["warning"] for one in warnings] == ["gradient not finite"]


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16])
def test_images_in_another_precision_are_a_sentence(trained: Trained, dtype: torch.dtype) -> None:
    _, x, y = trained
    # Ours convert images in their first layer.
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(256, 10)).eval()
    name = str(dtype).removeprefix("torch.")
    sentence = (
        rf"^the images are {name}, the model's weights float32: convert the images with"
        r" x\.to\(torch\.float32\)$"
    )
    for call in (
        lambda: evaluate(model, x.to(dtype), y),
        lambda: evaluate(model, torch.utils.data.TensorDataset(x.to(dtype), y), attack=STEPS),
        lambda: PGD(model, EPS, steps=1, fast=False)(x.to(dtype), y),
        lambda: evaluate(model, x.to(dtype), y, attack=STEPS, active_set=True),
    ):
        with pytest.raises(InputError, match=sentence):
            call()


def test_a_model_that_converts_its_images_takes_all(trained: Trained) -> None:
    class Converting(SmallNet):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x.float())

    model = Converting().eval()
    model.load_state_dict(trained.model.state_dict())
    report = evaluate(model, trained.x.double(), trained.y, attack={**STEPS, "fast": False})
    assert torch.equal(report.clean.correct, evaluate(*trained).clean.correct)


@pytest.mark.parametrize(
    ("attack", "message"),
    [
        (lambda x, y: x[:, :1], "must return images of shape"),
        (lambda x, y: (x * 0).long(), "must return floating point numbers"),
        (lambda x, y: x * torch.nan, "got NaN"),
        (lambda x, y: x + 2, r"images must be in \[0, 1\]"),
        (lambda x, y: None, "got NoneType"),
        (lambda x, y: (x, y), "got tuple"),
    ],
)
def test_an_attack_that_returns_no_images_is_refused(trained: Trained, attack: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        evaluate(*trained, attack=attack)
