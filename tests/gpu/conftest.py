"""The tests a GPU owner runs with `make test-gpu`. Each takes a device: "cuda" is marked gpu, "cpu" runs the same code here, so that
a test that cannot even start is noticed without a GPU."""

import pytest
import torch


@pytest.fixture(params=["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def device(request):
    return torch.device(request.param)
