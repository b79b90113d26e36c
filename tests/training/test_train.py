"""Whole runs, from Python: every method trains, resumes and evaluates; what is kept, tested and written."""

import json

import pytest
import torch

import cfol_fast as cf
from cfol_fast import data
from cfol_fast.errors import InputError, TrainingFailed
from cfol_fast.methods import METHODS
from cfol_fast.runs import predictions
from cfol_fast.runs.loading import read_checkpoint
from cfol_fast.runs.metrics import SELECTION
from cfol_fast.runs.metrics_log import read_rows
from cfol_fast.runs.run_folder import read_result
from cfol_fast.training import loop, trainer
from cfol_fast.training.epoch_counts import NEVER
from cfol_fast.training.images import load_images
from cfol_fast.training.state import is_better
from tests.training import tiny


@pytest.mark.parametrize("method", tiny.each(METHODS, ["cfol"]))
def test_every_method_trains_resumes_and_evaluates(few_images, tmp_path, monkeypatch, method):
    tiny.run_until(monkeypatch, 2, tmp_path / "run", method)
    run = tiny.run(tmp_path / "run", method, resume=True)

    assert run.result["method"] == method
    assert run.result["holdout"] == "20%"
    rows = list(read_rows(run.folder))
    assert [(row["kind"], row["epoch"], row["step"]) for row in rows] == [
        ("train", 1, 3),
        ("validation", 1, 3),
        ("train", 2, 6),
        ("validation", 2, 6),
    ]
    assert rows[0]["p"] is None or sum(rows[0]["p"]) == pytest.approx(1.0)
    assert len(rows[0]["class_error"]) == 10
    test = data.load("fashion-mini").test
    report = cf.evaluate(cf.load(run.folder), *pixels(test, 40), attack=None, num_classes=10)
    assert 0.0 <= report.clean.average <= 1.0


def pixels(images: data.ImageSet, count: int) -> tuple[torch.Tensor, torch.Tensor]:
    return images.images[:count].permute(0, 3, 1, 2).float() / 255, images.labels[:count]


@pytest.mark.slow
def test_the_embedded_images_train_as_they_are(tmp_path):
    """No stand-in for the data: the run of the command line, with few steps."""
    run = tiny.run(tmp_path / "run", epochs=1, test__steps=1)
    assert sum(run.result["test"]["robust"]["count"].values()) == 3000


def test_a_run_keeps_what_every_image_was_taken_for(few_images, tmp_path):
    run = tiny.run(tmp_path / "run")
    labels, kept = predictions.read(run.folder, run.result)
    assert labels.tolist() == data.load("fashion-mini").test.labels.tolist()
    for name, checkpoint in run.result["checkpoints"].items():
        for kind in ("clean", "robust"):
            again = predictions.accuracy(labels, kept[name][kind], run.result["classes"])
            assert again.to_json() == checkpoint[kind]


def test_a_test_in_doubt_is_in_the_result(few_images, tmp_path):
    """With a radius of 0 the attack raises no loss."""
    run = tiny.run(tmp_path / "run", test__eps=0.0, epochs=1)
    for checkpoint in run.result["checkpoints"].values():
        assert [one["warning"] for one in checkpoint["warnings"]] == ["attack without effect"]
    right = tiny.run(tmp_path / "right", epochs=1)
    assert all("warnings" not in checkpoint for checkpoint in right.result["checkpoints"].values())


def test_the_result_says_what_was_trained_and_how_each_class_does(few_images, tmp_path):
    result = tiny.run(tmp_path / "run").result
    assert result == json.loads((tmp_path / "run/result.json").read_text())
    assert result["checkpoints"].keys() == {"last", "best-average", "best-worst"}
    assert result["test"]["robust"] == result["checkpoints"]["best-average"]["robust"]
    assert result["checkpoints"]["last"]["epoch"] == 2
    assert result["test"]["clean"].keys() >= {"average", "tail", "worst", "worst_class", "per_class"}
    assert list(result["test"]["robust"]["per_class"]) == result["classes"]
    assert (result["dataset"], result["model"], result["seed"]) == ("fashion-mini", "demo-cnn@0.25", 0)
    assert (result["attack"]["steps"], result["attack"]["eps"]) == (2, 0.1)
    assert {"cfol_fast", "torch", "python"} <= result["versions"].keys()
    gallery = json.loads((tmp_path / "run/gallery.json").read_text())
    assert gallery["class"] == result["test"]["robust"]["worst_class"]


@pytest.mark.parametrize(("method", "judged"), [("cfol", "robust"), ("clean", "clean")])
@pytest.mark.slow
def test_the_best_checkpoints_are_those_of_the_validation_rows(few_images, tmp_path, method, judged):
    """Training without an attack is judged by its clean accuracies: its robustness is greatest before it has
    learned anything.
    """
    run = tiny.run(tmp_path / "run", method, epochs=4)
    rows = [row for row in read_rows(run.folder) if row["kind"] == "validation"]
    for name, keys in (("best-average", ["average"]), ("best-worst", SELECTION)):
        values = [[row[judged][key] for key in keys] for row in rows]
        first_best = 1 + values.index(max(values))
        assert run.result["checkpoints"][name]["epoch"] == first_best
        assert read_checkpoint(run.folder / "checkpoints" / f"{name}.pt").epoch == first_best


def test_without_a_hold_out_the_last_epoch_is_tested(few_images, tmp_path):
    run = tiny.run(tmp_path / "run", data__holdout="none")
    assert run.result["holdout"] == "none"
    assert run.result["checkpoints"].keys() == {"last"}
    assert not (run.folder / "checkpoints/best-average.pt").exists()
    assert {row["kind"] for row in read_rows(run.folder)} == {"train"}


@pytest.mark.slow
def test_the_test_set_as_hold_out_is_labelled_everywhere(few_images, tmp_path):
    run = tiny.run(tmp_path / "run", data__holdout="test")
    assert run.result["holdout"] == "test"
    assert {row["split"] for row in read_rows(run.folder) if row["kind"] == "validation"} == {"test"}


@pytest.mark.slow
def test_validation_can_be_rarer_than_every_epoch(few_images, tmp_path):
    run = tiny.run(tmp_path / "run", epochs=5, validation__every=2)
    assert [row["epoch"] for row in read_rows(run.folder) if row["kind"] == "validation"] == [2, 4, 5]


@pytest.mark.slow
def test_two_equal_runs_are_equal_and_another_seed_is_not(few_images, tmp_path):
    for name, seed in (("a", 0), ("b", 0), ("c", 1)):
        tiny.run(tmp_path / name, epochs=1, seed=seed)
    tiny.assert_same_outcome(tmp_path / "a", tmp_path / "b")
    weights = [read_checkpoint(tmp_path / name).model["net.linear.weight"] for name in "ac"]
    assert not torch.equal(*weights)


@pytest.mark.slow
def test_saving_more_often_changes_nothing(few_images, tmp_path):
    tiny.run(tmp_path / "a")
    tiny.run(tmp_path / "b", checkpoint__steps=1, checkpoint__seconds=0.001)
    tiny.assert_same_outcome(tmp_path / "a", tmp_path / "b")


def test_training_leaves_the_callers_random_numbers_alone(few_images, tmp_path):
    torch.manual_seed(7)
    expected = torch.rand(3)
    torch.manual_seed(7)
    tiny.run(tmp_path / "run", epochs=1)
    assert torch.equal(torch.rand(3), expected)


def test_a_loss_that_is_not_finite_stops_the_run_with_the_step(few_images, tmp_path):
    settings = {"epochs": 3, "optimizer__lr": 1e20, "optimizer__schedule": "constant"}
    with pytest.raises(TrainingFailed, match=r"not finite since step \d+; there is no checkpoint yet"):
        tiny.run(tmp_path / "run", **settings)


def test_a_flag_that_the_source_raised_on_the_device_stops_the_run(few_images, tmp_path, monkeypatch):
    def flagged(config, progress=False):
        images = load_images(config)
        images.train.fault.fill_(8)
        return images

    monkeypatch.setattr(loop, "load_images", flagged)
    with pytest.raises(TrainingFailed, match="an index was outside the data; there is no checkpoint"):
        tiny.run(tmp_path / "run", epochs=1)


def test_a_bad_state_never_overwrites_a_good_checkpoint(few_images, tmp_path, monkeypatch):
    """The step grows beyond all bounds from step 3 on, and a checkpoint is saved after every step."""
    good = trainer.learning_rate
    monkeypatch.setattr(
        trainer, "learning_rate", lambda c, step, *rest: 1e20 if step >= 3 else good(c, step, *rest)
    )
    with pytest.raises(TrainingFailed, match=r"since step \d+; the last good checkpoint is .*last.pt"):
        tiny.run(tmp_path / "run", checkpoint__steps=1, epochs=8)
    state = read_checkpoint(tmp_path / "run/checkpoints/last.pt")
    assert int(state.run.step["first_bad"]) == NEVER


@pytest.mark.slow
def test_the_two_run_baseline_keeps_its_first_stage_in_a_subfolder(few_images, tmp_path):
    run = tiny.run(tmp_path / "run", "two-run")
    stage = run.folder / "stage-1"
    first, second = read_rows(stage), read_rows(run.folder)
    # First every example once, then classes by their accuracies.
    assert first[0]["p"] is None
    best = read_result(stage)["checkpoints"]["best-average"]["epoch"]
    (validation,) = (row for row in first if row["kind"] == "validation" and row["epoch"] == best)
    accuracies = torch.tensor(list(validation["robust"]["per_class"].values()), dtype=torch.float64)
    assert second[0]["p"] == pytest.approx((0.5 / 10 + 0.5 * torch.softmax(-accuracies, 0)).tolist())


@pytest.mark.slow
def test_an_ensemble_of_iterates_is_kept_and_its_class_risks_reported(few_images, tmp_path):
    run = tiny.run(tmp_path / "run", ensemble=3)
    found = run.result["ensemble"]
    assert found["members"] == len(found["steps"]) == 3
    assert all(0 <= step < 6 for step in found["steps"])
    assert found["worst_risk"] == max(found["robust_risk"].values())
    # The theorem bounds the risk on the training images: 16 of each class, without the hold-out.
    assert (found["split"], found["images"], found["images_in_all"]) == ("train", 160, 160)
    assert all(
        (16 * 3 * risk) == pytest.approx(round(16 * 3 * risk)) for risk in found["robust_risk"].values()
    )
    stored = torch.load(run.folder / "checkpoints/ensemble.pt", weights_only=True)
    assert len(stored["weights"]) == 3


def test_the_best_epoch_is_the_best_on_average_over_the_classes(few_images, tmp_path):
    """As in the paper: a large class does not decide which epoch is kept."""
    trainer = tiny.new_trainer(tmp_path)
    for average, class_average in ((0.5, 0.4), (0.6, 0.3), (0.4, 0.5)):
        both = {"average": average, "class_average": class_average, "worst": 0.1, "tail": 0.2}
        trainer.state.keep_best({"clean": both, "robust": both})
        trainer.position.epoch += 1
    assert trainer.position.best["best-average"] == {"epoch": 3, "value": 0.5}


def test_of_equal_worst_classes_the_better_tail_is_kept_then_the_better_average(few_images, tmp_path):
    """With many classes every epoch has one at 0."""
    trainer = tiny.new_trainer(tmp_path)
    for tail, class_average in ((0.1, 0.5), (0.2, 0.4), (0.2, 0.6), (0.2, 0.5), (0.1, 0.9)):
        both = {"average": 0.5, "class_average": class_average, "worst": 0.0, "tail": tail}
        trainer.state.keep_best({"clean": both, "robust": both})
        trainer.position.epoch += 1
    assert trainer.position.best["best-worst"] == {"epoch": 3, "value": 0.0, "then": [0.2, 0.6]}


def test_weights_kept_by_an_older_version_are_compared_by_their_worst_class_alone():
    assert not is_better([0.3, 0.4, 0.5], {"value": 0.3})
    assert is_better([0.31, 0.0, 0.0], {"value": 0.3})


@pytest.mark.slow
def test_load_gives_the_tested_model_in_eval_mode(few_images, tmp_path):
    run = tiny.run(tmp_path / "run")
    model = cf.load(run.folder)
    assert not model.training
    assert model.classes == run.result["classes"]
    state = read_checkpoint(run.folder / "checkpoints/best-average.pt").model
    assert all(torch.equal(value, state[key]) for key, value in model.state_dict().items())
    last = cf.load(run.folder / "checkpoints/last.pt")
    assert last(torch.rand(2, 1, 28, 28)).shape == (2, 10)


def test_what_is_no_checkpoint_is_refused(tmp_path):
    with pytest.raises(InputError, match="no run folder or checkpoint"):
        cf.load(tmp_path / "none")
    with pytest.raises(InputError, match="has no checkpoint"):
        cf.load(tmp_path)
    torch.save({"weights": torch.ones(3)}, tmp_path / "other.pt")
    with pytest.raises(InputError, match="no checkpoint of cfol_fast"):
        cf.load(tmp_path / "other.pt")


def test_tensorboard_events_are_written(few_images, tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    cf.train(tiny.tiny_config(tmp_path / "run", epochs=1), quiet=True, log=["tensorboard"])
    events = EventAccumulator(str(tmp_path / "run/tensorboard"))
    events.Reload()
    assert "train/loss" in events.Tags()["scalars"]
    assert events.Tags()["images"]


def test_images_of_a_data_set_that_do_not_fit_the_model_are_refused(few_images, tmp_path):
    with pytest.raises(InputError, match="takes 3 channels, the data set has 1"):
        tiny.run(tmp_path / "run", model__name="mobilenet_v3_small")
