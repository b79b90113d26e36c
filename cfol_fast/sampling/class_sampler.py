"""CFOL, the paper's method: Exp3 over the classes (Algorithm 1), and its reweighted variant (section 4.1).

The adversary keeps one number per class, w. Classes are drawn from p = gamma * base + (1 - gamma) *
softmax(w) and an example uniformly within its class; every mistake adds eta / p[y] to its class's w. (The
paper prints a minus, which would
favour the easy classes: see docs/differences.md.) With a baseline, which is our own, the same mistakes are
heard with less noise.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from cfol_fast import ops
from cfol_fast.errors import InputError
from cfol_fast.ranks import Ranks
from cfol_fast.sampling import step_size
from cfol_fast.sampling.classes import classes_of, distribution
from cfol_fast.sampling.index_sampler import (
    IndexSampler,
    Ticket,
    bandit_loss,
    check_tensor,
    checked_gamma,
    checked_state,
)
from cfol_fast.user_input import shorten, whole_number

BASELINES = ("none", "mean", "running")
SIGNALS = ("training", "holdout")


class ClassSampler(IndexSampler):
    """Draws classes more often the more often the model classifies them wrongly.

    A sampler warns once if its p cannot move in so many draws. The variants UU, EU and EE of the paper's
    table on imbalance are pairs of (prior, base).

    Args:
        labels: int tensor (N,), sequence, or data set with `targets`.
        eta: step size of the adversary: a number; "auto", for a run that draws `draws` examples; or "theory",
            with the mistake bound `C`.
        gamma: share of `base` in p.
        prior: class probabilities of the first step: "uniform", "empirical" (the class frequencies) or k
            probabilities.
        base: the distribution that p is mixed with; the same values as `prior`.
        reweight: draw classes uniformly, and weight losses with k * p[y] instead.
        seed: start of the sampler's random numbers.
        device: device of the sampler's tensors.
        num_classes: number of classes, if some have no example.
        C: mistake bound of eta="theory".
        draws: number of examples that the run will draw: steps times batch size. By default, 30 passes.
        baseline: value that is subtracted from each loss before the division by p, and added to every class.
            It keeps the mean of an update and reduces its noise. "running": the error of each class so far.
            "mean": the error of all classes so far. "none": nothing, as in the paper.
        signal: "holdout" learns only from the errors of a hold-out, passed to `hear` after an epoch.
        rank: number of this process among those that train together. Each process draws its part, and
            `update` sums over all of them.
        world_size: number of these processes.
        process_group: their group, in place of rank and world_size.
    """

    learns = True

    def __init__(
        self,
        labels: Any,
        eta: float | str = "auto",
        gamma: float = 0.5,
        prior: str | Sequence[float] | Tensor = "uniform",
        base: str | Sequence[float] | Tensor = "uniform",
        reweight: bool = False,
        seed: int = 0,
        device: torch.device | str | None = None,
        *,
        num_classes: int | None = None,
        C: float | None = None,
        draws: int | None = None,
        baseline: str = "none",
        signal: str = "training",
        rank: int | None = None,
        world_size: int | None = None,
        process_group: Any = None,
    ) -> None:
        self.gamma = checked_gamma(gamma)
        self.classes = classes_of(labels, num_classes, device)
        ranks = Ranks(rank, world_size, process_group)
        super().__init__(self.classes.size, seed, self.classes.offsets.device, ranks)
        self.k = self.classes.count
        if self.k < 2:
            raise InputError(f"the labels must be of at least 2 classes, got {self.k}: check the data set")
        if not isinstance(reweight, bool):
            raise InputError(f"reweight must be True or False, got {reweight!r}")
        self.reweight = reweight
        self.baseline = _one_of("baseline", baseline, BASELINES)
        self.signal = _one_of("signal", signal, SIGNALS)
        if signal == "holdout" and baseline != "none":
            raise InputError(
                f"baseline={baseline!r} belongs to signal='training': no p divides a hold-out's errors"
            )
        # Of a batch it learns only with the training signal, and is told by `hear` otherwise.
        self.learns, self.hears_holdout = signal == "training", signal == "holdout"
        # The draws and losses that the baseline is made of, if there is one.
        rows = {"none": 0, "mean": 1, "running": self.k}[self.baseline]
        self._seen = ops.new_seen(rows, self.device) if rows else None
        self.base = distribution(base, self.classes, "base")
        self._prior = distribution(prior, self.classes, "prior")
        self.w = self._prior.log()
        self._uniform = distribution("uniform", self.classes, "uniform")
        self.draws = step_size.draws_of(draws, self.size)
        proven = baseline == "none" and signal == "training"
        self.eta = step_size.choose(eta, self.k, C, lambda: self.automatic_eta(self.draws), proven)
        self._drawn: Tensor | None = None
        # Whether `batch_update` saw the step size of the caller.
        self._heard_eta = False
        self.unsaid = self._why_still(self.eta, self.draws, step_size.FAR_FROM[draws is None])

    def automatic_eta(self, draws: int) -> float:
        """What "auto" means for a run that will draw so many examples."""
        if self.signal == "holdout":
            return step_size.for_lead(self.k, draws)
        return min(step_size.for_lead(self.k, draws), self._largest_eta(draws))

    def _largest_eta(self, draws: int) -> float:
        """Beyond it chance would choose the class, not the errors."""
        return step_size.largest(draws, self._least_p(), step_size.VARIANCE[self.baseline])

    def _least_p(self) -> float:
        """The smallest probability that a class can be drawn with. Reads it back from the device."""
        if self.reweight:
            return 1.0 / self.k
        if self.base.is_meta or torch.equal(self.base, self._uniform):
            return self.gamma / self.k
        return self.gamma * float(self.base.min())

    def _why_still(self, eta: float, draws: int, factor: float) -> str | None:
        """Why p cannot move in so many draws, or None. factor: how much smaller than "auto" an eta may be."""
        if self.gamma == 1:
            return "with gamma=1 p cannot move: the classes are drawn from base alone"
        automatic = self.automatic_eta(draws)
        return step_size.too_small(eta, draws, automatic) if eta < automatic / factor else None

    @property
    def p(self) -> Tensor:
        """gamma * base + (1 - gamma) * q: (k,) float64."""
        return ops.exp3_distribution(self.w, self.base, self.gamma)[0]

    @property
    def q(self) -> Tensor:
        """softmax(w): (k,) float64."""
        return ops.exp3_distribution(self.w, self.base, self.gamma)[1]

    def _draw(self, n: int) -> Tensor:
        classes = self.classes
        base, gamma = (self._uniform, 1.0) if self.reweight else (self.base, self.gamma)
        idx, _, self._drawn = ops.exp3_draw(
            self.w, base, gamma, classes.offsets, classes.members, self.rng, n
        )
        return idx

    def update(self, y: Tensor, loss: Tensor, p: Tensor | Ticket | None = None) -> None:
        """w[y] += eta * loss / p[y], summed over the batch. y: (B,) int64; loss: (B,) in [0, 1] or bool.

        `p`: (k,) is the distribution that drew this batch (`ticket()` right after its draw, or a loader's
        ticket); by default that of the latest draw. A caller that draws ahead must pass it, or the estimate
        of the class risks is biased. Every rank calls it, with the p of the same draw; the numbers of
        examples may differ.
        """
        check_tensor("y", y)
        if isinstance(p, Ticket):
            self.take_back(p, y, loss)
            p = p.p
        if p is None:
            p = self._drawn
            if p is None:
                raise ValueError(
                    "update came before any draw: draw(n) a batch first, or pass the p that drew it"
                )
        if self.signal == "holdout":
            raise InputError(
                "a sampler with signal='holdout' learns nothing from a batch: tell it the hold-out's errors"
                " with hear(error, draws) after an epoch, or take signal='training'"
            )
        self._learn(p, y, bandit_loss(loss), self.eta, self._seen)

    def _learn(self, p: Tensor, y: Tensor, loss: Tensor, eta: float, seen: Tensor | None) -> None:
        if seen is None and self.ranks.size == 1:
            ops.exp3_update_(self.w, p, y, loss, eta, self.fault)
        else:
            tally = ops.new_tally(self.k, self.device)
            ops.class_tally_(tally, y, loss, self.fault)
            if seen is None:
                ops.exp3_add_sums_(self.w, p, self.ranks.sum(tally[:, 1].contiguous()), eta)
            else:
                # What the batch is compared with was fixed before it: however late it comes, the estimate
                # is unbiased.
                ops.exp3_learn_(self.w, p, self.ranks.sum(tally), seen, eta, self.fault)
        self._updates += 1

    def hear(self, error: Tensor, draws: int) -> None:
        """With signal="holdout": w += eta * draws * error, once an epoch of so many draws of all ranks.

        error: (k,) the classes' errors on a hold-out, NaN for a class without images, which counts as an
        average one. Every rank calls it with the same errors.
        """
        check_tensor("error", error)
        error = error.to(self.device, torch.float64)
        if error.shape != (self.k,):
            raise InputError(f"error must have {self.k} entries, one per class, got {tuple(error.shape)}")
        if not error.is_meta and (bool(((error < 0) | (error > 1)).any()) or bool(error.isnan().all())):
            raise InputError(
                f"error must be in [0, 1] and known for some class, got {shorten(error.tolist())}"
            )
        error = torch.where(error.isnan(), error.nanmean(), error)
        ops.exp3_add_(self.w, self.eta * (whole_number("draws", draws, 1) * error))
        self._updates += 1

    def batch_update(self, y: Tensor, eta_times_loss: Tensor) -> None:
        """The call of the paper's listing: the argument already contains the step size (`sampler.eta`), and p
        is the current one.
        """
        if y.numel() == 0 and self.ranks.size == 1:
            return
        if not self._heard_eta:
            self._hear_eta(eta_times_loss)
        p = self._uniform if self.reweight else self.p
        eta_times_loss = eta_times_loss.to(torch.float32)
        # The op counts losses in units of 2^-30, too coarse for numbers like 2e-6: give it x / m and p / m
        # instead.
        largest = torch.cat([eta_times_loss.abs(), eta_times_loss.new_zeros(1)]).max().clamp(2.0**-100, 1.0)
        if self.ranks.size > 1:
            largest = self.ranks.largest(largest)
        # Without a baseline: the losses cannot be told from the step size that they are multiplied with.
        self._learn(p / largest, y, eta_times_loss / largest, 1.0, None)

    def _hear_eta(self, eta_times_loss: Tensor) -> None:
        """Looks once, at the first mistakes, whether the caller's step size can move p.

        Reads one number back from the device.
        """
        if eta_times_loss.is_meta or (eta_times_loss.is_cuda and torch.cuda.is_current_stream_capturing()):
            return
        eta = float(eta_times_loss.max()) if eta_times_loss.numel() else 0.0
        if eta > 0:
            self._heard_eta = True
            self.unsaid = self._why_still(eta, self.draws, step_size.FAR_FROM[True])
            self.warn_once()

    def ticket(self) -> Tensor | None:
        return self._drawn

    def _labels_of(self, ticket: Ticket) -> Tensor | None:
        return self.classes.labels[ticket.idx]

    def observe(self, idx: Tensor, y: Tensor, loss: Tensor, ticket: Tensor | None) -> None:
        if self.signal == "training":
            self.update(y, loss, ticket)

    def weight(self, y: Tensor) -> Tensor | None:
        """k * p[y] in the reweighted variant: (B,) float64; otherwise None, since the draw itself
        follows p.
        """
        return self.k * self.p[y] if self.reweight else None

    def settings(self) -> dict[str, Any]:
        settings = {**super().settings(), "num_classes": self.k, "eta": self.eta, "gamma": self.gamma}
        settings["draws"] = self.draws
        if self.baseline != "none":
            settings["baseline"] = self.baseline
        if self.signal != "training":
            settings["signal"] = self.signal
        return {**settings, "reweight": True} if self.reweight else settings

    def outlook(self, draws: int) -> list[str]:
        """What p can reach in a run of so many draws, and a warning where that is next to nothing."""
        k, lead = self.k, step_size.GAP * self.eta * draws

        def p_at(lead: float) -> float:
            return self.gamma / k + (1 - self.gamma) * step_size.softmax_share(k, lead)

        said = [
            f"bandit: eta {self.eta:.3g}, {draws:,} draws: the p of a class that fails {step_size.GAP:.0%}"
            f" more often than the others goes from {1 / k:.3g} to {p_at(lead / 2):.3g} at half of the run"
            f" and {p_at(lead):.3g} at its end (at most {p_at(math.inf):.3g})"
        ]
        if self.signal == "training":
            differ = step_size.resolution(draws, self._least_p(), step_size.VARIANCE[self.baseline])
            said.append(
                f"bandit: {draws:,} draws tell apart classes whose errors differ by {100 * differ:.3g} points"
                f" or more (two deviations; baseline {self.baseline})"
            )
        if why := self._why_still(self.eta, draws, step_size.FAR_FROM[False]):
            said.append(f"warning: {why}")
        self.unsaid = None
        return said

    def review(self, history: list[list[float]]) -> list[str]:
        """Whether p hardly moved or was at its cap in the run that ends, and which eta to try. history: p
        after every epoch.
        """
        prior, q, k = self._prior, self.q, self.k
        # How far the class that gained most is ahead of the others together, beyond where it began.
        gained = int((q / prior).argmax())
        odds = [float(each[gained] / (1 - each[gained])) for each in (prior, q)] if k > 1 else [1.0, 1.0]
        lead = math.log(odds[1] / odds[0]) if odds[1] < math.inf else math.inf
        capped = [
            max(
                (value - self.gamma * base) / (1 - self.gamma)
                for value, base in zip(p, self.base.tolist(), strict=True)
            )
            > 0.95
            for p in history
            if self.gamma < 1
        ]
        cap = self.gamma * float(self.base[gained]) + 1 - self.gamma
        if sum(capped) > len(capped) / 2:
            what = f"p of one class was at its cap of {cap:.3g} in {sum(capped)} of {len(capped)} epochs"
            smaller = self.eta * step_size.target_lead(k) / lead if lead < math.inf else self.eta / 10
            return [
                f"bandit: {what}: a smaller eta lets it follow the errors, try --set"
                f" eta={min(smaller, self.eta / 2):.2g}"
            ]
        if lead < 0.1 * step_size.target_lead(k) and self.gamma < 1:
            larger = self.eta * min(step_size.target_lead(k) / max(lead, 1e-3), 100)
            if self.signal == "training":
                larger = min(larger, self._largest_eta(self.draws))
            moved = f"bandit: p hardly moved, to {float(self.p.max()):.3g} at most"
            if larger < 2 * self.eta:
                return [f"{moved}: no class failed much more often than the others, or the run was too short"]
            return [f"{moved}: try --set eta={larger:.2g}"]
        return []

    def state_dict(self) -> dict[str, Any]:
        state = {
            "kind": "class",
            "size": self.size,
            "eta": self.eta,
            "gamma": self.gamma,
            "reweight": self.reweight,
            "w": self.w.clone(),
            "base": self.base.clone(),
            "rng": self.rng.clone(),
        }
        if self.signal != "training":
            state["signal"] = self.signal
        if self._seen is not None:
            state |= {"baseline": self.baseline, "seen": self._seen.clone()}
        return state if self._drawn is None else {**state, "drawn": self._drawn.clone()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        for name, plain in (
            (("baseline", "none"), ("signal", "training")) if isinstance(state, Mapping) else ()
        ):
            mine, theirs = getattr(self, name), state.get(name, plain)
            if theirs != mine:
                raise InputError(
                    f"the state is of a sampler with {name}={theirs!r}, this one has {name}={mine!r}:"
                    " make it with the state's"
                )
        state = checked_state(state, {**self.state_dict(), "drawn": self.base})
        if self._seen is not None:
            if not state["seen"].is_meta and not ops.is_seen(state["seen"]):
                raise InputError("the state's seen are no draws and losses: it is damaged")
            self._seen.copy_(state["seen"])
        self.eta, self.gamma, self.reweight = state["eta"], state["gamma"], state["reweight"]
        self.w.copy_(state["w"])
        self.base = state["base"].to(self.device, copy=True)
        self.rng.copy_(state["rng"])
        drawn = state.get("drawn")
        self._drawn = None if drawn is None else drawn.to(self.device, copy=True)
        self._updates += 1


def _one_of(name: str, given: Any, known: tuple[str, ...]) -> str:
    if not isinstance(given, str) or given not in known:
        raise InputError(f"{name} must be one of {', '.join(known)}, got {shorten(given)}")
    return given
