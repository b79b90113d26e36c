"""PGD and its relatives: they stay in the ball, climb the loss, and leave the model as it was."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from cfol_fast import attacks
from cfol_fast.attacks import FGSM, NFGSM, PGD, TRADES
from cfol_fast.errors import InputError
from cfol_fast.frozen import frozen
from tests.attacks.small_models import EPS, SmallNet, Trained, images


def plain_gradient(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    x = x.detach().requires_grad_()
    with torch.enable_grad():
        loss = F.cross_entropy(model(x), y, reduction="sum")
    return torch.autograd.grad(loss, x)[0]


def plain_pgd(model: nn.Module, x: Tensor, y: Tensor, eps: float, step: float, steps: int) -> Tensor:
    adv = x.clone()
    for _ in range(steps):
        adv = adv + step * plain_gradient(model, adv, y).sign()
        adv = torch.minimum(torch.maximum(adv, x - eps), x + eps).clamp(0, 1)
    return adv


def loss_of(model: nn.Module, x: Tensor, y: Tensor) -> float:
    with torch.no_grad():
        return float(F.cross_entropy(model(x), y))


@pytest.mark.parametrize("random_start", [False, True])
def test_the_result_stays_in_the_linf_ball_and_in_the_cube(trained: Trained, random_start: bool) -> None:
    model, x, y = trained
    adv = PGD(model, EPS, random_start=random_start)(x, y)
    assert (adv - x).abs().max() <= EPS + 1e-6
    assert (adv - x).abs().amax(dim=(1, 2, 3)).min() > 0.9 * EPS
    assert adv.min() >= 0
    assert adv.max() <= 1


def test_the_result_stays_in_the_l2_ball_and_reaches_its_surface(trained: Trained) -> None:
    model, x, y = trained
    norms = (PGD(model, 0.5, norm="l2", steps=10)(x, y) - x).flatten(1).norm(dim=1)
    assert norms.max() <= 0.5 + 1e-5
    assert norms.median() > 0.45


@pytest.mark.parametrize("fast", [True, False])
def test_it_is_the_pgd_one_would_write_down(trained: Trained, fast: bool) -> None:
    model, x, y = trained
    adv = PGD(model, EPS, EPS / 4, steps=7, random_start=False, fast=fast)(x, y)
    expected = plain_pgd(model, x, y, EPS, EPS / 4, 7)
    assert loss_of(model, adv, y) == pytest.approx(loss_of(model, expected, y), rel=1e-3)
    assert loss_of(model, expected, y) > 2 * loss_of(model, x, y)


def test_the_sign_of_the_gradient_agrees_with_the_plain_path_at_every_step(trained: Trained) -> None:
    model, x, y = trained
    attack = PGD(model, EPS, EPS / 4)
    adv = attack.start(x, EPS)
    with torch.no_grad(), frozen(model, x.device) as net:
        for _ in range(7):
            expected = plain_gradient(model, adv, y).sign()
            _, grad = attack.gradient(net, adv, y)
            assert (grad.sign() == expected).float().mean() >= 0.999
            attack.ascend_(adv, x, grad, EPS, EPS / 4)


@pytest.mark.parametrize("loss", ["ce", "kl", "cw", "dlr"])
def test_every_loss_is_climbed(trained: Trained, loss: str) -> None:
    model, x, y = trained
    with torch.no_grad():
        fooled = model(PGD(model, EPS, steps=10, loss=loss)(x, y)).argmax(1) != y
    assert fooled.float().mean() > 0.25


def test_eps_and_step_may_differ_from_example_to_example(trained: Trained) -> None:
    model, x, y = trained
    x, y = x[:6], y[:6]
    eps = torch.tensor([0.0, 0.01, 0.02, 0.03, 0.05, 0.08])
    step = eps / 3
    together = PGD(model, eps, step, steps=3, random_start=False)(x, y)
    for i in range(6):
        alone = PGD(model, float(eps[i]), float(step[i]), steps=3, random_start=False)(
            x[i : i + 1], y[i : i + 1]
        )
        torch.testing.assert_close(together[i : i + 1], alone, atol=1e-6, rtol=0)
    per_call = PGD(model, 1.0, steps=3, random_start=False)(x, y, eps=eps, step=step)
    assert torch.equal(per_call, together)


def test_the_default_step_is_two_and_a_half_radii_over_the_steps(trained: Trained) -> None:
    attack = PGD(trained.model, 0.1, steps=20)
    assert attack.describe()["step"] == pytest.approx(2.5 * 0.1 / 20)


def test_restarts_keep_the_best_of_each_example(trained: Trained) -> None:
    model, x, y = trained
    single = PGD(model, EPS, steps=2, seed=5)
    runs = [single(x, y) for _ in range(3)]
    best = PGD(model, EPS, steps=2, seed=5, restarts=3)(x, y)
    with torch.no_grad():
        losses = torch.stack([F.cross_entropy(model(run), y, reduction="none") for run in runs])
        wrong = torch.stack([model(run).argmax(1) != y for run in runs])
        kept = F.cross_entropy(model(best), y, reduction="none")
        assert torch.equal(model(best).argmax(1) != y, wrong.any(0))
    same = wrong.all(0) | ~wrong.any(0)
    torch.testing.assert_close(kept[same], losses.amax(0)[same], rtol=1e-4, atol=1e-5)


def test_fgsm_is_one_step_of_one_and_a_quarter_radii(trained: Trained) -> None:
    model, x, y = trained
    adv = FGSM(model, EPS, seed=3)(x, y)
    expected = PGD(model, EPS, 1.25 * EPS, steps=1, seed=3)(x, y)
    assert torch.equal(adv, expected)


def test_n_fgsm_steps_from_strong_noise_and_is_not_projected_to_the_ball(trained: Trained) -> None:
    model, x, y = trained
    adv = NFGSM(model, EPS, seed=3)(x, y)
    distance = (adv - x).abs()
    assert EPS < distance.max() <= 3 * EPS + 1e-6
    noise = PGD(model, 2 * EPS, seed=3).start(x, 2 * EPS)
    expected = (noise + EPS * plain_gradient(model, noise, y).sign()).clamp(0, 1)
    assert ((adv - expected).abs() < 1e-6).float().mean() >= 0.999


def test_trades_climbs_the_divergence_from_the_clean_prediction(trained: Trained) -> None:
    model, x, y = trained
    adv = TRADES(model, EPS)(x, torch.zeros_like(y))
    with torch.no_grad():
        clean, attacked = model(x).softmax(1), model(adv).log_softmax(1)
        start = model(TRADES(model, EPS).start(x, EPS)).log_softmax(1)
    assert (adv - x).abs().max() <= EPS + 1e-6
    assert F.kl_div(attacked, clean, reduction="batchmean") > 100 * F.kl_div(
        start, clean, reduction="batchmean"
    )


@pytest.mark.parametrize("fast", [True, False])
@pytest.mark.parametrize("kind", ["pgd", "trades", "fgsm", "n-fgsm"])
def test_the_model_is_left_as_it_was(trained: Trained, kind: str, fast: bool) -> None:
    model, x, y = trained
    model.train()
    model.block1.bn2.eval()  # a module with a mode of its own
    model.linear.bias.requires_grad_(False)
    model.stem[0].weight.grad = torch.ones_like(model.stem[0].weight)
    modes = [module.training for module in model.modules()]
    flags = [parameter.requires_grad for parameter in model.parameters()]
    state = {name: value.clone() for name, value in model.state_dict().items()}
    attributes = {id(module): set(vars(module)) for module in model.modules()}
    attacks.create(kind, model, eps=EPS, fast=fast)(x, y)
    assert [module.training for module in model.modules()] == modes
    assert [parameter.requires_grad for parameter in model.parameters()] == flags
    assert {id(module): set(vars(module)) for module in model.modules()} == attributes
    for name, value in model.state_dict().items():
        assert torch.equal(value, state[name]), name
    for name, parameter in model.named_parameters():
        assert (parameter.grad is None) == (name != "stem.0.weight")
    assert torch.equal(model.stem[0].weight.grad, torch.ones_like(model.stem[0].weight))


def test_the_model_gets_its_mode_back_when_the_attack_fails(trained: Trained) -> None:
    model, x, y = trained
    model.train()
    with pytest.raises((RuntimeError, ValueError)):
        PGD(model, EPS)(x, y + 50)
    assert all(module.training for module in model.modules())


def test_a_saved_random_state_continues_exactly(trained: Trained) -> None:
    model, x, y = trained
    attack = PGD(model, EPS, steps=2, seed=9)
    first = attack(x, y)
    state = attack.state_dict()
    second = attack(x, y)
    assert not torch.equal(first, second)
    resumed = PGD(model, EPS, steps=2, seed=1)
    resumed.load_state_dict(state)
    assert torch.equal(resumed(x, y), second)
    assert torch.equal(PGD(model, EPS, steps=2, seed=9)(x, y), first)


@pytest.mark.parametrize("options", [{}, {"restarts": 3}, {"random_start": False}])
@pytest.mark.parametrize("kind", attacks.KINDS)
def test_skipped_calls_leave_the_random_state_that_calls_leave(
    trained: Trained, kind: str, options: dict
) -> None:
    given = {} if kind == "none" else {"eps": EPS, **options}
    called, skipped = (attacks.create(kind, trained.model, **given) for _ in range(2))
    for size in (4, 2):
        called(trained.x[:size], trained.y[:size])
    skipped.skip(2)
    assert torch.equal(called.rng, skipped.rng)


def test_the_layout_of_the_images_does_not_change_the_attack(trained: Trained) -> None:
    model, x, y = trained
    contiguous = PGD(model, EPS, seed=2)(x, y)
    channels_last = PGD(model, EPS, seed=2)(x.to(memory_format=torch.channels_last), y)
    assert torch.equal(contiguous, channels_last)


@pytest.mark.parametrize(
    ("kind", "norm"),
    [
        ("pgd", "linf"),
        ("pgd", "l2"),
        ("trades", "linf"),
        ("fgsm", "linf"),
        ("fgsm", "l2"),
        ("n-fgsm", "linf"),
    ],
)
def test_nothing_is_read_back_from_the_device(kind: str, norm: str) -> None:
    model = SmallNet().to("meta")
    x, y = torch.rand(4, 3, 10, 10, device="meta"), torch.zeros(4, dtype=torch.int64, device="meta")
    options = {"restarts": 2} if kind == "pgd" else {}
    adv = attacks.create(kind, model, eps=EPS, norm=norm, **options)(x, y)
    assert adv.device.type == "meta"
    assert adv.shape == x.shape


@pytest.mark.parametrize("loss", ["ce", "kl", "cw", "dlr"])
def test_no_loss_reads_back_from_the_device(loss: str) -> None:
    x, y = torch.rand(4, 3, 10, 10, device="meta"), torch.zeros(4, dtype=torch.int64, device="meta")
    PGD(SmallNet().to("meta"), torch.full((4,), 0.1, device="meta"), loss=loss)(x, y)


@pytest.mark.parametrize("fast", [True, False])
@pytest.mark.slow
def test_lower_precision_finds_nearly_the_same_attack(trained: Trained, fast: bool) -> None:
    model, x, y = trained
    exact = PGD(model, EPS, seed=4, fast=fast)(x, y)
    low = PGD(model, EPS, seed=4, dtype=torch.bfloat16, fast=fast)(x, y)
    assert low.dtype == torch.float32
    assert not torch.equal(low, exact)
    assert loss_of(model, low, y) == pytest.approx(loss_of(model, exact, y), rel=0.1)
    with torch.autocast("cpu", torch.bfloat16):
        surrounding = PGD(model, EPS, seed=4, fast=fast)(x, y)
        full = PGD(model, EPS, seed=4, dtype=torch.float32, fast=fast)(x, y)
    assert torch.equal(surrounding, low)
    assert torch.equal(full, exact)


@pytest.mark.parametrize("context", [torch.no_grad, torch.inference_mode])
def test_it_works_where_gradients_are_switched_off(trained: Trained, context: type) -> None:
    model, x, y = trained
    expected = PGD(model, EPS, steps=3)(x, y)
    with context():
        adv = PGD(model, EPS, steps=3)(x.clone(), y)
    assert torch.equal(adv, expected)


def test_a_model_in_double_precision_is_attacked_in_double_precision(trained: Trained) -> None:
    model, x, y = trained
    expected = PGD(model, EPS, random_start=False)(x, y)
    adv = PGD(model.double(), EPS, random_start=False)(x.double(), y)
    assert adv.dtype == torch.float64
    assert ((adv - expected).abs() < 1e-5).double().mean() > 0.98


@pytest.mark.slow
def test_wrappers_around_the_model_are_looked_through(trained: Trained) -> None:
    model, x, y = trained
    expected = PGD(model, EPS)(x, y)
    assert torch.equal(PGD(nn.DataParallel(model), EPS)(x, y), expected)
    assert torch.equal(PGD(torch.compile(model), EPS)(x, y), expected)


@pytest.mark.slow
def test_the_inner_step_compiles_into_one_graph(trained: Trained) -> None:
    model, x, y = trained
    attack = PGD(model, EPS, EPS / 4)

    def step(adv: Tensor, x: Tensor, y: Tensor) -> Tensor:
        attack.inner_step_(net, adv, x, y, EPS, EPS / 4)
        return adv

    x = attack.prepare(x)
    with torch.no_grad(), frozen(model, x.device) as net, torch._dynamo.config.patch(trace_autograd_ops=True):
        compiled = torch.compile(step, fullgraph=True, backend="aot_eager")(x.clone(), x, y)
        eager = step(x.clone(), x, y)
    assert ((compiled - eager).abs() < 1e-6).float().mean() > 0.999
    assert (compiled - x).abs().max() > 0.9 * EPS / 4


def test_any_module_with_logits_can_be_attacked() -> None:
    x, y = images(16, 1)
    model = nn.Sequential(nn.Flatten(), nn.Linear(300, 10))
    adv = PGD(model, 0.1)(x.flatten(1), y)
    assert adv.shape == (16, 300)
    assert loss_of(model, adv, y) > loss_of(model, x, y)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"eps": -0.1}, "eps must be a finite number of at least 0, got -0.1"),
        ({"eps": float("nan")}, "eps must be"),
        ({"eps": torch.zeros(2, 2)}, "shape"),
        ({"eps": 0.1, "step": -1.0}, "step must be"),
        ({"eps": 0.1, "steps": 0}, "steps must be an integer of at least 1, got 0"),
        ({"eps": 0.1, "norm": "l1"}, "norm must be one of linf, l2, got 'l1'"),
        ({"eps": 0.1, "loss": "mse"}, "loss must be one of ce, kl, cw, dlr"),
        ({"eps": 0.1, "restarts": 0}, "restarts"),
        ({"eps": 0.1, "restarts": 2, "random_start": False}, "would all be the same"),
    ],
)
def test_bad_parameters_are_named(options: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        PGD(nn.Linear(2, 2), **options)


def test_bad_batches_are_named(trained: Trained) -> None:
    model, x, y = trained
    attack = PGD(model, EPS)
    with pytest.raises(TypeError, match=r"^x "):
        attack((x * 255).to(torch.uint8), y)
    with pytest.raises(TypeError, match=r"^y .*int64"):
        attack(x, y.float())
    with pytest.raises(ValueError, match=r"^y .*\(200,\)"):
        attack(x, y[:10])
    with pytest.raises(ValueError, match=r"eps .*got -1"):
        attack(x[:2], y[:2], eps=torch.tensor([0.1, -1.0]))
    with pytest.raises(TypeError, match="logits"):
        PGD(nn.Conv2d(3, 3, 1), EPS)(x, y)
    with pytest.raises(ValueError, match="3 classes"):
        PGD(nn.Sequential(nn.Flatten(), nn.Linear(300, 2)), EPS, loss="dlr")(x, y % 2)
    with pytest.raises(ValueError, match="'pgdd'"):
        attacks.create("pgdd", model)
    with pytest.raises(ValueError, match="'linf'"):
        NFGSM(model, EPS, norm="l2")


@pytest.mark.parametrize("kind", ["fgsm", "n-fgsm"])
def test_steps_that_a_single_step_attack_would_ignore_are_refused(trained: Trained, kind: str) -> None:
    with pytest.raises(InputError, match=f"steps must be 1 for {kind}, which takes a single step, got 10"):
        attacks.create(kind, trained.model, eps=EPS, steps=10)
    assert attacks.create(kind, trained.model, eps=EPS, steps=1).describe()["steps"] == 1


def test_an_attack_describes_itself_for_the_records(trained: Trained) -> None:
    facts = attacks.create("pgd", trained.model, eps=0.1, step=0.02, steps=5, seed=3).describe()
    assert facts["kind"] == "pgd"
    assert (facts["eps"], facts["step"], facts["steps"], facts["seed"]) == (0.1, 0.02, 5, 3)
    assert PGD(trained.model, torch.ones(2)).describe()["eps"] == "per example"
    assert attacks.create("none", trained.model).describe() == {"kind": "none"}


def test_no_attack_returns_the_images_themselves(trained: Trained) -> None:
    model, x, y = trained
    attack = attacks.create("none", model)
    assert attack(x, y) is x
    attack.load_state_dict(attack.state_dict())
