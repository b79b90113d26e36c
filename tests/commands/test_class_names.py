"""A model's classes and those of other data are matched by name: every figure belongs to the class it is
called by.
"""

import json
import shutil
import unicodedata

import numpy as np
import pytest
import torch
from PIL import Image

import cfol_fast as cf
from cfol_fast import data, evaluation
from cfol_fast.commands import main as cli
from cfol_fast.data import classes
from cfol_fast.data.ffcv import writer
from cfol_fast.data.images import ImageSet
from cfol_fast.errors import InputError
from cfol_fast.reporting.report import read_comparisons
from cfol_fast.runs import checkpoints
from cfol_fast.runs.loading import load

TINY = ["--model=demo-cnn@0.25", "--epochs=1", "--batch-size=8", "--holdout=0.3", "--device=cpu", "--quiet"]
TINY += ["--set=steps_per_epoch=1", "--set=attack.steps=1", "--set=validation.steps=1", "--set=test.steps=1"]
NAMES = ("ant", "bee", "cat")
# Of each class in each part: no two alike, so that a figure under another name shows.
COUNTS = {"ant": 3, "bee": 4, "cat": 5}


def write_folder(root, names=None, side=28):
    """names: what the folder of each class is called instead."""
    for s, split in enumerate(("train", "test")):
        for c, name in enumerate(NAMES):
            folder = root / split / (names or {}).get(name, name)
            folder.mkdir(parents=True)
            for i in range(COUNTS[name]):
                pixels = np.random.default_rng(100 * s + 10 * c + i).integers(
                    0, 256, (side, side, 3), np.uint8
                )
                Image.fromarray(pixels).save(folder / f"{i}.png")
    return root


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    place = tmp_path_factory.mktemp("trained")
    write_folder(place / "data")
    assert (
        cli.main(
            ["train", "erm", *TINY, "--dataset=folder", f"--data={place / 'data'}", f"--out={place / 'run'}"]
        )
        == 0
    )
    return place


def evaluated(run, tmp_path, *options):
    """The status, and the JSON where there is one."""
    out = tmp_path / "eval.json"
    status = cli.main(["eval", str(run), "--steps=1", "--device=cpu", "--quiet", f"--json={out}", *options])
    return status, json.loads(out.read_text()) if status == 0 else None


def in_another_order(checkpoint, to, order):
    """The same model with its outputs in another order."""
    state = checkpoints.read(checkpoint)
    places = [state["classes"].index(name) for name in order]
    state["classes"] = list(order)
    for name in ("weight", "bias"):
        key = next(
            key
            for key in reversed(state["model"])
            if key.endswith(name) and len(state["model"][key]) == len(NAMES)
        )
        state["model"][key] = state["model"][key][places]
    to.parent.mkdir(parents=True, exist_ok=True)
    checkpoints.write(to, state)
    return to


@pytest.fixture(scope="module")
def turned(trained):
    """The trained model with its classes the other way round."""
    return in_another_order(
        trained / "run/checkpoints/best-average.pt", trained / "turned.pt", ("cat", "bee", "ant")
    )


def figures(found):
    """By class: its accuracies and its images."""
    return {kind: (found[kind]["per_class"], found[kind]["count"]) for kind in ("clean", "robust")}


def test_the_same_names_in_another_order_are_matched(trained, turned, tmp_path):
    root = f"--data={trained / 'data'}"
    _, before = evaluated(trained / "run", tmp_path)
    _, after = evaluated(turned, tmp_path, "--dataset=folder", root)
    assert figures(after) == figures(before)
    assert after["clean"]["count"] == COUNTS
    assert after["clean"]["confusion"] == before["clean"]["confusion"]
    assert after["classes"] == list(NAMES)
    assert evaluation.evaluator.MATCHED in after["notes"]
    # Over the radius, too.
    curves = [
        evaluated(what, tmp_path, "--dataset=folder", root, "--eps=0,1/255,4/255")[1]["curve"]
        for what in (turned, trained / "run")
    ]
    assert [point["robust"]["per_class"] for point in curves[0]] == [
        point["robust"]["per_class"] for point in curves[1]
    ]


def test_by_position_is_for_who_means_it(trained, turned, tmp_path):
    root = f"--data={trained / 'data'}"
    _, right = evaluated(turned, tmp_path, "--dataset=folder", root)
    status, wrong = evaluated(turned, tmp_path, "--dataset=folder", root, "--classes-by-position")
    assert status == 0
    assert wrong["clean"]["confusion"] != right["clean"]["confusion"]
    assert evaluation.evaluator.TAKEN_BY_POSITION in wrong["notes"]


OTHER = {
    "renamed": {"ant": "yak"},
    "case": {"ant": "Ant"},
    "space": {"ant": "ant "},
    "underscore": {"bee": "bee_"},
    "numbers": {"ant": "0", "bee": "1", "cat": "2"},
}


@pytest.mark.parametrize("names", OTHER.values(), ids=OTHER)
def test_other_names_are_refused_with_both_lists(trained, tmp_path, capsys, names):
    root = write_folder(tmp_path / "other", names)
    status, _ = evaluated(trained / "run", tmp_path, f"--data={root}")
    assert status == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert "'ant', 'bee', 'cat'" in error
    assert ", ".join(map(repr, sorted(names.get(name, name) for name in NAMES))) in error
    assert "--classes-by-position" in error
    # The images are as many as before, so that by position there is a figure.
    status, found = evaluated(trained / "run", tmp_path, f"--data={root}", "--classes-by-position")
    assert status == 0
    assert found["classes"] == sorted(names.get(name, name) for name in NAMES)


@pytest.mark.parametrize("change", ["missing", "more"])
def test_fewer_or_more_classes_are_refused_also_by_position(trained, tmp_path, capsys, change):
    root = write_folder(tmp_path / "other")
    for split in ("train", "test"):
        if change == "missing":
            shutil.rmtree(root / split / "bee")
        else:
            shutil.copytree(root / split / "bee", root / split / "dog")
    assert evaluated(trained / "run", tmp_path, f"--data={root}")[0] == 2
    assert "'ant', 'bee', 'cat'; the data have 'ant'" in capsys.readouterr().err
    assert evaluated(trained / "run", tmp_path, f"--data={root}", "--classes-by-position")[0] == 2


def test_an_accent_in_two_forms_is_the_same_name(trained, tmp_path):
    typed, of_a_mac = "café", unicodedata.normalize("NFD", "café")
    assert typed != of_a_mac
    renamed = in_another_order(trained / "run/checkpoints/best-average.pt", tmp_path / "model.pt", NAMES)
    state = checkpoints.read(renamed)
    state["classes"][2] = typed
    checkpoints.write(renamed, state)
    root = write_folder(tmp_path / "other", {"cat": of_a_mac})
    status, found = evaluated(renamed, tmp_path, "--dataset=folder", f"--data={root}")
    assert status == 0
    assert found["clean"]["count"] == {"ant": 3, "bee": 4, of_a_mac: 5}


def test_images_of_another_size_are_one_sentence(trained, tmp_path, capsys):
    root = write_folder(tmp_path / "other", side=40)
    assert evaluated(trained / "run", tmp_path, f"--data={root}")[0] == 2
    error = capsys.readouterr().err.splitlines()[-1]
    assert "the images have 40x40 pixels and 3 channels, the model takes 28x28 and 3" in error
    assert evaluated(trained / "run", tmp_path, "--dataset=fashion-mini", "--classes-by-position")[0] == 2


def test_an_export_has_the_names_of_its_classes(trained, turned, tmp_path):
    exported = tmp_path / "model.pt"
    assert cli.main(["export", str(turned), "--out", str(exported)]) == 0
    root = f"--data={trained / 'data'}"
    _, before = evaluated(trained / "run", tmp_path)
    assert figures(evaluated(exported, tmp_path, "--dataset=folder", root)[1]) == figures(before)


@pytest.mark.slow
def test_an_ffcv_file_has_the_names_of_its_classes(trained, turned, tmp_path, capsys):
    found = data.load("folder", trained / "data", progress=False)
    (tmp_path / "files").mkdir()
    for split in ("train", "test"):
        writer.write(tmp_path / f"files/{split}.beton", getattr(found, split), description={"split": split})
    _, before = evaluated(trained / "run", tmp_path)
    options = ["--dataset=beton", f"--data={tmp_path / 'files'}"]
    assert figures(evaluated(turned, tmp_path, *options)[1]) == figures(before)
    # The run was trained on the folder.
    assert figures(evaluated(trained / "run", tmp_path, options[1])[1]) == figures(before)
    for split in ("train", "test"):
        part = getattr(found, split)
        other = ImageSet(part.images, part.labels, ["x", "y", "z"])
        writer.write(tmp_path / f"files/{split}.beton", other, description={"split": split})
    assert evaluated(turned, tmp_path, *options)[0] == 2
    assert "the data have 'x', 'y', 'z'" in capsys.readouterr().err


def test_weights_to_start_from_are_put_in_the_order_of_the_run(trained, turned, tmp_path):
    """A learning rate of nearly 0: the run tests the model that it started from."""
    root = f"--data={trained / 'data'}"
    options = [*TINY, "--dataset=folder", root, "--lr=1e-12", f"--init={turned}"]
    weights = {}
    for name, more in (("by-name", []), ("by-position", ["--classes-by-position"])):
        assert cli.main(["train", "erm", *options, f"--out={tmp_path / name}", *more]) == 0
        weights[name] = checkpoints.read(tmp_path / name / "checkpoints/last.pt")["model"]
    before, after = (
        checkpoints.read(file)["model"] for file in (trained / "run/checkpoints/best-average.pt", turned)
    )
    head = next(key for key in reversed(before) if key.endswith("weight"))
    assert torch.allclose(weights["by-name"][head], before[head], atol=1e-6)
    assert torch.allclose(weights["by-position"][head], after[head], atol=1e-6)


def test_weights_for_other_classes_are_refused(trained, tmp_path, capsys):
    root = write_folder(tmp_path / "other", {"ant": "yak"})
    options = [*TINY, "--dataset=folder", f"--data={root}", f"--init={trained / 'run'}"]
    assert cli.main(["train", "erm", *options, f"--out={tmp_path / 'new'}"]) == 2
    assert "'ant', 'bee', 'cat'; the data have 'bee', 'cat', 'yak'" in capsys.readouterr().err
    assert not (tmp_path / "new").exists()
    assert cli.main(["train", "erm", *TINY, "--classes-by-position", f"--out={tmp_path / 'new'}"]) == 2


def test_offsets_are_fitted_on_the_data_of_the_run(trained, tmp_path, capsys):
    run = shutil.copytree(trained / "run", tmp_path / "run")
    root = write_folder(tmp_path / "other", {"ant": "yak"})
    config = json.loads((run / "config.json").read_text())
    config["data"]["root"] = str(root)
    (run / "config.json").write_text(json.dumps(config))
    assert cli.main(["offsets", str(run), "--rounds=1"]) == 2
    assert "class names (was ant, bee, cat, now bee, cat, yak)" in capsys.readouterr().err
    # A run of version 0.2 has the names of its classes alone.
    result = json.loads((run / "result.json").read_text())
    del result["data"]
    (run / "result.json").write_text(json.dumps(result))
    assert cli.main(["offsets", str(run), "--rounds=1"]) == 2
    assert "the data have 'bee', 'cat', 'yak'" in capsys.readouterr().err


def test_an_evaluation_of_a_run_says_that_its_test_images_changed(trained, tmp_path):
    run, root = shutil.copytree(trained / "run", tmp_path / "run"), write_folder(tmp_path / "data")
    config = json.loads((run / "config.json").read_text())
    config["data"]["root"] = str(root)
    (run / "config.json").write_text(json.dumps(config))
    # A copy of the folder is the same data.
    assert evaluated(run, tmp_path)[1]["notes"] == []
    shutil.copy(root / "train/ant/0.png", root / "test/ant/0.png")
    assert "(test: pixels)" in evaluated(run, tmp_path)[1]["notes"][0]


def test_a_report_matches_runs_with_the_classes_in_another_order(trained, tmp_path):
    runs = [shutil.copytree(trained / "run", tmp_path / name) for name in ("one", "two")]
    # The second as a run whose data set lists its classes the other way round.
    order = ["cat", "bee", "ant"]
    result = json.loads((runs[1] / "result.json").read_text())
    result["classes"], result["method"], result["title"] = order, "cfol", "CFOL-AT"
    accuracies = [result["test"], *result["checkpoints"].values()]
    for found in [held[kind] for held in accuracies for kind in ("clean", "robust")]:
        found["per_class"] = {name: found["per_class"][name] for name in order}
        found["confusion"] = [row[::-1] for row in found["confusion"][::-1]]
    (runs[1] / "result.json").write_text(json.dumps(result))
    rows = [json.loads(line) for line in (runs[1] / "metrics.jsonl").read_text().splitlines()]
    rows[0]["class_error"] = rows[0]["class_error"][::-1]
    (runs[1] / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (comparison,) = read_comparisons(runs)
    one, two = (group.runs[0] for group in comparison.groups)
    assert one.classes == two.classes
    assert one.robust == two.robust
    assert one.train[0]["class_error"] == two.train[0]["class_error"]
    assert cli.main(["report", *map(str, runs), "--out", str(tmp_path / "page.html")]) == 0


def test_runs_on_other_test_images_are_not_compared(trained, tmp_path):
    runs = [shutil.copytree(trained / "run", tmp_path / name) for name in ("one", "two")]
    result = json.loads((runs[1] / "result.json").read_text())
    result["method"], result["title"] = "cfol", "CFOL-AT"
    (runs[1] / "result.json").write_text(json.dumps(result))
    assert read_comparisons(runs)[0].caveats() == []
    result["data"]["test"]["any pixels"] = "0"
    (runs[1] / "result.json").write_text(json.dumps(result))
    assert "other test images" in read_comparisons(runs)[0].caveats()[0]


@pytest.mark.parametrize("key", ["class_to_idx", "class_names"])
def test_the_names_that_a_script_stored_beside_its_weights_are_matched(trained, turned, tmp_path, key):
    state = checkpoints.read(turned)
    names = state["classes"]
    stored = {name: c for c, name in enumerate(names)} if key == "class_to_idx" else names
    file = tmp_path / "weights.pt"
    torch.save({"state_dict": state["model"], key: stored}, file)
    root = f"--data={trained / 'data'}"
    options = ["--dataset=folder", root, "--model=demo-cnn@0.25"]
    status, found = evaluated(file, tmp_path, *options)
    assert status == 0
    assert figures(found) == figures(evaluated(trained / "run", tmp_path)[1])
    run = ["train", "erm", *TINY, *options, "--lr=1e-12", f"--init={file}", f"--out={tmp_path / 'run'}"]
    assert cli.main(run) == 0
    before, after = (
        checkpoints.read(place / "run/checkpoints/last.pt")["model"] for place in (trained, tmp_path)
    )
    head = next(name for name in reversed(before) if name.endswith("weight"))
    assert torch.allclose(before[head], after[head], atol=1e-6)
    # The same weights without the names.
    torch.save({"state_dict": state["model"]}, file)
    assert evaluated(file, tmp_path, *options)[1]["clean"]["confusion"] != found["clean"]["confusion"]


# ---------------------------------------------------------------- in a program


class Named(torch.utils.data.Dataset):
    """The test images of a folder with their classes in an order of one's own, as torchvision's data sets
    have them.
    """

    def __init__(self, images, order):
        self.images, self.classes = images, list(order)

    def __len__(self):
        return len(self.images)

    def __getitem__(self, index):
        x, y = self.images[index]
        return x, self.classes.index(self.images.classes[y])


@pytest.mark.parametrize("order", [("cat", "bee", "ant"), ("bee", "cat", "ant")])
def test_evaluate_matches_the_names_that_a_data_set_has(trained, order):
    images = data.load("folder", trained / "data", progress=False).test
    model = load(trained / "run")
    attack = {"eps": 4 / 255, "steps": 2, "random_start": False}
    before = cf.evaluate(model, images, attack=attack)
    found = cf.evaluate(model, Named(images, order), attack=attack)
    assert found.clean.classes == list(order)
    assert found.clean.record.count == COUNTS
    for kind in ("clean", "robust"):
        assert getattr(found, kind).record.per_class == getattr(before, kind).record.per_class
        assert torch.equal(getattr(found, kind).correct, getattr(before, kind).correct)
    by_position = cf.evaluate(model, Named(images, order), classes_by_position=True)
    assert by_position.notes


def test_evaluate_refuses_other_names(trained):
    images = data.load("folder", trained / "data", progress=False).test
    with pytest.raises(InputError, match="'cat'; the data have 'x'"):
        cf.evaluate(torch.nn.DataParallel(load(trained / "run")), images, class_names=["x", "y", "z"])
    other = ImageSet(images.images, images.labels, ["ant", "bee", "yak"])
    with pytest.raises(InputError, match="'cat'; the data have 'ant', 'bee', 'yak'"):
        cf.evaluate(load(trained / "run"), other)
    with pytest.raises(InputError, match="'cat'; the data have 'x'"):
        cf.evaluate(load(trained / "run"), images, class_names=["x", "y", "z"])
    # A model without names has its classes by position.
    model = load(trained / "run")
    del model.classes
    assert cf.evaluate(model, other).clean.classes == ["ant", "bee", "yak"]


def test_numbers_in_the_order_of_text_are_told_where_weights_have_no_names():
    names = sorted(map(str, range(12)))
    assert "output 2 counts as the class '10'" in classes.order_as_text(names)
    assert classes.order_as_text([f"{n:02}" for n in range(12)]) is None
    assert classes.order_as_text(list(map(str, range(12)))) is None
    assert classes.order_as_text(["ant", "bee"]) is None
    assert classes.places(names, list(map(str, range(12))), "it", "")[10] == names.index("10")


def test_long_lists_name_what_differs():
    names = [f"class {n:03}" for n in range(100)]
    with pytest.raises(InputError, match=r"only the first: 'class 099'; only the second: 'class X'"):
        classes.places(names, [*names[:-1], "class X"], "it", "")
