"""Random-resized crops: drawn as torchvision draws them, resampled in integers, the same bits in any division
of the batch.
"""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from torch import Tensor
from torchvision.transforms import RandomResizedCrop

from cfol_fast import data, ops
from cfol_fast.data.ffcv import writer
from cfol_fast.errors import InputError
from cfol_fast.ops import resized_crop
from tests.data import published_files as files

CROP = ops.Augment(crop=False, flip=True, brightness=0.25, degrees=2, scale=0.08)


def pictures(count: int, height: int, width: int, channels: int = 3) -> Tensor:
    generator = torch.Generator().manual_seed(1)
    coarse = torch.rand(count, channels, 6, 6, generator=generator)
    smooth = torch.nn.functional.interpolate(coarse, (height, width), mode="bicubic").clamp(0, 1)
    return (smooth * 255).round().to(torch.uint8).permute(0, 2, 3, 1).contiguous()


def drawn(count: int, height: int, width: int, scale: float = 0.08, ratio: float = 4 / 3) -> list[Tensor]:
    numbers = torch.rand(count, resized_crop.TRIES, 4, generator=torch.Generator().manual_seed(2)).double()
    sides = (torch.full((count,), side) for side in (height, width))
    return list(resized_crop.windows(numbers, *sides, scale, ratio))


def whole(height: int, width: int) -> tuple[Tensor, ...]:
    return tuple(torch.tensor([n]) for n in (0, 0, height, width))


def resampled(image: Tensor, size: tuple[int, int], finer: int, window: tuple[Tensor, ...]) -> Tensor:
    """image: uint8 (H, W, C)."""
    start, width = torch.tensor([0]), torch.tensor([image.shape[1]])
    rows = image.reshape(-1, image.shape[2])
    return resized_crop.resample(rows, start, width, window, size, finer)[0]  # type: ignore[arg-type]


# ---------------------------------------------------------------- windows


def test_windows_lie_in_the_image_and_keep_to_scale_and_ratio() -> None:
    top, left, height, width = drawn(2000, 100, 140, scale=0.25, ratio=1.5)
    assert (top >= 0).all()
    assert (left >= 0).all()
    assert (top + height <= 100).all()
    assert (left + width <= 140).all()
    share, shape = height * width / 14_000, width / height
    assert share.min() > 0.24
    assert 1 / 1.55 < shape.min() < 0.7
    assert 1.45 < shape.max() < 1.55


def test_windows_are_distributed_as_torchvisions() -> None:
    ours = torch.stack(drawn(4000, 120, 160)).double()
    torch.manual_seed(0)
    image = torch.zeros(3, 120, 160)
    theirs = torch.tensor(
        [RandomResizedCrop.get_params(image, [0.08, 1.0], [3 / 4, 4 / 3]) for _ in range(4000)]
    ).double()
    # The standard error of a mean is a little more than half a pixel.
    assert (ours.mean(1) - theirs.mean(0)).abs().max() < 3
    assert (ours.std(1) - theirs.std(0)).abs().max() < 3


@pytest.mark.parametrize(
    ("height", "width", "wanted"),
    [(10, 100, [0, 43, 10, 13]), (100, 10, [43, 0, 13, 10]), (9, 10, [0, 0, 9, 10])],
)
def test_where_no_window_fits_the_middle_is_taken(height: int, width: int, wanted: list[int]) -> None:
    # All of the area and the widest shape, ten times.
    numbers = torch.tensor([1 - 2**-24, 1 - 2**-24, 0.5, 0.5], dtype=torch.float64).expand(1, 10, 4)
    found = resized_crop.windows(numbers, torch.tensor([height]), torch.tensor([width]), 1.0, 4 / 3)
    assert [int(n) for n in found] == wanted


def test_the_numbers_of_a_slot_are_those_of_all_earlier_runs() -> None:
    # Written down when the numbers were taken from the colour factors that `augment_parameters` draws.
    found = resized_crop.window_numbers(torch.tensor([5, 3]), 7, 2)
    assert found[1, 9].tolist() == [
        0.4770890474319458,
        0.7334131598472595,
        0.8892850875854492,
        0.38593941926956177,
    ]
    # The same way today: three factors in [0, 2) of two positions for each window.
    colours = ops.Augment(crop=False, brightness=1, contrast=1, saturation=1)
    positions = 2 * resized_crop.TRIES
    keyed = torch.tensor([5 ^ resized_crop.KEY, 3])
    images, idx = pictures(1, 4, 4), torch.zeros(2 * positions, dtype=torch.int64)
    factors = ops.augment_parameters(images, idx, keyed, augment=colours, first=7 * positions)
    assert torch.equal(found, factors[:, 3:6].double().reshape(2, resized_crop.TRIES, 6)[..., :4] / 2)


# ---------------------------------------------------------------- pixels


def test_a_window_of_the_output_s_size_is_copied() -> None:
    image = pictures(1, 30, 40)[0]
    window = tuple(torch.tensor([n]) for n in (5, 7, 16, 20))
    assert torch.equal(resampled(image, (16, 20), 1, window), image[5:21, 7:27])


@pytest.mark.parametrize("channels", [1, 3])
def test_resampling_is_torch_s_bilinear(channels: int) -> None:
    image = pictures(1, 30, 40, channels)[0]
    wanted = torch.nn.functional.interpolate(
        image.permute(2, 0, 1)[None].double(), (48, 56), mode="bilinear", align_corners=False
    )
    found = resampled(image, (48, 56), 1, whole(30, 40)).permute(2, 0, 1)
    # Places between pixels are rounded to 1/256.
    assert (found - wanted[0]).abs().max() < 1


def test_a_larger_window_is_averaged_and_not_picked_from() -> None:
    stripes = torch.zeros(64, 64, 3, dtype=torch.uint8)
    stripes[:, ::4] = 200
    assert (resampled(stripes, (16, 16), 4, whole(64, 64)) == 50).all()
    assert (resampled(stripes, (16, 16), 1, whole(64, 64)) == 0).all()


def test_finer_sampling_follows_from_the_sizes() -> None:
    def finer(side: int) -> int:
        return resized_crop.finer_for(torch.empty(1, side, side, 3), None, (32, 32))

    assert [finer(side) for side in (20, 32, 33, 64, 65, 500)] == [1, 1, 2, 2, 4, 4]
    assert resized_crop.finer_for(torch.empty(9), torch.empty(1, 3), (32, 32)) == 2


# ---------------------------------------------------------------- batches


def batch(images: Tensor, idx: Tensor, first: int = 0, table: Tensor | None = None) -> Tensor:
    rng = ops.new_rng(5)
    rng[1] = 3
    return ops.gather_augment(
        images, idx, rng, augment=CROP, first=first, size=(24, 24), table=table, channels=3
    )


def test_slices_of_a_batch_are_the_batch() -> None:
    images, idx = pictures(9, 40, 48), torch.tensor([3, 8, 0, 0, 5, 7, 2])
    together = batch(images, idx)
    assert torch.equal(torch.cat([batch(images, idx[:3]), batch(images, idx[3:], first=3)]), together)
    # One image, two slots.
    assert not torch.equal(together[2], together[3])
    assert together.shape == (7, 3, 24, 24)
    assert 0 <= together.min() < together.max() <= 1


@pytest.mark.parametrize(
    ("finer", "channels", "at_once"), [(1, 3, 1 << 22), (2, 1, 1), (2, 3, 5000), (4, 3, 1)]
)
def test_image_by_image_and_all_at_once_are_the_same(
    finer: int, channels: int, at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The ways of a CPU and of a GPU; also the largest sums that there are."""
    monkeypatch.setattr(resized_crop, "AT_ONCE", at_once)
    images = pictures(5, 40, 48, channels)
    images[0] = 255
    # As in a ring of batches: they do not begin where their memory does.
    pixels = torch.cat([images[:1], images]).reshape(-1, channels)[40 * 48 :]
    window = tuple(drawn(5, 40, 48))
    sizes = (torch.arange(5) * 40 * 48, torch.full((5,), 48))
    by_image, together = (
        way(pixels, *sizes, window, (24, 20), finer)
        for way in (resized_crop._image_by_image, resized_crop._all_at_once)
    )
    assert torch.equal(by_image, together)
    assert (by_image[0] == 255).all()
    assert by_image[1:].float().std() > 20


def test_a_table_gives_the_same_windows() -> None:
    images, idx = pictures(4, 40, 48), torch.tensor([3, 1, 1])
    table = torch.tensor([[i * 40 * 48 * 3, 40, 48] for i in range(4)])
    assert torch.equal(batch(images.view(-1), idx, table=table), batch(images, idx))


def test_each_step_draws_other_windows_and_the_state_advances() -> None:
    images, rng = pictures(2, 40, 40), ops.new_rng(5)
    # Nothing else may change from step to step.
    augment = ops.Augment(crop=False, scale=0.08)
    first, second = (ops.gather_augment(images, torch.arange(2), rng, augment=augment) for _ in range(2))
    assert not torch.equal(first, second)
    assert rng.tolist() == [5, 2]
    other = ops.gather_augment(images, torch.arange(2), ops.new_rng(6), augment=augment)
    assert not torch.equal(first, other)


def test_an_index_outside_is_refused() -> None:
    with pytest.raises(ValueError, match=r"idx must be in \[0, 2\), got 2"):
        batch(pictures(2, 40, 40), torch.tensor([2]))


def test_it_runs_as_shapes() -> None:
    images = torch.empty(9, 40, 48, 3, dtype=torch.uint8, device="meta")
    idx, rng = torch.empty(5, dtype=torch.int64, device="meta"), ops.new_rng(5, "meta")
    assert ops.gather_augment(images, idx, rng, augment=CROP, size=(24, 24)).shape == (5, 3, 24, 24)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"scale": 0.5}, "scale needs crop=False and pad=0"),
        ({"scale": 1.5, "crop": False}, r"scale must be in \[0, 1\]"),
        ({"scale": 0.5, "crop": False, "ratio": math.nan}, r"ratio in \[1, 100\]"),
    ],
)
def test_crops_that_make_no_sense_are_refused(options: dict[str, float], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        ops.Augment(**options)  # type: ignore[arg-type]


@pytest.mark.gpu
def test_cpu_and_gpu_give_the_same_crops() -> None:
    images, idx = pictures(9, 40, 48), torch.tensor([3, 8, 0, 0, 5])
    augment = ops.Augment(crop=False, flip=True, scale=0.08)

    def crops(device: str) -> Tensor:
        rng = ops.new_rng(5, device)
        return ops.gather_augment(
            images.to(device), idx.to(device), rng, augment=augment, size=(24, 24)
        ).cpu()

    assert torch.equal(crops("cpu"), crops("cuda"))


# ---------------------------------------------------------------- sources


def test_offsets_between_pixels_are_refused() -> None:
    table = torch.tensor([[0, 2, 3], [19, 3, 1]])
    images = data.ImageSet(torch.arange(30, dtype=torch.uint8), torch.tensor([0, 1]), ["a", "b"], table, 3)
    with pytest.raises(InputError, match="must start at multiples of 3 bytes"):
        data.ResidentSource(images, size=(2, 2), augment=CROP)


@pytest.mark.ffcv
@pytest.mark.parametrize(("workers", "same_size"), [(1, True), (2, False)])
def test_raw_files_give_the_resident_source_s_batches(tmp_path: Path, workers: int, same_size: bool) -> None:
    if same_size:
        images = data.ImageSet(pictures(9, 40, 44), torch.arange(9) % 3, ["a", "b", "c"])
        size = (32, 32)
    else:
        files.imagenette(tmp_path)
        found = data.load("imagenette", tmp_path, progress=False).train
        assert isinstance(found, data.ImageSet)
        images, size = found, (160, 160)
    writer.write(tmp_path / "a.beton", images)
    draws = torch.randint(0, 9, (4, 6), generator=torch.Generator().manual_seed(0))
    options = {"size": size, "augment": CROP, "seed": 3}
    sources = (
        data.ResidentSource(images, **options),  # type: ignore[arg-type]
        data.FFCVSource(tmp_path / "a.beton", lag=1, workers=workers, **options),  # type: ignore[arg-type]
    )
    ours, theirs = [list(source.feed(iter(draws).__next__, 4)) for source in sources]
    for one, other in zip(ours, theirs, strict=True):
        assert all(torch.equal(a, b) for a, b in zip(one, other, strict=True))
