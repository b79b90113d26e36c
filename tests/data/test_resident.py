"""The resident source: the right pixels, on-policy, and nothing read back from the device."""

import pytest
import torch

from cfol_fast import data, ops
from cfol_fast.data import resident
from cfol_fast.data.source import PartOfSource
from cfol_fast.errors import InputError
from tests.data.test_images import uneven


def test_without_augmentation_a_batch_is_the_images_as_they_are(mini):
    source = data.ResidentSource(mini.train)
    wanted = torch.tensor([4999, 0, 7, 7])
    idx, x, y = next(iter(source.feed(lambda: wanted, 1)))
    assert torch.equal(idx, wanted)
    assert torch.equal(x, mini.train.images[wanted].permute(0, 3, 1, 2).float() / 255)
    assert torch.equal(y, mini.train.labels[wanted])


def test_a_change_after_step_t_is_seen_at_step_t_plus_1(mini):
    source = data.ResidentSource(mini.train)
    state = [0]
    seen = []
    for idx, _, _ in source.feed(lambda: torch.full((2,), state[0]), 5):
        seen.append(int(idx[0]))
        # What the update after this step changes.
        state[0] += 1
    assert seen == [0, 1, 2, 3, 4]


def test_nothing_is_drawn_before_it_is_asked_for(mini):
    draws = []
    feed = data.ResidentSource(mini.train).feed(lambda: draws.append(1) or torch.tensor([0]), 3)
    assert not draws
    next(feed)
    assert len(draws) == 1


def test_the_batches_cover_every_image_once_in_order(mini):
    parts = list(data.ResidentSource(mini.test).batches(700))
    assert torch.equal(torch.cat([idx for idx, _, _ in parts]), torch.arange(3000))
    assert torch.equal(torch.cat([y for _, _, y in parts]), mini.test.labels)
    assert [len(x) for _, x, _ in parts] == [700] * 4 + [200]


def test_a_whole_feed_runs_on_the_meta_device(mini):
    source = data.ResidentSource(mini.train, augment=mini.augment, device="meta")
    draw = lambda: torch.empty(16, dtype=torch.int64, device="meta")  # noqa: E731
    for idx, x, y in source.feed(draw, 2):
        assert (idx.shape, x.shape, y.shape) == ((16,), (16, 1, 28, 28), (16,))
        assert x.is_meta
        assert x.is_contiguous(memory_format=torch.channels_last)


def test_the_flags_of_the_kernel_reach_the_word_that_the_trainer_reads(mini, monkeypatch):
    source, given = data.ResidentSource(mini.train, augment=mini.augment), []
    gather = ops.gather_augment
    monkeypatch.setattr(ops, "gather_augment", lambda *a, **o: given.append(o["fault"]) or gather(*a, **o))
    next(source.feed(lambda: torch.arange(4), 1))
    next(source.batches(4))
    assert [word is source.fault for word in given] == [True, True]
    assert (source.fault.dtype, source.fault.tolist()) == (torch.int32, [0])
    with pytest.raises(ValueError, match=r"idx must be in \[0, 5000\), got 5000"):
        next(source.feed(lambda: torch.tensor([5000]), 1))


def test_the_same_state_gives_the_same_augmentation_and_can_be_resumed(mini):
    def run(source, steps):
        return [x for _, x, _ in source.feed(lambda: torch.arange(8), steps)]

    augment = ops.Augment(pad=4, flip=True, brightness=0.25, degrees=2)
    whole = data.ResidentSource(mini.train, augment=augment, seed=5)
    six = run(whole, 6)
    first = data.ResidentSource(mini.train, augment=augment, seed=5)
    run(first, 3)
    second = data.ResidentSource(mini.train, augment=augment, seed=99)
    second.load_state_dict(first.state_dict())
    assert all(torch.equal(a, b) for a, b in zip(six[3:], run(second, 3), strict=True))
    assert not torch.equal(six[0], six[1])


def test_batches_do_not_disturb_the_augmentation(mini):
    source = data.ResidentSource(mini.train, augment=mini.augment)
    before = source.state_dict()["rng"]
    list(source.batches(5000))
    assert torch.equal(before, source.state_dict()["rng"])


def test_images_of_different_sizes_are_cropped_at_the_centre():
    source = data.ResidentSource(uneven(), size=(1, 2))
    (_, x, _) = next(source.batches(2))
    assert (x * 255).round().tolist() == [[[[0, 1]]], [[[2, 3]]]]


def test_images_of_different_sizes_need_the_size_of_the_batches():
    with pytest.raises(InputError, match="needs size="):
        data.ResidentSource(uneven())


def test_data_larger_than_the_device_is_refused_with_the_size_and_the_way_out(mini, monkeypatch):
    monkeypatch.setattr(resident, "free_memory", lambda device: 2**20)
    with pytest.raises(InputError, match=r"need 3\.8 MiB on meta, 1\.0 MiB are free.*to-ffcv"):
        data.ResidentSource(mini.train, device="meta")


def test_the_size_needed_counts_images_labels_and_table(mini):
    assert mini.train.nbytes == 5000 * (28 * 28 + 8)
    assert uneven().nbytes == 8 + 3 * 8 + 9 * 8


def test_only_the_images_of_a_subset_go_to_the_device():
    assert data.ResidentSource(uneven().subset([1]), size=(2, 2), device="meta").images.shape == (4,)


@pytest.mark.gpu
def test_a_gpu_says_how_much_is_free():
    assert resident.free_memory(torch.device("cuda")) > 0


@pytest.mark.gpu
def test_cpu_and_gpu_give_the_same_pictures(mini):
    pictures = []
    for device in ("cpu", "cuda"):
        source = data.ResidentSource(mini.train, augment=mini.augment, device=device, seed=3)
        feed = source.feed(lambda device=device: torch.arange(64, device=device), 3)
        pictures.append(torch.cat([x.cpu() for _, x, _ in feed]))
    assert torch.allclose(*pictures, atol=1e-6)


def test_a_part_of_a_source_has_its_images_and_numbers_of_its_own(mini):
    whole = data.ResidentSource(mini.test)
    rows = torch.tensor([0, 3, 255, 256, 700, 2999])
    part = PartOfSource(whole, rows)
    idx, x, y = (torch.cat(parts) for parts in zip(*part.batches(256), strict=True))
    every = torch.cat([batch for _, batch, _ in whole.batches(1000)])
    assert idx.tolist() == list(range(6)) == list(range(len(part)))
    assert torch.equal(x, every[rows])
    assert torch.equal(y, mini.test.labels[rows])
    assert torch.equal(part.labels, y)
