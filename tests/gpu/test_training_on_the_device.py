"""Training on the device: no wait in a step, compiled with CUDA graphs, bfloat16, fed by FFCV from device
indices.
"""

import math

import pytest
import torch

from cfol_fast import data, ops
from cfol_fast.data.ffcv import writer
from cfol_fast.runs.config import TrainConfig
from cfol_fast.training.images import load_images
from cfol_fast.training.parts import build
from cfol_fast.training.step import Step


def configured(device, tmp_path, **changes):
    return TrainConfig(
        {"epochs": 1, "steps_per_epoch": 6, "batch_size": 32},
        changes,
        out=str(tmp_path / "run"),
        device=str(device),
    )


def take_steps(config, steps, watch=None):
    trainer = build(config, load_images(config))
    batches = trainer.state.batches.feed(steps)
    try:
        for number in range(steps):
            # The first steps may allocate and choose algorithms.
            if watch is not None and number == 2:
                watch(True)
            trainer.take_step(batches)
    finally:
        # Also after a failure, or every later test of the process would fail with it.
        if watch is not None:
            watch(False)
    return trainer


@pytest.mark.parametrize("method", ["erm", "cfol", "fol", "lcvar", "trades"])
@pytest.mark.slow
def test_a_training_step_never_waits_for_the_device(device, tmp_path, method):
    def watch(on):
        if device.type == "cuda":  # pragma: no cover
            torch.cuda.set_sync_debug_mode("error" if on else "default")

    trainer = take_steps(configured(device, tmp_path, method=method), 5, watch)
    assert math.isfinite(float(trainer.step.counts.loss_sum))
    counts, _ = ops.read_tally(trainer.step.counts.tally)
    assert int(counts.sum()) == 5 * 32


@pytest.mark.slow
def test_bfloat16(device, tmp_path):
    trainer = take_steps(configured(device, tmp_path, precision="bfloat16"), 3)
    assert math.isfinite(float(trainer.step.counts.loss_sum))


@pytest.mark.gpu
def test_compiled_with_cuda_graphs(tmp_path):
    eager = take_steps(configured("cuda", tmp_path), 4)
    compiled = take_steps(configured("cuda", tmp_path, compile=True), 4)
    torch.testing.assert_close(compiled.counts.loss_sum, eager.counts.loss_sum, rtol=1e-2, atol=0)


@pytest.mark.ffcv
def test_ffcv_is_fed_from_device_indices(device, tmp_path):
    images = data.load("fashion-mini").train.subset(torch.arange(200))
    path = tmp_path / "train.beton"
    writer.write(path, images)
    source = data.FFCVSource(path, lag=1, device=device, seed=1)
    rng, start = ops.new_rng(2, device), torch.zeros(1, dtype=torch.int64, device=device)

    def draw():
        idx = ops.permutation(rng, 200, start, 16)
        rng[1] += 1
        return idx

    for idx, x, y in source.feed(draw, 4):
        assert x.device.type == idx.device.type == device.type
        expected = images.images[idx.cpu()].permute(0, 3, 1, 2).float() / 255
        torch.testing.assert_close(x.cpu(), expected, atol=1e-6, rtol=0)
        assert torch.equal(y.cpu(), images.labels[idx.cpu()])
    source.close()


def test_the_watch_for_waits_ends_with_a_step_that_fails(tmp_path, monkeypatch):
    seen = []

    def broken(self, batches):
        if True in seen:
            raise RuntimeError("it waited")

    monkeypatch.setattr(Step, "__call__", broken)
    with pytest.raises(RuntimeError, match="it waited"):
        take_steps(configured("cpu", tmp_path), 5, seen.append)
    assert seen == [True, False]
