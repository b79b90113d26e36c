"""A step that can be captured: nothing in it changes from step to step but what is in device memory."""

from contextlib import closing

import pytest
import torch

from cfol_fast.frozen import paused
from cfol_fast.methods import METHODS
from cfol_fast.policies import EpochFacts
from tests.training.replaying import Trace, tensors
from tests.training.tiny import each, new_trainer, take_steps


def a_step(trainer, trace):
    """The part of the next step that a capture records."""

    def record(batches):
        with paused(), trace:
            trainer.step(batches)

    trainer.state.captured = record
    take_steps(trainer, 1)
    return trace.ops


@pytest.mark.parametrize("precision", ["float32", pytest.param("bfloat16", marks=pytest.mark.slow)])
@pytest.mark.parametrize("method", each(METHODS))
def test_replay_two_steps_differ_in_no_op_and_in_no_number(few_images, tmp_path, method, precision):
    trainer = take_steps(new_trainer(tmp_path, method, precision=precision), 2)
    first, second = a_step(trainer, Trace()), a_step(trainer, Trace())
    assert len(first) == len(second)
    assert [pair for pair in zip(first, second, strict=True) if pair[0] != pair[1]] == []
    assert len(first) > 50


def test_replay_a_trace_sees_a_number_that_changes():
    x = torch.ones(2)
    traces = []
    for number in (1, 2):
        with Trace() as trace:
            x.mul(number)
        traces.append(trace.ops)
    assert traces[0] != traces[1]


def state(trainer):
    """Everything that the next steps depend on, and what is logged."""
    parts = trainer.state.whole().to_state()
    return tensors([parts[key] for key in ("model", *trainer.state.parts())])


def facts(epoch):
    """An epoch's end after which a class policy changes its factors."""
    low, high = (torch.linspace(start, start + 0.4, 10, dtype=torch.float64) for start in (0.1, 0.5))
    return EpochFacts(epoch, 1 - low, high, low, 1 + low, 1.2)


@pytest.mark.parametrize("method", each(METHODS, ["cfol"]))
def test_replay_the_recorded_step_equals_eager_steps_bit_for_bit(
    few_images, tmp_path, method, fake_graphs, graph_trainer
):
    compare(tmp_path, fake_graphs, graph_trainer, method)


@pytest.mark.parametrize("settings", [{"awp": 0.005}, {"optimizer__name": "adamw"}, {"attack__norm": "l2"}])
@pytest.mark.slow
def test_replay_equals_eager_steps_with_other_parts_too(
    few_images, tmp_path, settings, fake_graphs, graph_trainer
):
    compare(tmp_path, fake_graphs, graph_trainer, "cfol", **settings)


def compare(tmp_path, fake_graphs, graph_trainer, method, **settings):
    """Across the end of an epoch, and of a shuffle of the 160 training images."""
    steps, settings = 14, {"optimizer__schedule": "one-cycle", "steps_per_epoch": 7, **settings}
    eager, graph = new_trainer(tmp_path, method, **settings), graph_trainer(method, **settings)
    for trainer in (eager, graph):
        with closing(trainer.state.batches.feed(steps)) as batches:
            for _ in range(steps):
                trainer.take_step(batches)
                if trainer.steps_left_in_epoch == 0:
                    trainer.end_epoch(facts(trainer.position.epoch + 1))
    assert [recorded.replays for recorded in fake_graphs] == [steps - 3]
    assert eager.position.step == graph.position.step == steps
    before, after = state(eager), state(graph)
    assert len(before) == len(after) > 20
    assert all(map(torch.equal, before, after))
