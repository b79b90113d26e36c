"""The table of training methods: each row says what to draw, what to minimise and which attack to train on.

The trainer knows no method by name. A new method is a new row here, made of existing samplers and objectives or of new
ones. The defaults are the paper's; each row says where in the paper they stand.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from cfol_fast import objectives, sampling
from cfol_fast.errors import InputError
from cfol_fast.sampling import IndexSampler
from cfol_fast.user_input import did_you_mean, parse_parameter

Params = Mapping[str, Any]
# They keep the paper's step sizes; where a method has none for another data set, it follows the length of the run.
PAPER_DATA_SETS = ("cifar10", "cifar100", "stl10", "tiny-imagenet", "imagenette")


@dataclass(frozen=True)
class SamplerInputs:
    """What a row's sampler is built from. previous: (k,) robust class accuracies after the stage before, or None."""

    labels: Tensor
    num_classes: int
    seed: int
    device: torch.device | str | None
    previous: Tensor | None


@dataclass(frozen=True)
class Method:
    """A row. `origin` says where each default comes from; `datasets` holds defaults that differ for one data set.

    colour: the method's own in charts, a name of reporting/theme.py; methods without one take what is free. baseline: what the
    other methods are compared with. note: what a reader of a table with this method has to know.
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
    stages: int = 1
    colour: str | None = None
    baseline: bool = False
    note: str = ""

    def params(self, given: Params | None = None, dataset: str | None = None) -> dict[str, Any]:
        """The defaults for `dataset`, overridden by `given`; numbers may come as text ("8/255"). Unknown names are refused."""
        merged = {**self.defaults, **self.datasets.get(dataset or "", {})}
        if "eta" in merged and dataset and dataset not in {*PAPER_DATA_SETS, *self.datasets}:
            merged["eta"] = "auto"
        for name, value in (given or {}).items():
            if name not in merged:
                raise InputError(f"{self.name} has no parameter {name!r}{did_you_mean(name, merged)}")
            merged[name] = parse_parameter(value)
        return merged

    def sampler(
        self,
        labels: Tensor,
        num_classes: int,
        params: Params | None = None,
        seed: int = 0,
        device: torch.device | str | None = None,
        previous: Sequence[float] | Tensor | None = None,
        draws: int | None = None,
    ) -> IndexSampler:
        """labels: (N,) int64. previous: the robust class accuracies of stage 1, for stage 2. draws: of the run, for eta="auto"."""
        accuracies = None if previous is None else torch.as_tensor(previous, dtype=torch.float64)
        full = {"draws": draws, **self.params(params)}
        return self.draw(SamplerInputs(labels, num_classes, seed, device, accuracies), full)

    def objective(self, params: Params | None, num_classes: int) -> objectives.Objective:
        return self.minimise(self.params(params), num_classes)


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
        **params,
    )


def _reweighted(inputs: SamplerInputs, params: Params) -> IndexSampler:
    return _classes(inputs, params, reweight=True)


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


_BANDIT = {"eta": 2e-6, "gamma": 0.5, "prior": "uniform", "base": "uniform", "C": None}
_BANDIT_ORIGIN = "eta and gamma: appendix C, hyperparameters; Imagenette has a fifth of the steps, so eta is 2.5 times larger"
# The demo has a few hundred steps, for which "auto" would be 2.3e-4; its figures are those of half of that.
_BANDIT_DATASETS = {"imagenette": {"eta": 5e-6}, "fashion-mini": {"eta": 1e-4}}

METHODS: dict[str, Method] = {
    row.name: row
    for row in [
        Method(
            name="erm",
            title="ERM-AT",
            section="3 and 5",
            summary="Adversarial training as usual (Madry et al.): every example once per epoch, the mean loss.",
            draw=_uniform,
            minimise=_mean,
            colour="slate",
            baseline=True,
        ),
        Method(
            name="cfol",
            title="CFOL-AT",
            section="4, Algorithm 1",
            summary="A bandit over the classes: those that the model gets wrong under attack are drawn more often.",
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
            origin="eta: appendix C, hyperparameters; gamma: as for CFOL",
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
            note="LCVaR-AT: the loss of the authors' implementation equals ERM's divided by α for every α < 1, so the paper's column is ERM "
            "with another scale of the gradient. Ours is the true LCVaR, the value of its linear programme.",
        ),
        Method(
            name="trades",
            title="TRADES",
            section="5, larger models",
            summary="Clean loss plus beta times the divergence under attack; the attack maximises that divergence.",
            draw=_uniform,
            minimise=lambda params, k: objectives.Trades(params["beta"]),
            defaults={"beta": 6.0},
            origin="beta: Zhang et al. 2019, whose weights the paper compares with",
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
            summary="Exponentiated class weights on the loss with very little mixing; classes are drawn uniformly.",
            draw=_reweighted,
            minimise=_mean,
            defaults={"eta": 8e-5, "gamma": 0.01, "C": None},
            origin="eta: Sagawa's 0.01 per step, divided by the 128 examples of a step; it does not depend on the length of a run",
            datasets={"fashion-mini": {"eta": 8e-5}},
        ),
    ]
}
