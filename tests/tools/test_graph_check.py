"""What the GPU self-test finds out about `--graph on`, with a stand-in for the graph."""

import json
import subprocess

import pytest
import torch

from cfol_fast import data
from cfol_fast.frozen import cudnn
from cfol_fast.training import parts
from cfol_fast.training.capture import WARM_UP
from tests.training import tiny
from tests.training.replaying import fake_cuda
from tools import gpu_check, graph_check


@pytest.fixture
def config(monkeypatch, tmp_path):
    """A run on the CPU that may be captured, by the stand-in."""
    monkeypatch.setattr(data, "load", tiny.few_images())
    monkeypatch.setattr(parts, "why_no_graph", lambda config: None)
    return tiny.tiny_config(tmp_path, epochs=1, steps_per_epoch=WARM_UP + 4)


def test_captured_steps_are_compared_with_eager_ones(monkeypatch, config):
    graphs = fake_cuda(monkeypatch)
    found = graph_check.compare(config)
    assert [graph.replays for graph in graphs] == [4]
    assert found["different"] == []
    assert found["steps"] == WARM_UP + 4
    assert not torch.are_deterministic_algorithms_enabled()


def test_a_replay_that_misses_something_is_seen(monkeypatch, config):
    fake_cuda(monkeypatch)
    monkeypatch.setattr("tests.training.replaying.RecordedGraph.replay", lambda graph: None)
    found = graph_check.compare(config)
    assert "sampler.w" in found["different"]
    assert not found["recommended"]
    assert "do not use it here" in found["advice"]


@pytest.mark.parametrize(
    ("different", "times", "said"),
    [
        ([], 1.8, "recommended, the same state bit for bit and 1.80 times as fast"),
        ([], 1.0, "not faster"),
        (["model.fc.weight"], 1.8, "1 tensors differ from eager steps, such as model.fc.weight"),
    ],
)
def test_the_advice_follows_equality_and_speed(different, times, said):
    assert said in graph_check.advice(different, times)


@pytest.mark.parametrize(
    ("status", "printed", "expected"),
    [
        (0, '{"recommended": true, "advice": "yes"}', {"recommended": True, "advice": "yes"}),
        (-11, "", None),
    ],
)
def test_a_comparison_that_crashes_is_part_of_the_report(monkeypatch, status, printed, expected):
    done = subprocess.CompletedProcess([], status, f"noise\n{printed}", "Segmentation fault")
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: done)
    found = graph_check.in_a_process()
    if expected is None:
        assert "Segmentation fault" in found["trouble"]
        assert not found["recommended"]
    else:
        assert found == expected
    assert json.dumps(found)


def test_the_gpu_report_has_the_comparison(monkeypatch):
    monkeypatch.setattr(graph_check, "in_a_process", lambda: {"advice": "yes"})
    assert gpu_check.PARTS["graph"]() == {"advice": "yes"}


def test_the_gpu_report_says_what_cudnn_fuses(monkeypatch):
    monkeypatch.setattr(cudnn, "fuses", lambda device, dtype: dtype == torch.bfloat16)
    found = gpu_check.PARTS["fused_convolutions"]()
    assert found == {"torch.float32": False, "torch.bfloat16": True, "torch.float16": False}
