"""A batch in shards, on one process: what every process of a larger job computes, and what all of them
together do.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from cfol_fast import objectives
from cfol_fast.errors import InputError
from cfol_fast.methods import METHODS
from cfol_fast.ranks import Ranks
from cfol_fast.runs.config import to_dict
from cfol_fast.runs.identity import differences, essential_settings
from cfol_fast.training.building import new_model, training_attack
from cfol_fast.training.capture import why_no_graph
from cfol_fast.training.rows import training_row
from cfol_fast.training.shards import check_shards
from cfol_fast.training.trainer import Trainer
from tests.distributed.networks import DROPOUT, PLAIN
from tests.training import tiny

SHARDED = tiny.each(METHODS, quick=("cfol", "lcvar"))


def stepped(out: Path, method: str, steps: int = 1, **settings: Any) -> tuple[Trainer, dict[str, Tensor]]:
    """A trainer after its steps, and how far each of its weights went.

    Classes differ in every factor that the method has.

    The radius is small: with a large one, a sign that rounding turns moves a pixel, and the weights, by more
    than shards may.
    """
    small = {"attack__eps": 0.004} if METHODS[method].attack else {}
    trainer = tiny.new_trainer(out, method, model__name=PLAIN, **small, **settings)
    uneven = torch.linspace(0.5, 1.5, 10)
    for name in trainer.step.policy.factors:
        getattr(trainer.step.policy.view, name).copy_(uneven)
    if hasattr(trainer.step.sampler, "w"):
        trainer.step.sampler.w += uneven
    before = {name: weight.detach().clone() for name, weight in trainer.step.model.named_parameters()}
    tiny.take_steps(trainer, steps)
    moved = {name: weight.detach() - before[name] for name, weight in trainer.step.model.named_parameters()}
    return trainer, moved


def assert_close(moved: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    for name, change in expected.items():
        assert float((moved[name] - change).norm()) < 1e-3 * float(change.norm()), name


@pytest.mark.parametrize("method", SHARDED)
def test_without_batchnorm_a_step_in_shards_is_that_of_the_whole_batch(method: str, tmp_path: Path) -> None:
    whole, expected = stepped(tmp_path, method, shards=1)
    sharded, moved = stepped(tmp_path, method, shards=4)
    assert_close(moved, expected)
    assert sharded.step.sampler.fingerprint() == whole.step.sampler.fingerprint()
    assert torch.equal(sharded.step.counts.tally, whole.step.counts.tally)
    assert float(sharded.step.counts.loss_sum) == pytest.approx(float(whole.step.counts.loss_sum), rel=1e-4)


@pytest.mark.parametrize("method", ["cfol", "lcvar"])
def test_the_perturbation_of_the_weights_is_that_of_the_whole_batch(method: str, tmp_path: Path) -> None:
    _, expected = stepped(tmp_path, method, shards=1, awp=0.1)
    _, moved = stepped(tmp_path, method, shards=4, awp=0.1)
    assert_close(moved, expected)
    _, unperturbed = stepped(tmp_path, method, shards=4)
    with pytest.raises(AssertionError):
        assert_close(unperturbed, expected)


def test_the_perturbations_passes_leave_the_statistics_alone(tmp_path: Path) -> None:
    plain, hardly = (
        tiny.take_steps(tiny.new_trainer(tmp_path, "clean", shards=2, awp=gamma), 2) for gamma in (0, 1e-9)
    )
    for (name, buffer), other in zip(
        plain.step.model.named_buffers(), hardly.step.model.buffers(), strict=True
    ):
        torch.testing.assert_close(other, buffer, rtol=1e-4, atol=1e-5, msg=name)


@pytest.mark.parametrize(("norm", "eps"), [("linf", 0.1), ("l2", 1)])
def test_indices_pixels_and_attack_starts_do_not_depend_on_the_shards(
    norm: str, eps: float, tmp_path: Path
) -> None:
    def seen(shards: int) -> list[Tensor]:
        trainer, found = tiny.new_trainer(tmp_path, shards=shards, attack__norm=norm, attack__eps=eps), []
        start = trainer.step.attack.start
        trainer.step.attack.start = lambda *of: found.append(start(*of)) or found[-1].clone()
        batches = [
            (batch.indices, batch.x)
            for batch in trainer.state.batches.feed(2)
            if trainer.take_step(iter([batch])) is None
        ]
        per_step = len(found) // 2
        starts = [torch.cat(found[first : first + per_step]) for first in (0, per_step)]
        return [*(indices for indices, _ in batches), *(x for _, x in batches), *starts]

    for one, other in zip(seen(1), seen(4), strict=True):
        assert torch.equal(one, other)


def test_each_shard_starts_from_the_same_statistics_and_their_average_stays(tmp_path: Path) -> None:
    trainer = tiny.new_trainer(tmp_path, "clean", shards=2)
    batch = next(trainer.state.batches.feed(1))
    norm = next(m for m in trainer.step.model.modules() if isinstance(m, torch.nn.BatchNorm2d))
    before = norm.running_mean.clone()
    found = []
    for part in batch.x.split(8):
        trainer.step.model(part)
        found.append(norm.running_mean.clone())
        norm.running_mean.copy_(before)
    for buffer in (m for m in trainer.step.model.modules() if isinstance(m, torch.nn.BatchNorm2d)):
        buffer.reset_running_stats()
    trainer.take_step(iter([batch]))
    torch.testing.assert_close(norm.running_mean, (found[0] + found[1]) / 2)
    assert not torch.allclose(found[0], found[1])
    assert int(norm.num_batches_tracked) == 1


def test_all_shards_are_attacked_with_the_statistics_from_the_steps_start(tmp_path: Path) -> None:
    trainer = tiny.new_trainer(tmp_path, shards=4)
    norm = next(m for m in trainer.step.model.modules() if isinstance(m, torch.nn.BatchNorm2d))
    attack, seen = trainer.step.attack.start, []
    trainer.step.attack.start = lambda *of: seen.append(norm.running_mean.clone()) or attack(*of)
    tiny.take_steps(trainer, 2)
    first, second = seen[:4], seen[4:]
    assert len(seen) == 8
    assert all(torch.equal(each, part[0]) for part in (first, second) for each in part)
    assert not torch.equal(first[0], second[0])


def test_the_shards_of_a_step_have_dropout_of_their_own(tmp_path: Path) -> None:
    trainer = tiny.new_trainer(tmp_path, "clean", shards=2, model__name=DROPOUT)
    dropout = next(m for m in trainer.step.model.modules() if isinstance(m, torch.nn.Dropout))
    masks: list[Tensor] = []
    # Of ones it leaves the mask.
    dropout.register_forward_pre_hook(lambda _, inputs: torch.ones_like(inputs[0]))
    dropout.register_forward_hook(lambda _, __, output: masks.append(output == 0))
    tiny.take_steps(trainer, 2)
    assert len(masks) == 4
    for one, other in ((0, 1), (0, 2), (1, 3)):
        assert not torch.equal(masks[one], masks[other])


@pytest.mark.parametrize("method", ["cfol", "fol", "lcvar", "faal", "dafa", "frl"])
def test_a_step_in_shards_reads_nothing_back(method: str, tmp_path: Path) -> None:
    tiny.take_steps(tiny.new_trainer(tmp_path, method, device="meta", shards=2, awp=0.01), 2)


@pytest.mark.slow
def test_a_step_in_shards_runs_in_bfloat16(tmp_path: Path) -> None:
    plain, half = (
        tiny.take_steps(tiny.new_trainer(tmp_path, "lcvar", shards=2, precision=name), 2)
        for name in ("float32", "bfloat16")
    )
    assert float(half.step.counts.loss_sum) == pytest.approx(float(plain.step.counts.loss_sum), rel=0.1)


def test_synchronised_batchnorm_has_the_names_and_the_attack_of_the_plain_one(tmp_path: Path) -> None:
    trainer = tiny.take_steps(tiny.new_trainer(tmp_path), 2)
    config = trainer.config.with_settled({"batchnorm": "sync"})
    model = new_model(trainer.state.images.spec, config, trainer.step.device)
    assert any(isinstance(module, torch.nn.SyncBatchNorm) for module in model.modules())
    model.load_state_dict(trainer.step.model.state_dict())
    x, y = torch.rand(4, 1, 28, 28), torch.arange(4)
    plain, synchronised = (training_attack(each, config)(x, y) for each in (trainer.step.model, model))
    assert torch.equal(plain, synchronised)


def test_figures_are_those_of_all_ranks(tmp_path: Path) -> None:
    class Twins(Ranks):
        """The first of two ranks, the other of which has counted the same."""

        def sum(self, values: Tensor) -> Tensor:
            return values.mul_(2)

    trainer = tiny.take_steps(tiny.new_trainer(tmp_path), 3)
    trainer.position.epoch_seconds = 2.0
    alone = training_row(trainer.step, trainer.position, trainer.length)
    trainer.step.counts.ranks = Twins(0, 2)
    both = training_row(trainer.step, trainer.position, trainer.length)
    assert (alone["images_per_second"], both["images_per_second"]) == (24, 48)
    assert both["loss"] == 2 * alone["loss"]
    assert both["robust_error"] == alone["robust_error"]


def test_dafa_adds_up_what_does_not_depend_on_the_order(tmp_path: Path) -> None:
    trainer = tiny.take_steps(tiny.new_trainer(tmp_path, "dafa", shards=2), 2)
    units = trainer.step.policy.memory()["predicted"] * 2.0**32
    assert bool((units == units.round()).all())
    assert float(trainer.step.policy.memory()["predicted"].sum()) == pytest.approx(32, rel=1e-6)


@pytest.mark.slow
def test_a_run_in_shards_resumes_exactly(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tiny.run(tmp_path / "whole", "dafa", shards=2)
    stopped = tiny.run_until(monkeypatch, 2, tmp_path / "stopped", "dafa", shards=2)
    assert "stopped at step 2" in str(stopped)
    tiny.run(tmp_path / "stopped", "dafa", resume=True)
    tiny.assert_same_outcome(tmp_path / "whole", tmp_path / "stopped")


# ---------------------------------------------------------------- what is refused


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"shards": 3}, "shards must divide batch_size=16, got 3"),
        (
            {"batchnorm": "sync"},
            "batchnorm=sync needs GPUs and one shard for each of several processes, got cpu",
        ),
        ({"batchnorm": "whole"}, "batchnorm must be one of shard, sync, got 'whole'"),
    ],
)
def test_what_cannot_be_is_refused(settings: dict[str, Any], said: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=f"^{said}"):
        tiny.tiny_config(tmp_path, **settings)


def test_processes_that_cannot_share_a_batch_are_told_which_batches_they_can(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WORLD_SIZE", "3")
    said = (
        "3 processes cannot take equal parts of batch_size=16: take --batch-size 15 or 18, or start 1, 2, 4,"
        " 8 or 16 processes"
    )
    with pytest.raises(InputError, match=f"^{said}$"):
        tiny.tiny_config(tmp_path)
    monkeypatch.setenv("WORLD_SIZE", "32")
    with pytest.raises(InputError, match="batch_size=16: take --batch-size 32, or start 1, 2, 4, 8 or 16"):
        tiny.tiny_config(tmp_path)


def test_synchronised_batchnorm_is_refused_on_the_cpu_of_several_processes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(InputError, match="got cpu and 2 shards on 2 processes: take batchnorm=shard"):
        tiny.tiny_config(tmp_path, batchnorm="sync")


def test_a_step_in_shards_is_not_captured(tmp_path: Path) -> None:
    config = tiny.tiny_config(tmp_path, shards=2).with_settled({"device": "cuda"})
    assert why_no_graph(config) == "a step of 2 shards is not captured"
    assert why_no_graph(config.with_settled({"shards": 1})) is None


def test_processes_must_divide_the_shards() -> None:
    with pytest.raises(
        InputError,
        match="processes must divide shards=4, got 3: start 1 or 2 or 4, or begin another run with",
    ):
        check_shards(4, Ranks(0, 3))
    check_shards(4, Ranks(1, 2))


def test_an_objective_that_takes_whole_batches_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Own(objectives.Objective):
        def __call__(self, model: Any, batch: Any) -> tuple[Tensor, Tensor]:
            logits = model(batch.x_adv)
            return logits.mean(), logits

    monkeypatch.setattr(objectives, "Mean", Own)
    tiny.take_steps(tiny.new_trainer(tmp_path), 1)
    with pytest.raises(InputError, match="Own takes whole batches only, got shards=2"):
        tiny.new_trainer(tmp_path, shards=2)


def test_shards_are_as_many_as_the_processes_and_part_of_what_a_run_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    alone = tiny.tiny_config(tmp_path)
    assert alone.shards == 1
    assert "shards" not in essential_settings(to_dict(alone))
    monkeypatch.setenv("WORLD_SIZE", "4")
    four = tiny.tiny_config(tmp_path)
    assert four.shards == 4
    assert differences(alone, four) == ["shards (was 1, now 4)"]
