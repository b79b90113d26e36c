"""FFCV files: written whole or not at all, readable by FFCV, refused when they are not what they
should be.
"""

import errno
import resource
import signal
import subprocess
import sys

import numpy as np
import pytest
import torch

from cfol_fast import data
from cfol_fast.data.ffcv import reader, writer
from cfol_fast.data.ffcv.format import JPG, RAW, RGB
from cfol_fast.errors import InputError
from tests.data import published_files as files

pytestmark = pytest.mark.ffcv


def colour(count: int = 12, side: int = 8) -> data.ImageSet:
    images = torch.from_numpy(files.pixels(3, count, side, side, 3))
    return data.ImageSet(images, torch.arange(count) % 3, ["ant", "bee", "cat"])


def smooth(count: int, height: int, width: int) -> torch.Tensor:
    """Images that survive JPEG nearly unchanged."""
    ramp = torch.linspace(20, 200, height).view(1, height, 1, 1) + 5 * torch.arange(count).view(
        count, 1, 1, 1
    )
    return ramp.expand(count, height, width, 3).to(torch.uint8).contiguous()


@pytest.fixture
def written(tmp_path):
    path = tmp_path / "a.beton"
    writer.write(path, colour())
    return path


def test_what_is_written_is_found_again(tmp_path):
    images = colour()
    file = writer.write(tmp_path / "a.beton", images, description={"dataset": "insects", "size": [8, 8]})
    assert file.labels.tolist() == images.labels.tolist()
    assert file.description == {"classes": ["ant", "bee", "cat"], "dataset": "insects", "size": [8, 8]}
    assert (file.size, file.channels, len(file)) == ((8, 8), 3, 12)
    stored = np.fromfile(tmp_path / "a.beton", np.uint8)
    for i in range(12):
        at = file.pointers[i]
        assert np.array_equal(stored[at : at + file.lengths[i]], images.image(i).reshape(-1))


def test_the_same_images_give_the_same_file_byte_for_byte(tmp_path):
    writer.write(tmp_path / "a.beton", colour())
    writer.write(tmp_path / "b.beton", colour())
    assert (tmp_path / "a.beton").read_bytes() == (tmp_path / "b.beton").read_bytes()


def test_a_page_holds_the_largest_image_and_no_image_crosses_a_page(tmp_path):
    side = 900  # 2.4 MB: more than the smallest page
    images = data.ImageSet(
        torch.zeros(3, side, side, 3, dtype=torch.uint8), torch.tensor([0, 1, 0]), ["a", "b"]
    )
    file = writer.write(tmp_path / "a.beton", images)
    # In the header, after the version and the number of fields.
    page = int(np.fromfile(tmp_path / "a.beton", "<u4", 2)[1])
    assert page == 1 << 22
    assert (file.pointers // page == (file.pointers + file.lengths - 1) // page).all()


def test_ffcv_reads_what_is_written_here_and_the_other_way_round(tmp_path, written):
    """FFCV's own loader and writer, in a process of their own: they change numba's and torch's settings."""
    code = f"""
import numpy as np
from ffcv.loader import Loader
from ffcv.writer import DatasetWriter
from ffcv.fields import IntField, RGBImageField, FloatField
from tests.data.ffcv.test_files import colour

images = colour()
for number, (image, label) in enumerate(Loader({str(written)!r}, batch_size=4, num_workers=1, seed=0)):
    part = slice(4 * number, 4 * number + 4)
    assert np.array_equal(image.numpy(), images.images[part].numpy())
    assert np.array_equal(label[:, 0].numpy(), images.labels[part].numpy())
assert number == 2

rows = [(float(i), images.image(i).numpy(), int(images.labels[i])) for i in range(12)]
fields = dict(weight=FloatField(), picture=RGBImageField(), target=IntField())
DatasetWriter({str(tmp_path / "own.beton")!r}, fields, num_workers=1).from_indexed_dataset(rows)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    source = data.FFCVSource(tmp_path / "own.beton", workers=1)
    assert source.classes == ["0", "1", "2"]
    assert source.file.image_field == "picture"
    _, x, y = next(iter(source.batches(12)))
    assert torch.equal((x * 255).round().to(torch.uint8), colour().images.permute(0, 3, 1, 2))
    assert torch.equal(y, colour().labels)


def test_images_of_different_sizes_are_written_too(tmp_path):
    table = torch.tensor([[0, 2, 3], [18, 4, 1]])
    images = data.ImageSet(torch.arange(30, dtype=torch.uint8), torch.tensor([0, 1]), ["a", "b"], table, 3)
    file = writer.write(tmp_path / "a.beton", images)
    assert file.size is None
    assert file.heights.tolist() == [2, 4]
    assert file.widths.tolist() == [3, 1]


@pytest.mark.parametrize("share", [0.0, 0.0001, 0.001, 0.3, 0.6, 0.9, 0.99999])
def test_a_truncated_file_is_refused(written, share):
    content = written.read_bytes()
    written.write_bytes(content[: int(len(content) * share)])
    with pytest.raises(InputError, match=r"a\.beton is (truncated|empty|not an FFCV file).*to-ffcv"):
        reader.open_beton(written)


def test_a_file_that_lacks_its_last_bytes_is_refused(written):
    content = written.read_bytes()
    for missing in (1, 24, 100):
        written.write_bytes(content[:-missing])
        with pytest.raises(InputError, match="damaged"):
            reader.open_beton(written)


@pytest.mark.parametrize(
    "content", [b"hello", b"PK\x03\x04" + bytes(5000), bytes(5000), np.random.default_rng(0).bytes(100_000)]
)
def test_a_foreign_file_is_refused(tmp_path, content):
    (tmp_path / "x.beton").write_bytes(content)
    with pytest.raises(InputError, match="not an FFCV file"):
        reader.open_beton(tmp_path / "x.beton")


def test_any_damage_to_the_lists_is_refused_or_harmless(written):
    """A byte changed anywhere before the pixels, or in the table behind them: an InputError, or a file that
    can be used.
    """
    content = bytearray(written.read_bytes())
    header = range(0, 2500, 7)
    table = range(len(content) - 24 * 12, len(content), 5)
    for at in (*header, *table):
        changed = bytearray(content)
        changed[at] ^= 0xFF
        written.write_bytes(changed)
        try:
            file = reader.open_beton(written)
        except InputError:
            continue
        assert (file.lengths == file.heights * file.widths * 3).all() or (file.modes != RAW).any()
        assert (file.pointers + file.lengths <= len(content)).all()


def test_an_image_of_an_unknown_mode_that_does_not_fit_is_refused(written):
    """The decoder copies all that is not a JPEG: more bytes than the image has would be written behind its
    row.
    """
    from ffcv.types import FieldDescType, HeaderType

    content = bytearray(written.read_bytes())
    first = HeaderType.itemsize + 2 * FieldDescType.itemsize  # mode, width, height, pointer of image 0
    assert content[first] == RAW
    content[first] = 7
    content[first + 1] = 1  # one pixel wide, by the bytes of eight
    written.write_bytes(content)
    with pytest.raises(InputError, match="image 0"):
        reader.open_beton(written)


def test_a_file_without_labels_is_refused(tmp_path, written):
    content = bytearray(written.read_bytes())
    second = 32 if content[32:33] == b"\x02" else 24  # the list of fields begins after the header
    assert content[second] == RGB
    content[second + 1041] = 0  # the label becomes a field of floats
    (tmp_path / "b.beton").write_bytes(content)
    with pytest.raises(InputError, match="image, label"):
        reader.open_beton(tmp_path / "b.beton")


def test_labels_that_are_not_0_to_k_minus_1_are_refused(tmp_path, monkeypatch):
    images = colour()
    for label, said in ((7, r"labels must be 0\.\.2, it has 0\.\.7"), (-2, r"it has -2\.\.2")):
        labels = images.labels.clone()
        labels[3] = label
        wrong = data.ImageSet(images.images, images.labels, images.classes)
        object.__setattr__(wrong, "labels", labels)
        with pytest.raises(InputError, match=said):
            writer.write(tmp_path / "a.beton", wrong)
        assert not (tmp_path / "a.beton").exists()


def test_an_empty_class_is_refused(tmp_path):
    images = colour()
    with pytest.raises(InputError, match="class 1 of 3"):
        writer.write(tmp_path / "a.beton", images.subset([0, 2, 3]))


def test_a_missing_file_says_how_to_make_it(tmp_path):
    with pytest.raises(InputError, match="cfol-fast data to-ffcv"):
        reader.open_beton(tmp_path / "no.beton")


def test_a_full_disk_leaves_nothing_under_the_final_name(tmp_path, mini):
    path = tmp_path / "a.beton"
    path.write_text("the old file")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (3_000_000, hard))
    try:
        with pytest.raises(InputError, match=r"disk.*4 MiB"):
            writer.write(path, mini.train)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert path.read_text() == "the old file"
    assert list(tmp_path.iterdir()) == [path]


def test_a_killed_writer_leaves_nothing_of_the_datas_size(tmp_path):
    code = f"""
import os, signal
from cfol_fast.data.ffcv import writer
from tests.data.ffcv.test_files import colour
writer.check_written = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
writer.write({str(tmp_path / "a.beton")!r}, colour())
"""
    done = subprocess.run([sys.executable, "-c", code], timeout=600, check=False)
    assert done.returncode == -signal.SIGKILL
    # A file system without unnamed files keeps it until the next writer comes.
    writer.write(tmp_path / "a.beton", colour())
    assert [path.name for path in tmp_path.iterdir()] == ["a.beton"]


def test_a_device_is_no_place_for_a_file(tmp_path):
    with pytest.raises(InputError, match="/dev/null is not a file"):
        writer.write("/dev/null", colour())


def test_another_failure_of_the_disk_keeps_its_own_words(tmp_path, monkeypatch):
    def broken(self, blob):
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(writer.Pages, "append", broken)
    with pytest.raises(OSError, match="Input/output error"):
        writer.write(tmp_path / "a.beton", colour())
    assert not list(tmp_path.iterdir())


def test_a_disk_that_stores_something_else_is_noticed_by_the_check_at_the_end(tmp_path, monkeypatch):
    append = writer.Pages.append

    def flipped(self, blob):  # in the images, not in the class names
        return append(self, blob[:-1] + bytes([blob[-1] ^ 1]) if len(blob) == 8 * 8 * 3 else blob)

    monkeypatch.setattr(writer.Pages, "append", flipped)
    with pytest.raises(OSError, match="image 0 differs"):
        writer.write(tmp_path / "a.beton", colour())
    assert not list(tmp_path.iterdir())


def test_progress_is_shown_for_writing_and_checking(tmp_path, capsys):
    writer.write(tmp_path / "a.beton", colour(), progress=True)
    assert capsys.readouterr().err == "writing: 12 of 12\nchecking: 12 of 12\n"


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"mode": "png"}, "mode must be raw or jpg, got 'png'"),
        ({"mode": "jpg", "quality": 0}, r"quality must be in 1\.\.100, got 0"),
    ],
)
def test_options_that_make_no_sense_are_refused(tmp_path, options, said):
    with pytest.raises(InputError, match=said):
        writer.write(tmp_path / "a.beton", colour(), **options)


def test_jpg_is_for_three_channels(tmp_path, mini):
    with pytest.raises(InputError, match="raw"):
        writer.write(tmp_path / "a.beton", mini.train, mode="jpg")


def test_jpg_is_smaller_and_close(tmp_path):
    images = data.ImageSet(smooth(6, 64, 48), torch.arange(6) % 2, ["a", "b"])
    file = writer.write(tmp_path / "a.beton", images, mode="jpg", quality=95)
    assert (file.modes == JPG).all()
    assert file.lengths.max() < 64 * 48 * 3 / 4
    source = data.FFCVSource(tmp_path / "a.beton", workers=1)
    _, x, _ = next(iter(source.batches(6)))
    assert (x * 255 - images.images.permute(0, 3, 1, 2)).abs().max() <= 3


def test_without_ffcv_the_error_says_how_to_install_it(tmp_path):
    code = """
import sys
sys.modules["ffcv"] = None
from cfol_fast.data.ffcv.reader import open_beton
try:
    open_beton(sys.argv[1])
except ValueError as error:
    print(error)
"""
    (tmp_path / "x.beton").write_bytes(b"x")
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "x.beton")],
        capture_output=True,
        text=True,
        timeout=600,
        check=True,
    )
    assert "the extra [ffcv]: apt-get install" in done.stdout
