"""Calls of every op whose arrays are larger than a round of an unrolled loop, in every layout and with every
kind of bad value: together they visit nearly all that a compiler made of the kernels.
"""

from __future__ import annotations

import itertools
import struct
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from cfol_fast import ops

# The stand-in's grids have at most 5 blocks of 256 threads, and compilers take four rounds together.
ROUNDS = 4 * 5 * 256
FULL = (4, True, True, 0.4, 0.4, 0.4, 20.0)

Calls = Iterator[tuple[str, tuple[Any, ...]]]


def calls() -> Calls:
    """(op, arguments), anew each time: ops write to them."""
    yield from _attacks(torch.Generator().manual_seed(1))
    yield from _convolutions(torch.Generator().manual_seed(2))
    yield from _bandits(torch.Generator().manual_seed(3))
    yield from _trees(torch.Generator().manual_seed(4))
    yield from _images(torch.Generator().manual_seed(5))
    n = 3 * ROUNDS + 7
    for first, count in ((0, n), (3, n), (5, 2)):
        yield "uniform", (ops.new_rng(7), 5, first, count)
    for examples, start, count in ((1, 0, 3), (2, 1, 5), (1000, 990, n), (n, -1, n), (1 << 40, 5, 1000)):
        yield "permutation", (ops.new_rng(7), examples, torch.tensor([start]), count)


def _attacks(g: torch.Generator) -> Calls:
    for shape in ((7, 3, 31, 29), (5, 1, 40, 40), (3, 5003), (2, 3, 1, 1), (6, 2)):
        x = torch.rand(shape, generator=g)
        images = [x, x.contiguous(memory_format=torch.channels_last)] if x.dim() == 4 else [x]
        images.append(torch.cat([torch.zeros(1), x.flatten()])[1:].view(shape))  # not aligned
        each = torch.linspace(0, 0.2, shape[0])
        bad = each.clone()
        bad[0] = -1.0
        for image in images:
            grad = torch.empty_like(image).copy_(torch.randn(shape, generator=g))
            torch.as_strided(grad, (3,), (1,)).copy_(torch.tensor([0.0, float("nan"), float("inf")]))
            for l2 in (False, True):
                for radius in ((0.1, None), (0.0, each), (0.0, bad)):
                    yield "pgd_start", (image, *radius, ops.new_rng(3), l2, ops.new_fault(), 2, 50)
                    adv = torch.empty_like(image).copy_(image).add_(0.01)
                    yield "pgd_step", (adv, image, grad, 0.02, 0.1, None, radius[1], l2, ops.new_fault())
                for step, eps in ((each, None), (each, each), (bad, bad)):
                    adv = torch.empty_like(image).copy_(image).add_(0.01)
                    yield "pgd_step", (adv, image, grad, 0.02, 0.1, step, eps, l2, ops.new_fault())


def _convolutions(g: torch.Generator) -> Calls:
    channels_last = {"memory_format": torch.channels_last}
    for outputs, channels, side, padding in (
        *((outputs, 3, 5, 1) for outputs in range(1, 9)),
        *((8, 4, 12, 0), (64, 1, 4, 1), (9, 70, 5, 2)),
    ):
        grad = torch.randn(2, outputs, side, side + 1, generator=g).contiguous(**channels_last)
        for kernel in (1, 3, 5):
            weight = torch.randn(outputs, channels, kernel, kernel, generator=g)
            for relu in (None, _like(grad, g)):
                pad = min(padding, kernel - 1)
                yield "input_gradient", (grad, weight, relu, pad, pad)
    for channels, outputs, height, width in ((16, 32, 9, 10), (32, 16, 4, 5), (16, 16, 1, 2)):
        weight = torch.randn(outputs, channels, 3, 3, generator=g)
        yield "winograd_taps", (weight, True)
        yield "winograd_taps", (weight, False)
        x = torch.randn(3, channels, height, width, generator=g).contiguous(**channels_last)
        for bias in (None, torch.randn(outputs, generator=g)):
            for relu in (None, _like(x, g)):
                for rectify in (False, True):
                    yield "winograd", (x, ops.winograd_taps(weight), bias, relu, rectify)


def _like(x: Tensor, g: torch.Generator) -> Tensor:
    return torch.empty_like(x).copy_(torch.randn(x.shape, generator=g))


def _bandits(g: torch.Generator) -> Calls:
    n = 2 * ROUNDS + 3
    for k in (2, 5, 43, 1500, 4001):
        w = torch.randn(k, dtype=torch.float64, generator=g)
        base = torch.full((k,), 1 / k, dtype=torch.float64)
        offsets, members = ops.group_by_class(torch.arange(3 * k) % k, k)
        yield "exp3_distribution", (w, base, 0.5)
        yield "exp3_draw", (w, base, 0.5, offsets, members, ops.new_rng(1), n)
        yield "exp3_draw", (torch.full_like(w, float("nan")), base, 0.5, offsets, members, ops.new_rng(1), 3)
        p = ops.exp3_distribution(w, base, 0.5)[0]
        y, loss = torch.randint(0, k, (n,), generator=g), torch.rand(n, generator=g)
        for eta in (0.0, 0.1, 1e6):
            yield "exp3_update", (w.clone(), p, y, loss, eta, ops.new_fault())
        bad_y, bad_loss, bad_p = _damaged(y, k), _damaged(loss, 2.0, at=2), p.clone()
        bad_p[0] = 0.0
        yield "exp3_update", (w.clone(), bad_p, bad_y, bad_loss, 0.1, ops.new_fault())
        yield "exp3_update", (w.clone(), bad_p, bad_y, bad_loss, 0.1, None)
        yield "class_tally", (ops.new_tally(k), y, loss, None)
        tally = ops.new_tally(k)
        torch.ops.cfol_fast.class_tally.default(tally, y, loss, None)
        for rows in (1, k):
            seen = torch.full((rows, 2), 5)
            yield "exp3_learn", (w.clone(), p, tally, seen, 0.1, ops.new_fault())
            yield "exp3_learn", (w.clone(), bad_p, -tally, seen.clone(), 1e6, ops.new_fault())
        yield "class_tally", (ops.new_tally(k), bad_y, bad_loss, ops.new_fault())


def _damaged(values: Tensor, bad: float, at: int = 0) -> Tensor:
    """Bad values in each of the rounds that are taken together and in a later one, from `at` on."""
    damaged = values.clone()
    for place in range(at, ROUNDS + at + 1, ROUNDS // 4):
        damaged[place] = bad
        damaged[place + 1] = -1 if values.dtype == torch.int64 else float("nan")
    return damaged


def _trees(g: torch.Generator) -> Calls:
    for n in (1, 40, 2 * ROUNDS + 1, 40 * ROUNDS):
        tree = ops.sum_tree_new(n)
        idx = torch.randint(0, n, (2 * ROUNDS + 9,), generator=g)
        loss = torch.rand(idx.shape, generator=g)
        chances = torch.full(idx.shape, 1 / n, dtype=torch.float64)
        yield "sum_tree_build", (torch.arange(n) << 20,)
        yield "sum_tree_draw", (tree.tree, n, 0.5, ops.new_rng(1), 2 * ROUNDS + 9)
        yield "sum_tree_draw", (tree.tree, n, 1e-9, ops.new_rng(1), 100)
        bad = (_damaged(idx, n), _damaged(loss, 2.0, at=2), _damaged(chances, 0.0, at=4))
        good = (idx, loss, chances)
        for given, eta in ((good, 1e-9), (good, 1e-3 / n), (good, 0.1), (good, 1e6), (bad, 1e-3 / n)):
            state = [part.clone() for part in (tree.tree, tree.w, tree.meta)]
            yield "sum_tree_update", (*state, *given, eta, ops.new_fault())


def _images(g: torch.Generator) -> Calls:
    table = torch.tensor([[0, 20, 30], [1800, 7, 5], [1905, 40, 3], [10**9, 5, 5], [0, 0, 3]])
    for channels in (1, 3):
        images = torch.randint(0, 256, (9, 37, 41, channels), dtype=torch.uint8, generator=g)
        idx = torch.tensor([0, 8, 3, 9, -1, 4])
        given = torch.tensor([[1, -2, 1, 1.3, 0.4, 0.7, 30, 0], [0, 0, 0, 1, 1, 1, 0, 0]]).repeat(3, 1)
        given[2, 3], given[3, 6], given[4, 4] = float("nan"), 500, 1e9
        given[5, 3:6] = torch.tensor([0.5, 2.0, 3.0])
        quiet = (0, False, False, 0.0, 0.0, 0.0, 0.0)
        for rng, parameters, ranges in (
            (ops.new_rng(3), None, FULL),
            (ops.new_rng(3), None, (2, True, True, 0.0, 0.0, 0.0, 180.0)),
            (ops.new_rng(3), None, (2, True, False, 1.4, 0.0, 0.5, 0.0)),
            (None, given, quiet),
            (None, None, quiet),
        ):
            for bfloat16 in (False, True):
                for channels_last in (False, True):
                    frame = (channels, 35, 36)
                    layout = (0, bfloat16, channels_last, ops.new_fault())
                    yield (
                        "gather_augment",
                        (images, None, idx, _again(rng), parameters, *frame, *ranges, *layout),
                    )
            bytes_, rows = images.flatten()[:6000], torch.arange(5)
            few = None if parameters is None else parameters[:5]
            for bfloat16 in (False, True):
                call = (bytes_, table, rows, _again(rng), few, channels, 24, 24, *ranges, 1, bfloat16, False)
                yield "gather_augment", (*call, ops.new_fault())
        many = torch.arange(ROUNDS) % 11 - 1
        for ranges in (FULL, quiet):
            after = (3, ops.new_fault())
            yield (
                "augment_parameters",
                (images, None, many, ops.new_rng(1), channels, 32, 40, *ranges, *after),
            )
        rows = torch.arange(ROUNDS) % 5
        after = (3, ops.new_fault())
        store = (images.flatten()[:6000], table, rows, ops.new_rng(1))
        yield "augment_parameters", (*store, channels, 9, 9, *FULL, *after)


def _again(rng: Tensor | None) -> Tensor | None:
    return None if rng is None else rng.clone()


Launch = tuple[str, tuple[Any, ...]]


def launches() -> Iterator[Launch]:
    """(kernel, parameters): launches that no op makes, since its checks or its launcher leave them out. The
    kernels say what they compute then, and compilers have made code for it.
    """
    g = torch.Generator().manual_seed(6)
    x, grad = torch.rand(3 * 6001, generator=g), torch.randn(3 * 6001, generator=g)
    each, fault = torch.tensor([0.1, -1.0, 0.02]), torch.zeros(1, dtype=torch.int32)
    # The last elements of each come in another one of the rounds that are taken together.
    for plane, width, step, eps in itertools.product((1, 4001, 6001), (1, 4), (None, each), (None, each)):
        layout = struct.pack("qqq?7x", 3, 1, plane, False)
        for value, flags in ((0.1, fault.clone()), (-1.0, fault.clone()), (0.1, None)):
            sizes = _per_example(value, step), _per_example(0.1, eps)
            yield f"step_linf_kernel<{width}>", (x.clone(), x, grad, layout, *sizes, flags)
    result = torch.zeros(2 * 5 * 5 * 16)
    for channels in (0, 16):
        shape = struct.pack("5q", 2, channels, 16, 5, 5)
        maps, taps = torch.randn(2 * 5 * 5 * 16, generator=g), torch.randn(16 * 16 * 16, generator=g)
        for bias in (None, torch.randn(16, generator=g)):
            for rectify in (False, True):
                for relu in (None, maps):
                    rest = (shape, struct.pack("?", rectify), struct.pack("q", 2 * 3 * 3 * 16))
                    yield "winograd_kernel", (maps, relu, taps, bias, *rest, result.clone())
    for outputs, kernel in ((0, 3), (4, 0), (17, 3), (40, 2)):
        shape = struct.pack("9q", 2, 3, outputs, kernel, kernel, 0, 0, 7, 7)
        grad, weight = torch.randn(2 * 49 * 40, generator=g), torch.randn(40 * 3 * 9, generator=g)
        size = 7 + kernel - 1
        count = struct.pack("q", 2 * size * size * 3)
        for relu in (None, grad):
            yield (
                "input_gradient_kernel",
                (grad, relu, weight, shape, count, torch.zeros(2 * size * size * 3)),
            )
    yield from _parameters(g)
    nodes = torch.ones(9000, dtype=torch.int64)
    layout = struct.pack("qi4x9qi4x", 40, 3, 0, 0, 0, 8999, 0, 0, 0, 0, 0, 54)
    for shift in (0, 5):
        indices, weights = torch.tensor([3, -1, 40]), torch.zeros(40, dtype=torch.int64)
        meta = torch.tensor([shift, 0])
        yield "refresh_kernel", (nodes.clone(), weights, meta, layout, indices, struct.pack("q", 3))


def _parameters(g: torch.Generator) -> Iterator[Launch]:
    most = 3 * ROUNDS
    images = torch.randint(0, 256, (4000,), dtype=torch.uint8, generator=g)
    table = torch.tensor([[0, 20, 30], [600, 7, 5], [905, 40, 3], [10**9, 5, 5], [0, 0, 3]])
    idx = torch.arange(most) % 7 - 1
    given = torch.tensor([[1, -2, 1, 1.3, 0.4, 0.7, 30, 0], [0, 0, 0, 1, 1, 1, 0, 0]]).repeat(most // 2, 1)
    for column, bad in ((0, 1e9), (1, -1e9), (3, -1), (4, float("nan")), (5, 1e7), (6, 500)):
        given[column :: ROUNDS // 4 + 8, column] = bad
    for rows in (None, table):
        for crop in (False, True):
            for parameters, rng in ((None, None), (given, None), (None, ops.new_rng(5))):
                for size, n in ((9, 3 * ROUNDS), (33, 1000), (9, 3500)):
                    store = _struct("PqPqqqq", images, 4000, rows, 5, 3, 20, 13)
                    plan = _struct("q??2x4f4xPPq", 2, crop, crop, 0.4, 1.4, 0.4, 20.0, parameters, rng, 3)
                    frame = struct.pack("4q2?6x", n, 3, size, size, False, False)
                    for fault in (torch.zeros(1, dtype=torch.int32), None):
                        result = torch.zeros(n, 8)
                        yield "augment_parameters_kernel", (store, idx, plan, frame, result, fault)


def _per_example(value: float, each: Tensor | None) -> tuple[bytes, Any]:
    return _struct("f4xP", value, each)


def _struct(format: str, *values: Any) -> tuple[bytes, Any]:
    """A structure's bytes, with the tensors that it points to, which must live as long."""
    numbers = [v.data_ptr() if isinstance(v, Tensor) else 0 if v is None else v for v in values]
    return struct.pack(format, *numbers), values


FAR = 2**34  # of a loop over as many elements, an index of 32 bits knows nothing


def far_launches() -> Iterator[tuple[str, tuple[Any, ...], int]]:
    """(kernel, parameters, the first block that is run): of a grid over more than 2^34 elements the two
    blocks at its end. Pointers lie as far before the arrays as the first element's index is large.
    """
    g = torch.Generator().manual_seed(7)
    length, n = 300, FAR + 300
    block = FAR // 256
    x, grad, loss = (torch.rand(length, generator=g) for _ in range(3))
    y = torch.randint(0, 5, (length,), generator=g)
    flags, rng, tally = torch.zeros(1, dtype=torch.int32), ops.new_rng(3), ops.new_tally(5)
    count, five = struct.pack("q", n), struct.pack("q", 5)
    for width in (1, 4):
        for batch in (1, 4):
            layout = struct.pack("qqq?7x", batch, 1, n // batch, False)
            each = None if batch == 1 else torch.linspace(0.1, 0.2, batch)
            arrays = (_before(v, FAR) for v in (x.clone(), x, grad))
            sizes = _per_example(0.01, each), _per_example(0.1, None)
            yield f"step_linf_kernel<{width}>", (*arrays, layout, *sizes, flags), block // width
    yield "class_tally_kernel", (tally, five, _before(y, FAR), _before(loss, FAR), count, flags), block
    p = torch.full((5,), 0.2, dtype=torch.float64)
    sums = torch.zeros(5, dtype=torch.int64)
    yield "collect_kernel", (p, five, _before(y, FAR), _before(loss, FAR), count, sums, flags), block
    many = torch.ones(length, dtype=torch.int64)
    yield "clear_kernel(long*, long)", (_before(many, FAR), count), block
    offsets, members = ops.group_by_class(torch.arange(40) % 5, 5)
    cdf = ops.exp3_distribution(torch.zeros(5, dtype=torch.float64), p, 0.5)[2]
    classes = _struct("PPq", offsets, members, 40)
    drawn = torch.zeros(length, dtype=torch.int64), torch.zeros(length, dtype=torch.int64)
    places = (_before(v, FAR) for v in drawn)
    yield "draw_kernel(long const*, long,", (cdf, five, classes, rng, count, *places), block
    tree = ops.sum_tree_new(40)
    idx, chances = (
        torch.randint(0, 40, (length,), generator=g),
        torch.full((length,), 0.1, dtype=torch.float64),
    )
    feedback = (_before(v, FAR) for v in (idx, loss, chances))
    leaves = struct.pack("q", 40)
    given = (*feedback, count, struct.pack("d", 1e-3), flags)
    yield "gain_kernel(long*", (tree.w, tree.meta, leaves, *given), block
    yield "shift_kernel", (tree.w, tree.meta, leaves, _before(idx, FAR), count), block
    yield "largest_kernel", (_before(many, FAR), tree.meta, count), block
    made = torch.zeros(length)
    shape = struct.pack("qqq?7x", 1, 1, 4 * FAR + 1200, False)
    parts = struct.pack("qq", 0, 1)
    # A thread has four pixels.
    noise, pixels = torch.zeros(4 * length), torch.rand(4 * length, generator=g)
    arrays = _before(pixels, 4 * FAR), _before(noise, 4 * FAR)
    yield "start_linf_kernel", (*arrays, shape, parts, _per_example(0.1, None), rng, flags), block
    stream, first, numbers = struct.pack("i", 5), struct.pack("q", 0), struct.pack("q", 4 * FAR + 1200)
    yield "uniform_kernel", (rng, stream, first, numbers, _before(noise, 4 * FAR)), block
    images = torch.randint(0, 256, (9, 20, 13, 3), dtype=torch.uint8, generator=g)
    which = torch.randint(0, 9, (length,), generator=g)
    store = _struct("PqPqqqq", images, images.numel(), None, 9, 3, 20, 13)
    plan = _struct("q??2x4f4xPPq", 2, True, True, 0.4, 1.4, 0.4, 20.0, None, rng, 3)
    frame = struct.pack("4q2?6x", n, 3, 9, 9, False, False)
    rows = torch.zeros(length, 8)
    after = (_before(rows, FAR), flags)
    yield "augment_parameters_kernel", (store, _before(which, FAR), plan, frame, *after), block
    yield from _far_images(g, block)
    many_channels = struct.pack("9q", 1, n, 1, 1, 1, 0, 0, 1, 1)
    weight = _before(torch.rand(length, generator=g), FAR)
    yield "input_gradient_kernel", (x, None, weight, many_channels, count, _before(made, FAR)), block


def _before(values: Tensor, elements: int) -> tuple[bytes, Tensor]:
    """The address of which the values are the elements from this one on."""
    address = values.data_ptr() - elements * values.element_size() * (
        values.shape[1] if values.dim() > 1 else 1
    )
    return struct.pack("Q", address % 2**64), values


def _far_images(g: torch.Generator, block: int) -> Iterator[tuple[str, tuple[Any, ...], int]]:
    """As many images of one pixel, and of as many channels."""
    n, length = FAR + 300, 300
    count, made = struct.pack("q", n), torch.zeros(length)
    for batch, outputs in ((1, n), (n, 1)):
        shape = struct.pack("5q", batch, 0, outputs, 1, 1)
        rest = (shape, struct.pack("?", False), count, _before(made, FAR))
        yield "winograd_kernel", (None, None, None, None, *rest), block
    grad, weight = torch.rand(length, generator=g), torch.rand(1, generator=g)
    shape = struct.pack("9q", n, 1, 1, 1, 1, 0, 0, 1, 1)
    yield "input_gradient_kernel", (_before(grad, FAR), None, weight, shape, count, _before(made, FAR)), block
    noise, pixels = torch.zeros(4 * length), torch.rand(4 * length, generator=g)
    layout, part = struct.pack("qqq?7x", n, 1, 4, False), struct.pack("qq", 0, n)
    arrays = _before(pixels, 4 * FAR), _before(noise, 4 * FAR)
    flags = torch.zeros(1, dtype=torch.int32)
    yield "start_linf_kernel", (*arrays, layout, part, _per_example(0.1, None), ops.new_rng(3), flags), block
