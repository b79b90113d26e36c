"""One example call of every op, by its name: opcheck, the meta device, torch.compile and the GPU tests run
over all of them.
"""

from __future__ import annotations

from typing import Any

import torch

from cfol_fast import ops

K, N, B = 5, 40, 12


def example_calls(device: str = "cpu") -> dict[str, tuple[Any, ...]]:
    """Fresh arguments for each op; what an op writes to is not shared between two calls."""
    g = torch.Generator().manual_seed(0)
    labels = torch.arange(N) % K
    offsets, members = ops.group_by_class(labels, K)
    x = torch.rand(3, 3, 6, 6, generator=g)
    images = torch.randint(0, 256, (N, 8, 8, 3), dtype=torch.uint8, generator=g)
    idx, y = torch.arange(B) * 3, labels[torch.arange(B) * 3]
    loss, eps = torch.rand(B, generator=g), torch.full((3,), 0.1)
    w, base = torch.linspace(-1, 1, K).double(), torch.full((K,), 1 / K).double()
    chances = torch.full((B,), 1 / N).double()
    tree = ops.sum_tree_new(N)
    map_and_weight = (
        torch.rand(2, 5, 6, 4, generator=g).contiguous(memory_format=torch.channels_last),
        torch.rand(5, 3, 3, 3, generator=g),
    )
    map_of_lanes = torch.rand(2, 16, 5, 4, generator=g).contiguous(memory_format=torch.channels_last)
    kernels = torch.rand(32, 16, 3, 3, generator=g)
    jitter = (8, 8, 2, True, True, 0.25, 0.25, 0.25, 2.0, 0)

    def rng() -> torch.Tensor:
        return ops.new_rng(7)

    calls: dict[str, tuple[Any, ...]] = {
        "pgd_start": (x, 0.0, eps, rng(), False, ops.new_fault(), 2, 9),
        "pgd_step": (x.clone(), x, x - 0.5, 0.02, 0.1, None, None, False, None),
        "input_gradient": (*map_and_weight, None, 1, 1),
        "winograd": (
            map_of_lanes,
            ops.winograd_taps(kernels),
            torch.rand(32, generator=g),
            map_of_lanes - 0.5,
            True,
        ),
        "winograd_taps": (kernels, True),
        "exp3_distribution": (w, base, 0.5),
        "exp3_draw": (w, base, 0.5, offsets, members, rng(), B),
        "exp3_update": (w.clone(), base, y, loss, 0.1, ops.new_fault()),
        "exp3_learn": (w.clone(), base, batch_tally(y, loss), ops.new_seen(K), 0.1, ops.new_fault()),
        "class_tally": (ops.new_tally(K), y, loss, None),
        "permutation": (rng(), N, torch.tensor([3]), B),
        "uniform": (rng(), 5, 3, B),
        "sum_tree_build": (tree.w.clone(),),
        "sum_tree_draw": (tree.tree, N, 0.5, rng(), B),
        "sum_tree_update": (
            tree.tree.clone(),
            tree.w.clone(),
            tree.meta.clone(),
            idx,
            loss,
            chances,
            0.1,
            None,
        ),
        "gather_augment": (images, None, idx, rng(), None, 3, *jitter, False, True, None),
        "augment_parameters": (images, None, idx, rng(), 3, *jitter, None),
    }
    return {
        name: tuple(a.to(device) if isinstance(a, torch.Tensor) else a for a in arguments)
        for name, arguments in calls.items()
    }


def batch_tally(y: torch.Tensor, loss: torch.Tensor) -> torch.Tensor:
    tally = ops.new_tally(K)
    ops.class_tally_(tally, y, loss)
    return tally


def schema_names() -> set[str]:
    """The ops that the library defines."""
    prefix = "cfol_fast::"
    return {s.name.removeprefix(prefix) for s in torch._C._jit_get_all_schemas() if s.name.startswith(prefix)}
