"""The objectives on a small linear model whose losses are computed by hand beside them."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from cfol_fast import objectives
from cfol_fast.objectives import Batch


def linear_model(device: str = "cpu") -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(12, 4)).to(device)


def batch(weight: Tensor | None = None) -> Batch:
    generator = torch.Generator().manual_seed(1)
    x = torch.rand(10, 3, 2, 2, generator=generator)
    noise = 0.2 * torch.rand(10, 3, 2, 2, generator=generator)
    return Batch(x, (x + noise).clamp(0, 1), torch.arange(10) % 4, weight)


ALL = [
    objectives.Mean(),
    objectives.Clean(),
    objectives.Both(),
    objectives.ClassWeighted(torch.tensor([1.0, 2.0, 3.0, 4.0])),
    objectives.CVaR(0.4),
    objectives.LCVaR(0.5, 4),
    objectives.Trades(),
]


def test_each_objective_is_the_risk_of_the_right_examples() -> None:
    model, b = linear_model(), batch()
    clean, adversarial = model(b.x), model(b.x_adv)
    ce_clean = F.cross_entropy(clean, b.y, reduction="none")
    ce_adv = F.cross_entropy(adversarial, b.y, reduction="none")
    kl = F.kl_div(adversarial.log_softmax(1), clean.softmax(1), reduction="batchmean")
    expected = {
        "Mean": ce_adv.mean(),
        "Clean": ce_clean.mean(),
        "Both": ce_clean.mean() + ce_adv.mean(),
        "ClassWeighted": (ce_adv * (b.y + 1)).mean(),
        "CVaR": objectives.cvar(ce_adv, 0.4),
        "LCVaR": objectives.lcvar(ce_adv, b.y, 0.5, 4),
        "Trades": ce_clean.mean() + 6 * kl,
    }
    for objective in ALL:
        loss, logits = objective(model, b)
        name = type(objective).__name__
        assert loss.item() == pytest.approx(expected[name].item(), rel=1e-5), name
        assert torch.equal(logits, clean if name == "Clean" else adversarial), name


@pytest.mark.parametrize("objective", ALL, ids=lambda o: type(o).__name__)
def test_weights_of_the_sampler_scale_each_example(objective: objectives.Objective) -> None:
    model = linear_model()
    plain, _ = objective(model, batch())
    doubled, _ = objective(model, batch(torch.full((10,), 2.0, dtype=torch.float64)))
    assert doubled.item() == pytest.approx(2 * plain.item(), rel=1e-5)
    assert doubled.dtype == torch.float32


@pytest.mark.parametrize("objective", ALL, ids=lambda o: type(o).__name__)
def test_gradients_agree_with_finite_differences(objective: objectives.Objective) -> None:
    model, b = linear_model().double(), batch()
    b = Batch(b.x.double(), b.x_adv.double(), b.y, torch.rand(10, dtype=torch.float64))
    weight = model[1].weight.detach().clone().requires_grad_()

    def loss(w: Tensor) -> Tensor:
        return objective(lambda x: F.linear(x.flatten(1), w), b)[0]

    assert torch.autograd.gradcheck(loss, (weight,))


@pytest.mark.parametrize("objective", ALL, ids=lambda o: type(o).__name__)
def test_objectives_run_where_nothing_can_be_read_back(objective: objectives.Objective) -> None:
    if isinstance(objective, objectives.ClassWeighted):
        objective = objectives.ClassWeighted(torch.ones(4, device="meta"))
    model, b = linear_model("meta"), batch()
    moved = Batch(b.x.to("meta"), b.x_adv.to("meta"), b.y.to("meta"), torch.ones(10, device="meta"))
    objective(model, moved)[0].backward()
    assert model[1].weight.grad is not None


def test_bfloat16_logits_are_compared_in_float32() -> None:
    model, b = linear_model().bfloat16(), batch()
    loss, _ = objectives.Trades()(lambda x: model(x.bfloat16()), b)
    assert loss.dtype == torch.float32


def test_divergence_is_zero_between_equal_predictions_and_positive_else() -> None:
    a, b = torch.randn(5, 3), torch.randn(5, 3)
    assert objectives.prediction_divergence(a, a + 2).abs().max().item() < 1e-6
    assert objectives.prediction_divergence(a, b).min().item() > 0


def test_parameters_outside_their_range_are_refused() -> None:
    with pytest.raises(ValueError, match=r"alpha .*got 0"):
        objectives.CVaR(0)
    with pytest.raises(ValueError, match=r"alpha .*got 2"):
        objectives.LCVaR(2, 10)
    with pytest.raises(ValueError, match=r"beta .*got -1"):
        objectives.Trades(-1)
    with pytest.raises(ValueError, match=r"clean_weight .*got -1"):
        objectives.Both(-1)
    for prior in (torch.tensor([0.5, 0.5, 0.0]), torch.tensor([1.0, -0.5, 0.5]), torch.full((3,), torch.nan)):
        with pytest.raises(ValueError, match="prior"):
            objectives.LCVaR(0.5, 3, prior)
    with pytest.raises(ValueError, match=r"prior .*3"):
        objectives.LCVaR(0.5, 3, torch.ones(2))
    with pytest.raises(ValueError, match="class"):
        objectives.ClassWeighted(torch.ones(2, 2))
