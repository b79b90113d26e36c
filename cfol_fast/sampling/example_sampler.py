"""FOL (Shalev-Shwartz and Wexler 2016): Exp3 over the N examples instead of the k classes, on a native sum
tree.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from cfol_fast import ops
from cfol_fast.errors import InputError
from cfol_fast.ranks import Ranks
from cfol_fast.sampling import step_size
from cfol_fast.sampling.index_sampler import (
    IndexSampler,
    Ticket,
    bandit_loss,
    check_tensor,
    checked_gamma,
    checked_state,
)


class ExampleSampler(IndexSampler):
    """Draws examples more often the more often the model classifies them wrongly.

    p = gamma / n + (1 - gamma) * softmax(w) over n examples. Draw and update cost O(log n) per example on the
    CPU. A sampler warns once if its p cannot move in so many draws. The parameters have the same meaning as
    those of `ClassSampler`; `n` is the number of examples.
    """

    tickets_each_example = True
    learns = True

    def __init__(
        self,
        n: int,
        eta: float | str = "auto",
        gamma: float = 0.5,
        seed: int = 0,
        device: torch.device | str | None = None,
        *,
        C: float | None = None,
        draws: int | None = None,
        rank: int | None = None,
        world_size: int | None = None,
        process_group: Any = None,
    ) -> None:
        self.gamma = checked_gamma(gamma)
        super().__init__(n, seed, device, Ranks(rank, world_size, process_group))
        n = self.size
        self.draws = step_size.draws_of(draws, n)
        self.eta = step_size.choose(eta, n, C, lambda: self.automatic_eta(self.draws))
        self.tree = ops.sum_tree_new(n, device)
        # The probabilities of the latest draw, of all ranks.
        self._drawn: Tensor | None = None
        # This rank's indices of the latest draw; None after a state was loaded, which does not hold them.
        self._indices: Tensor | None = None
        # (n,) float64: the probability that each index was last drawn with by an iterator
        self._iterated: Tensor | None = None
        self.unsaid = self._why_still(self.draws, step_size.FAR_FROM[draws is None])

    def _why_still(self, draws: int, factor: float) -> str | None:
        """Why p cannot move in so many draws, or None. factor: how much smaller than "auto" eta may be."""
        if self.gamma == 1:
            return "with gamma=1 p cannot move: all examples are drawn alike"
        automatic = self.automatic_eta(draws)
        return step_size.too_small(self.eta, draws, automatic) if self.eta < automatic / factor else None

    def automatic_eta(self, draws: int) -> float:
        """What "auto" means for a run that will draw so many examples."""
        return step_size.for_examples(draws, self.gamma / self.size)

    def _draw(self, n: int) -> Tensor:
        idx, self._drawn = ops.sum_tree_draw(self.tree, self.gamma, self.rng, n)
        self._indices = self.ranks.mine(idx)
        if self._iterated is not None:
            self._iterated[self.ranks.mine(idx)] = self.ranks.mine(self._drawn)
        return idx

    def update(self, idx: Tensor, loss: Tensor, p: Tensor | Ticket | None = None) -> None:
        """w[i] += eta * loss / p for each drawn example i; one that was drawn twice gains twice. loss: (B,)
        in [0, 1] or bool.

        `p`: (B,) is the probability each was drawn with (`ticket()` right after the draw); by default that of
        the latest draw or, after iterating as a torch sampler, the one that each index was last drawn with. A
        loader's ticket carries the
        indices too: with one, `update(y, loss, p=ticket)` takes the labels as the other samplers do, to see
        that the ticket is theirs. Every rank calls it, with the same number of examples.
        """
        check_tensor("idx", idx)
        if isinstance(p, Ticket):
            self.take_back(p, idx, loss)
            idx, given = p.idx, p.p
        else:
            given = p
        chances = self._latest(idx) if given is None else given
        loss = bandit_loss(loss)
        if self.ranks.size > 1:
            # One message: 24 bytes for each example, whose numbers arrive bit for bit.
            mine = torch.stack([idx, chances.view(torch.int64), loss.to(torch.float64).view(torch.int64)])
            idx, chance_bits, loss_bits = torch.cat(self.ranks.gather(mine), dim=1)
            chances, loss = chance_bits.view(torch.float64), loss_bits.view(torch.float64).to(torch.float32)
        ops.sum_tree_update_(self.tree, idx, loss, chances, self.eta, self.fault)
        self._updates += 1

    def _latest(self, idx: Tensor) -> Tensor:
        if self._iterated is not None:
            return self._iterated[idx]
        drawn = self.ticket()
        if drawn is None:
            raise ValueError("update came before any draw: draw(n) a batch first, or pass the p that drew it")
        if drawn.shape != idx.shape:
            raise ValueError(
                f"the latest draw was of {drawn.numel()} examples, the update is of {idx.numel()}: "
                "pass the p that drew them"
            )
        # On a GPU it would read values back.
        if self._indices is not None and idx.device.type == "cpu" and not torch.equal(idx, self._indices):
            self._say_which(idx)
        return drawn

    def _say_which(self, idx: Tensor) -> None:
        # What is no index at all the op itself refuses.
        if bool(((idx >= 0) & (idx < self.size)).all()):
            raise InputError(
                "the update is not of the indices of the latest draw: ExampleSampler learns by index,"
                " update(idx, loss), or by a loader's ticket, update(y, loss, p=ticket); pass the p that drew"
                " them for others"
            )

    def __iter__(self) -> Iterator[int]:
        # A loader collects a batch from several draws and may ask for more before the update: keep the p of
        # each index.
        if self._iterated is None:
            self._iterated = torch.zeros(self.size, dtype=torch.float64, device=self.device)
        return super().__iter__()

    def ticket(self) -> Tensor | None:
        return None if self._drawn is None else self.ranks.mine(self._drawn)

    def observe(self, idx: Tensor, y: Tensor, loss: Tensor, ticket: Tensor | None) -> None:
        self.update(idx, loss, ticket)

    def settings(self) -> dict[str, Any]:
        return {**super().settings(), "eta": self.eta, "gamma": self.gamma, "draws": self.draws}

    def outlook(self, draws: int) -> list[str]:
        """What the weights can reach in a run of so many draws, and a warning where that is next to
        nothing.
        """
        lead = self.eta * draws
        said = [
            f"bandit: eta {self.eta:.3g}, {draws:,} draws: an example that is always wrong ends with "
            f"{step_size.times(lead)} times the weight of one that never is"
        ]
        if why := self._why_still(draws, step_size.FAR_FROM[True]):
            said.append(f"warning: {why}")
        self.unsaid = None
        return said

    def review(self, history: list[list[float]]) -> list[str]:
        """Whether the weights hardly moved or one example took them all, and which eta to try."""
        w = self.tree.w
        lead = float(w.max() - w.min()) * ops.sum_tree.WEIGHT_UNIT
        target = 2 * math.log(2)
        larger = min(self.eta * target / max(lead, 1e-3), 100 * self.eta, self.gamma / self.size)
        if lead < 0.1 * target and larger > 2 * self.eta:
            return [
                f"bandit: weights hardly moved, the largest is {step_size.times(lead)} times the least: try"
                f" --set eta={larger:.2g}"
            ]
        if lead > math.log(self.size):
            return [
                f"bandit: single examples have {step_size.times(lead)} times the weight of others: try --set"
                f" eta={self.eta * target / lead:.2g}"
            ]
        return []

    def state_dict(self) -> dict[str, Any]:
        state = {
            "kind": "example",
            "size": self.size,
            "eta": self.eta,
            "gamma": self.gamma,
            "rng": self.rng.clone(),
            "tree": [t.clone() for t in self.tree],
        }
        return state if self._drawn is None else {**state, "drawn": self._drawn.clone()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        state = checked_state(state, {**self.state_dict(), "drawn": torch.empty(0, dtype=torch.float64)})
        sums = state["tree"][0]
        if not sums.is_meta and (bool((sums < 0).any()) or int(sums[-1]) != int(sums[: self.size].sum())):
            raise InputError("the state's tree does not add up: it is damaged")
        self.eta, self.gamma = state["eta"], state["gamma"]
        self.rng.copy_(state["rng"])
        for mine, theirs in zip(self.tree, state["tree"], strict=True):
            mine.copy_(theirs)
        drawn = state.get("drawn")
        self._drawn = None if drawn is None else drawn.to(self.device, copy=True)
        self._indices = None
        self._updates += 1
