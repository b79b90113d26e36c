"""AutoAttack: pyautoattack's own flags, also after a kill; and a state that knows what it belongs to."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
import torch
from PIL import Image

import cfol_fast.evaluation.autoattack as module
from cfol_fast import data
from cfol_fast.commands import main as cli
from cfol_fast.errors import InputError
from cfol_fast.evaluation import AutoAttack, evaluate
from tests.attacks.small_models import EPS, SmallNet, Trained, images

pytestmark = pytest.mark.slow

FAST = ("apgd-ce", "fab-t")
N, BATCH = 24, 8


@pytest.fixture
def few(trained: Trained) -> Trained:
    return Trained(trained.model, trained.x[:N], trained.y[:N])


def shorten(adversary: Any) -> Any:
    """At full length the four attacks take minutes; benchmarks/peers_agree.py compares that.

    Short ones tell the same story.
    """
    for part in (adversary.apgd, adversary.apgd_targeted, adversary.fab):
        part.n_iter = 10
    adversary.apgd_targeted.n_target_classes = adversary.fab.n_target_classes = 2
    adversary.square.n_queries = 30
    return adversary


@pytest.fixture(autouse=True)
def short_attacks(monkeypatch: pytest.MonkeyPatch) -> None:
    original = AutoAttack._adversary
    monkeypatch.setattr(AutoAttack, "_adversary", lambda self, *a: shorten(original(self, *a)))


def own_run(few: Trained) -> torch.Tensor:
    import pyautoattack

    adversary = shorten(
        pyautoattack.AutoAttack(few.model, norm="Linf", eps=EPS, seed=0, version="standard", device="cpu")
    )
    with torch.random.fork_rng():
        _, predicted = adversary.run_standard_evaluation(few.x, few.y, batch_size=BATCH)
    return predicted == few.y


@pytest.mark.parametrize("fast", [False, True])
def test_the_flags_are_those_of_pyautoattacks_own_run(few: Trained, fast: bool) -> None:
    expected = own_run(few)
    told: list[tuple[int, int]] = []
    attack = {"kind": "autoattack", "eps": EPS, "fast": fast}
    report = evaluate(*few, attack=attack, batch_size=BATCH, progress=lambda *a: told.append(a))
    if fast:
        # An image on the edge may fall to either side of it, by rounding.
        assert (report.robust.correct != expected).sum() <= 1
    else:
        assert torch.equal(report.robust.correct, expected)
    assert 0 < report.robust.average < 1
    assert report.notes == []
    assert report.attacks[0][0]["version"] == "standard"
    assert told[-1] == (N, N)
    assert [done for done, _ in told] == sorted(done for done, _ in told)


def passes_of(call: Callable[[], object]) -> int:
    """How often the call runs the model's own forward, which nothing may be put in front of: the fast network
    is used for the model as it is alone.
    """
    passes = 0

    def count(frame: FrameType, event: str, _: object) -> None:
        nonlocal passes
        passes += event == "call" and frame.f_code is SmallNet.forward.__code__

    sys.setprofile(count)
    try:
        call()
    finally:
        sys.setprofile(None)
    return passes


def test_the_attacks_work_on_the_frozen_network(few: Trained) -> None:
    counts = []
    for fast in (False, True):
        attack = {"kind": "autoattack", "eps": EPS, "attacks": ("apgd-ce",), "fast": fast}
        counts.append(passes_of(lambda attack=attack: evaluate(*few, attack=attack, batch_size=N)))
    # The clean images, the number of classes, a trace, the proof and the confirmation are left.
    assert counts[1] <= 6 < counts[0]


class LiesOnceFrozen(AutoAttack):
    """On the frozen network every image is broken, whatever the model says."""

    def _adversary(self, *arguments: Any) -> Any:
        adversary = super()._adversary(*arguments)
        model, original = adversary.model, type(adversary.model).forward

        def forward(x: torch.Tensor) -> torch.Tensor:
            logits = original(model, x)
            return logits.roll(1, dims=1) if len(model._networks) > 1 else logits

        model.forward = forward
        return adversary


def test_what_is_broken_on_the_frozen_network_alone_is_attacked_on_the_model_itself(few: Trained) -> None:
    plain = evaluate(*few, attack=AutoAttack(few.model, EPS, attacks=FAST, fast=False), batch_size=N)
    liar = LiesOnceFrozen(few.model, EPS, attacks=FAST)
    report = evaluate(*few, attack=liar, batch_size=N)
    assert torch.equal(report.robust.correct, plain.robust.correct)
    assert liar.attacked_twice == plain.clean.correct.nonzero().flatten().tolist()
    assert report.notes == [liar.note]
    assert "attacked again: 0, 1" in report.notes[0]


def test_a_broken_image_is_broken_on_the_model_itself(few: Trained, monkeypatch: pytest.MonkeyPatch) -> None:
    import pyautoattack

    original, found = pyautoattack.AutoAttack.run_standard_evaluation, []

    def watched(self: Any, *arguments: Any, **options: Any) -> Any:
        result = original(self, *arguments, **options)
        found.append(result[0])
        return result

    monkeypatch.setattr(pyautoattack.AutoAttack, "run_standard_evaluation", watched)
    report = evaluate(*few, attack=AutoAttack(few.model, EPS, attacks=("apgd-ce",)), batch_size=N)
    attacked = report.clean.correct
    with torch.no_grad():
        predicted = few.model.eval()(found[0]).argmax(1)
    assert torch.equal(report.robust.predictions[attacked], predicted)
    assert not report.robust.correct[attacked].all()


class Killed(Exception):
    pass


@pytest.mark.parametrize("batches", [1, 3, 4])
def test_a_killed_run_continues_where_it_stopped(
    few: Trained, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, batches: int
) -> None:
    attack = {"kind": "autoattack", "eps": EPS, "attacks": FAST}
    whole = evaluate(*few, attack=attack, batch_size=BATCH)
    state = tmp_path / "state.json"
    original, calls = AutoAttack._attack, []

    def counting(self, *arguments):
        if len(calls) == batches:
            raise Killed
        calls.append(1)
        return original(self, *arguments)

    monkeypatch.setattr(AutoAttack, "_attack", counting)
    with pytest.raises(Killed):
        evaluate(*few, attack={**attack, "state": state}, batch_size=BATCH)
    done = len(calls)
    calls.clear()
    monkeypatch.setattr(AutoAttack, "_attack", lambda self, *a: calls.append(1) or original(self, *a))
    continued = evaluate(*few, attack={**attack, "state": state}, batch_size=BATCH)
    assert torch.equal(continued.robust.confusion, whole.robust.confusion)
    assert torch.equal(continued.robust.correct, whole.robust.correct)
    again = len(calls)
    calls.clear()
    evaluate(*few, attack={**attack, "state": state}, batch_size=BATCH)
    assert not calls  # a finished run has nothing left to do
    assert 0 < again < done + again


@pytest.mark.parametrize(
    ("what", "change"),
    [
        ("model", lambda few, o: few.model.linear.bias.data.add_(0.01)),
        ("data set", lambda few, o: few.x[3].clamp_(0.1, 0.9)),
        ("data set", lambda few, o: few.y.copy_(few.y.roll(1))),
        ("radius", lambda few, o: o.update(eps=EPS / 2)),
        ("norm", lambda few, o: o.update(norm="l2")),
        ("seed", lambda few, o: o.update(seed=1)),
        ("attacks", lambda few, o: o.update(attacks=("apgd-ce",))),
        ("way of computing", lambda few, o: o.update(fast=False)),
    ],
)
def test_a_state_of_something_else_is_refused(few: Trained, tmp_path: Path, what: str, change) -> None:
    x, y, state = few.x, few.y, tmp_path / "state.json"
    options: dict = {"eps": EPS, "attacks": FAST}
    identity = AutoAttack(few.model, **options)._identity(x, y, BATCH)
    clean = torch.zeros_like(y)
    stored = module._State(identity, clean, y).to_json()
    state.write_text(json.dumps(stored))
    change(few, options)  # tensors in place
    attack = AutoAttack(few.model, state=state, **options)
    with pytest.raises(InputError, match=f"belongs to another {what}"):
        attack.run(x, y, clean, x.device, BATCH)
    with pytest.raises(InputError, match="batch size"):
        attack.run(x, y, clean, x.device, BATCH + 1)


def test_a_file_that_is_no_state_is_refused(few: Trained, tmp_path: Path) -> None:
    state = tmp_path / "state.json"
    for text in ("not json", "[]", '{"kind": "other"}'):
        state.write_text(text)
        with pytest.raises(InputError, match=r"state\.json"):
            evaluate(*few, attack={"kind": "autoattack", "eps": EPS, "state": state})


@pytest.mark.parametrize(
    "change",
    [
        {"attack": -1},
        {"attack": 99},
        {"attack": 1.5},
        {"attack": None},
        {"attack": "1"},
        {"batch": -1},
        {"batch": 10**9},
        {"batch": [0]},
        {"start": ""},
        {"start": "2"},
        {"start": [1]},
        {"start": "1" * N},
        {"start": "0" * N},
        {"predictions": []},
        {"predictions": None},
        {"predictions": [0.5] * N},
        {"predictions": [2**70] * N},
        {"predictions": [-1] * N},
        {"predictions": [10**6] * N},
        {"identity": None},
        {"identity": []},
        {"choices": [1]},
        {"choices": {"layer": 1}},
        {"attacked twice": "3"},
        {"attacked twice": [N]},
        {"attacked twice": [-1]},
    ],
    ids=str,
)
def test_a_state_with_nonsense_is_refused(few: Trained, tmp_path: Path, change: dict) -> None:
    file = tmp_path / "state.json"
    attack = AutoAttack(few.model, eps=EPS, attacks=FAST, state=file)
    # Every second image is right without an attack.
    clean = torch.where(torch.arange(N) % 2 == 0, few.y, (few.y + 1) % 4)
    identity = attack._identity(few.x, few.y, BATCH)
    file.write_text(json.dumps({**module._State(identity, clean, few.y).to_json(), **change}))
    with pytest.raises(InputError, match=r"state\.json"):
        attack.run(few.x, few.y, clean, few.x.device, BATCH)


def test_the_model_and_the_global_random_state_are_left_alone(few: Trained) -> None:
    few.model.train()
    before = torch.random.get_rng_state()
    evaluate(*few, attack={"kind": "autoattack", "eps": EPS, "attacks": ("fab-t",)}, batch_size=N)
    assert torch.equal(torch.random.get_rng_state(), before)
    assert few.model.training
    assert all(p.grad is None and p.requires_grad for p in few.model.parameters())


def test_fewer_than_ten_classes_take_fewer_targets(few: Trained, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    adversary = AutoAttack(SmallNet(classes=5), eps=EPS)._adversary(few.x, few.x.device)
    assert adversary.apgd_targeted.n_target_classes == adversary.fab.n_target_classes == 4
    with pytest.raises(InputError, match="at least 4 classes, the model has 3"):
        evaluate(SmallNet(classes=3), few.x, few.y % 3, attack={"kind": "autoattack", "eps": EPS})


def test_bad_parameters_are_named(few: Trained) -> None:
    with pytest.raises(ValueError, match="eps must be"):
        AutoAttack(few.model, eps=-1)
    with pytest.raises(InputError, match="norm must be one of linf, l2"):
        AutoAttack(few.model, eps=0.1, norm="l1")
    with pytest.raises(InputError, match="the parts of AutoAttack are"):
        AutoAttack(few.model, eps=0.1, attacks=("pgd",))


def test_where_no_example_is_left_there_is_nothing_to_attack(few: Trained) -> None:
    wrong = (few.model(few.x).argmax(1) + 1) % 10
    report = evaluate(few.model, few.x, wrong, attack={"kind": "autoattack", "eps": EPS}, batch_size=BATCH)
    assert report.robust.average == report.clean.average == 0


def colour_source(few: Trained, channels_last: bool = True) -> data.ResidentSource:
    pixels = (few.x * 255).round().to(torch.uint8).permute(0, 2, 3, 1).contiguous()
    names = [f"pattern {c}" for c in range(10)]
    return data.ResidentSource(data.ImageSet(pixels, few.y, names), channels_last=channels_last)


@pytest.mark.parametrize("norm", ["linf", "l2"])
def test_colour_images_and_models_in_channels_last_are_attacked(few: Trained, norm: str) -> None:
    attack = {"kind": "autoattack", "eps": 8 / 255, "norm": norm}
    model = few.model.to(memory_format=torch.channels_last)
    report = evaluate(model, colour_source(few), attack=attack, batch_size=BATCH)
    plain = evaluate(
        model.to(memory_format=torch.contiguous_format),
        colour_source(few, False),
        attack=attack,
        batch_size=BATCH,
    )
    assert report.robust.average <= report.clean.average
    assert (report.robust.correct != plain.robust.correct).sum() <= 1


def test_a_run_on_colour_images_is_evaluated_with_autoattack(tmp_path: Path) -> None:
    pixels, labels = images(40, 3)
    for number, (image, label) in enumerate(zip(pixels, labels.tolist(), strict=True)):
        for split in ("train", "test"):
            folder = tmp_path / "images" / split / f"pattern {label}"
            folder.mkdir(parents=True, exist_ok=True)
            Image.fromarray((image * 255).byte().permute(1, 2, 0).numpy()).save(folder / f"{number}.png")
    run, out = tmp_path / "run", tmp_path / "e.json"
    where = ["--dataset", "folder", "--data", str(tmp_path / "images"), "--out", str(run), "--quiet"]
    settings = [
        "epochs=1",
        "steps_per_epoch=1",
        "batch_size=8",
        "data.holdout=none",
        "model.name=demo-cnn@0.25",
    ]
    settings += ["attack.steps=1", "test.steps=1", "device=cpu"]
    assert cli.main(["train", "erm", *where, *(word for s in settings for word in ("--set", s))]) == 0
    attack = ["--attack", "autoattack", "--eps", "8/255", "--device", "cpu", "--json", str(out)]
    assert cli.main(["eval", str(run), *attack]) == 0
    assert json.loads(out.read_text())["attacks"][0]["attack"]["kind"] == "autoattack"
