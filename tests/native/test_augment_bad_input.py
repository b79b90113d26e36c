"""Gather and augment refuses what makes no sense; on the device it goes on with something safe and raises a
flag.
"""

import pytest
import torch

from cfol_fast import ops
from cfol_fast.ops import Augment
from tests.native.augmenting import FULL, gather, random_images, row

IMAGES = random_images(4, 6, 6, 3)
IDX = torch.arange(4)


@pytest.mark.parametrize("bad", [-1, 4, 2**40])
def test_an_index_outside_the_images_is_refused(bad):
    rng = ops.new_rng(1)
    with pytest.raises(ValueError, match=rf"idx .*got {bad} at position 1"):
        ops.gather_augment(IMAGES, torch.tensor([0, bad]), rng, augment=FULL)
    assert rng.tolist() == [1, 0]


def test_the_device_clamps_it_and_raises_a_flag(schedule):
    fault = ops.new_fault()
    x = gather(schedule, IMAGES, torch.tensor([-5, 2, 99]), fault=fault)
    assert ops.fault_messages(int(fault)) == ["an index was outside the data"]
    assert torch.equal(x, gather(schedule, IMAGES, torch.tensor([0, 2, 3])))


def test_a_table_row_outside_the_bytes_is_refused_and_black_on_the_device(schedule):
    flat = random_images(100)
    for bad in ([89, 2, 2], [-1, 2, 2], [0, 0, 5], [0, 2**40, 2**40], [0, -3, -3]):
        table = torch.tensor([[0, 3, 3], bad])
        options = {"size": (2, 2), "table": table, "channels": 3}
        with pytest.raises(ValueError, match=r"row 1 .*100 bytes"):
            ops.gather_augment(flat, torch.tensor([1]), None, **options)
        fault = ops.new_fault()
        x = gather(schedule, flat, torch.tensor([0, 1]), fault=fault, **options)
        assert int(fault) == 8
        assert x[0].any()
        assert not x[1].any()


@pytest.mark.parametrize(
    "changes",
    [
        {"top": float("nan")},
        {"left": float("inf")},
        {"brightness": -1.0},
        {"contrast": float("nan")},
        {"angle": 361.0},
    ],
)
def test_parameters_that_make_no_sense_are_refused_and_left_out_on_the_device(schedule, changes):
    with pytest.raises(ValueError, match="example 0"):
        ops.augment_with(IMAGES, IDX[:1], row(**changes))
    fault = ops.new_fault()
    x = gather(schedule, IMAGES, IDX[:1], parameters=row(**changes), fault=fault)
    assert ops.fault_messages(int(fault)) == ["an augmentation parameter was not finite or not allowed"]
    assert torch.equal(x, gather(schedule, IMAGES, IDX[:1]))


def test_wrong_types_and_shapes_are_named():
    with pytest.raises(TypeError, match=r"images .*got float32"):
        ops.gather_augment(IMAGES.float(), IDX, None)
    with pytest.raises(TypeError, match=r"idx .*got int32"):
        ops.gather_augment(IMAGES, IDX.int(), None)
    with pytest.raises(TypeError, match=r"dtype .*got torch\.float16"):
        ops.gather_augment(IMAGES, IDX, None, dtype=torch.float16)
    with pytest.raises(ValueError, match=r"images .*got 2"):
        ops.gather_augment(random_images(2, 3, 3, 2), IDX, None)
    with pytest.raises(ValueError, match=r"images .*got \(4, 6, 6, 3\)"):
        ops.gather_augment(IMAGES, IDX, None, channels=1)
    with pytest.raises(ValueError, match=r"images .*contiguous"):
        ops.gather_augment(IMAGES.transpose(1, 2), IDX, None)
    with pytest.raises(ValueError, match=r"size .*got \(0, 5\)"):
        ops.gather_augment(IMAGES, IDX, None, size=(0, 5))
    with pytest.raises(ValueError, match=r"parameters .*got \(1, 8\)"):
        ops.augment_with(IMAGES, IDX, row())
    with pytest.raises(ValueError, match=r"table .*got \(2, 2\)"):
        ops.gather_augment(
            random_images(9), IDX, None, size=(1, 1), channels=1, table=torch.zeros(2, 2).long()
        )
    with pytest.raises(ValueError, match=r"images .*empty"):
        ops.gather_augment(IMAGES[:0], IDX, None)


def test_what_is_missing_is_named():
    with pytest.raises(ValueError, match="rng"):
        ops.gather_augment(IMAGES, IDX, None, augment=FULL)
    with pytest.raises(ValueError, match="channels"):
        ops.gather_augment(random_images(9), IDX, None, size=(1, 1), table=torch.zeros(1, 3).long())
    with pytest.raises(ValueError, match="size="):
        ops.gather_augment(random_images(9), IDX, None, channels=1, table=torch.zeros(1, 3).long())
    with pytest.raises(ValueError, match="crop=True"):
        Augment(pad=4, crop=False)


def test_ranges_that_make_no_sense_are_refused():
    cases = [
        ("pad", -1),
        ("brightness", -0.5),
        ("contrast", float("nan")),
        ("saturation", -1.0),
        ("degrees", 200.0),
    ]
    for name, value in cases:
        with pytest.raises(ValueError, match=rf"{name} must be in \[0, .*\], got {value:g}"):
            ops.gather_augment(IMAGES, IDX, ops.new_rng(0), augment=Augment(**{name: value}))
    with pytest.raises(ValueError, match=r"size .*got \(9, 6\)"):
        ops.gather_augment(IMAGES, IDX, ops.new_rng(0), augment=Augment(pad=1), size=(9, 6))
