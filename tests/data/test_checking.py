"""`cfol-fast data check`: copies, near copies, mirror images, broken files, groups."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from cfol_fast.commands import main as cli
from cfol_fast.data import near_duplicates
from cfol_fast.data.checking import check, name_groups
from tests.data import published_files


def natural(count: int, seed: int, side: int = 36) -> np.ndarray:
    """uint8 (count, side, side, 3): noise with the spectrum of photographs, whose amplitude falls as 1/f."""
    numbers = np.random.default_rng(seed)
    f = np.hypot(np.fft.fftfreq(side)[:, None], np.fft.rfftfreq(side)[None])
    f[0, 0] = np.inf
    noise = np.fft.rfft2(numbers.normal(size=(count, 4, side, side))) / f
    planes = np.fft.irfft2(noise, s=(side, side))
    # Colours of one scene go together.
    mixed = planes[:, :1] + 0.3 * planes[:, 1:]
    mixed = mixed / mixed.std(axis=(1, 2, 3), keepdims=True)
    return np.clip(128 + 50 * mixed, 0, 255).astype(np.uint8).transpose(0, 2, 3, 1)


def save(file: Path, pixels: np.ndarray, **options) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels).save(file, **options)


def test_moved_and_re_encoded_images_are_found_among_thousands_and_hardly_any_other(tmp_path):
    whole = natural(4000, 0)
    images = whole[:, 2:34, 2:34]
    encoded = []
    for image in images[:20]:
        Image.fromarray(image).save(tmp_path / "x.jpg", quality=75)
        encoded.append(np.asarray(Image.open(tmp_path / "x.jpg")))
    moved = [image[4:36, 2:34] if i % 2 else image[2:34, 0:32] for i, image in enumerate(whole[20:40])]
    every = [near_duplicates.thumbnail(image) for image in [*images, *encoded, *moved, *images[40:60]]]
    found = {tuple(pair) for pair in near_duplicates.pairs(np.stack(every)).tolist()}
    expected = {kind: {(20 * kind + i, 4000 + 20 * kind + i) for i in range(20)} for kind in range(3)}
    assert len(found & expected[0]) == 20
    assert len(found & expected[1]) >= 15
    assert len(found & expected[2]) == 20
    assert len(found - expected[0] - expected[1] - expected[2]) <= 5


def test_surfaces_without_structure_look_like_nothing():
    flat = np.full((3, 32, 32), 7, np.uint8)
    flat[:, 0, 0] = 8
    assert len(near_duplicates.pairs(flat)) == 0


@pytest.fixture
def folder(tmp_path) -> Path:
    images = natural(60, 1, side=32)
    for i, image in enumerate(images):
        part = "train" if i < 40 else "test"
        save(tmp_path / part / ("ant", "bee")[i % 2] / f"{i:02}.png", image)
    return tmp_path


def test_a_folder_without_faults_has_status_0(folder, capsys):
    found = check(folder)
    assert not found.shared
    assert not found.mirrored
    assert all(not pairs.exact and not pairs.near for pairs in found.pairs)
    assert cli.main(["data", "check", str(folder)]) == 0


def test_images_shared_by_parts_are_named_and_the_status_is_1(folder, capsys):
    copied, near = folder / "train/ant/00.png", folder / "train/bee/01.png"
    (folder / "test/ant/copy.png").write_bytes(copied.read_bytes())
    save(folder / "val/ant/0.png", natural(1, 5, 32)[0])
    save(folder / "val/bee/near.jpg", np.asarray(Image.open(near)), quality=80)
    across = {(pairs.one, pairs.other): pairs for pairs in check(folder).pairs}
    assert across["train", "test"].exact == [("train/ant/00.png", "test/ant/copy.png")]
    assert across["train", "val"].near == [("train/bee/01.png", "val/bee/near.jpg")]
    assert across["test", "val"].exact == across["test", "val"].near == []
    assert cli.main(["data", "check", str(folder)]) == 1


def test_copies_within_a_part_are_found_and_leave_the_status_at_0(folder, capsys):
    (folder / "train/bee/copy.png").write_bytes((folder / "train/ant/00.png").read_bytes())
    (within, *_) = check(folder).pairs
    assert within.exact == [("train/ant/00.png", "train/bee/copy.png")]
    assert within.near == []
    assert cli.main(["data", "check", str(folder)]) == 0


def test_mirror_images_of_another_class_are_counted_and_those_of_the_same_are_not(folder):
    for source, target in (("ant/00", "bee/mirrored"), ("bee/01", "bee/own")):
        pixels = np.asarray(Image.open(folder / f"train/{source}.png"))
        save(folder / f"train/{target}.png", pixels[:, ::-1])
    assert sorted(check(folder).mirrored) == [("ant", "bee", 1), ("bee", "ant", 1)]


def test_broken_files_modes_and_sizes_are_seen(folder, capsys):
    (folder / "train/ant/broken.png").write_bytes(b"no image")
    Image.new("L", (20, 30)).save(folder / "train/ant/grey.png")
    train = check(folder).parts[0]
    broken = [path for path, one in zip(train.listing.paths, train.seen, strict=True) if one.error]
    assert broken == ["train/ant/broken.png"]
    assert {one.mode for one in train.seen if not one.error} == {"RGB", "L"}
    assert {one.size for one in train.seen if not one.error} == {(32, 32), (20, 30)}
    assert cli.main(["data", "check", str(folder)]) == 0
    assert "train/ant/broken.png" in capsys.readouterr().out


def test_names_of_frames_make_groups_and_running_numbers_do_not():
    frames = [f"train/ant/{sign:05}_{frame:05}.png" for sign in range(4) for frame in range(30)]
    assert set(name_groups(frames)) == {f"train/ant/{sign:05}" for sign in range(4)}
    assert not name_groups([f"train/{name}/{i}.png" for name in ("ant", "bee") for i in range(50)])
    assert not name_groups([f"train/ant/{chr(97 + i)}.png" for i in range(20)])


def test_a_folder_that_is_none_is_refused(tmp_path):
    assert cli.main(["data", "check", str(tmp_path / "nowhere")]) == 2
    published_files.folder(tmp_path, ("other",))
    assert cli.main(["data", "check", str(tmp_path)]) == 2
