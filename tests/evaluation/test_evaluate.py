"""`evaluate`: figures that one can count by hand, several attacks, and the refusal of what would give wrong
ones.
"""

from __future__ import annotations

import csv
import io
import json

import pytest
import torch
from torch import Tensor, nn

from cfol_fast import data
from cfol_fast.attacks import PGD
from cfol_fast.errors import InputError
from cfol_fast.evaluation import TensorSource, evaluate, evaluate_ensemble, gallery
from cfol_fast.ranks import Ranks, T
from tests.attacks.small_models import EPS, SmallNet, Trained

NAMES = [f"pattern {c}" for c in range(10)]


class Brightness(nn.Module):
    """Class 1 where the mean pixel is above one half: every figure is known.

    (One weight, so that it has a device.)
    """

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(()))

    def forward(self, x: Tensor) -> Tensor:
        bright = x.flatten(1).mean(1) - 0.5
        return torch.stack([-bright, bright], dim=1) * self.weight


def grey(levels: list[float]) -> Tensor:
    return torch.tensor(levels).view(-1, 1, 1, 1).expand(-1, 1, 4, 4).contiguous()


def test_the_figures_can_be_counted_by_hand() -> None:
    x, y = grey([0.1, 0.45, 0.3, 0.9, 0.55, 0.4]), torch.tensor([0, 0, 0, 1, 1, 1])
    report = evaluate(Brightness(), x, y, attack={"eps": 0.1, "steps": 5}, batch_size=4)
    assert report.clean.correct.tolist() == [True, True, True, True, True, False]
    assert report.robust.correct.tolist() == [True, False, True, True, False, False]
    assert report.clean.average == 5 / 6
    assert report.robust.per_class.tolist() == pytest.approx([2 / 3, 1 / 3])
    assert report.robust.worst_class == "1"
    assert report.robust.confusion.tolist() == [[2, 1], [2, 1]]


def test_without_an_attack_there_is_no_robust_accuracy(trained: Trained) -> None:
    report = evaluate(*trained)
    assert report.robust is None
    assert report.to_json()["robust"] is None
    assert "robust" not in report.table()


def test_the_default_attack_has_twenty_steps_of_two_and_a_half_radii_over_twenty(trained: Trained) -> None:
    model, x, y = trained
    report = evaluate(model, x[:8], y[:8], attack={"eps": EPS})
    what = report.attacks[0][0]
    assert (what["kind"], what["steps"]) == ("pgd", 20)
    assert what["step"] == pytest.approx(2.5 * EPS / 20)


def test_an_attack_object_a_function_and_a_dict_are_all_taken(trained: Trained) -> None:
    model, x, y = trained
    attack = PGD(model, EPS, steps=5)
    by_object = evaluate(model, x, y, attack=attack)
    by_dict = evaluate(model, x, y, attack={"kind": "pgd", "eps": EPS, "steps": 5})
    assert torch.equal(by_object.robust.correct, by_dict.robust.correct)
    unchanged = evaluate(model, x, y, attack=lambda x, y: x)
    assert torch.equal(unchanged.robust.correct, unchanged.clean.correct)
    with pytest.raises(TypeError, match="an attack is called"):
        evaluate(model, x, y, attack=3)


def test_several_attacks_give_the_worst_case_of_each_example(trained: Trained) -> None:
    model, x, y = trained
    attacks = [{"kind": "fgsm", "eps": EPS}, {"eps": EPS, "steps": 5, "loss": "cw"}, {"eps": EPS, "steps": 5}]
    report = evaluate(model, x, y, attack=attacks)
    flags = torch.stack([accuracy.correct for _, accuracy in report.attacks])
    assert torch.equal(report.robust.correct, flags.all(0))
    assert [what["kind"] for what, _ in report.attacks] == ["fgsm", "pgd", "pgd"]
    assert report.robust.average <= min(accuracy.average for _, accuracy in report.attacks)


@pytest.mark.slow
def test_the_active_set_never_reports_more_than_the_last_iterate(trained: Trained) -> None:
    model, x, y = trained
    plain = evaluate(model, x, y, attack={"eps": EPS, "steps": 10})
    active = evaluate(model, x, y, attack={"eps": EPS, "steps": 10}, active_set=True)
    assert active.robust.average <= plain.robust.average
    assert not bool((active.robust.correct & ~plain.robust.correct).any())
    assert any("first iterate" in note for note in active.notes)
    assert "note: " in active.table()
    with pytest.raises(InputError, match="active set needs PGD"):
        evaluate(model, x, y, active_set=True)


def test_the_batch_size_and_the_mode_do_not_matter(trained: Trained) -> None:
    model, x, y = trained
    whole = evaluate(model, x, y, attack={"eps": EPS, "steps": 3, "random_start": False})
    model.train()
    pieces = evaluate(model, x, y, attack={"eps": EPS, "steps": 3, "random_start": False}, batch_size=37)
    assert torch.equal(whole.robust.correct, pieces.robust.correct)
    assert all(module.training for module in model.modules())


def test_a_source_brings_labels_and_class_names(trained: Trained) -> None:
    model, x, y = trained
    report = evaluate(model, TensorSource(x, y, NAMES), attack={"eps": EPS, "steps": 2})
    assert report.clean.classes == NAMES
    images = data.ImageSet((x * 255).round().to(torch.uint8).permute(0, 2, 3, 1).contiguous(), y, NAMES)
    resident = evaluate(model, data.ResidentSource(images), attack={"eps": EPS, "steps": 2})
    assert resident.clean.average == pytest.approx(report.clean.average, abs=0.02)
    assert resident.robust.worst_class in NAMES


def test_progress_counts_images_up_to_the_end(trained: Trained) -> None:
    model, x, y = trained
    told: list[tuple[int, int]] = []
    attack = [{"eps": EPS, "steps": 1}, {"kind": "fgsm", "eps": EPS}]
    evaluate(model, x, y, attack=attack, batch_size=64, progress=lambda *a: told.append(a))
    assert told[-1] == (400, 400)
    assert [done for done, _ in told] == sorted(done for done, _ in told)
    told.clear()
    evaluate(model, x, y, progress=lambda *a: told.append(a))
    assert told[-1] == (200, 200)


def test_json_csv_and_table_say_the_same(trained: Trained) -> None:
    model, x, y = trained
    report = evaluate(model, x, y, attack={"eps": EPS, "steps": 3, "seed": 4}, class_names=NAMES)
    facts = json.loads(json.dumps(report.to_json(), allow_nan=False))
    assert (facts["format"], facts["kind"], facts["examples"]) == (1, "evaluation", 200)
    assert facts["attacks"][0]["attack"]["seed"] == 4
    assert facts["correct"]["robust"] == "".join(str(int(c)) for c in report.robust.correct)
    assert facts["versions"]["torch"] == torch.__version__
    rows = list(csv.DictReader(io.StringIO(report.to_csv())))
    assert [row["class"] for row in rows] == NAMES
    for row in rows:
        assert float(row["robust"]) == facts["robust"]["per_class"][row["class"]]
        assert float(row["robust_low"]) <= float(row["robust"]) <= float(row["robust_high"])
    lines = report.table().splitlines()[len(report.measured()) :]
    assert lines[1].startswith(report.robust.worst_class)
    assert f"{100 * report.robust.average:.1f} %" in report.table()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda x, y: ((x - 0.5) / 0.25, y), "put the normalisation into the model as its first layer"),
        (lambda x, y: (x * 255, y), "images must be in \\[0, 1\\], got values from"),
        (lambda x, y: (x.masked_fill(x > 0.8, float("nan")), y), "images must be in \\[0, 1\\]"),
        (lambda x, y: ((x * 255).to(torch.uint8), y), "divide bytes by 255"),
        (lambda x, y: (x[:0], y[:0]), "the data set is empty"),
        (lambda x, y: (x, y[:3]), "there are 200 images, but 3 labels"),
        (lambda x, y: (x, y + 5), "labels must be 0..9 for 10 classes, got 5..14"),
        (lambda x, y: (x, y.float()), "labels must be int64"),
        (lambda x, y: (x, None), "labels y are missing"),
    ],
)
def test_data_that_would_give_a_wrong_figure_is_refused(trained: Trained, change, message: str) -> None:
    with pytest.raises(InputError, match=message):
        evaluate(trained.model, *change(trained.x, trained.y))


def test_nan_logits_stop_with_the_number_of_the_batch(trained: Trained) -> None:
    _, x, y = trained
    x = x.clamp(0, 0.9)
    x[150] = 1.0

    class Breaking(SmallNet):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x) + torch.where(x.amax() > 0.95, torch.nan, 0.0)

    with pytest.raises(InputError, match="batch 2: the model's logits are NaN"):
        evaluate(Breaking(), x, y, batch_size=64)


def test_a_model_for_another_number_of_classes_is_refused(trained: Trained) -> None:
    model, x, y = trained
    with pytest.raises(InputError, match="the model has 10 outputs, the data set 43 classes"):
        evaluate(model, x, y, num_classes=43)
    with pytest.raises(InputError, match="10 outputs"):
        evaluate(model, TensorSource(x, y, NAMES[:5]))
    with pytest.raises(InputError, match="3 class names for 10 classes"):
        evaluate(model, x, y, num_classes=10, class_names=["a", "b", "c"])
    with pytest.raises(InputError, match="logits of shape"):
        evaluate(nn.Conv2d(3, 10, 1), x, y)


def test_bad_attacks_are_refused(trained: Trained) -> None:
    model, x, y = trained
    with pytest.raises(ValueError, match=r"eps must be a finite number of at least 0, got -0\.1"):
        evaluate(model, x, y, attack={"eps": -0.1})
    with pytest.raises(InputError, match="needs a radius"):
        evaluate(model, x, y, attack={"kind": "pgd"})
    with pytest.raises(ValueError, match="unknown attack 'cw'"):
        evaluate(model, x, y, attack={"kind": "cw", "eps": 0.1})
    with pytest.raises(InputError, match="batch_size must be at least 1"):
        evaluate(model, x, y, batch_size=0)


@pytest.mark.slow
def test_an_ensemble_averages_the_risks_of_members_attacked_on_their_own(trained: Trained) -> None:
    model, x, y = trained
    other = SmallNet()
    other.load_state_dict(model.state_dict())
    with torch.no_grad():
        other.linear.bias[0] += 3
    seen = []

    def factory(member: nn.Module) -> PGD:
        seen.append(member)
        return PGD(member, EPS, steps=3)

    result = evaluate_ensemble([model, other], x, y, factory)
    assert seen == [model, other]
    expected = 1 - (result.members[0].robust.per_class + result.members[1].robust.per_class) / 2
    torch.testing.assert_close(result.robust_risk, expected)
    assert result.worst_risk == pytest.approx(float(expected.max()))
    json.dumps(result.to_json(), allow_nan=False)
    averaged = evaluate_ensemble([model, other], x, y, lambda m: PGD(m, EPS, steps=3), averaged_logits=True)
    assert averaged.clean.average == pytest.approx(1, abs=0.1)
    with pytest.raises(InputError, match="no members"):
        evaluate_ensemble([], x, y)


def test_the_gallery_shows_images_that_the_attack_turns(trained: Trained) -> None:
    import base64

    model, x, y = trained
    source = TensorSource(x, y, NAMES)
    shown = gallery(model, source, PGD(model, 2 * EPS), 3, n=4)
    assert (shown["class"], shown["shape"], len(shown["examples"])) == ("pattern 3", [10, 10, 3], 4)
    for example in shown["examples"]:
        assert y[example["index"]] == 3
        clean, adversarial = (
            torch.frombuffer(bytearray(base64.b64decode(example[key])), dtype=torch.uint8).view(10, 10, 3)
            for key in ("clean", "adversarial")
        )
        expected = (x[example["index"]].permute(1, 2, 0) * 255).round()
        assert torch.equal(clean.float(), expected)
        assert (clean.int() - adversarial.int()).abs().max() <= round(2 * EPS * 255) + 1
    first = shown["examples"][0]
    assert first["clean_predicted"] == "pattern 3" != first["predicted"]
    assert 0 < first["confidence"] <= 1
    json.dumps(shown)
    with pytest.raises(InputError, match="class_index"):
        gallery(model, source, PGD(model, EPS), 10)


def test_every_rank_with_other_weights_is_named() -> None:
    class OfFour(Ranks):
        def gather_objects(self, value: T) -> list[T]:
            return [value, "another", value, "a third"]  # type: ignore[list-item]

    with pytest.raises(InputError, match=r"^ranks 1 and 3 have other weights than rank 0: give every rank"):
        evaluate(Brightness(), grey([0.1, 0.9]), torch.tensor([0, 1]), ranks=OfFour(0, 4))
