"""What is wrong with the values is said before folders are looked at, and what is wrong with a network's name
or the number of classes before an image is decoded.
"""

import pytest

from cfol_fast.commands import main as cli


def refused(capsys, *words: str) -> str:
    assert cli.main([*words]) == 2
    err = capsys.readouterr().err
    # Progress of the images that are read may stand above.
    assert err.count("cfol-fast: error: ") == 1
    return err


@pytest.mark.parametrize(
    ("words", "part"),
    [
        ("cfol --epochs three", "'three'"),
        ("cfol --eps 8/0", "'8/0'"),
        ("cfol --precision float8", "precision"),
        ("cfol --set etta=1", "did you mean 'params.eta'"),
        ("cfl", "'cfol'"),
        ("erm --set gamma=0.5", "erm has no parameter 'gamma'"),
    ],
)
def test_values_are_checked_before_the_folder(capsys, words, part):
    err = refused(capsys, "train", *words.split(), "--data", "/nowhere/images")
    assert part in err
    assert "/nowhere" not in err


@pytest.fixture
def unreadable(tmp_path):
    """Makes a folder of images whose files are damaged: decoding one would be the complaint."""

    def made(*classes: str) -> str:
        for name in classes:
            folder = tmp_path / "images/train" / name
            folder.mkdir(parents=True)
            for number in range(5):
                (folder / f"{number}.png").write_bytes(b"damaged")
        return str(tmp_path / "images")

    return made


@pytest.mark.parametrize(
    ("classes", "model", "part"),
    [
        (["a", "b"], "resnet-18", "did you mean 'resnet18'"),
        (["a", "b"], "resnet19@0.5", "'resnet19'"),
        (["only"], "resnet18", "one class, 'only'"),
        # The images would be refused next.
        (["a", "b"], "resnet18", ".png"),
    ],
)
def test_a_wrong_name_and_a_single_class_are_found_before_an_image_is_decoded(
    capsys, tmp_path, unreadable, classes, model, part
):
    folder, out = unreadable(*classes), str(tmp_path / "run")
    err = refused(capsys, "train", "erm", "--data", folder, "--model", model, "--out", out, "--device", "cpu")
    assert part in err.splitlines()[-1]
    assert (".png" in err) == (part == ".png")
    assert ("train: " in err) == (part == ".png")
