"""The step itself: no read-back, the native ops inside, what the log points read, draws ahead of the update."""

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from cfol_fast import ops
from cfol_fast.methods import METHODS
from cfol_fast.runs.defaults import complete
from cfol_fast.training.parts import build
from cfol_fast.training.step import NEVER, DrawQueue
from tests.training import tiny


def built(tmp_path, method="cfol", **settings):
    return build(complete(tiny.tiny_config(tmp_path, method, **settings)))


def take_steps(parts, count: int, lr: float = 0.01) -> None:
    for number, (_, x, y) in enumerate(parts.splits.source.feed(parts.queue.draw, count)):
        idx, ticket = parts.queue.take()
        parts.step(number, lr, idx, x, y, ticket)


@pytest.mark.parametrize("method", METHODS)
def test_the_whole_step_runs_without_reading_anything_back(few_images, tmp_path, method):
    """On the meta device every read-back raises."""
    parts = built(tmp_path, method, device="meta")
    take_steps(parts, 2)
    assert all(parameter.grad.device.type == "meta" for parameter in parts.model.parameters())
    with pytest.raises((RuntimeError, NotImplementedError)):
        parts.step.loss_sum.item()


@pytest.mark.parametrize("kind", ["fgsm", "n-fgsm"])
def test_single_step_attacks_train_without_reading_back(few_images, tmp_path, kind):
    take_steps(built(tmp_path, "erm", device="meta", attack__kind=kind), 2)


class NativeOps(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.seen: set[str] = set()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func.namespace == "cfol_fast":
            self.seen.add(func._opname)
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize(
    ("method", "expected"),
    [
        ("erm", {"permutation", "gather_augment", "pgd_start", "pgd_step", "class_tally"}),
        ("cfol", {"exp3_draw", "exp3_update", "gather_augment", "pgd_start", "pgd_step", "class_tally"}),
        (
            "fol",
            {"sum_tree_draw", "sum_tree_update", "gather_augment", "pgd_start", "pgd_step", "class_tally"},
        ),
    ],
)
def test_a_real_step_calls_each_native_op(few_images, tmp_path, method, expected):
    parts = built(tmp_path, method)
    with NativeOps() as native:
        take_steps(parts, 1)
    assert expected <= native.seen


def test_a_step_changes_every_weight_and_tallies_every_example(few_images, tmp_path):
    parts = built(tmp_path)
    before = [parameter.detach().clone() for parameter in parts.model.parameters()]
    take_steps(parts, 3)
    assert all(not torch.equal(b, p) for b, p in zip(before, parts.model.parameters(), strict=True))
    counts, errors = ops.read_tally(parts.step.tally)
    assert int(counts.sum()) == 3 * 16
    assert 0 <= float(errors.sum()) <= 3 * 16
    assert int(parts.step.first_bad) == NEVER


def test_the_first_step_with_a_bad_loss_is_remembered(few_images, tmp_path):
    parts = built(tmp_path, "clean")
    take_steps(parts, 2)
    with torch.no_grad():
        next(parts.model.parameters()).fill_(float("nan"))
    for number in (2, 3):
        x, y = torch.rand(4, 1, 28, 28), torch.arange(4)
        parts.step(number, 0.01, y, x, y, None)
    assert int(parts.step.first_bad) == 2


def test_the_bandit_hears_of_mistakes_through_the_ticket_that_drew_them(few_images, tmp_path):
    """A source that draws three batches ahead: the update of each must use the p of its own draw."""
    parts = built(tmp_path, "cfol", eta=0.05)
    sampler, heard, drawn = parts.step.sampler, [], []
    observe, draw = sampler.observe, sampler.draw

    def watched_draw(n):
        idx = draw(n)
        drawn.append(sampler.ticket().clone())
        return idx

    def watched_observe(idx, y, loss, ticket):
        heard.append(ticket.clone())
        observe(idx, y, loss, ticket)

    sampler.draw, sampler.observe = watched_draw, watched_observe
    source, ahead = parts.splits.source, []
    for number in range(8):
        while len(ahead) < 4:
            ahead.append(parts.queue.draw())
        rows = ahead.pop(0)
        idx, ticket = parts.queue.take()
        assert torch.equal(rows, idx)
        parts.step(number, 0.01, idx, source.pixels(rows), source.labels[rows], ticket)
    assert len({tuple(p.tolist()) for p in drawn}) > 4  # the distribution moved
    assert all(torch.equal(h, d) for h, d in zip(heard, drawn, strict=False))


def test_batches_drawn_and_not_trained_on_survive_a_checkpoint(few_images, tmp_path):
    parts = built(tmp_path)
    first, second = parts.queue.draw(), parts.queue.draw()
    state = parts.queue.state_dict()
    again = DrawQueue(parts.step.sampler, 16)
    again.load_state_dict(state)
    assert torch.equal(again.draw(), first)
    assert torch.equal(again.draw(), second)
    assert torch.equal(again.take()[0], first)


def test_rows_translate_the_samplers_indices_for_the_source(few_images, tmp_path):
    parts = built(tmp_path)
    rows = torch.arange(len(parts.splits.labels)) + 1000
    queue = DrawQueue(parts.step.sampler, 16, rows)
    drawn = queue.draw()
    assert torch.equal(drawn - 1000, queue.take()[0])


def test_the_hold_out_is_no_part_of_the_training_images(few_images, tmp_path):
    splits = built(tmp_path).splits
    assert (len(splits.labels), len(splits.validation), len(splits.test)) == (160, 40, 50)
    train = {image.numpy().tobytes() for image in splits.source.images}
    assert not any(image.numpy().tobytes() in train for image in splits.validation.images)


@pytest.mark.parametrize(
    ("holdout", "split", "count"), [("test", "test", 50), ("none", None, 0), ("0.5", "holdout", 100)]
)
def test_the_hold_out_can_be_the_test_set_or_nothing(few_images, tmp_path, holdout, split, count):
    splits = built(tmp_path, data__holdout=holdout).splits
    assert (0 if splits.validation is None else len(splits.validation)) == count
    assert splits.validation is None or splits.validation_split == split
    assert len(splits.labels) == (200 if holdout != "0.5" else 100)


def test_a_compiled_step_computes_the_same(few_images, tmp_path):
    plain, compiled = built(tmp_path), built(tmp_path, compile=True)
    for parts in (plain, compiled):
        take_steps(parts, 2)
    assert float(compiled.step.loss_sum) == pytest.approx(float(plain.step.loss_sum), rel=1e-4)
    assert compiled.model.state_dict().keys() == plain.model.state_dict().keys()


def test_a_bfloat16_step_is_near_the_float32_one(few_images, tmp_path):
    plain, half = built(tmp_path), built(tmp_path, precision="bfloat16")
    for parts in (plain, half):
        take_steps(parts, 2)
    assert all(parameter.dtype == torch.float32 for parameter in half.model.parameters())
    assert float(half.step.loss_sum) == pytest.approx(float(plain.step.loss_sum), rel=0.05)
    assert float(half.step.loss_sum) != float(plain.step.loss_sum)
