"""The table of training methods: each row says what to draw, what to minimise, which attack to train on and
which class policy to follow.

The trainer knows no method by name. A new method is a new row here, made of existing samplers, objectives and
policies or of new ones. Each row says where its defaults come from: the paper, or the release of a method
beyond it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from cfol_fast import objectives, policies, sampling
from cfol_fast.errors import InputError
from cfol_fast.ranks import Ranks
from cfol_fast.sampling import IndexSampler
from cfol_fast.user_input import did_you_mean, parse_parameter

Params = Mapping[str, Any]
# They keep the paper's step sizes; where a method has none for another data set, it follows the length of the
# run.
PAPER_DATA_SETS = ("cifar10", "cifar100", "stl10", "tiny-imagenet", "imagenette")


@dataclass(frozen=True)
class SamplerInputs:
    """What a row's sampler is built from. previous: (k,) robust class accuracies after the stage before, or
    None.
    """

    labels: Tensor
    num_classes: int
    seed: int
    device: torch.device | str | None
    previous: Tensor | None


@dataclass(frozen=True)
class Method:
    """A row.

    `origin` says where each default comes from; `datasets` holds defaults that differ for one data set.

    section: of the paper; for a method beyond it, who published it and where.
    colour: the method's own in charts, a name of reporting/theme.py; methods without one take what is free.
    baseline: what the other methods are compared with. note: what a reader of a table with this method has to
    know.
    """

    name: str
    title: str
    section: str
    summary: str
    draw: Callable[[SamplerInputs, Params], IndexSampler]
    minimise: Callable[[Params, int], objectives.Objective]
    defaults: Mapping[str, Any] = field(default_factory=dict)
    origin: str = ""
    datasets: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    attack: str | None = "pgd"
    policy: type[policies.ClassPolicy] = policies.Neutral
    stages: int = 1
    colour: str | None = None
    baseline: bool = False
    note: str = ""

    def params(self, given: Params | None = None, dataset: str | None = None) -> dict[str, Any]:
        """The defaults for `dataset`, overridden by `given`; numbers may come as text ("8/255").

        Unknown names are refused.
        """
        merged = {**self.defaults, **self.datasets.get(dataset or "", {})}
        if dataset and dataset not in {*PAPER_DATA_SETS, *self.datasets}:
            merged |= self._for_own_data(merged, given or {})
        for name, value in (given or {}).items():
            if name not in merged:
                raise InputError(f"{self.name} has no parameter {name!r}{did_you_mean(name, merged)}")
            merged[name] = self.as_parameter(name, value)
        return merged

    def as_parameter(self, name: str, value: Any) -> Any:
        """The value of a parameter from its text; "none" is a word where the parameter takes words."""
        found = parse_parameter(value)
        return "none" if found is None and isinstance(self.defaults.get(name), str) else found

    @staticmethod
    def _for_own_data(defaults: Params, given: Params) -> dict[str, Any]:
        """What a bandit takes on data that are not the paper's: docs/bandit.md has the evidence."""
        own = {"eta": "auto"} if "eta" in defaults else {}
        # The theory is about the bandit without a baseline; and errors on a hold-out need none.
        without = given.get("eta") == "theory" or given.get("signal") == "holdout"
        if "baseline" in defaults and not without:
            own["baseline"] = "running"
        return own

    def default_in_words(self, name: str) -> str:
        """A default with what differs by data set: '2e-06 (imagenette 5e-06, fashion-mini 0.0001; data that
        are not the paper's: auto)'.
        """
        others = [f"{data} {own[name]:g}" for data, own in self.datasets.items() if name in own]
        said = str(self.defaults[name])
        if name in (elsewhere := self._for_own_data(self.defaults, {})):
            others.append(f"data that are not the paper's: {elsewhere[name]}")
        return f"{said} ({', '.join(others)})" if others else said

    def sampler(
        self,
        labels: Tensor,
        num_classes: int,
        params: Params | None = None,
        seed: int = 0,
        device: torch.device | str | None = None,
        previous: Sequence[float] | Tensor | None = None,
        draws: int | None = None,
        ranks: Ranks | None = None,
    ) -> IndexSampler:
        """labels: (N,) int64. previous: the robust class accuracies of stage 1, for stage 2. draws: of the
        run, for eta="auto".

        ranks: this process's place among those of the run.
        """
        accuracies = None if previous is None else torch.as_tensor(previous, dtype=torch.float64)
        full = {"draws": draws, **self.params(params)}
        made = self.draw(SamplerInputs(labels, num_classes, seed, device, accuracies), full)
        if ranks is not None:
            made.join(ranks)
        return made

    def objective(
        self, params: Params | None, num_classes: int, label_smoothing: float = 0.0
    ) -> objectives.Objective:
        return self.minimise(self.params(params), num_classes).with_label_smoothing(label_smoothing)

    def class_policy(
        self,
        params: Params | None,
        num_classes: int,
        epochs: int,
        device: torch.device | str | None = None,
        ranks: Ranks | None = None,
        in_shards: bool = False,
    ) -> policies.ClassPolicy:
        full = self.params(params)
        made = self.policy(num_classes, epochs, device, **{name: full[name] for name in self.policy.options})
        if ranks is not None:
            made.join(ranks, in_shards)
        return made


def register(method: Method) -> Method:
    """Adds a row of one's own, from outside of this package: `methods.register(methods.Method(name=...,
    ...))`.
    """
    if method.name in METHODS:
        raise InputError(f"there is a method {method.name!r} already: give yours another name")
    METHODS[method.name] = method
    return method


def get(name: str) -> Method:
    """The row called `name`."""
    if name in METHODS:
        return METHODS[name]
    raise InputError(f"unknown method {name!r}{did_you_mean(name, METHODS)}")


def _uniform(inputs: SamplerInputs, params: Params) -> IndexSampler:
    return sampling.UniformSampler(inputs.labels.numel(), inputs.seed, inputs.device)


def _classes(inputs: SamplerInputs, params: Params, reweight: bool = False) -> IndexSampler:
    return sampling.ClassSampler(
        inputs.labels,
        seed=inputs.seed,
        device=inputs.device,
        num_classes=inputs.num_classes,
        reweight=reweight,
        # A row may have parameters of its objective or policy beside the bandit's.
        **{name: params[name] for name in (*_OF_THE_SAMPLER, "draws") if name in params},
    )


def _reweighted(inputs: SamplerInputs, params: Params) -> IndexSampler:
    return _classes(inputs, params, reweight=True)


def _balanced(inputs: SamplerInputs, params: Params) -> IndexSampler:
    return sampling.FixedClassSampler(
        inputs.labels, "uniform", inputs.seed, inputs.device, num_classes=inputs.num_classes
    )


def _examples(inputs: SamplerInputs, params: Params) -> IndexSampler:
    return sampling.ExampleSampler(inputs.labels.numel(), seed=inputs.seed, device=inputs.device, **params)


def _second_run(inputs: SamplerInputs, params: Params) -> IndexSampler:
    if inputs.previous is None:
        return _uniform(inputs, params)
    p = sampling.two_run_distribution(inputs.previous, params["gamma"])
    return sampling.FixedClassSampler(
        inputs.labels, p, inputs.seed, inputs.device, num_classes=inputs.num_classes
    )


def _mean(params: Params, num_classes: int) -> objectives.Objective:
    return objectives.Mean()


def _trades(params: Params, num_classes: int) -> objectives.Objective:
    return objectives.Trades(params["beta"])


_BANDIT = {
    "eta": 2e-6,
    "gamma": 0.5,
    "prior": "uniform",
    "base": "uniform",
    "C": None,
    "baseline": "none",
    "feedback": "error",
    "signal": "training",
}
# All but what the training step does: it makes the feedback from its logits.
_OF_THE_SAMPLER = tuple(name for name in _BANDIT if name != "feedback")
_BANDIT_ORIGIN = (
    "eta and gamma: appendix C, hyperparameters; Imagenette has a fifth of the steps, so eta is 2.5 times"
    " larger; prior and base: the paper's; C: of the theory, for eta=theory alone; baseline, feedback and"
    " signal: none, error and training are the paper's, mean or running, margin and holdout our own"
)
# The demo has a few hundred steps, for which "auto" would be 2.3e-4; its figures are those of half of that.
_BANDIT_DATASETS = {"imagenette": {"eta": 5e-6}, "fashion-mini": {"eta": 1e-4}}
_TRADES = {"beta": 6.0}
_TRADES_ORIGIN = "beta: Zhang et al. 2019, whose weights the paper compares with"
_CFA = {"begin": 0.05, "offset": 0.5}
_CFA_ORIGIN = "begin: epoch 10 of 200, as a share of the run; offset: the release"
_DAFA = {"begin": 70 / 110, "strength": 1.0}
_DAFA_ORIGIN = "begin: epoch 70 of 110, as a share of the run; strength: the release's lambda"
_DAFA_DATASETS = {"cifar100": {"strength": 1.5}, "stl10": {"strength": 1.5}}

METHODS: dict[str, Method] = {
    row.name: row
    for row in [
        Method(
            name="erm",
            title="ERM-AT",
            section="3 and 5",
            summary=(
                "Adversarial training as usual (Madry et al.): every example once per epoch, the mean loss."
            ),
            draw=_uniform,
            minimise=_mean,
            colour="slate",
            baseline=True,
        ),
        Method(
            name="cfol",
            title="CFOL-AT",
            section="4, Algorithm 1",
            summary=(
                "A bandit over the classes: those that the model gets wrong under attack are drawn more"
                " often."
            ),
            draw=_classes,
            minimise=_mean,
            defaults=_BANDIT,
            origin=_BANDIT_ORIGIN,
            datasets=_BANDIT_DATASETS,
            colour="indigo",
        ),
        Method(
            name="cfol-reweighted",
            title="CFOL-AT (reweighted)",
            section="4.1",
            summary="CFOL with classes drawn uniformly and losses weighted by k times the bandit's p.",
            draw=_reweighted,
            minimise=_mean,
            defaults=_BANDIT,
            origin=_BANDIT_ORIGIN,
            datasets=_BANDIT_DATASETS,
        ),
        Method(
            name="fol",
            title="FOL-AT",
            section="5, appendix C",
            summary="A bandit over the examples instead of the classes (Shalev-Shwartz and Wexler).",
            draw=_examples,
            minimise=_mean,
            defaults={"eta": 1e-7, "gamma": 0.5, "C": None},
            origin="eta: appendix C, hyperparameters; gamma and C: as for CFOL",
            datasets={"fashion-mini": {"eta": 5e-6}},
            colour="teal",
        ),
        Method(
            name="cvar",
            title="CVaR-AT",
            section="appendix B",
            summary="The mean loss of the worst fraction alpha of each batch.",
            draw=_uniform,
            minimise=lambda params, k: objectives.CVaR(params["alpha"]),
            defaults={"alpha": 0.8},
            origin="the paper trains no CVaR: alpha is that of LCVaR",
            colour="violet",
        ),
        Method(
            name="lcvar",
            title="LCVaR-AT",
            section="5, appendices B and C",
            summary="CVaR over the mean losses of the batch's classes (Xu et al.).",
            draw=_uniform,
            minimise=lambda params, k: objectives.LCVaR(params["alpha"], k),
            defaults={"alpha": 0.8},
            origin="alpha: appendix C, hyperparameters",
            colour="amber",
            note=(
                "LCVaR-AT: the loss of the authors' implementation equals ERM's divided by α for every α < 1,"
                " so the paper's column is ERM with another scale of the gradient. Ours is the true LCVaR,"
                " the value of its linear programme."
            ),
        ),
        Method(
            name="trades",
            title="TRADES",
            section="5, larger models",
            summary=(
                "Clean loss plus beta times the divergence under attack; the attack maximises that"
                " divergence."
            ),
            draw=_uniform,
            minimise=_trades,
            defaults=_TRADES,
            origin=_TRADES_ORIGIN,
            attack="trades",
            colour="rose",
        ),
        Method(
            name="two-run",
            title="Two-run baseline",
            section="appendix C, naive baseline",
            summary="ERM-AT first; then again, with classes drawn by their accuracies after the first run.",
            draw=_second_run,
            minimise=_mean,
            defaults={"gamma": 0.5},
            origin="gamma: the better of the table's two by its 20 % tail",
            stages=2,
            colour="green",
        ),
        Method(
            name="clean",
            title="Clean training",
            section="1 and appendix C, figures",
            summary="No attack: the images as they are.",
            draw=_uniform,
            minimise=lambda params, k: objectives.Clean(),
            attack=None,
            colour="blue",
        ),
        Method(
            name="group-dro",
            title="Group DRO",
            section="2 and 4.1 (Sagawa et al. 2020)",
            summary=(
                "Exponentiated class weights on the loss with very little mixing; classes are drawn"
                " uniformly."
            ),
            draw=_reweighted,
            minimise=_mean,
            defaults={"eta": 8e-5, "gamma": 0.01, "C": None},
            origin=(
                "eta: Sagawa's 0.01 per step, divided by the 128 examples of a step; data sets that are not"
                " the paper's take eta=auto; gamma: our own, very little, as Exp3 needs some; C: as for CFOL"
            ),
            datasets={"fashion-mini": {"eta": 8e-5}},
        ),
        Method(
            name="cfol-trades",
            title="CFOL-TRADES",
            section="4 with Zhang et al. 2019",
            summary="TRADES on classes drawn by CFOL's bandit.",
            draw=_classes,
            minimise=_trades,
            defaults={**_BANDIT, **_TRADES},
            origin=f"{_BANDIT_ORIGIN}; {_TRADES_ORIGIN}",
            datasets=_BANDIT_DATASETS,
            attack="trades",
        ),
        Method(
            name="cfa",
            title="CFA-AT",
            section="Wei et al., CVPR 2023",
            summary=(
                "The radius of each class follows its training robust accuracy: hard classes get a smaller"
                " one."
            ),
            draw=_uniform,
            minimise=_mean,
            defaults=_CFA,
            origin=_CFA_ORIGIN,
            policy=policies.CFA,
        ),
        Method(
            name="cfa-trades",
            title="CFA-TRADES",
            section="Wei et al., CVPR 2023",
            summary="CFA on TRADES: the radius and beta of each class follow its training robust accuracy.",
            draw=_uniform,
            minimise=lambda params, k: objectives.BalancedTrades(params["beta"]),
            defaults={**_TRADES, **_CFA},
            origin=f"{_TRADES_ORIGIN}; {_CFA_ORIGIN}",
            attack="trades",
            policy=policies.CFATrades,
        ),
        Method(
            name="dafa",
            title="DAFA-AT",
            section="Lee et al., ICLR 2024",
            summary=(
                "Once, after a warm-up, hard classes take weight and radius from the easier ones they are"
                " mistaken for."
            ),
            draw=_uniform,
            minimise=_mean,
            defaults=_DAFA,
            origin=_DAFA_ORIGIN,
            datasets=_DAFA_DATASETS,
            policy=policies.DAFA,
        ),
        Method(
            name="dafa-trades",
            title="DAFA-TRADES",
            section="Lee et al., ICLR 2024",
            summary="DAFA on TRADES: the weight is that of the clean term.",
            draw=_uniform,
            minimise=_trades,
            defaults={**_TRADES, **_DAFA},
            origin=f"{_TRADES_ORIGIN}; {_DAFA_ORIGIN}",
            datasets=_DAFA_DATASETS,
            attack="trades",
            policy=policies.DAFATrades,
        ),
        Method(
            name="frl",
            title="FRL",
            section="Xu et al., ICML 2021",
            summary=(
                "TRADES with weights, and larger radii, for classes whose hold-out errors are above the mean."
            ),
            draw=_uniform,
            minimise=lambda params, k: objectives.NormalisedTrades(params["beta"]),
            defaults={
                "beta": 1.5,
                "remargin": True,
                "tolerance": None,
                "weight_rate": 0.05,
                "radius_rate": 0.2,
            },
            origin=(
                "beta, remargin, weight_rate and radius_rate: the release; tolerance none: its 0.07, or 0.1"
                " with remargin=false. It fine-tunes for 40 epochs at lr 0.001"
            ),
            attack="trades",
            policy=policies.FRL,
        ),
        Method(
            name="wat",
            title="WAT",
            section="Li and Liu, AAAI 2023",
            summary="TRADES with class weights by Hedge over the classes' cumulative hold-out losses.",
            draw=_uniform,
            minimise=_trades,
            defaults={**_TRADES, "hedge_rate": 0.1, "released": False},
            origin=(
                f"{_TRADES_ORIGIN}; hedge_rate: the release; released=true: its weights instead of Hedge's"
            ),
            attack="trades",
            policy=policies.WAT,
        ),
        Method(
            name="faal",
            title="FAAL-AT",
            section="Zhang et al., CVPR 2024",
            summary="Each batch with the worst class weights in a KL ball, by the classes' mean margins.",
            draw=_uniform,
            minimise=lambda params, k: objectives.FAAL(params["radius"], k),
            defaults={"radius": 0.5},
            origin="radius: the release, which fine-tunes for two epochs",
        ),
        Method(
            name="chi2",
            title="Chi2-AT",
            section="the ball of CODAT, arXiv 2501.04527",
            summary=(
                "Each batch with the worst class weights in a chi-square ball, by the classes' mean losses."
            ),
            draw=_uniform,
            minimise=lambda params, k: objectives.ChiSquare(params["rho"], k),
            defaults={"rho": 0.5},
            origin=(
                "rho: a start of our own, to be chosen on the hold-out; with 0.5 the value is the mean plus"
                " one deviation of the class losses"
            ),
        ),
        Method(
            name="lhcvar",
            title="LHCVaR-AT",
            section="the authors' code",
            summary="LCVaR with a level for each class; one level for all is LCVaR.",
            draw=_uniform,
            minimise=lambda params, k: objectives.LHCVaR(params["alpha"], k),
            defaults={"alpha": 0.8},
            origin="alpha: that of LCVaR, as in the authors' code; a list gives each class its own",
        ),
        Method(
            name="balanced",
            title="Balanced AT",
            section="4 with gamma = 1",
            summary=(
                "Classes are drawn uniformly, without a bandit: the baseline of CFOL where classes are"
                " unbalanced."
            ),
            draw=_balanced,
            minimise=_mean,
        ),
    ]
}
