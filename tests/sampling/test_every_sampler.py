"""What holds for each sampler alike: exact continuation, no read-back, one state one trajectory, a plain
DataLoader.
"""

from __future__ import annotations

import io
from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from cfol_fast.sampling import ClassSampler, ExampleSampler, FixedClassSampler, IndexSampler, UniformSampler

LABELS = torch.arange(120) % 4
Maker = Callable[..., IndexSampler]
SAMPLERS: dict[str, Maker] = {
    "class": lambda **o: ClassSampler(LABELS, eta=0.01, **o),
    "class-empirical": lambda **o: ClassSampler(
        LABELS, eta=0.02, gamma=0.3, prior="empirical", base="empirical", **o
    ),
    "running": lambda **o: ClassSampler(LABELS, eta=0.01, baseline="running", **o),
    "mean": lambda **o: ClassSampler(LABELS, eta=0.01, baseline="mean", **o),
    "reweighted-running": lambda **o: ClassSampler(LABELS, eta=0.01, reweight=True, baseline="running", **o),
    "reweighted": lambda **o: ClassSampler(LABELS, eta=0.01, reweight=True, **o),
    "example": lambda **o: ExampleSampler(120, eta=0.01, **o),
    "uniform": lambda **o: UniformSampler(120, **o),
    "fixed": lambda **o: FixedClassSampler(LABELS, [0.1, 0.2, 0.3, 0.4], **o),
}
every = pytest.mark.parametrize("make", SAMPLERS.values(), ids=SAMPLERS)


def step(s: IndexSampler, n: int = 32) -> Tensor:
    idx = s.draw(n)
    y = LABELS[idx]
    s.observe(idx, y, (y == 1) | (idx % 7 == 0), s.ticket())
    return idx


@every
def test_a_saved_sampler_continues_exactly(make: Maker) -> None:
    s = make(seed=3)
    for _ in range(5):
        step(s)
    pending = s.draw(16)  # saved between a draw and its update
    buffer = io.BytesIO()
    torch.save(s.state_dict(), buffer)
    buffer.seek(0)
    again = make(seed=99)
    again.load_state_dict(torch.load(buffer, weights_only=True))
    for sampler in (s, again):
        sampler.observe(pending, LABELS[pending], torch.ones(16), sampler.ticket())
    for _ in range(10):
        assert torch.equal(step(s), step(again))
    assert (s.p is None) == (again.p is None)
    if s.p is not None:
        assert torch.equal(s.p, again.p)
    assert_same(s.state_dict(), again.state_dict())


def assert_same(left: object, right: object) -> None:
    if isinstance(left, dict) and isinstance(right, dict):
        assert left.keys() == right.keys()
        for key in left:
            assert_same(left[key], right[key])
    elif isinstance(left, list) and isinstance(right, list):
        for one, other in zip(left, right, strict=True):
            assert_same(one, other)
    elif isinstance(left, Tensor) and isinstance(right, Tensor):
        assert torch.equal(left, right)
    else:
        assert left == right


@every
def test_a_state_is_a_copy(make: Maker) -> None:
    s = make(seed=3)
    step(s)
    state = s.state_dict()
    ahead = [step(s) for _ in range(3)]
    s.load_state_dict(state)
    assert all(torch.equal(step(s), idx) for idx in ahead)


@every
def test_draws_follow_from_the_state_alone(make: Maker) -> None:
    """So every rank of a distributed run computes the same global batch and takes its slice of it."""
    ranks = [make(seed=7) for _ in range(2)]
    for _ in range(5):
        first, second = (step(s) for s in ranks)
        assert torch.equal(first, second)
    assert not torch.equal(make(seed=7).draw(32), make(seed=8).draw(32))


@every
def test_nothing_is_read_back_from_the_device(make: Maker) -> None:
    s = make(device="meta")
    for _ in range(2):
        idx = s.draw(50)
        y = torch.empty_like(idx)
        assert idx.is_meta
        assert idx.shape == (50,)
        s.weight(y)
        s.observe(idx, y, torch.empty(50, device="meta"), s.ticket())
        s.observe(idx, y, torch.empty(50, dtype=torch.bool, device="meta"), s.ticket())
    assert s.p is None or s.p.is_meta
    s.load_state_dict(s.state_dict())


def test_the_listings_update_reads_nothing_back() -> None:
    s = ClassSampler(LABELS, device="meta")
    y = torch.empty(8, dtype=torch.int64, device="meta")
    s.batch_update(y, torch.empty(8, device="meta"))
    assert ClassSampler(y, num_classes=10).draw(4).is_meta
    with pytest.raises(ValueError, match="num_classes"):
        ClassSampler(y)


@every
def test_a_state_of_another_sampler_or_data_set_is_refused(make: Maker) -> None:
    s = make()
    with pytest.raises(ValueError, match="sampler"):
        s.load_state_dict({**s.state_dict(), "kind": "other"})
    with pytest.raises(ValueError, match=r"7 examples.*120"):
        s.load_state_dict({**s.state_dict(), "size": 7})


def test_a_state_with_other_classes_is_refused() -> None:
    others = LABELS % 3
    with pytest.raises(ValueError, match=r"3 classes.*4"):
        ClassSampler(LABELS).load_state_dict(ClassSampler(others).state_dict())
    with pytest.raises(ValueError, match=r"3 classes.*4"):
        FixedClassSampler(LABELS).load_state_dict(FixedClassSampler(others).state_dict())


class Pairs(Dataset):
    """Yields (index, label), so that a test sees what the loader was told to fetch."""

    def __len__(self) -> int:
        return len(LABELS)

    def __getitem__(self, index: int) -> tuple[int, int]:
        return index, int(LABELS[index])


@every
@pytest.mark.parametrize("workers", [0, 2])
def test_a_plain_data_loader_takes_it(make: Maker, workers: int) -> None:
    s = make()
    seen = 0
    for idx, y in DataLoader(Pairs(), batch_size=32, sampler=s, num_workers=workers):
        assert torch.equal(LABELS[idx], y)
        seen += len(idx)
    assert seen == len(s) == 120


def test_an_update_is_seen_by_the_next_batch_of_a_loader_without_workers() -> None:
    s = ClassSampler(LABELS, eta=1.0, gamma=0.01)
    hard = 0
    for batch, (_, y) in enumerate(DataLoader(Pairs(), batch_size=10, sampler=s)):
        if batch:
            assert (y == hard).float().mean() > 0.8
        hard = (batch + 1) % 4
        s.w.zero_()
        s.update(torch.full((10,), hard), torch.ones(10), p=torch.full((4,), 0.25, dtype=torch.float64))


def test_an_update_is_seen_after_what_workers_prefetch() -> None:
    s = ClassSampler(LABELS, eta=1.0, gamma=0.01)
    shares = []
    loader = DataLoader(Pairs(), batch_size=10, sampler=s, num_workers=2, prefetch_factor=1)
    for batch, (_, y) in enumerate(loader):
        shares.append((y == 2).float().mean().item())
        if batch == 0:
            s.update(torch.full((10,), 2), torch.ones(10), p=torch.full((4,), 0.25, dtype=torch.float64))
    ahead = 2 * 1
    assert max(shares[: ahead + 1]) < 0.8
    assert min(shares[ahead + 2 :]) > 0.8


@pytest.mark.parametrize("workers", [0, 2])
def test_the_papers_listing_runs_as_printed(workers: int) -> None:
    model, eta = torch.nn.Linear(1, 4), 2e-6

    class Images(Dataset):
        targets = LABELS

        def __len__(self) -> int:
            return 120

        def __getitem__(self, index: int) -> tuple[Tensor, int]:
            return torch.rand(1), int(self.targets[index])

    dataset = Images()
    sampler = ClassSampler(dataset, gamma=0.5)
    dataloader = DataLoader(dataset, batch_size=40, sampler=sampler, num_workers=workers)
    for img, y in iter(dataloader):
        logits = model(img)
        adv_loss = logits.argmax(dim=-1) != y
        sampler.batch_update(y, eta * adv_loss)
    assert sampler.p.max() > 0.25


@pytest.mark.gpu
@every
def test_cpu_and_gpu_draw_the_same_indices(make: Maker) -> None:
    host, device = make(seed=5), make(seed=5, device="cuda")
    for _ in range(100):
        idx, idx_there = host.draw(64), device.draw(64)
        assert torch.equal(idx, idx_there.cpu())
        wrong = LABELS[idx] == 1
        host.observe(idx, LABELS[idx], wrong, host.ticket())
        device.observe(idx_there, LABELS[idx].cuda(), wrong.cuda(), device.ticket())
