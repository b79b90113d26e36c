"""`cfol-fast data to-ffcv`, as it is called."""

import pytest

from cfol_fast import data
from cfol_fast.commands import data as command
from cfol_fast.commands import main as cli
from cfol_fast.data.ffcv import convert, reader
from cfol_fast.data.ffcv.format import JPG
from cfol_fast.errors import InputError
from tests.data import published_files as files

pytestmark = pytest.mark.ffcv


def call(*arguments: str) -> int:
    return cli.main(["data", "to-ffcv", *map(str, arguments)])


def test_a_data_set_becomes_a_file_that_says_what_is_in_it(tmp_path, capsys):
    out = tmp_path / "mini.beton"
    assert call("--dataset", "fashion-mini", "--split", "test", "--out", out) == 0
    printed = capsys.readouterr()
    assert "3,000 images of 10 classes, raw" in printed.out
    assert "read back and compared" in printed.out
    assert "writing: 3,000 of 3,000" in printed.err
    file = reader.open_beton(out)
    assert file.description["dataset"] == "fashion-mini"
    assert file.description["split"] == "test"
    assert file.description["eps"] == 0.1
    assert file.description["augment"]["flip"]
    assert file.description["classes"][6] == "Shirt"


def test_a_folder_of_different_images_as_jpg(tmp_path, capsys):
    files.folder(tmp_path / "in", side=40)
    files.save(tmp_path / "in/train/ant/wide.png", 1, 40, 60)
    (tmp_path / "in/train/bee/0.png").write_bytes(b"broken")
    out = tmp_path / "a.beton"
    options = ("--mode", "jpg", "--quality", "80", "--size", "40", "--skip-corrupt")
    assert call("--dataset", "folder", "--data", tmp_path / "in", "--out", out, *options) == 0
    printed = capsys.readouterr().out
    assert "train: 12 resized or from another format" in printed
    assert "train: 1 of 13 images cannot be decoded" in printed
    file = reader.open_beton(out)
    assert len(file) == 12
    assert file.description["size"] == [40, 40]
    assert (file.modes == JPG).all()


def test_both_parts_go_to_a_folder_that_training_takes(tmp_path, capsys):
    out = tmp_path / "mini"
    assert call("--dataset", "fashion-mini", "--split", "all", "--out", out) == 0
    printed = capsys.readouterr().out
    assert "train.beton: 5,000 images" in printed
    assert "test.beton: 3,000 images" in printed
    found, whole = data.load("beton", out), data.load("fashion-mini")
    assert (len(found.train), len(found.test)) == (5000, 3000)
    assert (found.mean, found.std, found.augment) == (whole.mean, whole.std, whole.augment)
    assert call("--dataset", "fashion-mini", "--split", "all", "--out", out) == 2
    assert "test.beton exists: choose another name or add --overwrite" in capsys.readouterr().err


@pytest.mark.parametrize("there", [False, True])
def test_a_conversion_that_fails_leaves_nothing_behind(tmp_path, monkeypatch, there):
    out, write = tmp_path / "mini", convert.write_to
    if there:
        out.mkdir()
        for name in ("train.beton", "test.beton"):
            (out / name).write_text("old")

    def fail_at_the_second(file, path, *arguments, **options):
        if path.name == "test.beton":
            raise InputError("the disk is full")
        return write(file, path, *arguments, **options)

    monkeypatch.setattr(convert, "write_to", fail_at_the_second)
    options = ("--split", "all", "--overwrite", "--out", out)
    assert call("--dataset", "fashion-mini", *options) == 2
    assert out.exists() == there
    assert [path.read_text() for path in tmp_path.glob("mini/*")] == ["old"] * 2 * there
    assert len(list(tmp_path.iterdir())) == there


def test_files_that_are_replaced_pass_their_mode_on(tmp_path):
    out = tmp_path / "mini.beton"
    out.write_text("old")
    out.chmod(0o600)
    assert call("--dataset", "fashion-mini", "--split", "test", "--overwrite", "--out", out) == 0
    assert out.stat().st_mode & 0o777 == 0o600


def test_the_imbalance_is_written_too(tmp_path):
    out = tmp_path / "thin.beton"
    assert call("--dataset", "fashion-mini", "--imbalance", "10", "--out", out) == 0
    file = reader.open_beton(out)
    assert (file.labels == 0).sum() == 500
    assert (file.labels == 9).sum() == 50


def test_an_existing_file_is_replaced_only_when_told_to(tmp_path, capsys):
    out = tmp_path / "mini.beton"
    out.write_text("mine")
    assert call("--dataset", "fashion-mini", "--out", out) == 2
    assert out.read_text() == "mine"
    assert "exists: choose another name or add --overwrite" in capsys.readouterr().err
    assert call("--dataset", "fashion-mini", "--split", "test", "--out", out, "--overwrite") == 0
    assert len(reader.open_beton(out)) == 3000


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--dataset", "fashion-mini", "--out", "."), "is a folder"),
        (("--dataset", "fashion-mini", "--out", "no/such/a.beton"), "is not a folder: make it first"),
        (("--dataset", "mnist", "--out", "a.beton"), "unknown data set 'mnist'"),
        (("--dataset", "cifar10", "--data", ".", "--out", "a.beton"), "cifar-10-batches-py is not there"),
        (("--dataset", "beton", "--data", ".", "--split", "all", "--out", "a"), "made of FFCV files already"),
        (("--dataset", "fashion-mini", "--mode", "jpg", "--out", "a.beton"), "use raw"),
        (("--dataset", "fashion-mini", "--mode", "png", "--out", "a.beton"), "--mode must be one of raw"),
    ],
)
def test_mistakes_are_one_line_and_status_2(tmp_path, monkeypatch, capsys, options, said):
    monkeypatch.chdir(tmp_path)
    try:
        status = call(*options)
    except SystemExit as stop:
        status = stop.code
    printed = capsys.readouterr().err
    assert status == 2
    assert said in printed
    assert len(printed.splitlines()) == 1
    assert not list(tmp_path.iterdir())


def test_the_help_shows_an_example(capsys):
    assert call("--help") == 0
    assert "cfol-fast data to-ffcv --dataset cifar10" in capsys.readouterr().out
    assert command.NAME == "data"
