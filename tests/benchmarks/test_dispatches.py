"""What a step starts on a GPU: some ops are more than one launch."""

import pytest
import torch
import torch.nn.functional as F

from benchmarks.dispatches import LAUNCHES, Counted, dispatched, with_graph
from benchmarks.steps import OurStep, Problem
from cfol_fast import ClassSampler, models
from cfol_fast.frozen import frozen


@pytest.mark.parametrize(("bias", "launches"), [(None, 1), (torch.zeros(4, device="meta"), 2)])
def test_a_bias_is_a_launch_of_its_own(bias, launches):
    x, weight = torch.zeros(2, 3, 8, 8, device="meta"), torch.zeros(4, 3, 3, 3, device="meta")
    with Counted(launches=True) as counted:
        F.conv2d(x, weight, bias)
    assert counted.kernels == {"aten.convolution": launches}


def test_a_draw_is_three_launches_and_one_dispatch():
    sampler = ClassSampler(torch.arange(20) % 5)
    for launches in (True, False):
        with Counted(launches) as counted:
            sampler.draw(4)
        assert counted.kernels["cfol_fast.exp3_draw"] == (3 if launches else 1)


def test_the_ops_with_several_launches_are_ops():
    for name in LAUNCHES:
        assert hasattr(torch.ops.cfol_fast, name.removeprefix("cfol_fast."))


def test_views_and_allocations_start_nothing():
    with Counted(launches=True) as counted:
        torch.empty(4).view(2, 2).detach()
    assert not counted.kernels


def test_a_fused_convolution_is_one_launch_and_unfused_one_up_to_four():
    """ResNet-18: 20 convolutions; 9 with a ReLU, 8 with a sum and a ReLU, 3 before a sum that another one
    takes.
    """
    model = models.create("resnet18@0.125", 10).eval().to("meta")
    x = torch.zeros(2, 3, 32, 32, device="meta")

    def forward():
        with torch.no_grad(), frozen(model, x.device) as net:
            net(x)

    fused, plain = (dispatched(forward, launches=True, fused=fused) for fused in (True, False))
    assert fused["aten.cudnn_convolution_relu"] == 9
    assert fused["aten.cudnn_convolution_add_relu"] == 8
    assert fused["aten.convolution"] == 3 * 2
    assert sum(plain.values()) - sum(fused.values()) == 9 * 2 + 8 * 3


@pytest.mark.slow
def test_a_captured_step_is_one_replay_and_a_rate_that_changes_one_launch_more():
    step = OurStep(Problem("demo-cnn", batch=2, images=20, steps=1))
    assert with_graph(step) == (1, 0)
    step.trainer.config = step.trainer.config.with_settled({"optimizer.schedule": "one-cycle"})
    assert with_graph(step) == (1, 1)
