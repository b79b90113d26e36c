"""Every mode of Pillow, and every kind of file with more than 8 bits: its pixels as RGB, or one sentence."""

import os
import re
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, ImageCms

from cfol_fast import data
from cfol_fast.data import image_file, white_point
from cfol_fast.errors import InputError
from tests.data import deep_files
from tests.data import published_files as files

# Half of the range of 12 bits, and what becomes of it.
RAMP = np.linspace(0, 4095, 8 * 8).astype(np.uint16).reshape(8, 8, 1)
RAMP_8 = (RAMP[..., 0] >> 4).astype(np.uint8)


def load(root, **options):
    return data.load("folder", root, progress=False, **options)


@pytest.fixture
def root(tmp_path):
    files.folder(tmp_path, ("train", "test"), count=2)
    return tmp_path


def put(root: Path, content: bytes, name: str) -> str:
    (root / "train" / "ant" / name).write_bytes(content)
    return name


def read(root, name, **options):
    found = load(root, **options)
    rows = sorted(os.listdir(root / "train" / "ant"))
    return found.train.image(rows.index(name)).numpy()


BASE = files.pixels(5, 8, 8, 3)
RGB = Image.fromarray(BASE)


@pytest.mark.parametrize(
    ("mode", "ending", "options"),
    [
        ("1", "png", {}),
        ("L", "png", {}),
        ("LA", "png", {}),
        ("La", "tif", {}),
        ("P", "png", {}),
        ("P", "gif", {"transparency": 0}),
        ("P", "png", {"transparency": 3}),
        ("PA", "tif", {}),
        ("RGB", "png", {}),
        ("RGBA", "png", {}),
        ("RGBa", "tif", {}),
        ("RGBX", "tif", {}),
        ("CMYK", "tif", {}),
        ("YCbCr", "tif", {}),
        ("LAB", "tif", {}),
        ("HSV", "tif", {}),
    ],
)
def test_a_mode_with_8_bits_has_pillows_own_colours(tmp_path, mode, ending, options):
    path = tmp_path / f"x.{ending}"
    if mode in ("RGBa", "La"):
        image = RGB.convert("RGBA" if mode == "RGBa" else "LA")
        image.putalpha(200)
    elif mode == "LAB":
        image = ImageCms.profileToProfile(
            RGB, ImageCms.createProfile("sRGB"), ImageCms.createProfile("LAB"), outputMode="LAB"
        )
    else:
        image = RGB.convert("P" if mode == "PA" else mode)
    try:
        image.save(path, **options)
    except OSError:
        # No file format holds it.
        image.convert("RGBA" if mode in ("RGBa", "PA") else "LA" if mode == "La" else "RGB").save(path)
    found = image_file.read_image(path, None, lambda: pytest.fail("8 bits need no white point"))
    wanted = np.asarray(RGB.convert("L").convert("RGB")) if mode in ("L", "LA", "La") else BASE
    if mode == "1":
        assert set(np.unique(found)) == {0, 255}
    elif mode in ("P", "PA"):
        assert np.array_equal(found, np.asarray(image.convert("RGB")))
    else:
        assert np.abs(found.astype(int) - wanted).max() <= 20
    assert found.shape == (8, 8, 3)


@pytest.mark.parametrize(
    "mode", ["La", "RGBa", "PA", "HSV", "RGBX", "LAB", "I;16L", "I;16B", "I;16N", "I", "F"]
)
def test_what_pillow_may_hand_over_in_any_mode_becomes_rgb(mode):
    image = Image.new(mode, (3, 3))
    image.tile, image.format = [], None
    assert image_file.pixels_of(image, None, lambda: 255).shape == (3, 3, 3)


def of(values, dtype=np.uint16):
    return values.astype(dtype)


RGB_12 = np.concatenate([RAMP, RAMP[::-1], RAMP // 2], 2)
TRANSPARENT = np.full_like(RAMP, 65535)
DEEP = {
    "grey.png": deep_files.png(RAMP),
    "transparent.png": deep_files.png(np.concatenate([RAMP, TRANSPARENT], 2)),
    "rgb.png": deep_files.png(RGB_12),
    "rgba.png": deep_files.png(np.concatenate([RGB_12, TRANSPARENT], 2)),
    "grey.tif": deep_files.tiff(RAMP),
    "big.tif": deep_files.tiff(RAMP, big=True),
    "inverted.tif": deep_files.tiff(4095 - RAMP, 0),
    "signed.tif": deep_files.tiff(of(RAMP, np.int16)),
    "32.tif": deep_files.tiff(of(RAMP, np.uint32)),
    "signed32.tif": deep_files.tiff(of(RAMP, np.int32)),
    "rgb.tif": deep_files.tiff(RGB_12, 2),
    "bigrgb.tif": deep_files.tiff(RGB_12, 2, big=True),
    "rgba.tif": deep_files.tiff(np.concatenate([RGB_12, TRANSPARENT], 2), 2, extra=2),
    "rgbx.tif": deep_files.tiff(np.concatenate([RGB_12, TRANSPARENT], 2), 2, extra=0),
    "grey.pgm": deep_files.pgm(RAMP, 65535),
    "rgb.ppm": deep_files.pgm(RGB_12, 65535),
}


@pytest.mark.parametrize("name", DEEP)
def test_12_bits_in_a_larger_container_have_their_own_white(root, name):
    found = read(root, put(root, DEEP[name], f"z-{name}"))
    wanted = np.repeat(RAMP_8[..., None], 3, 2) if "rgb" not in name else (RGB_12 >> 4).astype(np.uint8)
    assert np.abs(found.astype(int) - wanted).max() <= (1 if "inverted" in name else 0)


@pytest.mark.parametrize(
    ("top", "white"),
    [
        (255, 255),
        (200, 255),
        (1023, 1023),
        (4095, 4095),
        (4090, 4095),
        (16383, 16383),
        (65535, 65535),
        (40000, 65535),
    ],
)
def test_a_largest_value_that_leaves_no_doubt_decides(root, top, white):
    values = (np.arange(64, dtype=np.uint32) * top // 63).astype(np.uint16).reshape(8, 8, 1)
    name = put(root, deep_files.png(values), "z.png")
    found = load(root)
    assert found.white == white
    assert any(f"up to {top}: white is {white}, by the largest value" in note for note in found.notes)
    bits = int(np.log2(white + 1))
    assert np.array_equal(read(root, name)[..., 0], values[..., 0] >> (bits - 8))


@pytest.mark.parametrize("top", [1, 100, 300, 3000, 9000, 20_000, 32_767])
def test_a_largest_value_that_leaves_a_doubt_is_named_with_the_way_out(root, top):
    put(root, deep_files.png(np.full((8, 8, 1), top, np.uint16)), "z.png")
    with pytest.raises(InputError, match=rf"is {top}, so white may be .*--set data\.white=\d+"):
        load(root)
    assert read(root, "z.png", white=top).min() == 255


def test_training_and_test_part_have_one_white_point(root):
    # By itself the training part would be one of 10 bits.
    put(root, deep_files.png(np.full((8, 8, 1), 1000, np.uint16)), "z.png")
    (root / "test" / "ant" / "z.png").write_bytes(deep_files.png(RAMP))
    found = load(root)
    assert found.white == 4095
    assert read(root, "z.png").max() == 1000 >> 4
    # The cache of the training part goes with the test part that its white point came from.
    (root / "test" / "ant" / "z.png").unlink()
    assert read(root, "z.png").max() == 1000 >> 2


def test_the_white_point_that_is_given_holds_from_the_cache_too(root):
    put(root, DEEP["grey.png"], "z.png")
    first = read(root, "z.png", white=65535)
    assert first.max() == 15
    assert read(root, "z.png").max() == 255
    assert np.array_equal(read(root, "z.png", white=65535), first)


def test_one_image_with_a_hot_pixel_does_not_make_the_others_black(root):
    for i in range(5):
        put(root, DEEP["grey.png"], f"z{i}.png")
    hot = RAMP.copy()
    hot[0, 0] = 65535
    put(root, deep_files.png(hot), "y.png")
    # 4095 is a hair below a sixteenth of 65535: five of six images would be black.
    with pytest.raises(InputError, match="5 of 6 stay below a sixteenth"):
        load(root)
    found = load(root, white=4095)
    assert any("1 of them have larger values, which are white" in note for note in found.notes)
    assert read(root, "z0.png", white=4095).max() == read(root, "y.png", white=4095).max() == 255


def test_a_white_point_that_makes_the_images_white_is_refused(root):
    put(root, deep_files.png(np.full((8, 8, 1), 60_000, np.uint16)), "z.png")
    with pytest.raises(InputError, match=r"1 of 1 images .* far beyond white=4095, up to 60000"):
        load(root, white=4095)


def test_a_white_point_under_which_all_is_black_is_said(root):
    put(root, DEEP["grey.png"], "z.png")
    assert any("nearly black" in note for note in load(root, white=65535).notes)


@pytest.mark.parametrize(
    ("values", "white"),
    [(np.linspace(0, 1, 64), 1), (np.linspace(0, 255, 64), 255), (np.linspace(0, 65535, 64), 65535)],
)
@pytest.mark.parametrize("inverted", [False, True])
def test_fractions_are_read_where_their_largest_value_says_what_is_white(root, values, white, inverted):
    values = values.reshape(8, 8, 1).astype(np.float32)
    name = put(root, deep_files.tiff(white - values if inverted else values, 0 if inverted else 1), "z.tif")
    assert load(root).white == white
    wanted = np.rint(values[..., 0].astype(np.float64) * 255 / white)
    assert np.abs(read(root, name)[..., 0] - wanted).max() <= (1 if inverted else 0)


def test_bytes_that_were_divided_by_255_come_back_exactly(root):
    values = np.arange(256).reshape(16, 16, 1)
    for old in (root / "train").rglob("*.png"):
        Image.fromarray(files.pixels(1, 16, 16, 3)).save(old)
    for old in (root / "test").rglob("*.png"):
        Image.fromarray(files.pixels(1, 16, 16, 3)).save(old)
    put(root, deep_files.tiff((values / np.float32(255)).astype(np.float32)), "z.tif")
    assert np.array_equal(read(root, "z.tif")[..., 0], values[..., 0])


@pytest.mark.parametrize("top", [0.25, 1.5, 100.0, 3000.0, 1e6])
def test_fractions_in_doubt_are_refused(root, top):
    put(root, deep_files.tiff(np.full((8, 8, 1), top, np.float32)), "z.tif")
    with pytest.raises(InputError, match=r"white may be .*data\.white="):
        load(root)
    assert load(root, white=top).white == top


def test_fractions_beside_whole_numbers_are_refused(root):
    put(root, DEEP["grey.png"], "y.png")
    put(root, deep_files.tiff(np.ones((8, 8, 1), np.float32)), "z.tif")
    with pytest.raises(InputError, match=r"whole numbers up to 4095 and others fractions up to 1\."):
        load(root)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (deep_files.tiff(np.full((8, 8, 1), np.nan, np.float32)), "not all finite"),
        (deep_files.tiff(np.full((8, 8, 1), np.inf, np.float32)), "not all finite"),
        (deep_files.tiff(np.full((8, 8, 1), -0.5, np.float32)), "go from -0.5"),
        (deep_files.tiff(np.full((8, 8, 1), -5, np.int16)), "go from -5"),
        (deep_files.tiff(np.full((8, 8, 1), 2**32 - 1, np.uint32)), "go from -1"),
        (deep_files.tiff(RGB_12, 2, planar=True), "lie apart"),
        (
            deep_files.tiff(np.concatenate([RGB_12, TRANSPARENT], 2), 2, extra=1),
            "multiplied by their transparency",
        ),
        (deep_files.tiff(of(RGB_12, np.float32), 2), "none of JPEG"),
    ],
)
def test_pixels_that_mean_no_brightness_are_one_sentence(root, content, reason):
    put(root, content, "z.tif")
    for white in (None, 4095):
        with pytest.raises(InputError, match=rf"z\.tif cannot be decoded \(.*{re.escape(reason)}"):
            load(root, white=white)
    assert "1 of 7 images cannot be decoded" in load(root, skip_corrupt=True).notes[0]


def test_a_file_that_states_its_largest_value_needs_no_decision(root):
    name = put(root, deep_files.pgm(RAMP // 2, 4095), "z.pgm")
    assert load(root).white is None
    assert read(root, name).max() == 127


def test_turned_images_with_16_bits_are_upright(root):
    exif = Image.Exif()
    exif[0x0112] = 6
    Image.fromarray(RAMP[..., 0]).save(root / "train" / "ant" / "z.png", exif=exif)
    assert np.array_equal(read(root, "z.png")[..., 0], np.rot90(RAMP_8, -1))


def test_images_with_8_bits_among_them_stay_as_they_are(root):
    before = load(root).train.image(0).clone()
    put(root, DEEP["grey.png"], "z.png")
    assert np.array_equal(load(root).train.image(0), before)


def test_a_white_point_that_no_image_needs_is_said(root):
    assert any("data.white=4095 has no effect" in note for note in load(root, white=4095).notes)
    assert not any("data.white" in note for note in load(root).notes)


def test_a_data_set_without_image_files_has_no_white_point():
    with pytest.raises(InputError, match=r"data\.white is for image files"):
        data.load("fashion-mini", white=255)


def test_a_doubt_is_found_once_however_many_images_there_are(root, monkeypatch):
    for i in range(20):
        put(root, deep_files.png(np.full((8, 8, 1), 3000, np.uint16)), f"z{i}.png")
    asked = []
    decided = white_point.decided
    monkeypatch.setattr(white_point, "decided", lambda *rest: asked.append(0) or decided(*rest))
    with pytest.raises(InputError, match="is 3000"):
        load(root, cache="off")
    assert len(asked) == 1


def test_tops_of_nothing_are_black():
    assert white_point.decided(white_point.Levels([0.0]), "here") == 65535
