"""The stream's pixels, digests and notes are the resident source's, whatever threads and lag it has."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from cfol_fast import data, ops
from cfol_fast.data import content, decoding, registry, room
from cfol_fast.data.stream import choice
from cfol_fast.errors import DataLost, InputError
from tests.data.stream.image_folders import deep, encoded, write

EVERYTHING = ops.Augment(pad=4, flip=True, brightness=0.25, contrast=0.25, degrees=2)
CROPPED = ops.Augment(flip=True, crop=False, scale=0.3, ratio=1.3)


def load(root: Path, source: str = "stream", **options: Any) -> data.ImageData:
    return data.load("folder", root, source=source, progress=False, **options)


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("photos"))


def drawn(n: int, size: int = 5, steps: int = 7) -> Callable[[], Tensor]:
    generator = torch.Generator().manual_seed(3)
    draws = iter([torch.randint(0, n, (size,), generator=generator) for _ in range(steps)])
    return lambda: next(draws)


def fed(source: Any, steps: int = 7) -> list[Tensor]:
    return [torch.cat([x.flatten(), y.float()]) for _, x, y in source.feed(drawn(len(source)), steps)]


def equal(one: list[Tensor], other: list[Tensor]) -> bool:
    return all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


LAYOUTS: dict[str, dict[str, Any]] = {
    "sizes differ": {},
    "one size": {"side": 24},
    "no test part": {"test": False},
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("size", [None, 16])
def test_images_labels_statistics_and_digests_are_those_of_the_resident_source(
    tmp_path: Path, layout: str, size: int | None
) -> None:
    write(tmp_path, **LAYOUTS[layout])
    resident, stream = load(tmp_path, "resident", size=size), load(tmp_path, size=size)
    for part in ("train", "test"):
        ours, theirs = getattr(stream, part), getattr(resident, part)
        assert isinstance(ours, data.StreamSet)
        assert torch.equal(ours.labels, theirs.labels)
        assert equal([ours.image(i) for i in range(len(ours))], [theirs.image(i) for i in range(len(theirs))])
    for field in ("size", "mean", "std", "augment", "classes", "channels", "white"):
        assert getattr(stream, field) == getattr(resident, field)
    assert content.records(content.describe(stream)) == content.records(content.describe(resident))


@pytest.mark.parametrize("most", [0, 1000])
def test_digests_are_the_same_where_a_sample_is_looked_at(
    photos: Path, monkeypatch: pytest.MonkeyPatch, most: int
) -> None:
    monkeypatch.setattr(content, "MOST_DECODED", most)
    monkeypatch.setattr(content, "SAMPLED", 6)
    described = [content.describe(load(photos, source, size=16)) for source in ("stream", "resident")]
    assert content.records(described[0]) == content.records(described[1])
    assert described[0]["train"].whole == bool(most)


@pytest.mark.parametrize("augment", [EVERYTHING, CROPPED], ids=["everything", "resized crop"])
@pytest.mark.parametrize("size", [None, 16])
def test_batches_are_the_resident_source_s_with_any_threads_and_lag(
    photos: Path, size: int | None, augment: ops.Augment
) -> None:
    resident, stream = load(photos, "resident", size=size), load(photos, size=size)
    options: dict[str, Any] = {"augment": augment, "size": resident.size, "seed": 5}
    expected = fed(data.source_of(resident.train, **options))
    for lag, workers in ((0, 1), (0, 3), (1, 2), (2, 5)):
        assert equal(fed(data.source_of(stream.train, lag, workers=workers, **options)), expected)


def test_evaluation_batches_and_subsets_are_the_resident_source_s(photos: Path) -> None:
    rows = torch.tensor([9, 2, 5, 0, 13])
    resident, stream = load(photos, "resident", size=16), load(photos, size=16)
    for part in (slice(None), slice(2, 4)):
        ours = data.source_of(stream.train.subset(rows[part]), size=(16, 16), workers=2)
        theirs = data.source_of(resident.train.subset(rows[part]), size=(16, 16))
        for mine, other in zip(ours.batches(2), theirs.batches(2), strict=True):
            assert equal(list(mine), list(other))
    assert next(iter(ours.batches(2, first=0, every=2)))[0].tolist() == [0, 1]


def test_images_with_16_bits_have_the_white_point_of_the_data_set(tmp_path: Path) -> None:
    write(tmp_path)
    for i, folder in enumerate(("train/ant", "test/bee")):
        (tmp_path / folder / "deep.png").write_bytes(encoded(deep(20, 30, i), "PNG"))
    resident, stream = load(tmp_path, "resident"), load(tmp_path)
    row = stream.train.index.listing.paths.index("train/ant/deep.png")  # type: ignore[attr-defined]
    assert torch.equal(stream.train.image(row), resident.train.image(row))
    assert stream.white == resident.white == 65535
    assert [note for note in stream.notes if "white" in note] == [
        note for note in resident.notes if "white" in note
    ]


def test_the_stream_feels_an_update_after_lag_steps(photos: Path) -> None:
    source = data.source_of(load(photos, size=16).train, 1, size=(16, 16))
    seen, given = [], drawn(len(source), steps=5)

    def draw() -> Tensor:
        seen.append(len(batches))
        return given()

    batches: list[Any] = []
    for batch in source.feed(draw, 5):
        batches.append(batch)
    assert seen == [0, 0, 1, 2, 3]


def threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("StreamFeed")]


def test_no_thread_is_left_behind(photos: Path) -> None:
    source = data.source_of(load(photos, size=16).train, 1, size=(16, 16), workers=2)
    batches = source.feed(drawn(len(source)), 7)
    next(batches)
    assert threads()
    batches.close()
    assert not threads()
    batches = source.feed(drawn(len(source)), 7)
    next(batches)
    with pytest.raises(InputError, match="feeding already"):
        next(source.feed(drawn(len(source)), 7))
    source.close()
    assert not threads()
    del batches


@pytest.mark.parametrize("index", [-1, 14])
def test_an_index_outside_is_refused(photos: Path, index: int) -> None:
    source = data.source_of(load(photos, size=16).train, 0, size=(16, 16))
    with pytest.raises(IndexError, match=f"index {index} is not in 0..13"):
        next(source.feed(lambda: torch.tensor([0, index]), 1))


def broken(path: Path) -> None:
    status = path.stat()
    path.write_bytes(b"\xff\xd8\xff" + bytes(status.st_size - 3))


@pytest.mark.parametrize("happens", [Path.unlink, broken])
@pytest.mark.parametrize("workers", [1, 3])
def test_a_file_that_goes_away_or_breaks_is_named(tmp_path: Path, happens: Any, workers: int) -> None:
    write(tmp_path)
    source = data.source_of(load(tmp_path, size=16).train, 0, size=(16, 16), workers=workers)

    def batches() -> Iterator[Any]:
        return source.feed(lambda: torch.arange(14), 2)

    next(batches())
    time.sleep(0.03)
    happens(tmp_path / "train/bee/0.jpg")
    with pytest.raises(DataLost, match=r"train/bee/0\.jpg cannot be read any more"):
        next(batches())
    assert not threads()


def test_corrupt_files_are_left_out_and_counted_at_the_start(tmp_path: Path) -> None:
    write(tmp_path)
    for path in ("train/bee/0.jpg", "train/ant/1.png", "test/ant/2.webp"):
        (tmp_path / path).write_bytes((tmp_path / path).read_bytes()[:60])
    stream, resident = (load(tmp_path, source, skip_corrupt=True) for source in ("stream", "resident"))
    assert torch.equal(stream.train.labels, resident.train.labels)
    assert torch.equal(stream.train.image(11), resident.train.image(11))
    notes = [[note for note in found.notes if "left out" in note] for found in (stream, resident)]
    assert notes[0] == notes[1]
    assert notes[0][0].startswith("train: 2 of 14 images cannot be decoded")


def test_what_was_found_out_of_the_files_is_not_found_out_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path)
    found = [content.records(content.describe(load(tmp_path, skip_corrupt=True)))]
    monkeypatch.setattr("cfol_fast.data.stream.data_set.read_image", None)
    monkeypatch.setattr("cfol_fast.data.stream.data_set.white_point", None)
    monkeypatch.setattr(data.StreamSet, "described", None)
    found.append(content.records(content.describe(load(tmp_path, skip_corrupt=True))))
    assert found[0] == found[1]


@pytest.mark.parametrize(
    ("free", "chosen"), [(10**9, "resident"), (20_000, "stream")], ids=["enough memory", "too little"]
)
def test_auto_says_what_it_chose_and_why(
    photos: Path, monkeypatch: pytest.MonkeyPatch, free: int, chosen: str
) -> None:
    monkeypatch.setattr(choice, "available_memory", lambda: free)
    found = load(photos, "auto", size=16)
    kind = data.ImageSet if chosen == "resident" else data.StreamSet
    assert isinstance(found.train, kind)
    (note,) = [note for note in found.notes if note.startswith("source:")]
    assert note.startswith(f"source: {chosen} (auto), as the images take about")
    assert room.size_text(free) in note


def test_auto_looks_at_the_gpu_s_memory_and_at_the_disk_too(
    photos: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(choice, "free_memory", lambda device: 10 if device.type == "cuda" else None)
    assert isinstance(load(photos, "auto", size=16, device="cuda").train, data.StreamSet)
    assert isinstance(load(photos, "auto", size=16).train, data.ImageSet)
    usage = choice.shutil.disk_usage(photos)
    monkeypatch.setattr(choice.shutil, "disk_usage", lambda _: usage._replace(free=10))
    assert isinstance(load(photos, "auto", size=16).train, data.StreamSet)


def test_the_stream_leaves_no_decoded_images_on_the_disk(photos: Path, tmp_path: Path) -> None:
    load(photos, cache=str(tmp_path), size=16)
    assert not [path for path in tmp_path.rglob("*") if path.suffix == ".bytes"]
    assert list(tmp_path.iterdir()) == [decoding.cache_folder(photos, str(tmp_path))]


@pytest.mark.parametrize(
    ("name", "options", "said"),
    [
        ("fashion-mini", {"source": "stream"}, "reads folders of image files, got fashion-mini"),
        ("fashion-mini", {"source": "beton"}, "reads FFCV files, got fashion-mini"),
        ("beton", {"source": "stream"}, "FFCV files are read by FFCV"),
        ("folder", {"source": "disk"}, "must be one of auto, resident, stream, beton, got 'disk'"),
        ("folder", {"decode": "scaled"}, "belongs to data.source=stream, got scaled with data.source=auto"),
        ("folder", {"source": "stream", "decode": "half"}, "must be one of whole, scaled, nvjpeg"),
    ],
)
def test_a_source_that_a_data_set_does_not_have_is_refused(
    name: str, options: dict[str, Any], said: str
) -> None:
    with pytest.raises(InputError, match=said):
        registry.check_source(registry.spec(name), **{"source": None, **options})


def test_nvjpeg_is_refused_without_a_gpu(photos: Path) -> None:
    found = load(photos, size=16, decode="nvjpeg")
    with pytest.raises(InputError, match="decodes on an NVIDIA GPU, and the run is on cpu"):
        data.source_of(found.train, size=(16, 16))


@pytest.mark.parametrize("where", ["val", "elsewhere"])
def test_a_hold_out_of_the_user_s_own_is_the_resident_source_s(tmp_path: Path, where: str) -> None:
    root, other = write(tmp_path / "photos"), write(tmp_path / "others", per_class=3)
    folder = other / "train"
    if where == "val":
        folder = folder.rename(root / "val")
    options = {"size": 16, "holdout_folder": "val" if where == "val" else str(folder)}
    stream, resident = load(root, **options), load(root, "resident", **options)
    assert isinstance(stream.holdout, data.StreamSet)
    assert isinstance(resident.holdout, data.ImageSet)
    assert len(stream.holdout) == len(resident.holdout) == 6
    assert all(torch.equal(stream.holdout.image(i), resident.holdout.image(i)) for i in range(6))
    assert content.records(content.describe(stream)) == content.records(content.describe(resident))
