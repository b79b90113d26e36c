"""Torch's wrappers around a network are taken off for an attack, unless they change what it computes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from cfol_fast.frozen.network import bare, frozen

x = torch.rand(4, 3, 8, 8, generator=torch.Generator().manual_seed(0))


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(144, 5)).eval()


class OwnParallel(nn.DataParallel):
    def forward(self, x: Tensor) -> Any:  # type: ignore[override]
        return super().forward(1 - x)


class Average(nn.Module):
    """Has an attribute with the name that torch.compile's wrapper uses."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self._orig_mod = network

    def forward(self, x: Tensor) -> Tensor:
        return self._orig_mod(1 - x)


def compiled(network: nn.Module) -> nn.Module:
    return torch.compile(network, backend="eager")  # type: ignore[return-value]


def hooked(wrapper: nn.Module) -> nn.Module:
    wrapper.register_forward_pre_hook(lambda module, args: (1 - args[0],))
    return wrapper


def patched(wrapper: nn.Module) -> nn.Module:
    inside = next(wrapper.children())
    wrapper.forward = lambda x: inside(1 - x)
    return wrapper


CHANGED: dict[str, Callable[[nn.Module], nn.Module]] = {
    "a subclass of DataParallel": OwnParallel,
    "a hook on DataParallel": lambda network: hooked(nn.DataParallel(network)),
    "forward replaced on DataParallel": lambda network: patched(nn.DataParallel(network)),
    "a model with an attribute _orig_mod": Average,
    "a hook on a compiled model": lambda network: hooked(compiled(network)),
    "forward replaced on a compiled model": lambda network: patched(compiled(network)),
}


@pytest.mark.parametrize("name", CHANGED)
@pytest.mark.parametrize("fast", [True, False])
@pytest.mark.filterwarnings("ignore")
def test_a_wrapper_that_changes_what_is_computed_stays(name: str, fast: bool) -> None:
    inside = network()
    model = CHANGED[name](inside).eval()
    with frozen(model, x.device, fast) as attacked:
        torch.testing.assert_close(attacked(x), inside(1 - x))


@pytest.mark.parametrize("wrap", [nn.DataParallel, compiled])
def test_a_wrapper_of_torchs_own_is_taken_off(wrap: Callable[[nn.Module], nn.Module]) -> None:
    inside = network()
    assert bare(wrap(inside)) is bare(wrap(nn.DataParallel(inside))) is inside
