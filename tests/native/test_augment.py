"""Gather and augment: literal cases, then random ones against the reference and torchvision, on the CPU and
on emulated CUDA.
"""

import math
import os
from fractions import Fraction

import pytest
import torch
from torchvision.transforms.v2 import functional as F

from cfol_fast import ops
from cfol_fast.ops import Augment
from tests.native.augmenting import FULL, gather, random_images, random_parameters, row
from tests.reference import augment as reference


def one(backend, values, channels=1, size=None, **changes):
    """An image given as rows of bytes (or of triples) under one set of parameters; the result times 255."""
    image = torch.tensor(values, dtype=torch.uint8).view(1, len(values), len(values[0]), channels)
    return gather(backend, image, torch.tensor([0]), parameters=row(**changes), size=size)[0] * 255


def close(actual, expected):
    torch.testing.assert_close(actual, torch.tensor(expected, dtype=torch.float32), atol=2e-4, rtol=0)


# ---- literal cases ----


def test_every_byte_is_divided_by_255_to_the_bit(backend):
    images = torch.arange(256, dtype=torch.uint8).view(1, 16, 16, 1)
    assert torch.equal(gather(backend, images, torch.tensor([0])).flatten(), torch.arange(256) / 255)


def test_images_are_gathered_by_index_with_channels_first(backend):
    images = torch.arange(24, dtype=torch.uint8).view(2, 2, 2, 3)
    x = gather(backend, images, torch.tensor([1, 0, 1])) * 255
    close(x[0], [[[12, 15], [18, 21]], [[13, 16], [19, 22]], [[14, 17], [20, 23]]])
    assert torch.equal(x[0], x[2])
    close(x[1, 0], [[0, 3], [6, 9]])


def test_a_window_outside_the_image_is_black(backend):
    values = [[1, 2, 3], [4, 5, 6]]
    close(one(backend, values, top=-1, left=1, size=(3, 3))[0], [[0, 0, 0], [2, 3, 0], [5, 6, 0]])
    close(one(backend, values, top=1, left=-2, size=(2, 4))[0], [[0, 0, 4, 5], [0, 0, 0, 0]])
    close(one(backend, values, top=9, left=0, size=(1, 2))[0], [[0, 0]])


def test_the_window_is_mirrored_after_the_crop(backend):
    close(one(backend, [[1, 2, 3, 4]], left=-1, flip=1, size=(1, 3))[0], [[2, 1, 0]])


def test_brightness_scales_and_clamps(backend):
    close(one(backend, [[0, 100, 200]], brightness=1.5)[0], [[0, 150, 255]])


def test_contrast_blends_with_the_mean_of_the_brightened_image(backend):
    close(one(backend, [[0, 100, 200]], contrast=0.5)[0], [[50, 100, 150]])
    # the mean is (0 + 150 + 255) / 3
    close(one(backend, [[0, 100, 200]], brightness=1.5, contrast=0.5)[0], [[67.5, 142.5, 195]])
    close(one(backend, [[10, 110]], contrast=2.0)[0], [[0, 160]])


def test_saturation_blends_with_the_grey_value_and_leaves_one_channel_alone(backend):
    close(one(backend, [[[100, 0, 0]]], 3, saturation=0.0).flatten(), [29.89, 29.89, 29.89])
    close(one(backend, [[[0, 100, 50]]], 3, saturation=0.5).flatten(), [32.2, 82.2, 57.2])
    close(one(backend, [[100, 7]], saturation=0.0)[0], [[100, 7]])


@pytest.mark.parametrize("side", ["cpu", "emulated"])
def test_the_last_of_a_million_large_images_is_found(tmp_path, request, side):
    """In a file with holes: 150 GB of addresses, of which one image takes room."""
    file, shape = tmp_path / "images", (1_000_000, 224, 224, 3)
    file.touch()
    os.truncate(file, math.prod(shape))
    images = torch.from_file(str(file), shared=True, size=math.prod(shape), dtype=torch.uint8).view(shape)
    last = random_images(1, *shape[1:])
    images[-1] = last[0]
    found = gather(request.getfixturevalue(side), images, torch.tensor([999_999, 7]))
    assert torch.equal(found[:1], last.permute(0, 3, 1, 2).float() / 255)
    assert not found[1].any()


def test_a_quarter_turn_is_counter_clockwise(backend):
    close(one(backend, [[1, 2], [3, 4]], angle=90)[0], [[2, 4], [1, 3]])
    close(one(backend, [[1, 2, 3]], angle=180)[0], [[3, 2, 1]])


def test_rotation_comes_last_and_leaves_black_corners(backend):
    x = one(backend, [[100] * 4] * 4, contrast=0.5, brightness=1.2, angle=45)[0]
    assert x[0, 0] == x[0, 3] == x[3, 0] == x[3, 3] == 0
    close(x[1:3, 1:3], [[120, 120], [120, 120]])


# ---- random cases ----


@pytest.mark.parametrize("channels_last", [False, True])
@pytest.mark.parametrize("channels", [1, 3])
def test_all_functions_agree_with_the_reference(backend, channels, channels_last):
    for height, width, size in [(9, 7, (8, 8)), (5, 20, (20, 19)), (1, 1, (1, 1)), (12, 12, (12, 12))]:
        images, idx = random_images(6, height, width, channels), torch.tensor([5, 0, 2, 2])
        parameters = random_parameters(4)
        x = gather(backend, images, idx, parameters=parameters, size=size, channels_last=channels_last)
        format = torch.channels_last if channels_last else torch.contiguous_format
        assert x.is_contiguous(memory_format=format)
        expected = reference.augment_with([images[i] for i in idx], parameters, size)
        torch.testing.assert_close(x, expected, atol=2e-6, rtol=0)


def test_drawn_parameters_agree_with_the_reference_and_with_what_is_applied(backend):
    images, idx, rng = random_images(9, 10, 12, 3), torch.arange(9), torch.tensor([77, 5])
    x = gather(backend, images, idx, rng=rng, size=(11, 9), augment=FULL)
    assert rng.tolist() == [77, 6]
    parameters = reference.augment_parameters(FULL, 77, 5, [(10, 12)] * 9, (11, 9))
    drawn = ops.augment_parameters(images, idx, torch.tensor([77, 5]), size=(11, 9), augment=FULL)
    torch.testing.assert_close(drawn, parameters, atol=1e-6, rtol=1e-6)
    assert torch.equal(x, gather(backend, images, idx, parameters=drawn, size=(11, 9)))


def test_bfloat16_is_the_rounded_float32(backend):
    images, idx = random_images(3, 16, 16, 3), torch.tensor([2, 0, 1])
    for channels_last in (False, True):
        options = {"parameters": random_parameters(3), "channels_last": channels_last}
        x = gather(backend, images, idx, dtype=torch.bfloat16, **options)
        assert torch.equal(x, gather(backend, images, idx, **options).bfloat16())


def test_bfloat16_rounds_a_tie_to_the_even_neighbour(backend):
    white = torch.full((1, 1, 1, 1), 255, dtype=torch.uint8)
    # both lie half-way between two bfloat16 numbers
    for factor, expected in [(0.5 + 1 / 512, 0.5), (0.5 + 3 / 512, 0.5 + 2 / 256)]:
        x = gather(backend, white, torch.tensor([0]), parameters=row(brightness=factor), dtype=torch.bfloat16)
        assert x.item() == expected


def test_images_of_different_sizes_come_from_a_table(backend):
    sizes = [(5, 7), (12, 9), (1, 3), (20, 20)]
    for channels in (1, 3):
        images = [random_images(h, w, channels, seed=h) for h, w in sizes]
        lengths = torch.tensor([i.numel() for i in images])
        offsets = lengths.cumsum(0) - lengths
        table = torch.cat([offsets[:, None], torch.tensor(sizes)], 1)
        flat, idx = torch.cat([i.flatten() for i in images]), torch.tensor([3, 1, 0, 2, 3])
        options = {"table": table, "channels": channels, "size": (6, 5)}
        x = gather(backend, flat, idx, **options)
        for k, i in enumerate(idx):
            centred = F.center_crop(images[i].permute(2, 0, 1).float() / 255, (6, 5))
            torch.testing.assert_close(x[k], centred, atol=1e-7, rtol=0)
        augment = Augment(pad=1, flip=True, contrast=0.2, degrees=5)
        x = gather(backend, flat, idx, rng=torch.tensor([3, 4]), augment=augment, **options)
        parameters = reference.augment_parameters(augment, 3, 4, [sizes[i] for i in idx], (6, 5))
        expected = reference.augment_with([images[i] for i in idx], parameters, (6, 5))
        torch.testing.assert_close(x, expected, atol=2e-6, rtol=0)


def test_an_empty_batch_gives_an_empty_batch(backend):
    rng = torch.tensor([1, 0])
    x = gather(
        backend,
        random_images(2, 4, 4, 3),
        torch.empty(0, dtype=torch.int64),
        rng=rng,
        augment=FULL,
        size=(3, 5),
    )
    assert x.shape == (0, 3, 3, 5)
    assert rng.tolist() == [1, 1]


def test_cpu_and_emulated_cuda_agree_to_the_bit(cpu, schedule):
    for channels in (1, 3):
        images, idx = random_images(8, 17, 13, channels), torch.arange(8)
        options = {"augment": FULL, "size": (15, 16), "channels_last": channels == 3}
        a, b = (gather(side, images, idx, rng=torch.tensor([8, 2]), **options) for side in (cpu, schedule))
        assert torch.equal(a, b)
        call = (
            images,
            None,
            idx,
            torch.tensor([8, 2]),
            channels,
            15,
            16,
            2,
            True,
            True,
            0.4,
            0.4,
            0.4,
            20.0,
            3,
            None,
        )
        a, b = (side.op("augment_parameters")(*call) for side in (cpu, schedule))
        assert torch.equal(a, b)


# ---- torchvision ----


def as_torchvision(image, parameters, size):
    """The same with torchvision's functions on a float tensor; image: (C, H, W)."""
    top, left, flip, brightness, contrast, saturation, angle, _ = parameters.tolist()
    border = 60
    y, x = int(top) + border, int(left) + border
    image = F.pad(image, [border] * 4)[:, y : y + size[0], x : x + size[1]]
    image = F.horizontal_flip(image) if flip else image
    image = F.adjust_saturation(
        F.adjust_contrast(F.adjust_brightness(image, brightness), contrast), saturation
    )
    return F.rotate(image, angle)


# Sources this near to the edge between two pixels may fall on either side in float32, whose sums differ
# between processors.
EDGE = Fraction(1, 4096)


def rotation_sources(angle, height, width):
    """Where a rotation by `angle` degrees takes each pixel from: the nearest (y, x), each (H, W) int64, of
    the exact point.

    Twice: for the point less `EDGE` and for the point plus it. In integers, units of 2^-33 of a pixel: what
    is not exact is the angle's sine and cosine alone, by less than 2^-33.
    """
    unit = 2**33
    cos, sin = (round(Fraction(f(math.radians(angle))) * unit) for f in (math.cos, math.sin))
    # Twice the distance from the centre is a whole number.
    dy, dx = (2 * torch.arange(size) - (size - 1) for size in (height, width))
    dy, dx = torch.meshgrid(dy, dx, indexing="ij")
    point = (sin * dx + cos * dy + (height - 1) * unit, cos * dx - sin * dy + (width - 1) * unit)
    margin = round(2 * unit * EDGE)
    return tuple([(twice + shift + unit) // (2 * unit) for twice in point] for shift in (-margin, margin))


def on_an_edge(low, high):
    """(H, W) bool."""
    return (low[0] != high[0]) | (low[1] != high[1])


@pytest.mark.parametrize("channels", [1, 3])
def test_all_functions_agree_with_torchvision(channels):
    for seed in range(40):
        height, width = 8 + seed, 40 - seed // 2
        images, parameters = random_images(4, height, width, channels, seed=seed), random_parameters(4, seed)
        size = (height, width) if seed % 2 else (17, 24)
        x = ops.augment_with(images, torch.arange(4), parameters, size=size)
        for k in range(4):
            expected = as_torchvision(images[k].permute(2, 0, 1) / 255, parameters[k], size)
            edges = on_an_edge(*rotation_sources(float(parameters[k, 6]), *size))
            # The issue allows 1/255.
            assert ((x[k] - expected).abs().amax(0) < 1e-5).logical_or(edges).all()


@pytest.mark.parametrize("name", ["brightness", "contrast", "saturation"])
@pytest.mark.parametrize("factor", [0.0, 0.75, 1.0, 1.25, 3.0])
def test_each_colour_function_agrees_with_torchvision(backend, name, factor):
    images = random_images(1, 16, 16, 3, seed=9)
    x = gather(backend, images, torch.tensor([0]), parameters=row(**{name: factor}))
    expected = getattr(F, f"adjust_{name}")(images[0].permute(2, 0, 1) / 255, factor)
    torch.testing.assert_close(x[0], expected, atol=1e-6, rtol=0)


ANGLES = torch.cat(
    [
        torch.tensor([0, 1, 2, -2, 30, 45, 60, 90, 135, 180, 270, -90, 360.0]),
        torch.rand(150, generator=torch.Generator().manual_seed(4)) * 4 - 2,
    ]
)
SIZES = [(32, 32), (28, 28), (31, 45), (160, 160)]


def rotated_row(height, width):
    """An image without a black pixel, (1, H, W, 1), and the same under each of the angles, (angles,
    1, H, W).
    """
    images = random_images(1, height, width, 1, seed=height) | 1
    parameters = row().repeat(len(ANGLES), 1)
    parameters[:, 6] = ANGLES
    return images, ops.augment_with(images, torch.zeros(len(ANGLES), dtype=torch.int64), parameters)


def pixel_at(image, y, x):
    """image: (H, W); y, x: (H, W) int64, anywhere. Outside it is black."""
    height, width = image.shape
    inside = (y >= 0) & (y < height) & (x >= 0) & (x < width)
    return torch.where(inside, image[y.clamp(0, height - 1), x.clamp(0, width - 1)], 0)


@pytest.mark.parametrize(("height", "width"), SIZES)
def test_rotation_takes_the_pixels_of_exact_arithmetic(height, width):
    images, x = rotated_row(height, width)
    image = images[0, :, :, 0] / 255
    edges = 0
    for k, angle in enumerate(ANGLES.tolist()):
        low, high = rotation_sources(angle, height, width)
        # Where the source lies on the edge of pixels, one is as right as the other.
        choices = torch.stack([pixel_at(image, y, x) for y in (low[0], high[0]) for x in (low[1], high[1])])
        assert bool((choices == x[k, 0]).any(0).all()), angle
        edges += int(on_an_edge(low, high).sum())
    assert edges < 0.01 * x.numel()


@pytest.mark.parametrize(("height", "width"), SIZES)
def test_rotation_takes_the_same_pixels_as_torchvision_except_on_edges(height, width):
    images, x = rotated_row(height, width)
    for k, angle in enumerate(ANGLES.tolist()):
        same = x[k, 0] == F.rotate(images[0].permute(2, 0, 1) / 255, angle)[0]
        assert bool((same | on_an_edge(*rotation_sources(angle, height, width))).all()), angle


@pytest.mark.parametrize("rest", range(-5, 9))
def test_without_augmentation_the_centre_is_that_of_torchvision(backend, rest):
    images = random_images(1, 12, 7, 3)
    size = (12 - rest, 9)
    x = gather(backend, images, torch.tensor([0]), size=size)
    assert torch.equal(x[0], F.center_crop(images[0].permute(2, 0, 1) / 255, size))


# ---- randomness ----


def drawn(augment, n=20000, size=(32, 32), seed=5, **options):
    images = torch.zeros(1, 32, 32, 3, dtype=torch.uint8)
    rng = ops.new_rng(seed)
    idx = torch.zeros(n, dtype=torch.int64)
    return ops.augment_parameters(images, idx, rng, size=size, augment=augment, **options)


def chi_square(values, low, high):
    counts = torch.bincount((values - low).long(), minlength=high - low + 1).double()
    expected = len(values) / (high - low + 1)
    return ((counts - expected) ** 2 / expected).sum()


def test_places_are_uniform_and_flips_fair():
    p = drawn(Augment(pad=4, flip=True))
    assert chi_square(p[:, 0], -4, 4) < 26.1  # 8 degrees of freedom, p = 0.001
    assert chi_square(p[:, 1], -4, 4) < 26.1
    assert chi_square((p[:, 0] + 4) * 9 + p[:, 1] + 4, 0, 80) < 124.8  # together: 80 degrees of freedom
    assert abs(p[:, 2].mean() - 0.5) < 0.012
    smaller = drawn(Augment(), size=(30, 25))  # without padding, from a larger image
    assert chi_square(smaller[:, 0], 0, 2) < 13.9
    assert chi_square(smaller[:, 1], 0, 7) < 24.4


def test_factors_and_angles_are_uniform_in_their_range():
    p = drawn(Augment(brightness=0.25, contrast=0.5, saturation=2.0, degrees=30.0))
    for column, low, high in [(3, 0.75, 1.25), (4, 0.5, 1.5), (5, 0.0, 3.0), (6, -30.0, 30.0)]:
        share = (p[:, column] - low) / (high - low)
        assert 0 <= share.min() < 0.001
        assert 0.999 < share.max() <= 1
        assert chi_square((share * 20).clamp(max=19), 0, 19) < 43.8  # 19 degrees of freedom, p = 0.001


def test_parameters_are_independent_of_each_other_and_between_steps():
    p = drawn(FULL)[:, :7].double()
    q = ops.augment_parameters(
        torch.zeros(1, 32, 32, 3, dtype=torch.uint8),
        torch.zeros(len(p), dtype=torch.int64),
        torch.tensor([5, 1]),
        augment=FULL,
    )[:, :7].double()
    correlation = torch.corrcoef(torch.cat([p, q], 1).T) - torch.eye(14)
    assert correlation.abs().max() < 0.03


def test_switching_one_function_on_leaves_the_others_as_they_are():
    full = drawn(FULL, 100)
    for name, column in [("flip", 2), ("brightness", 3), ("contrast", 4), ("saturation", 5), ("degrees", 6)]:
        alone = drawn(Augment(**{name: getattr(FULL, name)}), 100)
        assert torch.equal(alone[:, column], full[:, column])
        neutral = torch.tensor(reference.NEUTRAL).repeat(100, 1)
        neutral[:, column] = full[:, column]
        assert torch.equal(alone, neutral)


def test_a_slice_of_the_batch_is_augmented_like_the_whole(backend):
    images, idx = random_images(9, 8, 8, 3), torch.arange(9)
    whole = gather(backend, images, idx, rng=torch.tensor([2, 3]), augment=FULL)
    part = gather(backend, images, idx[4:7], rng=torch.tensor([2, 3]), augment=FULL, first=4)
    assert torch.equal(part, whole[4:7])


def test_the_result_depends_on_neither_layout_nor_threads():
    images, idx = random_images(50, 32, 32, 3), torch.arange(50)
    results = []
    for threads in (1, 2):
        torch.set_num_threads(threads)
        for channels_last in (False, True):
            rng = torch.tensor([6, 6])
            results.append(ops.gather_augment(images, idx, rng, augment=FULL, channels_last=channels_last))
    assert all(torch.equal(results[0], r) for r in results[1:])


def test_without_augmentation_the_random_state_stays_and_is_not_needed():
    images, idx = random_images(3, 4, 4, 1), torch.arange(3)
    rng = ops.new_rng(1)
    x = ops.gather_augment(images, idx, rng)
    assert rng.tolist() == [1, 0]
    assert torch.equal(x, ops.gather_augment(images, idx, None))
    assert torch.equal(x, images.permute(0, 3, 1, 2) / 255)


# ---- the device's side, the compiler ----


@pytest.mark.parametrize("shape", [(32, 32, 3), (28, 28, 1)], ids=str)
def test_kernels_use_several_blocks_and_warps_at_normal_sizes(emulated, shape):
    images = random_images(8, *shape)
    emulated.launches()
    gather(emulated, images, torch.arange(8), rng=torch.tensor([1, 0]), augment=FULL)
    kernel, advance = emulated.launches()
    assert kernel[0] > 1
    assert kernel[1] > 32
    assert advance == (1, 1)


@pytest.mark.slow
def test_the_wrapper_compiles_without_a_graph_break_and_runs_on_meta():
    images, idx = random_images(6, 8, 8, 3), torch.tensor([4, 1])

    def batch(images, idx, rng):
        return (
            ops.gather_augment(images, idx, rng, augment=FULL, dtype=torch.bfloat16, channels_last=True) * 2
        )

    torch._dynamo.reset()
    compiled = torch.compile(batch, fullgraph=True, backend="aot_eager")
    eager_rng, compiled_rng = ops.new_rng(4), ops.new_rng(4)
    assert torch.equal(batch(images, idx, eager_rng), compiled(images, idx, compiled_rng))
    assert compiled_rng.tolist() == [4, 1]
    x = batch(images.to("meta"), idx.to("meta"), ops.new_rng(4, "meta"))
    assert (x.shape, x.dtype, x.device.type) == ((2, 3, 8, 8), torch.bfloat16, "meta")
    assert x.is_contiguous(memory_format=torch.channels_last)
