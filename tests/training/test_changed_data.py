"""A run is resumed on the data that it began with: every change of names, labels, order, sizes, pixels or
classes is told.
"""

import dataclasses
import json
import os
import shutil

import numpy as np
import pytest
import torch
from PIL import Image

from cfol_fast import data
from cfol_fast.commands import main as cli
from cfol_fast.data import content
from cfol_fast.data.ffcv import writer
from cfol_fast.data.images import ImageSet
from cfol_fast.errors import InputError
from cfol_fast.runs import checkpoints
from cfol_fast.training import train, trainer
from cfol_fast.training.agreement import Agreement
from cfol_fast.training.images import load_images
from tests.training import tiny

CLASSES = ("ant", "bee", "cat")
TRAIN = [
    "train",
    "cfol",
    "--model=demo-cnn@0.25",
    "--epochs=1",
    "--batch-size=8",
    "--holdout=0.3",
    "--device=cpu",
]
TRAIN += ["--set=steps_per_epoch=2", "--set=attack.steps=1", "--set=validation.steps=1", "--set=test.steps=1"]


def write_folder(root):
    """Three classes of 28x28 pixels without compression, so that files of other images have the same size."""
    for s, split in enumerate(("train", "test")):
        for c, name in enumerate(CLASSES):
            (root / split / name).mkdir(parents=True)
            for i in range(4):
                write_image(root / split / name / f"{name}{i}.bmp", 100 * s + 10 * c + i)
    return root


def write_image(path, seed):
    path.parent.mkdir(exist_ok=True)
    pixels = np.random.default_rng(seed).integers(0, 256, (28, 28, 3), np.uint8)
    Image.fromarray(pixels).save(path)


def write_beton(folder, seed=0):
    folder.mkdir(exist_ok=True)
    for s, split in enumerate(("train", "test")):
        pixels = np.random.default_rng(seed + s).integers(0, 256, (12, 28, 28, 1), np.uint8)
        labels = torch.arange(12) % 3
        images = ImageSet(torch.from_numpy(pixels), labels, list(CLASSES))
        writer.write(folder / f"{split}.beton", images, description={"split": split})
    return folder


def stopped(monkeypatch, out, root, *more):
    with monkeypatch.context() as patch:
        tiny.signal_in_call(patch, 2, trainer, "learning_rate")
        assert cli.main([*TRAIN, "--out", str(out), f"--data={root}", "--quiet", *more]) == 143
    return out


@pytest.fixture(scope="module")
def begun(tmp_path_factory):
    """A run that stopped in its first epoch, and its data."""
    place = tmp_path_factory.mktemp("begun")
    with pytest.MonkeyPatch.context() as patch:
        stopped(patch, place / "run", write_folder(place / "data"), "--dataset=folder")
    return place


@pytest.fixture
def run(begun, tmp_path):
    shutil.copytree(begun, tmp_path, dirs_exist_ok=True)
    return tmp_path / "run"


def resume(run, *more):
    return cli.main(["train", "--resume", "--out", str(run), f"--data={run.parent / 'data'}", *more])


def exchange(one, other):
    one.rename(one.with_name("x"))
    other.rename(one)
    one.with_name("x").rename(other)


def labels_exchanged(root):
    exchange(root / "train/ant", root / "train/bee")


def labels_exchanged_of_two_images(root):
    (root / "train/ant/ant0.bmp").rename(root / "train/bee/ant0.bmp")
    (root / "train/bee/bee0.bmp").rename(root / "train/ant/bee0.bmp")


def file_renamed(root):
    (root / "train/ant/ant0.bmp").rename(root / "train/ant/ant00.bmp")


def images_replaced(root):
    for i in range(4):
        write_image(root / f"train/ant/ant{i}.bmp", 700 + i)


def test_set_replaced(root):
    for c, name in enumerate(CLASSES):
        for i in range(4):
            write_image(root / f"test/{name}/{name}{i}.bmp", 500 + 10 * c + i)


def class_renamed(root):
    for split in ("train", "test"):
        (root / split / "ant").rename(root / split / "yak")


def last_class_renamed(root):
    for split in ("train", "test"):
        (root / split / "cat").rename(root / split / "yak")


def order_changed(root):
    # The same two images under each other's names.
    exchange(root / "train/ant/ant0.bmp", root / "train/ant/ant1.bmp")


def names_of_classes_exchanged(root):
    for split in ("train", "test"):
        exchange(root / split / "ant", root / split / "bee")


def image_edited_in_place(root):
    path = root / "train/cat/cat2.bmp"
    before = path.stat()
    with path.open("r+b") as file:
        file.seek(500)
        file.write(bytes([255 - file.read(1)[0]]))
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


def file_compressed(root):
    path = root / "train/cat/cat2.bmp"
    with Image.open(path) as image:
        image.load()
    image.save(path, "PNG")


def other_folder(root):
    shutil.rmtree(root)
    for split in ("train", "test"):
        for c, name in enumerate(CLASSES):
            for i in range(4):
                write_image(
                    (root / split).mkdir(parents=True, exist_ok=True) or root / split / name / f"{i}.bmp", c
                )


def image_more(root):
    write_image(root / "train/ant/ant9.bmp", 900)


RENAMED = "class names (was ant, bee, cat, now bee, cat, yak), names, labels"
CHANGES = [
    (labels_exchanged, "train: names, labels"),
    (labels_exchanged_of_two_images, "train: names, labels"),
    (file_renamed, "train: names"),
    (images_replaced, "train: pixels"),
    (test_set_replaced, "test: pixels"),
    (class_renamed, f"train: {RENAMED}; test: {RENAMED}"),
    (order_changed, "train: order"),
    (names_of_classes_exchanged, "train: names, labels; test: names, labels"),
    (image_edited_in_place, "train: pixels"),
    (file_compressed, "train: sizes"),
    (other_folder, "train: names, pixels; test: names, pixels"),
    (image_more, "train: number of images (was 12, now 13), names, labels, sizes, pixels"),
]
test_set_replaced.__test__ = False


@pytest.mark.parametrize(("change", "told"), CHANGES, ids=[change.__name__ for change, _ in CHANGES])
def test_a_run_is_not_resumed_with_other_data(run, capsys, change, told):
    change(run.parent / "data")
    before = (run / "checkpoints/last.pt").read_bytes()
    assert resume(run, "--quiet") == 2
    error = capsys.readouterr().err
    assert f"with other data ({told})" in error
    assert error.count("\n") == 1
    assert (run / "checkpoints/last.pt").read_bytes() == before


def test_force_means_other_threads_and_not_other_data(run, capsys):
    images_replaced(run.parent / "data")
    assert resume(run, "--quiet", "--force") == 2
    assert "--changed-data" in capsys.readouterr().err


def test_another_hold_out_is_another_run(run, capsys):
    assert resume(run, "--holdout=0.4") == 2
    assert "data.holdout" in capsys.readouterr().err


@pytest.mark.slow
def test_a_copied_folder_resumes_and_ends_bit_for_bit_like_the_uninterrupted_run(run, begun, tmp_path):
    for path in (run.parent / "data").rglob("*.bmp"):
        os.utime(path, (1, 1))
    shutil.move(run.parent / "data", tmp_path / "elsewhere")
    assert cli.main(["train", "--resume", "--out", str(run), f"--data={tmp_path / 'elsewhere'}"]) == 0
    whole = tmp_path / "whole"
    assert (
        cli.main([*TRAIN, f"--out={whole}", f"--data={begun / 'data'}", "--dataset=folder", "--quiet"]) == 0
    )
    tiny.assert_same_outcome(run, whole)
    assert "changed_data" not in json.loads((run / "result.json").read_text())


@pytest.mark.slow
@pytest.mark.parametrize("change", [labels_exchanged, last_class_renamed], ids=["labels", "class"])
def test_changed_data_is_accepted_when_asked_and_the_result_keeps_it(monkeypatch, tmp_path, change):
    root, run = write_folder(tmp_path / "data"), tmp_path / "run"
    with monkeypatch.context() as patch:
        # In the second epoch: the first one's row has the names of before.
        tiny.signal_in_call(patch, 3, trainer, "learning_rate")
        options = ["--epochs=2", "--dataset=folder", f"--data={root}", f"--out={run}", "--quiet"]
        assert cli.main([*TRAIN, *options]) == 143
    change(run.parent / "data")
    with monkeypatch.context() as patch:
        # Stopped once more: what was accepted is in the checkpoint.
        tiny.signal_in_call(patch, 1, Agreement, "reach")
        assert resume(run, "--changed-data", "--quiet") == 143
    assert resume(run, "--quiet") == 0
    result = json.loads((run / "result.json").read_text())
    (kept,) = result["changed_data"]
    assert kept["step"] == 3
    assert "train: " in kept["differences"]
    assert result["classes"] == sorted(os.listdir(run.parent / "data/train"))
    assert cli.main(["report", str(run), "--out", str(tmp_path / "page.html")]) == 0


def test_another_number_of_training_images_is_refused_also_when_asked(run, capsys):
    image_more(run.parent / "data")
    assert resume(run, "--changed-data") == 2
    assert "--init" in capsys.readouterr().err


def test_a_class_that_would_take_the_place_of_another_is_refused_also_when_asked(run, capsys):
    """Renaming the first class moves the two others: their outputs would be taken for others' classes."""
    class_renamed(run.parent / "data")
    assert resume(run, "--changed-data") == 2
    assert "'bee', 'cat' would have another place" in capsys.readouterr().err


def test_a_run_of_the_version_before_is_resumed_and_says_that_the_data_were_not_compared(run, capsys):
    last = run / "checkpoints/last.pt"
    state = torch.load(last, weights_only=True)
    del state["data"], state["changed_data"]
    checkpoints.write(last, state)
    assert resume(run) == 0
    assert capsys.readouterr().out.count("not compared") == 1


def test_the_class_names_of_a_run_of_the_version_before_are_compared(run, capsys):
    last = run / "checkpoints/last.pt"
    state = torch.load(last, weights_only=True)
    del state["data"], state["changed_data"]
    checkpoints.write(last, state)
    class_renamed(run.parent / "data")
    assert resume(run) == 2
    assert "was ant, bee, cat, now bee, cat, yak" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize("rewritten", ["same", "other"])
def test_a_rewritten_ffcv_file_is_compared_by_what_it_holds(tmp_path, monkeypatch, capsys, rewritten):
    root = write_beton(tmp_path / "data")
    run = stopped(monkeypatch, tmp_path / "run", root, "--dataset=beton")
    capsys.readouterr()
    write_beton(root, seed=0 if rewritten == "same" else 5)
    assert resume(run, "--quiet") == (0 if rewritten == "same" else 2)
    if rewritten == "other":
        assert "train: pixels; test: pixels" in capsys.readouterr().err


@pytest.mark.slow
def test_the_second_stage_goes_on_with_the_data_of_the_first(tmp_path, capsys):
    root = write_folder(tmp_path / "data")
    two = [*TRAIN, "--dataset=folder", f"--data={root}", f"--out={tmp_path / 'run'}", "--quiet"]
    two[1] = "two-run"
    assert cli.main(two) == 0
    # As if it was killed between the stages.
    for path in ("result.json", "metrics.jsonl", "checkpoints/last.pt", "checkpoints/previous.pt"):
        (tmp_path / "run" / path).unlink(missing_ok=True)
    labels_exchanged(root)
    capsys.readouterr()
    assert resume(tmp_path / "run", "--quiet") == 2
    assert "with other data (train: names" in capsys.readouterr().err
    assert resume(tmp_path / "run", "--quiet", "--changed-data") == 0
    assert json.loads((tmp_path / "run/result.json").read_text())["changed_data"]


def test_a_checkpoint_that_counts_on_lost_rows_is_replaced_by_the_one_before(few_images, tmp_path, capsys):
    tiny.run(tmp_path / "whole")
    shutil.copytree(tmp_path / "whole", tmp_path / "run")
    (tmp_path / "run/result.json").unlink()
    log = tmp_path / "run/metrics.jsonl"
    # `previous` is of the first epoch's end, with two rows; the third is torn.
    log.write_bytes(b"\n".join(log.read_bytes().split(b"\n")[:3])[:-20])
    run = train(tiny.tiny_config(tmp_path / "run"), resume=True)
    assert "using previous instead" in capsys.readouterr().out
    tiny.assert_same_outcome(run.folder, tmp_path / "whole")


def test_metrics_that_no_checkpoint_fits_are_an_error(few_images, tmp_path):
    tiny.run(tmp_path / "run")
    (tmp_path / "run/result.json").unlink()
    (tmp_path / "run/metrics.jsonl").write_text("")
    with pytest.raises(
        InputError, match="rows have been removed, and there is no whole checkpoint that fits"
    ):
        tiny.run(tmp_path / "run", resume=True)


# ---------------------------------------------------------------- the digests


def images_of(seed, count=40, classes=CLASSES):
    pixels = np.random.default_rng(seed).integers(0, 256, (count, 8, 8, 3), np.uint8)
    return ImageSet(torch.from_numpy(pixels), torch.arange(count) % len(classes), list(classes))


def kinds(before, now):
    records = [content.records({"train": content.describe_part(part)}) for part in (before, now)]
    return content.differences(*records).get("train", [])


def test_what_differs_is_told_apart():
    part = images_of(0)
    assert kinds(part, images_of(0)) == []
    assert kinds(part, images_of(1)) == ["pixels"]
    assert kinds(part, part.subset(torch.arange(39, -1, -1))) == ["order"]
    exchanged = part.labels.clone()
    exchanged[[0, 1]] = exchanged[[1, 0]]
    assert kinds(part, dataclasses.replace(part, labels=exchanged)) == ["labels"]
    assert kinds(part, dataclasses.replace(part, labels=part.labels.clamp(max=1))) == ["labels"]
    assert kinds(part, dataclasses.replace(part, classes=["bee", "ant", "cat"])) == ["class names"]


def test_images_of_different_sizes_have_the_digests_of_their_pixels():
    part = images_of(0, 6)
    table = torch.tensor([[192 * i, 8, 8] for i in range(6)])
    as_table = ImageSet(part.images.reshape(-1), part.labels, part.classes, table, 3)
    assert kinds(part, as_table) == []
    turned = ImageSet(
        part.images.reshape(-1),
        part.labels,
        part.classes,
        table * torch.tensor([1, 2, 1]) // torch.tensor([1, 1, 2]),
        3,
    )
    assert kinds(part, turned) == ["pixels"]


def test_of_a_large_part_a_thousand_images_are_read(monkeypatch):
    monkeypatch.setattr(content, "MOST_READ", 0)
    monkeypatch.setattr(content, "SAMPLED", 10)
    part = images_of(0)
    found = content.describe_part(part)
    assert len(found.images) == 10
    assert found.record == content.describe_part(images_of(0)).record
    assert kinds(part, images_of(1)) == ["pixels"]
    assert content.copies(content.describe_part(images_of(0)), found) == (10, 10)


# ---------------------------------------------------------------- copies


def test_a_test_set_that_is_a_copy_of_the_training_set_is_told(tmp_path, capsys):
    root = write_folder(tmp_path / "data")
    shutil.rmtree(root / "test")
    shutil.copytree(root / "train", root / "test")
    # Training images in the hold-out, too: the hold-out takes one of each class.
    for name in CLASSES:
        for i in range(1, 4):
            shutil.copy(root / f"train/{name}/{name}0.bmp", root / f"train/{name}/{name}{i}.bmp")
    assert cli.main([*TRAIN, "--dataset=folder", f"--data={root}", f"--out={tmp_path / 'run'}"]) == 0
    out = capsys.readouterr().out
    # Of the four images of a class in test/ the training part has the first.
    assert "3 of 12 images of the test set are copies of training images" in out
    assert "3 of 3 images of the hold-out are copies of training images" in out
    assert cli.main(["eval", str(tmp_path / "run"), "--attack=none"]) == 0
    assert "3 of 12 images of the test set are copies of training images" in capsys.readouterr().err
    result = json.loads((tmp_path / "run/result.json").read_text())
    assert result["copies"] == {"test": [3, 12], "holdout": [3, 3]}


def test_images_that_are_held_out_are_not_trained_on(tmp_path):
    root = write_folder(tmp_path / "data")
    shutil.rmtree(root / "test")
    shutil.copytree(root / "train", root / "test")
    settings = {"data__name": "folder", "data__root": str(root), "data__holdout": "0.3"}
    images = load_images(tiny.tiny_config(tmp_path / "run", **settings))
    # Three of the four images of each class are trained on.
    assert images.copies == {"test": (9, 12)}


def test_embedded_images_have_no_copies_that_were_not_published():
    found = data.load("fashion-mini")
    parts = content.describe(found)
    assert content.copies(parts["test"], parts["train"])[0] <= 3
