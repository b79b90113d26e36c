"""`--graph on`: when the step is captured, replayed and captured again, and when it is refused."""

import pytest
import torch

from cfol_fast.errors import InputError
from cfol_fast.training.capture import WARM_UP, why_no_graph
from tests.training.tiny import new_trainer, take_steps, tiny_config

go = take_steps


def test_capture_comes_after_the_warm_up_and_happens_once(few_images, fake_graphs, graph_trainer):
    trainer = graph_trainer()
    go(trainer, WARM_UP)
    assert fake_graphs == []
    go(trainer, 1)
    assert [graph.replays for graph in fake_graphs] == [1]
    go(trainer, 4)
    assert [graph.replays for graph in fake_graphs] == [5]
    assert trainer.position.step == int(trainer.step.counts.number) == WARM_UP + 5


def test_capture_is_repeated_when_the_shape_of_a_batch_changes(few_images, fake_graphs, graph_trainer):
    trainer = graph_trainer()
    go(trainer, WARM_UP + 1)
    trainer.state.batches.batch_size = 8
    go(trainer, WARM_UP + 2)
    assert [graph.replays for graph in fake_graphs] == [1, 2]
    assert int(trainer.step.counts.number) == 2 * WARM_UP + 3


def test_capture_is_repeated_after_a_checkpoint_was_loaded(few_images, fake_graphs, graph_trainer):
    """Loading replaces the momentum buffers, so that a replay would write to those of before."""
    trainer, other = graph_trainer(), graph_trainer()
    go(trainer, WARM_UP + 2)
    other.state.load(trainer.state.whole())
    trainer.state.load(other.state.whole())
    go(trainer, WARM_UP + 1)
    assert [graph.replays for graph in fake_graphs] == [2, 1]


@pytest.mark.slow
def test_capture_members_of_the_ensemble_are_kept_beside_the_graph(
    few_images, tmp_path, fake_graphs, graph_trainer
):
    eager, graph = new_trainer(tmp_path, ensemble=2), graph_trainer(ensemble=2)
    go(eager, 8)
    go(graph, 8)
    kept = [trainer.state.ensemble.state_dict() for trainer in (eager, graph)]
    leaves = [torch.utils._pytree.tree_leaves(members) for members in kept]
    assert len(leaves[0]) == len(leaves[1]) > 2
    for one, other in zip(*leaves, strict=True):
        assert torch.equal(one, other) if isinstance(one, torch.Tensor) else one == other


def test_capture_of_a_step_that_reads_back_is_refused_in_one_sentence(few_images, fake_graphs, graph_trainer):
    trainer = graph_trainer()
    objective = trainer.step.objective

    def reading(model, batch):
        loss, logits = objective(model, batch)
        assert float(loss.detach()) > 0
        return loss, logits

    trainer.step.objective = reading
    with pytest.raises(
        InputError, match=r"could not be captured \(.*reads from the device\); use --graph off"
    ):
        go(trainer, WARM_UP + 1)


def test_capture_on_the_cpu_is_refused(few_images, tmp_path):
    with pytest.raises(
        InputError, match="--graph on is not possible: a CUDA graph needs a GPU, and the run is on cpu"
    ):
        new_trainer(tmp_path, graph=True)


STREAMED = "a stream's batches come from the host (--source resident keeps all images on the GPU)"


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({}, None),
        ({"data__name": "beton"}, "FFCV's batches come from the host"),
        ({"data__name": "folder", "data__source": "stream"}, STREAMED),
        ({"data__name": "folder", "data__source": "auto"}, STREAMED),
        ({"data__name": "folder", "data__source": "resident"}, None),
        ({"compile": True}, "--compile brings CUDA graphs of its own"),
    ],
)
def test_capture_is_refused_for_what_it_does_not_cover(tmp_path, changes, reason):
    settled = {key.replace("__", "."): value for key, value in changes.items()}
    config = tiny_config(tmp_path).with_settled({"device": "cuda:0", **settled})
    assert why_no_graph(config) == reason


def test_capture_is_refused_under_torchrun(tmp_path, monkeypatch):
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "1")
    config = tiny_config(tmp_path).with_settled({"device": "cuda:0"})
    assert why_no_graph(config) == "a step of several processes is not captured"


def test_graph_is_on_or_off_on_the_command_line(tmp_path):
    assert tiny_config(tmp_path).graph is False
    assert tiny_config(tmp_path, graph="on").graph is True
    assert tiny_config(tmp_path, graph="off").graph is False
