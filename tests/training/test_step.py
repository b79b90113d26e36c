"""The step itself: no read-back, the native ops inside, what the log points read."""

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from cfol_fast import ops
from cfol_fast.methods import METHODS
from cfol_fast.training.batches import TrainingBatch
from cfol_fast.training.batchnorm import StepCount
from cfol_fast.training.epoch_counts import NEVER
from cfol_fast.training.step import Step
from tests.distributed.networks import DROPOUT
from tests.training.tiny import each, new_trainer, take_steps


@pytest.mark.parametrize("method", each(METHODS))
def test_the_whole_step_runs_without_reading_anything_back(few_images, tmp_path, method):
    """On the meta device every read-back raises."""
    trainer = take_steps(new_trainer(tmp_path, method, device="meta"), 2)
    assert all(parameter.grad.device.type == "meta" for parameter in trainer.step.model.parameters())
    with pytest.raises((RuntimeError, NotImplementedError)):
        trainer.step.counts.loss_sum.item()


@pytest.mark.parametrize("kind", ["fgsm", "n-fgsm"])
def test_single_step_attacks_train_without_reading_back(few_images, tmp_path, kind):
    take_steps(new_trainer(tmp_path, "erm", device="meta", attack__kind=kind, attack__steps=1), 2)


class NativeOps(TorchDispatchMode):
    only_watches = True

    def __init__(self) -> None:
        super().__init__()
        self.seen: set[str] = set()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func.namespace == "cfol_fast":
            self.seen.add(func._opname)
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize(
    ("method", "of_its_sampler"),
    [
        ("erm", {"permutation"}),
        ("cfol", {"exp3_draw", "exp3_update"}),
        ("fol", {"sum_tree_draw", "sum_tree_update"}),
    ],
)
def test_a_real_step_calls_each_native_op(few_images, tmp_path, method, of_its_sampler):
    trainer = new_trainer(tmp_path, method)
    with NativeOps() as native:
        take_steps(trainer, 1)
    assert of_its_sampler | {"gather_augment", "pgd_start", "pgd_step", "class_tally"} <= native.seen


def test_a_step_changes_every_weight_and_tallies_every_example(few_images, tmp_path):
    trainer = new_trainer(tmp_path)
    before = [parameter.detach().clone() for parameter in trainer.step.model.parameters()]
    take_steps(trainer, 3)
    assert all(not torch.equal(b, p) for b, p in zip(before, trainer.step.model.parameters(), strict=True))
    counts, errors = ops.read_tally(trainer.step.counts.tally)
    assert int(counts.sum()) == 3 * 16
    assert 0 <= float(errors.sum()) <= 3 * 16
    assert int(trainer.step.counts.first_bad) == NEVER


@pytest.mark.parametrize("settings", [{}, {"shards": 2}, {"awp": 0.005}], ids=str)
def test_no_pass_of_a_step_keeps_the_gradients_of_the_last_beside_it(
    few_images, tmp_path, monkeypatch, settings
):
    trainer = take_steps(new_trainer(tmp_path, **settings), 1)
    held: list[bool] = []
    attacked = Step.attacked

    def watched(step, x, y, slots=None):
        held.append(any(parameter.grad is not None for parameter in step.model.parameters()))
        return attacked(step, x, y, slots)

    monkeypatch.setattr(Step, "attacked", watched)
    take_steps(trainer, 1)
    assert held == [False] * len(held)
    assert held
    assert all(parameter.grad is not None for parameter in trainer.step.model.parameters())


def test_the_first_step_with_a_bad_loss_is_remembered(few_images, tmp_path):
    trainer = take_steps(new_trainer(tmp_path, "clean"), 2)
    with torch.no_grad():
        next(trainer.step.model.parameters()).fill_(float("nan"))
    x, y = torch.rand(4, 1, 28, 28), torch.arange(4)
    for _ in range(2):
        trainer.step(iter([TrainingBatch(y, None, x, y)]))
    assert int(trainer.step.counts.first_bad) == 2


@pytest.mark.slow
def test_a_compiled_step_computes_the_same(few_images, tmp_path):
    plain, compiled = (take_steps(new_trainer(tmp_path, compile=flag), 2) for flag in (False, True))
    assert float(compiled.step.counts.loss_sum) == pytest.approx(float(plain.step.counts.loss_sum), rel=1e-4)
    assert compiled.step.model.state_dict().keys() == plain.step.model.state_dict().keys()


@pytest.mark.slow
def test_a_bfloat16_step_is_near_the_float32_one(few_images, tmp_path):
    plain, half = (take_steps(new_trainer(tmp_path, precision=name), 2) for name in ("float32", "bfloat16"))
    assert all(parameter.dtype == torch.float32 for parameter in half.step.model.parameters())
    assert float(half.step.counts.loss_sum) == pytest.approx(float(plain.step.counts.loss_sum), rel=0.05)
    assert float(half.step.counts.loss_sum) != float(plain.step.counts.loss_sum)


@pytest.mark.parametrize("shards", [1, 2])
@pytest.mark.parametrize("method", each(METHODS))
def test_batchnorm_counts_steps(few_images, tmp_path, method, shards):
    """However often a step passes through the model."""
    trainer = take_steps(new_trainer(tmp_path, method, model__name=DROPOUT, shards=shards, awp=0.01), 2)
    (norm,) = (layer for layer in trainer.step.model.modules() if isinstance(layer, torch.nn.BatchNorm2d))
    assert int(norm.num_batches_tracked) == 2


def test_a_mean_over_all_passes_counts_them_all(few_images, tmp_path):
    def passes(momentum):
        trainer = new_trainer(tmp_path, "trades", model__name=DROPOUT)
        (norm,) = (layer for layer in trainer.step.model.modules() if isinstance(layer, torch.nn.BatchNorm2d))
        norm.momentum = momentum
        trainer.step.step_count = StepCount(trainer.step.model)
        take_steps(trainer, 2)
        return int(norm.num_batches_tracked)

    assert (passes(0.1), passes(None)) == (2, 4)
