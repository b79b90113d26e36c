"""PGD's start and step: literal cases, then random ones against the reference, on the CPU and on emulated
CUDA.
"""

import pytest
import torch

from cfol_fast import ops
from tests.reference import pgd as reference

SHAPES = [(1, 1), (3, 5), (2, 1, 7, 9), (5, 3, 8, 8), (2, 3, 33, 17), (0, 3, 4, 4)]


def start(backend, x, eps, rng, norm="linf", fault=None, slots=()):
    number, each = (0.0, eps) if isinstance(eps, torch.Tensor) else (eps, None)
    return backend.op("pgd_start")(x, number, each, rng, norm == "l2", fault, *slots)


def step(backend, adv, x, grad, size, eps, norm="linf", fault=None):
    sizes = (0.0, size) if isinstance(size, torch.Tensor) else (size, None)
    radii = (0.0, eps) if isinstance(eps, torch.Tensor) else (eps, None)
    backend.op("pgd_step")(adv, x, grad, sizes[0], radii[0], sizes[1], radii[1], norm == "l2", fault)


def images(shape, seed=0, channels_last=False):
    x = torch.rand(shape, generator=torch.Generator().manual_seed(seed))
    return x.contiguous(memory_format=torch.channels_last) if channels_last else x


def layouts(shape):
    return [False, True] if len(shape) == 4 else [False]


def test_a_step_moves_by_the_sign_and_stays_in_the_ball_and_the_box(backend):
    x = torch.tensor([[0.5, 0.5, 0.5, 0.0, 1.0, 0.5]])
    adv = torch.tensor([[0.5, 0.6, 0.45, 0.0, 1.0, 0.5]])
    grad = torch.tensor([[2.0, 1.0, -1.0, -3.0, 4.0, 0.0]])
    step(backend, adv, x, grad, 0.0625, 0.09375)
    torch.testing.assert_close(
        adv, torch.tensor([[0.5625, 0.59375, 0.40625, 0.0, 1.0, 0.5]]), atol=1e-7, rtol=0
    )


def test_an_l2_step_is_normalised_and_projected_to_the_sphere(backend):
    x = torch.tensor([[0.5, 0.5]])
    adv = x.clone()
    step(backend, adv, x, torch.tensor([[3.0, 4.0]]), 0.1, 1.0, norm="l2")
    torch.testing.assert_close(adv, torch.tensor([[0.56, 0.58]]))
    step(backend, adv, x, torch.tensor([[3.0, 4.0]]), 0.3, 0.2, norm="l2")
    torch.testing.assert_close(adv, torch.tensor([[0.62, 0.66]]))


@pytest.mark.parametrize("norm", ["linf", "l2"])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_start_and_step_agree_with_the_reference(backend, shape, norm):
    for channels_last in layouts(shape):
        x = images(shape, channels_last=channels_last)
        rng = torch.tensor([77, 5])
        adv = start(backend, x, 0.3, rng, norm)
        assert adv.stride() == x.stride()
        assert rng.tolist() == [77, 6]
        torch.testing.assert_close(adv, reference.pgd_start(x, 0.3, 77, 5, norm), atol=2e-6, rtol=0)
        grad = torch.empty_like(x).copy_(torch.randn(shape, generator=torch.Generator().manual_seed(1)))
        if grad.numel():
            grad[0].zero_()  # an example without a gradient
        expected = reference.pgd_step(adv, x, grad, 0.07, 0.3, norm)
        step(backend, adv, x, grad, 0.07, 0.3, norm)
        torch.testing.assert_close(adv, expected, atol=2e-6, rtol=0)


@pytest.mark.parametrize("norm", ["linf", "l2"])
@pytest.mark.parametrize("shape", [(4, 3, 8, 8), (3, 1, 5, 5), (6, 7)], ids=str)
def test_each_example_may_have_its_own_radius_and_step(backend, shape, norm):
    for channels_last in layouts(shape):
        x = images(shape, seed=3, channels_last=channels_last)
        eps = torch.linspace(0, 0.5, shape[0])
        size = torch.linspace(0.2, 0.01, shape[0])
        adv = start(backend, x, eps, torch.tensor([1, 0]), norm)
        torch.testing.assert_close(adv, reference.pgd_start(x, eps, 1, 0, norm), atol=2e-6, rtol=0)
        assert torch.equal(adv[0], x[0])  # a radius of zero
        grad = torch.empty_like(x).copy_(torch.randn(shape, generator=torch.Generator().manual_seed(2)))
        expected = reference.pgd_step(adv, x, grad, size, eps, norm)
        step(backend, adv, x, grad, size, eps, norm)
        torch.testing.assert_close(adv, expected, atol=2e-6, rtol=0)


@pytest.mark.parametrize("norm", ["linf", "l2"])
@pytest.mark.parametrize("shape", [(8, 3, 5, 9), (8, 1, 4, 4), (8, 7)], ids=str)
def test_a_part_of_a_batch_has_the_noise_of_its_slots_in_any_number_of_parts(backend, shape, norm):
    for channels_last in layouts(shape):
        x = images(shape, seed=5, channels_last=channels_last)
        for eps in (0.25, torch.linspace(0.1, 0.5, 8)):
            whole = start(backend, x, eps, torch.tensor([6, 4]), norm)
            for parts in (1, 2, 4, 8):
                width = 8 // parts
                for first in range(0, 8, width):
                    rng, mine = torch.tensor([6, 4]), slice(first, first + width)
                    radius = eps[mine] if isinstance(eps, torch.Tensor) else eps
                    found = start(backend, x[mine], radius, rng, norm, slots=(first, 8))
                    assert torch.equal(found, whole[mine])
                    assert rng.tolist() == [6, 5]


@pytest.mark.parametrize("norm", ["linf", "l2"])
def test_a_part_draws_its_own_noise_alone(backend, norm):
    # The whole batch would not fit into any memory.
    x, slots = images((2, 3, 4, 4)), (2**38 - 5, 2**38)
    found = start(backend, x, 0.1, torch.tensor([3, 2]), norm, slots=slots)
    expected = reference.pgd_start(x, 0.1, 3, 2, norm, slots)
    torch.testing.assert_close(found, expected, atol=2e-6, rtol=0)


@pytest.mark.parametrize("misaligned", ["adv", "x", "grad", "all"])
def test_tensors_that_are_not_aligned_give_the_same_result(backend, misaligned):
    # 1,280 elements, of which 1,029 are used from the second on, or from the first.
    used = {
        name: images((1280,), seed)[1:1030] if misaligned in (name, "all") else images((1280,), seed)[:1029]
        for seed, name in enumerate(("adv", "x", "grad"))
    }
    adv, x, grad = (used[name].view(1, -1) for name in ("adv", "x", "grad"))
    grad -= 0.5
    expected = reference.pgd_step(adv, x, grad, 0.1, 0.2)
    step(backend, adv, x, grad, 0.1, 0.2)
    torch.testing.assert_close(adv, expected, atol=1e-6, rtol=0)


def test_the_noise_does_not_depend_on_the_layout(backend):
    x = images((3, 3, 6, 7), 4)
    for norm in ("linf", "l2"):
        a = start(backend, x, 0.1, torch.tensor([5, 1]), norm)
        b = start(backend, x.contiguous(memory_format=torch.channels_last), 0.1, torch.tensor([5, 1]), norm)
        torch.testing.assert_close(a, b, atol=1e-6, rtol=0)


def test_cpu_and_emulated_cuda_agree_to_the_bit_in_the_linf_ball(cpu, schedule):
    x = images((7, 3, 11, 5), 6)
    a, b = (start(side, x, 0.1, torch.tensor([8, 2])) for side in (cpu, schedule))
    assert torch.equal(a, b)
    grad = torch.randn_like(x)
    for side, adv in ((cpu, a), (schedule, b)):
        step(side, adv, x, grad, 0.02, 0.1)
    assert torch.equal(a, b)


def test_the_start_fills_the_ball_uniformly(cpu):
    x = torch.full((400, 1, 10, 10), 0.5)
    noise = start(cpu, x, 0.25, torch.tensor([11, 0])) - x
    counts = torch.histc(noise, bins=20, min=-0.25, max=0.25).double()
    expected = noise.numel() / 20
    assert ((counts - expected) ** 2 / expected).sum() < 43.8  # chi-square, 19 degrees of freedom, p = 0.001
    lengths = (start(cpu, x, 0.25, torch.tensor([11, 0]), "l2") - x).flatten(1).norm(dim=1) / 0.25
    share = lengths.double() ** 100  # uniform in the ball: the d-th power of the radius is uniform
    assert lengths.max() <= 1 + 1e-5
    assert abs(share.mean() - 0.5) < 0.05
    assert abs(share.var() - 1 / 12) < 0.02


@pytest.mark.parametrize("shape", [(128, 3, 32, 32), (128, 1, 28, 28)], ids=str)
def test_kernels_use_several_blocks_and_warps_at_normal_sizes(emulated, shape):
    x = images(shape)
    for norm in ("linf", "l2"):
        emulated.launches()
        adv = start(emulated, x[:8], 0.1, torch.tensor([1, 0]), norm)
        step(emulated, adv, x[:8].clone(), x[:8].clone(), 0.1, 0.1, norm)
        # (1, 1) advances the random state
        kernels = [launch for launch in emulated.launches() if launch != (1, 1)]
        assert len(kernels) == 2
        assert all(blocks > 1 and threads > 32 for blocks, threads in kernels)


@pytest.mark.parametrize("norm", ["linf", "l2"])
@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_gradient_that_is_not_finite_leaves_images(backend, norm, value):
    x = images((2, 3, 4, 4), 9)
    adv, grad = x.clone(), torch.randn_like(x)
    grad[0, 0, 0, 0] = value
    step(backend, adv, x, grad, 0.1, 0.2, norm)
    assert ((adv >= 0) & (adv <= 1)).all()


class TestBadInput:
    x = torch.rand(2, 3, 4, 4)

    @pytest.mark.parametrize(
        "eps",
        [-0.1, float("nan"), float("inf"), torch.tensor([0.1, -0.2]), torch.tensor([0.1, float("inf")])],
    )
    def test_a_negative_radius_is_refused(self, eps):
        with pytest.raises(ValueError, match="eps"):
            ops.pgd_start(self.x, eps, ops.new_rng(0))
        with pytest.raises(ValueError, match="eps"):
            ops.pgd_step_(self.x.clone(), self.x, self.x, 0.1, eps)
        with pytest.raises(ValueError, match="step"):
            ops.pgd_step_(self.x.clone(), self.x, self.x, eps, 0.1)

    def test_wrong_types_and_shapes_are_named(self):
        with pytest.raises(TypeError, match=r"x .*got float64"):
            ops.pgd_start(self.x.double(), 0.1, ops.new_rng(0))
        with pytest.raises(TypeError, match=r"rng .*int64"):
            ops.pgd_start(self.x, 0.1, torch.zeros(2))
        with pytest.raises(
            ValueError, match=r"grad must have the shape of x, \(2, 3, 4, 4\), got \(2, 3, 4, 5\)"
        ):
            ops.pgd_step_(self.x.clone(), self.x, torch.rand(2, 3, 4, 5), 0.1, 0.1)
        with pytest.raises(ValueError, match=r"eps .*got \(3,\)"):
            ops.pgd_start(self.x, torch.rand(3), ops.new_rng(0))
        with pytest.raises(ValueError, match=r"norm .*got 'l1'"):
            ops.pgd_start(self.x, 0.1, ops.new_rng(0), norm="l1")
        with pytest.raises(TypeError, match="eps"):
            ops.pgd_start(self.x, "8/255", ops.new_rng(0))

    @pytest.mark.parametrize("slots", [(-1, 4), (3, 4), (0, 1), (2**62, 2**62)])
    def test_slots_outside_the_global_batch_are_refused(self, slots):
        with pytest.raises(ValueError, match="slots must lie in the global batch"):
            ops.pgd_start(self.x, 0.1, ops.new_rng(0), slots=slots)

    def test_the_device_raises_a_flag_instead(self, schedule):
        fault = ops.new_fault()
        start(schedule, self.x, torch.tensor([0.1, -1.0]), torch.tensor([1, 0]), fault=fault)
        assert ops.fault_messages(int(fault)) == ["an eps or step was negative or NaN"]
        fault.zero_()
        adv = self.x.clone()
        step(schedule, adv, self.x, self.x, torch.tensor([0.1, float("nan")]), 0.1, fault=fault)
        assert int(fault) == 4
        assert torch.equal(adv[1], self.x[1])  # a bad step counts as none
