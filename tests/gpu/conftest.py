"""The tests a GPU owner runs with `make test-gpu`. Each takes a device: those of CUDA are marked gpu, "cpu"
runs the same code here, so that a test that cannot even start is noticed without a GPU."""

import pytest
import torch


@pytest.fixture(params=["cpu", *(pytest.param(name, marks=pytest.mark.gpu) for name in ("cuda:0", "cuda:1"))])
def device(request):
    device = torch.device(request.param)
    if device.type == "cuda" and device.index >= torch.cuda.device_count():
        pytest.skip("needs a second NVIDIA GPU")
    return device
