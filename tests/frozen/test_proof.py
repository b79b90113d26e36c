"""The proof alone notices a fast network that is not the model, leaves no trace, and raises no false
alarm.
"""

from __future__ import annotations

import copy
import hashlib
import random
import warnings
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from cfol_fast import PGD, evaluate, models
from cfol_fast.attacks import how
from cfol_fast.frozen import convolution, proof, tracing
from cfol_fast.frozen.network import decide_for_all
from cfol_fast.frozen.tracing import record_for
from tests.attacks.small_models import SmallNet, Trained, awaken
from tests.frozen.changing_models import CHANGES, batch, make

x, y = batch()


def same(one: Tensor, other: Tensor) -> bool:
    return bool(((one - other).abs() < 1e-6).float().mean() > 0.99)


def plain(model: nn.Module, images: Tensor = x, labels: Tensor = y, **options: object) -> Tensor:
    return PGD(model, 0.1, steps=2, random_start=False, fast=False, **options)(images, labels)


@pytest.fixture
def no_fingerprint(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tracing, "current_fingerprint", lambda *_: ())


@pytest.mark.parametrize("change", CHANGES)
def test_a_change_between_two_attacks_is_noticed_by_the_proof_alone(
    change: str, no_fingerprint: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = make()
    attack = PGD(model, 0.1, steps=2, random_start=False)
    before = attack(x, y)
    assert how(model) == "fast"
    CHANGES[change](model, monkeypatch.setattr)
    with pytest.warns(UserWarning, match="without the fast network: its (logits are|gradient is) off by"):
        after = attack(x, y)
    assert how(model).startswith("plain: its ")
    assert not same(before, after)
    assert same(after, plain(model))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert same(attack(x, y), after)


def test_proofs_are_made_at_calls_that_are_powers_of_two_and_for_new_kinds_of_images(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made: list[int] = []
    model = awaken(nn.Sequential(nn.Conv2d(3, 10, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten()))
    disagreement = proof.disagreement
    monkeypatch.setattr(
        proof, "disagreement", lambda *a: made.append(record_for(model).calls) or disagreement(*a)
    )
    attack = PGD(model, 0.1, steps=1)
    for _ in range(9):
        attack(x, y)
    assert made == [1, 2, 4, 8]
    attack(torch.rand(12, 3, 9, 9), y)
    attack(x, y)
    assert made == [1, 2, 4, 8, 10]


class Leaves(SmallNet):
    """A module whose plain pass leaves traces of every kind."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("passes", torch.zeros(()))
        self.seen: list[int] = []
        self.config = SimpleNamespace(passes=0)
        self.calls = 0

    def forward(self, x: Tensor) -> Tensor:
        if isinstance(x, Tensor):
            self.passes.add_(1)
            self.calls += 1
            self.seen.append(1)
            self.config.passes += 1
            random.random()
            np.random.rand()
            torch.rand(())
        return super().forward(x)


def test_a_proof_leaves_no_trace(trained: Trained) -> None:
    model = Leaves().eval()
    model.load_state_dict({**trained.model.state_dict(), "passes": torch.zeros(())})
    expected = [float(model.passes), list(model.seen), model.config.passes, model.calls]
    generators = random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state()
    model.linear.bias.grad = torch.ones(10)
    why = []
    with torch.no_grad():
        record = record_for(model)
        assert record.plan is not None
        with record.plan.frozen(model, None) as layers:
            fast = lambda images: record.plan.forward(model, layers, images)  # noqa: E731
            why.append(proof.disagreement(model, record.functions, model, fast, trained.x))
    assert why == [None]
    assert [float(model.passes), model.seen, model.config.passes, model.calls] == expected
    assert random.getstate() == generators[0]
    assert np.random.get_state()[1].tolist() == generators[1]
    assert torch.equal(torch.get_rng_state(), generators[2])
    assert all((p.grad is None) == (p is not model.linear.bias) for p in model.parameters())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("size", [1, 2, 8, 50])
def test_a_right_network_passes_whatever_the_batch(trained: Trained, size: int, dtype: torch.dtype) -> None:
    model = trained.model.to(dtype)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for start in range(0, 100, 25):
            PGD(copy.deepcopy(model), 0.03, steps=1)(
                trained.x[start : start + size].to(dtype), trained.y[start : start + size]
            )


@pytest.mark.slow
def test_bfloat16_passes_are_proven_in_the_models_own_precision(trained: Trained) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        PGD(trained.model, 0.03, steps=2, dtype=torch.bfloat16)(trained.x[:20], trained.y[:20])
        with torch.autocast("cpu", torch.bfloat16):
            PGD(copy.deepcopy(trained.model), 0.03, steps=2)(trained.x[:20], trained.y[:20])
        PGD(copy.deepcopy(trained.model).bfloat16(), 0.03, steps=2)(trained.x[:20].bfloat16(), trained.y[:20])
    assert how(trained.model) == "fast"


class Isinstance(SmallNet):
    """What a trace cannot see: it is given no tensor."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(1 - x if isinstance(x, Tensor) else x)


def test_a_trace_that_was_wrong_from_the_start_is_not_used(trained: Trained) -> None:
    model = Isinstance().eval()
    model.load_state_dict(trained.model.state_dict())
    images, labels = trained.x[:20], trained.y[:20]
    with pytest.warns(UserWarning, match="Isinstance is attacked without the fast network") as said:
        result = evaluate(model, images, labels, {"eps": 0.03, "steps": 3}, batch_size=5)
    assert len(said) == 1
    expected = evaluate(model, images, labels, {"eps": 0.03, "steps": 3, "fast": False}, batch_size=5)
    assert result.robust.correct.tolist() == expected.robust.correct.tolist()


def fails_fast(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    def fail(*_: object) -> None:
        raise error

    monkeypatch.setattr(convolution, "_runs_fused", fail)


def test_an_exception_of_the_fast_network_is_remembered_and_said_once(
    trained: Trained, monkeypatch: pytest.MonkeyPatch
) -> None:
    fails_fast(monkeypatch, RuntimeError("view size is not compatible"))
    attack = PGD(trained.model, 0.1, steps=2, random_start=False)
    with pytest.warns(UserWarning, match="raised RuntimeError: view size is not compatible") as said:
        first, second = attack(trained.x, trained.y), attack(trained.x, trained.y)
    assert len(said) == 1
    assert torch.equal(first, second)
    assert same(first, plain(trained.model, trained.x, trained.y))


def test_an_exception_without_a_proof_is_tried_again_from_the_same_random_state(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Noisy(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.head = nn.Conv2d(3, 4, 3), nn.Linear(4 * 36, 10)

        def forward(self, x: Tensor) -> Tensor:
            return self.head(self.conv(torch.nn.functional.dropout(x, 0.5)).flatten(1))

    model = Noisy().eval()
    torch.manual_seed(1)
    expected = plain(model)
    fails_fast(monkeypatch, RuntimeError("no such plan"))
    monkeypatch.setattr(proof, "due", lambda *_: False)
    torch.manual_seed(1)
    with pytest.warns(UserWarning, match="no such plan"):
        assert torch.equal(PGD(model, 0.1, steps=2, random_start=False)(x, y), expected)


def test_running_out_of_memory_is_not_tried_again(trained: Trained, monkeypatch: pytest.MonkeyPatch) -> None:
    fails_fast(monkeypatch, torch.OutOfMemoryError("CUDA out of memory"))
    with pytest.raises(torch.OutOfMemoryError):
        PGD(trained.model, 0.1)(trained.x, trained.y)
    monkeypatch.undo()
    assert how(trained.model) == "fast"


def test_the_error_of_the_model_itself_is_raised() -> None:
    class Broken(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x.view(len(x), 7, 11)

    with pytest.raises(RuntimeError, match="shape '\\[12, 7, 11\\]' is invalid"):
        PGD(Broken(), 0.1)(x, y)


def test_a_model_for_batches_of_one_size_is_proven_on_all_of_it() -> None:
    class Fixed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.head = nn.Conv2d(3, 4, 3), nn.Linear(4 * 36, 10)

        def forward(self, x: Tensor) -> Tensor:
            return self.head(self.conv(x).view(12, 144))

    model = Fixed().eval()
    assert same(PGD(model, 0.1, steps=2, random_start=False)(x, y), plain(model))
    assert how(model) == "fast"


def test_an_outcome_goes_over_to_another_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """A copy of the model stands for the same model there."""
    model, other = make(), make()
    made: list[int] = []
    for _ in range(3):
        PGD(model, 0.1, steps=1)(x, y)
    disagreement = proof.disagreement
    monkeypatch.setattr(proof, "disagreement", lambda *a: made.append(1) or disagreement(*a))
    tracing.adopt_proof(other, tracing.proof_outcome(model))
    PGD(other, 0.1, steps=1)(x, y)
    assert tracing.proof_outcome(other) == {**tracing.proof_outcome(model), "calls": 4}
    assert made == [1]  # the fourth call
    bad = {**tracing.proof_outcome(model), "reason": "its logits are off"}
    third = make()
    tracing.adopt_proof(third, bad)
    assert how(third) == "plain: its logits are off"
    changed = make()
    changed.flag = True
    tracing.adopt_proof(changed, bad)
    assert how(changed) == "fast"


def test_no_network_of_ours_raises_an_alarm() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for name in ("demo-cnn", "resnet18@0.125"):
            model = awaken(models.create(name, 10))
            PGD(model, 0.03, steps=1)(torch.rand(16, 3, 32, 32), torch.zeros(16, dtype=torch.int64))
            assert how(model) == "fast"


@pytest.mark.parametrize("reason", [None, "its logits are off"])
def test_all_ranks_take_what_the_first_has_found(reason: str | None) -> None:
    first, mine = make(), make()
    PGD(first, 0.1, steps=1)(x, y)
    ranks = SimpleNamespace(
        size=2, is_first=False, from_first=lambda work: {**tracing.proof_outcome(first), "reason": reason}
    )
    decide_for_all(mine, x, ranks)
    assert how(mine) == ("fast" if reason is None else f"plain: {reason}")


def test_a_digest_names_our_functions_as_the_checkpoints_of_older_versions_do(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    digested: list[bytes] = []

    def sha256(text: bytes) -> Any:
        digested.append(text)
        return hashlib.sha256(text)

    monkeypatch.setattr(tracing, "hashlib", SimpleNamespace(sha256=sha256))
    assert how(SmallNet()) == "fast"
    assert b"= cfol_fast_attacks_convolution_convolution(" in digested[0]
    assert b"cfol_fast_frozen" not in digested[0]
