"""eta="auto": from the length of the run, so that the bandit does something in a short one and is not led by
chance.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable

import pytest
import torch

from cfol_fast import methods
from cfol_fast.errors import InputError
from cfol_fast.sampling import ClassSampler, ExampleSampler, FixedClassSampler, UniformSampler, step_size
from cfol_fast.sampling.index_sampler import IndexSampler

BATCH = 128
CLASSES = [2, 3, 10, 100, 1000]
STEPS = [100, 1_000, 10_000, 100_000, 1_000_000]


def sampler(k: int, **options: object) -> ClassSampler:
    return ClassSampler(torch.arange(k), **options)


def expected_p(bandit: ClassSampler, errors: torch.Tensor, draws: int) -> torch.Tensor:
    """p after so many draws, with the expected update: each draw adds eta times the error of every class."""
    q = torch.softmax(bandit.eta * errors * draws, 0)
    return bandit.gamma / bandit.k + (1 - bandit.gamma) * q


def simulate(bandit: IndexSampler, errors: torch.Tensor, steps: int) -> None:
    """The sampler itself, with mistakes drawn by each class's error."""
    noise = torch.Generator().manual_seed(0)
    for _ in range(steps):
        y = bandit.draw(BATCH)
        wrong = torch.rand(BATCH, generator=noise) < errors[y]
        bandit.observe(y, y, wrong, bandit.ticket())


def class_errors(k: int) -> torch.Tensor:
    errors = torch.full((k,), 0.4)
    errors[k // 2] = 0.8
    return errors


def test_the_rule_fits_the_paper_s_run_and_the_demo() -> None:
    assert sampler(10, draws=62_600 * 128).eta == pytest.approx(1.4e-6, rel=0.03)
    assert sampler(10, draws=12 * 39 * 128).eta == pytest.approx(1.8e-4, rel=0.03)


@pytest.mark.parametrize("baseline", ["none", "mean", "running"])
@pytest.mark.parametrize(("k", "draws"), [(10, 1280), (10, 9728), (10, 48_000), (100, 9728), (1000, 97_280)])
def test_the_rule_is_the_least_of_three(k: int, draws: int, baseline: str) -> None:
    variance = 1.0 if baseline == "none" else 0.25
    rule = min(2 * math.log(k - 1) / (0.4 * draws), 0.5 / k, 0.5 * math.sqrt(0.5 / (k * draws * variance)))
    assert sampler(k, draws=draws, baseline=baseline).eta == pytest.approx(rule)


@pytest.mark.parametrize("baseline", ["none", "running"])
def test_w_has_by_chance_a_deviation_of_at_most_a_half(baseline: str) -> None:
    """40 short runs of 20 classes that all fail half of the time."""
    ends = []
    for seed in range(40):
        bandit = sampler(20, draws=20 * BATCH, baseline=baseline, gamma=0.2, seed=seed)
        noise = torch.Generator().manual_seed(seed)
        for _ in range(20):
            y = bandit.draw(BATCH)
            bandit.observe(y, y, torch.rand(BATCH, generator=noise) < 0.5, bandit.ticket())
        ends.append(bandit.w - bandit.w.mean())
    deviation = float(torch.stack(ends).std())
    assert 0.1 < deviation < 0.5


@pytest.mark.parametrize("steps", STEPS)
@pytest.mark.parametrize("k", CLASSES)
def test_the_worst_class_gets_half_of_the_softmax_in_half_of_the_run(k: int, steps: int) -> None:
    draws = steps * BATCH
    bandit = sampler(k, eta="auto", draws=draws)
    halfway, end = (float(expected_p(bandit, class_errors(k), n)[k // 2]) for n in (draws // 2, draws))
    if bandit.eta < 0.999 * step_size.for_lead(k, draws):
        # Too few draws for so many classes to tell them apart.
        assert draws < max(5 * math.log(k), (10 * math.log(max(2, k - 1))) ** 2) * k / 0.5
        assert 1 / k < halfway < end
    else:
        share = 2 / 3 if k == 2 else 1 / 2
        assert halfway == pytest.approx(0.5 / k + 0.5 * share, rel=1e-3)
        assert end > halfway


@pytest.mark.parametrize("method", ["cfol", "cfol-reweighted", "group-dro"])
@pytest.mark.parametrize(("k", "steps"), [(2, 100), (3, 300), (10, 100), (10, 1000), (100, 4000)])
def test_the_class_bandits_themselves_find_the_worst_class(method: str, k: int, steps: int) -> None:
    row = methods.get(method)
    bandit = row.sampler(torch.arange(k), k, {"eta": "auto"}, draws=steps * BATCH)
    simulate(bandit, class_errors(k), steps)
    p = bandit.p
    assert p is not None
    assert int(p.argmax()) == k // 2
    start = 1 / k
    assert float(p[k // 2]) > start + 0.3 * (1 - start) * (1 - bandit.gamma)


def test_a_mistake_never_moves_a_class_by_more_than_the_lemma_allows() -> None:
    bandit = sampler(1000, eta="auto", draws=100, baseline="mean")
    assert bandit.eta == pytest.approx(bandit.gamma / 1000)
    # The reweighted bandit draws uniformly: a mistake is divided by 1/k and not by gamma/k.
    assert sampler(1000, eta="auto", draws=100, reweight=True).eta == pytest.approx(1 / 1000)


def test_one_mistake_of_the_rarest_class_does_not_decide() -> None:
    """With base=empirical its p is far below gamma / k, and a mistake adds eta / p to w."""
    labels = torch.tensor([0] * 90 + [1] * 9 + [2])
    bandit = ClassSampler(labels, eta="auto", draws=1, base="empirical")
    assert bandit.eta == pytest.approx(0.5 * 0.01)
    assert bandit.eta <= float(bandit.p.min())
    assert ClassSampler(labels, eta="auto", draws=1, base=[0.2, 0.2, 0.6]).eta == pytest.approx(0.5 * 0.2)
    # A uniform base is divided, not multiplied: the same bits as ever.
    assert all(sampler(k, eta="auto", draws=1).eta == 0.5 / k for k in range(4, 200))
    # The weighted variant draws uniformly whatever the base.
    drawn_evenly = ClassSampler(labels, eta="auto", draws=1, base="empirical", reweight=True)
    assert drawn_evenly.eta == pytest.approx(0.5 * math.sqrt(1 / 3))


@pytest.mark.parametrize("epochs", [5, 50, 500])
def test_the_example_bandit_gives_hard_examples_four_times_the_weight(epochs: int) -> None:
    n = 64
    errors = torch.zeros(n)
    errors[: n // 8] = 1.0
    steps = epochs * n // BATCH + 1
    bandit = ExampleSampler(n, eta="auto", draws=steps * BATCH)
    simulate(bandit, errors, steps)
    w = bandit.tree.w.double() * 2.0**-36
    factor = float((w[: n // 8].mean() - w[n // 8 :].mean()).exp())
    assert factor == pytest.approx(4, rel=0.35)


def test_data_sets_that_are_not_the_paper_s_follow_the_length_of_the_run() -> None:
    for name in ("cfol", "cfol-reweighted", "fol", "group-dro"):
        row = methods.get(name)
        assert row.params(dataset="folder")["eta"] == "auto"
        assert row.params(dataset="folder", given={"eta": "1e-5"})["eta"] == 1e-5
        for paper in methods.PAPER_DATA_SETS:
            assert isinstance(row.params(dataset=paper)["eta"], float)
    kept = {
        name: methods.get(name).params(dataset="fashion-mini")["eta"] for name in ("cfol", "fol", "group-dro")
    }
    assert kept == {"cfol": 1e-4, "fol": 5e-6, "group-dro": 8e-5}


def test_at_the_start_it_is_said_what_p_can_reach() -> None:
    line, told = sampler(10, eta="auto", draws=48_000).outlook(48_000)
    assert "from 0.1 to 0.3 at half of the run and 0.5 at its end (at most 0.55)" in line
    # Two deviations of a difference: 2 sqrt(2 / (48,000 * 0.05)), and half of it about a baseline.
    assert "errors differ by 5.77 points or more" in told
    assert "by 2.89 points" in sampler(10, draws=48_000, baseline="running").outlook(48_000)[1]
    assert len(sampler(10, draws=48_000, signal="holdout").outlook(48_000)) == 1
    *_, warning = sampler(10, eta=2e-6).outlook(48_000)
    assert "take eta=auto, which is 0.000229 here" in warning
    assert len(sampler(10, eta=2e-6).outlook(62_600 * 128)) == 2
    (line,) = ExampleSampler(5000, eta="auto", draws=48_000).outlook(48_000)
    assert "ends with 4 times the weight" in line
    assert len(ExampleSampler(5000, eta=1e-7).outlook(48_000)) == 2


def run_of(bandit: IndexSampler, errors: torch.Tensor, epochs: int = 5, steps: int = 20) -> list[str]:
    history = []
    for _ in range(epochs):
        simulate(bandit, errors, steps)
        history.append([] if bandit.p is None else bandit.p.tolist())
    return bandit.review(history)


def suggested(line: str) -> float:
    return float(line.partition("eta=")[2])


def test_at_the_end_it_is_said_that_p_hardly_moved_and_which_eta_to_try() -> None:
    (line,) = run_of(sampler(10, eta=2e-6), class_errors(10))
    assert "hardly moved" in line
    assert suggested(line) > 1e-4
    assert run_of(sampler(10, eta="auto", draws=100 * BATCH), class_errors(10)) == []
    (line,) = run_of(ExampleSampler(64, eta=1e-8), (torch.arange(64) < 8).float())
    assert "hardly moved" in line
    assert suggested(line) > 1e-7


def test_at_the_end_it_is_said_that_p_was_at_its_cap_and_which_eta_to_try() -> None:
    (line,) = run_of(sampler(10, eta=0.05), class_errors(10))
    assert "at its cap of 0.55" in line
    assert 1e-4 < suggested(line) <= 0.025
    (line,) = run_of(ExampleSampler(64, eta=0.01), (torch.arange(64) < 8).float())
    assert "single examples" in line
    assert 1e-5 < suggested(line) < 0.005


def test_a_bandit_that_mixes_alone_has_nothing_to_say() -> None:
    assert run_of(sampler(10, gamma=1.0), class_errors(10)) == []


# --- what nobody said
# ------------------------------------------------------------------------------------------------------------

N = 2_000
LABELS = torch.arange(N) % 10


def said_by(make: Callable[[], IndexSampler], use: Callable[[IndexSampler], object]) -> list[str]:
    """The warnings of making a sampler and using it."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        use(make())
    return [str(one.message) for one in caught]


def trained(bandit: IndexSampler, passes: int = 4) -> torch.Tensor | None:
    """p after some passes in which class 3 is always wrong and the others are at 40 %."""
    noise = torch.Generator().manual_seed(0)
    for _ in range(passes * N // 50):
        idx = bandit.draw(50)
        y = LABELS[idx]
        bandit.observe(
            idx, y, torch.rand(50, generator=noise) < torch.where(y == 3, 1.0, 0.4), bandit.ticket()
        )
    return bandit.p


class ImageFolderLike(torch.utils.data.Dataset):
    targets = LABELS.tolist()

    def __len__(self) -> int:
        return N


@pytest.mark.parametrize(
    "labels",
    [
        LABELS,
        LABELS.tolist(),
        LABELS.numpy(),
        ImageFolderLike(),
        torch.utils.data.Subset(ImageFolderLike(), range(N)),
    ],
    ids=["tensor", "list", "numpy", "data set", "subset"],
)
def test_the_natural_call_learns(labels: object) -> None:
    """`ClassSampler(dataset)`: eta="auto" for 30 passes, whatever the labels come in."""
    bandit = ClassSampler(labels)
    assert bandit.draws == 30 * N
    assert bandit.eta == ClassSampler(LABELS, eta="auto", draws=30 * N).eta
    p = trained(bandit, passes=10)
    assert p is not None
    assert p[3] > 0.3


@pytest.mark.parametrize("options", [{}, {"reweight": True}, {"base": "empirical"}, {"gamma": 0.9}])
def test_draws_alone_decide_the_step_size(options: dict[str, object]) -> None:
    bandit = ClassSampler(LABELS, draws=1_000_000, **options)
    assert bandit.eta == ClassSampler(LABELS, eta="auto", draws=1_000_000, **options).eta
    assert bandit.eta != ClassSampler(LABELS, draws=2_000_000, **options).eta
    assert bandit.draws == 1_000_000
    assert "draws=1000000" in repr(bandit)


def test_what_became_of_the_theory_s_step_is_taken_with_its_C() -> None:
    eta = ClassSampler(LABELS, eta="theory", C=300.0).eta
    assert ClassSampler(LABELS, eta=eta, C=300.0).eta == eta
    with pytest.raises(InputError, match="C belongs to eta='theory'"):
        ClassSampler(LABELS, eta=1e-3, C=300.0)


def test_examples_have_the_same_default() -> None:
    assert ExampleSampler(N).eta == ExampleSampler(N, eta="auto", draws=30 * N).eta
    assert ExampleSampler(N, draws=1000 * N).eta == pytest.approx(2 * math.log(2) / (1000 * N))
    with pytest.raises(InputError, match="C belongs to eta='theory'"):
        ExampleSampler(N, C=3.0)


@pytest.mark.parametrize("name", ["cfol", "cfol-reweighted", "cfol-trades"])
def test_the_table_of_methods_passes_the_paper_s_number(name: str) -> None:
    row = methods.get(name)
    assert row.sampler(LABELS, 10).eta == 2e-6
    assert row.sampler(LABELS, 10, row.params({}, "cifar10"), draws=1000).eta == 2e-6
    assert (
        row.sampler(LABELS, 10, row.params({}, "folder"), draws=1000 * N).eta
        == ClassSampler(LABELS, draws=1000 * N).eta
    )


def by_the_listing(eta: float) -> Callable[[IndexSampler], None]:
    """The paper's listing: the step size is in the argument of `batch_update`."""

    def use(bandit: IndexSampler) -> None:
        assert isinstance(bandit, ClassSampler)
        for _ in range(100):
            y = LABELS[bandit.draw(50)]
            bandit.batch_update(y, eta * (y % 2 == 1).float())

    return use


STILL = {
    "eta of another run": (lambda: ClassSampler(LABELS, eta=2e-6), trained, "eta=auto"),
    "eta for fewer draws than it needs": (
        lambda: ClassSampler(LABELS, eta=1e-4, draws=5000),
        trained,
        "eta=auto",
    ),
    "reweighted": (lambda: ClassSampler(LABELS, eta=2e-6, reweight=True), trained, "eta=auto"),
    "gamma of 1": (lambda: ClassSampler(LABELS, gamma=1.0), trained, "gamma=1"),
    "examples": (lambda: ExampleSampler(N, eta=1e-8), trained, "eta=auto"),
    "examples, gamma of 1": (lambda: ExampleSampler(N, gamma=1.0), trained, "gamma=1"),
    "nobody updates": (
        lambda: ClassSampler(LABELS),
        lambda s: [s.draw(100) for _ in range(100)],
        "nobody told",
    ),
    "nobody updates, as a torch sampler": (
        lambda: ExampleSampler(N),
        lambda s: [list(s) for _ in range(3)],
        "nobody told",
    ),
    "the listing's eta": (lambda: ClassSampler(LABELS), by_the_listing(2e-6), "eta=auto"),
}


@pytest.mark.parametrize("name", STILL)
def test_a_sampler_whose_p_cannot_move_warns_once(name: str) -> None:
    make, use, word = STILL[name]
    said = said_by(make, use)
    assert len(said) == 1, said
    assert word in said[0]


MOVING = {
    "the default": (lambda: ClassSampler(LABELS), trained),
    "a state of another": (lambda: loaded(ClassSampler(LABELS, eta=1e-9)), trained),
    "a number that fits": (lambda: ClassSampler(LABELS, eta=1e-3), trained),
    "the paper's number and run": (lambda: ClassSampler(LABELS, eta=2e-6, draws=8_000_000), trained),
    "the theory's": (lambda: ClassSampler(LABELS, eta="theory"), trained),
    "examples": (lambda: ExampleSampler(N), trained),
    "the listing": (lambda: ClassSampler(LABELS), by_the_listing(1e-3)),
    "uniform": (lambda: UniformSampler(N), trained),
    "fixed": (lambda: FixedClassSampler(LABELS, torch.full((10,), 0.1)), trained),
}


def loaded(bandit: ClassSampler) -> ClassSampler:
    other = ClassSampler(LABELS)
    bandit.load_state_dict(other.state_dict())
    return bandit


@pytest.mark.parametrize("name", MOVING)
def test_a_sampler_whose_p_moves_warns_of_nothing(name: str) -> None:
    assert said_by(*MOVING[name]) == []


def test_what_a_run_says_itself_is_not_warned_of_again() -> None:
    bandit = ClassSampler(LABELS, eta=2e-6)
    assert len(bandit.outlook(10_000)) == 3
    assert said_by(lambda: bandit, trained) == []


def test_one_class_is_refused() -> None:
    with pytest.raises(InputError, match="at least 2 classes"):
        ClassSampler([0] * N)


def test_other_ranks_are_silent() -> None:
    assert said_by(lambda: ClassSampler(LABELS, eta=2e-6, rank=1, world_size=2), lambda s: s.draw(10)) == []
