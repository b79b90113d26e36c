"""Contracts of the ops over inputs that hypothesis chooses: shapes, strides, extreme radii, one-class
batches, huge weights.
"""

import math

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from cfol_fast import ops

FAST = settings(max_examples=60, deadline=None, derandomize=True)
shapes = st.one_of(
    st.tuples(st.integers(0, 5), st.integers(1, 70)),
    st.tuples(st.integers(0, 4), st.sampled_from([1, 3, 5]), st.integers(1, 9), st.integers(1, 9)),
)
radii = st.one_of(st.just(0.0), st.floats(0, 2), st.sampled_from([1e-30, 1e-8, 1e4, 1e30]))


def layouts(x):
    yield x
    if x.dim() == 4:
        yield x.contiguous(memory_format=torch.channels_last)
        yield x.transpose(2, 3).contiguous().transpose(2, 3)  # neither: the wrapper makes a copy


@FAST
@given(shapes, radii, radii, st.sampled_from(["linf", "l2"]), st.integers(0, 2**63 - 1))
def test_pgd_stays_in_the_box_and_in_the_ball(shape, eps, step, norm, seed):
    x = torch.rand(shape, generator=torch.Generator().manual_seed(1))
    grad = torch.randn(shape, generator=torch.Generator().manual_seed(2))
    for image in layouts(x):
        rng = ops.new_rng(seed)
        adv = ops.pgd_start(image, eps, rng, norm)
        assert int(rng[1]) == 1
        for _ in range(2):
            ops.pgd_step_(adv, image, grad, step, eps, norm)
            assert adv.shape == x.shape
            assert ((adv >= 0) & (adv <= 1)).all()
            distance = (adv - x).abs() if norm == "linf" else (adv - x).flatten(1).norm(dim=1)
            assert (distance <= eps * (1 + 1e-5) + 1e-6).all()


@FAST
@given(
    st.integers(2, 40).flatmap(lambda k: st.lists(st.floats(-1e6, 1e6), min_size=k, max_size=k)),
    st.floats(1e-3, 1.0),
    st.integers(0, 300),
)
def test_a_distribution_mixes_and_draws_only_what_is_likely(weights, gamma, n):
    k = len(weights)
    w, base = torch.tensor(weights, dtype=torch.float64), torch.full((k,), 1 / k, dtype=torch.float64)
    p, q, cdf = ops.exp3_distribution(w, base, gamma)
    assert math.isclose(float(p.sum()), 1, rel_tol=1e-9)
    assert (p >= gamma / k - 1e-12).all()
    torch.testing.assert_close(q, torch.softmax(w, 0), atol=1e-9, rtol=0)
    assert (cdf.diff() >= 0).all()
    labels = torch.arange(3 * k) % k
    idx, y, _ = ops.exp3_draw(w, base, gamma, *ops.group_by_class(labels, k), ops.new_rng(0), n)
    assert idx.shape == y.shape == (n,)
    assert torch.equal(labels[idx], y)


@FAST
@given(st.integers(2, 30), st.integers(0, 200), st.floats(0, 1e3), st.booleans())
def test_an_update_adds_each_class_and_keeps_the_state_bounded(k, n, eta, one_class):
    g = torch.Generator().manual_seed(n)
    w = torch.randn(k, dtype=torch.float64, generator=g)
    p = torch.softmax(w, 0)
    y = torch.zeros(n, dtype=torch.int64) if one_class else torch.randint(0, k, (n,), generator=g)
    loss = torch.rand(n, generator=g)
    expected = w.index_add(0, y, eta * loss.double() / p[y])
    ops.exp3_update_(w, p, y, loss, eta)
    assert torch.isfinite(w).all()
    assert w.max() <= 64
    torch.testing.assert_close(torch.softmax(w, 0), torch.softmax(expected, 0), atol=1e-5, rtol=0)


@FAST
@given(st.integers(1, 5000), st.integers(0, 2**63 - 1), st.integers(0, 50))
def test_a_permutation_holds_everything_once_and_can_be_cut_anywhere(n, seed, cut):
    rng = ops.new_rng(seed)
    whole = ops.permutation(rng, n, torch.tensor([0]), n)
    assert torch.equal(whole.sort().values, torch.arange(n))
    start = min(cut, n)
    assert torch.equal(ops.permutation(rng, n, torch.tensor([start]), n - start), whole[start:])


@FAST
@given(
    st.integers(1, 6),
    st.integers(1, 12),
    st.integers(1, 12),
    st.sampled_from([1, 3]),
    st.integers(0, 5),
    st.booleans(),
    st.sampled_from([torch.float32, torch.bfloat16]),
    st.floats(0, 180),
)
def test_augmented_images_are_images(n, height, width, channels, pad, last, dtype, degrees):
    g = torch.Generator().manual_seed(height * width)
    images = torch.randint(0, 256, (n, height, width, channels), dtype=torch.uint8, generator=g)
    idx = torch.randint(0, n, (4,), generator=g)
    jitter = ops.Augment(pad=pad, flip=True, brightness=0.5, contrast=0.5, saturation=0.5, degrees=degrees)
    size = (max(1, height - 1), width + min(2, 2 * pad))  # the padded image must hold the window
    x = ops.gather_augment(
        images, idx, ops.new_rng(1), size=size, augment=jitter, dtype=dtype, channels_last=last
    )
    assert x.shape == (4, channels, *size)
    assert x.dtype == dtype
    assert ((x >= 0) & (x <= 1)).all()
    plain = ops.gather_augment(images, idx, None, dtype=dtype, channels_last=last)
    torch.testing.assert_close(
        plain, (images[idx].permute(0, 3, 1, 2).float() / 255).to(dtype), atol=1e-7, rtol=0
    )


@FAST
@given(st.integers(1, 3000), st.floats(0.01, 1.0), st.floats(0, 1e6), st.integers(0, 64))
def test_the_sum_tree_stays_a_distribution(n, gamma, eta, batch):
    state, rng = ops.sum_tree_new(n), ops.new_rng(1)
    for _ in range(3):
        idx, p = ops.sum_tree_draw(state, gamma, rng, batch)
        assert ((idx >= 0) & (idx < n)).all()
        assert (p >= gamma / n * (1 - 1e-9)).all()
        ops.sum_tree_update_(state, idx, torch.ones(batch), p, eta)
        chances = ops.sum_tree_probabilities(state, gamma)
        assert math.isclose(float(chances.sum()), 1, rel_tol=1e-6)
