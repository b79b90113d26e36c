"""AutoAttack (Croce and Hein, 2020), standard version, through `pyautoattack`: with progress, and a state
that survives a kill.

The attacks run one after another, each on the examples that withstood those before, in batches. After every
batch the state is written; a run that was killed continues with the next batch, and ends with the flags it
would have had. That works because pyautoattack seeds every batch anew, so a batch does not depend on what ran
before it in the process.

The attacks work on the frozen network, BatchNorm folded in, which gives the model's logits up to rounding in
less time. What counts is
the model itself: an image that is broken on the frozen network alone is attacked again, on the model.
"""

from __future__ import annotations

import contextlib
import copy
import logging
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from cfol_fast import atomic
from cfol_fast.attacks.attack import check_radius
from cfol_fast.errors import InputError
from cfol_fast.evaluation.rows import Rows, check_complete
from cfol_fast.evaluation.sharing import fingerprint, model_fingerprint, one_round
from cfol_fast.frozen import (
    Network,
    bare,
    choices,
    decide_for_all,
    evaluation_mode,
    frozen,
    logits_in,
    paused,
)
from cfol_fast.machine import versions
from cfol_fast.ranks import Ranks
from cfol_fast.runs.json_files import read_object

STANDARD = ("apgd-ce", "apgd-t", "fab-t", "square")
NORMS = {"linf": "Linf", "l2": "L2"}
# The targeted DLR loss looks at the four largest logits.
LEAST_CLASSES = 4
FORMAT = 1
STATE_SHAPE = {
    "identity!": {str: object},
    "attack!": int,
    "batch!": int,
    "start!": str,
    "predictions!": [int],
    "attacked twice": [int],
    "choices": {str: str},
}


class AutoAttack:
    """AutoAttack on `model` with radius `eps`; `state` is the file that lets a killed run continue.

    attacks: the parts to run, by default the four of the standard version.
    fast: attack the frozen network, where the model can be frozen, and confirm on the model itself.
    attacked_twice: after `run`, the images that were broken on the frozen network but not on the model, which
    was attacked then.
    """

    kind = "autoattack"

    def __init__(
        self,
        model: nn.Module,
        eps: float,
        norm: str = "linf",
        seed: int = 0,
        state: str | Path | None = None,
        attacks: Sequence[str] = STANDARD,
        fast: bool = True,
    ) -> None:
        if norm not in NORMS:
            raise InputError(f"norm must be one of {', '.join(NORMS)}, got {norm!r}")
        check_radius(eps, "eps", norm)
        unknown = [name for name in attacks if name not in STANDARD]
        if unknown or not attacks:
            raise InputError(
                f"the parts of AutoAttack are {', '.join(STANDARD)}, got {', '.join(unknown) or 'none'}"
            )
        self.model, self.eps, self.norm, self.seed = model, float(eps), norm, seed
        self.state = None if state is None else Path(state)
        self.attacks, self.fast = tuple(attacks), fast
        self.attacked_twice: list[int] = []

    def describe(self) -> dict[str, Any]:
        return {
            "kind": self.kind,
            "version": "standard" if self.attacks == STANDARD else "parts",
            "norm": self.norm,
            "eps": self.eps,
            "attacks": list(self.attacks),
            "seed": self.seed,
        }

    @property
    def note(self) -> str | None:
        """What a reader of the result should know."""
        if not self.attacked_twice:
            return None
        numbers = ", ".join(map(str, self.attacked_twice))
        return (
            "AutoAttack broke these images on the network with BatchNorm folded in, but not on the model"
            f" itself, where they were attacked again: {numbers}"
        )

    def run(
        self,
        x: Tensor,
        y: Tensor,
        clean: Tensor,
        device: torch.device,
        batch_size: int = 256,
        progress: Callable[[int, int], Any] | None = None,
        ranks: Ranks | None = None,
    ) -> Tensor:
        """(N,) int64: the prediction for each example after all attacks.

        x: (N, C, H, W), y and clean (the predictions without attack): (N,), on the CPU.
        progress: called with (done, total) after every batch; only their ratio means something.
        ranks: share the batches of each attack, a round at a time; the first of them keeps the state.
        """
        ranks = ranks or Ranks(world_size=1)
        state = ranks.from_first(lambda: self._begin(x, y, clean, device, batch_size))
        if state.choices:
            choices().pin(state.choices)
        adversary = None
        if ranks.size > 1 and self.fast:
            with one_round(ranks):
                adversary = self._adversary(x, device)
            decide_for_all(adversary.model.model, x[:8].to(device), ranks)
        for number, name in enumerate(self.attacks):
            if number < state.attack:
                continue
            left = state.candidates.nonzero().squeeze(1)
            # Without examples there would be one piece, an empty one.
            pieces = left.split(batch_size) if len(left) else ()
            while round_of := pieces[state.batch : state.batch + ranks.size]:
                with one_round(ranks) as this:
                    for piece in round_of[ranks.rank : ranks.rank + 1]:
                        adversary = adversary or self._adversary(x, device)
                        with paused() if ranks.size > 1 else contextlib.nullcontext():
                            this.found = self._attack(adversary, name, x[piece], y[piece], device)
                for piece, (found, twice) in zip(round_of, this.all, strict=False):
                    state.attacked.fill(piece, torch.tensor(found), state.batch)
                    state.predictions[piece] = torch.tensor(found)
                    state.attacked_twice.update(piece[twice].tolist())
                state.batch += len(round_of)
                ranks.from_first(lambda: self._save(state))
                with one_round(ranks):
                    if progress is not None:
                        progress(number * len(pieces) + state.batch, len(self.attacks) * len(pieces))
            state.next_attack(y, name, batch_size)
            ranks.from_first(lambda: self._save(state))
        self.attacked_twice = sorted(state.attacked_twice)
        return state.predictions

    def _begin(self, x: Tensor, y: Tensor, clean: Tensor, device: torch.device, batch_size: int) -> _State:
        """The state to start from: that of the file, where there is one."""
        state = _State(self._identity(x, y, batch_size), clean, y)
        if self.state is not None and self.state.exists():
            state.restore(self.state, y, batch_size, len(self.attacks), self._classes(x, device))
        return state

    def _classes(self, x: Tensor, device: torch.device) -> int:
        with torch.no_grad(), evaluation_mode(self.model):
            return int(logits_in(self.model(x[:1].to(device).clone())).shape[1])

    def _adversary(self, x: Tensor, device: torch.device) -> Any:
        try:
            import pyautoattack
        except ModuleNotFoundError:
            raise InputError("AutoAttack needs pyautoattack: pip install pyautoattack") from None
        # A copy, because parts of AutoAttack leave gradients in the parameters
        model = _Attacked(copy.deepcopy(bare(self.model)).requires_grad_(False)).eval()
        with torch.no_grad():
            k = model(x[:1].to(device)).shape[1]
        if k < LEAST_CLASSES:
            raise InputError(
                f"AutoAttack's targeted loss needs at least {LEAST_CLASSES} classes, the model has {k};"
                " use PGD"
            )
        adversary = pyautoattack.AutoAttack(
            model, norm=NORMS[self.norm], eps=self.eps, seed=self.seed, version="standard", device=device
        )
        adversary.apgd_targeted.n_target_classes = min(adversary.apgd_targeted.n_target_classes, k - 1)
        adversary.fab.n_target_classes = min(adversary.fab.n_target_classes, k - 1)
        return adversary

    def _attack(
        self, adversary: Any, name: str, x: Tensor, y: Tensor, device: torch.device
    ) -> tuple[list[int], list[int]]:
        """(the model's predictions for the batch, the places of the images that were attacked twice)."""
        adversary.attacks_to_run = [name]
        # In another layout its `view` raises.
        x, y, model = x.to(device).contiguous(), y.to(device), adversary.model

        def attacked(rows: Tensor) -> tuple[Tensor, Tensor]:
            found: tuple[Tensor, Tensor] = adversary.run_standard_evaluation(
                x[rows], y[rows], batch_size=len(rows)
            )
            return found

        with _undisturbed(device), evaluation_mode(model):
            with model.frozen(device, self.fast):
                x_adv, predicted = attacked(torch.arange(len(x), device=device))
            broken = (predicted != y).nonzero().squeeze(1)
            if len(broken):
                with torch.no_grad():
                    predicted[broken] = model(x_adv[broken]).argmax(1)
            twice = broken[predicted[broken] == y[broken]]
            if len(twice):
                predicted[twice] = attacked(twice)[1]
        return predicted.tolist(), twice.tolist()

    def _save(self, state: _State) -> None:
        if self.state is not None:
            atomic.write_json(self.state, state.to_json())

    def _identity(self, x: Tensor, y: Tensor, batch_size: int) -> dict[str, Any]:
        return {
            "model": model_fingerprint(self.model),
            "data set": fingerprint([x, y]),
            "radius": self.eps,
            "norm": self.norm,
            "attacks": list(self.attacks),
            "seed": self.seed,
            "batch size": batch_size,
            "way of computing": "frozen" if self.fast else "as it is",
            "pyautoattack": versions().get("pyautoattack", "not installed"),
        }


class _Attacked(nn.Module):
    """The model, with gradients of the input in the layout that pyautoattack can `view`: a channels_last
    model returns others.
    """

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model
        # In a list, where torch does not take what computes the logits for a part of the model.
        self._networks: list[Network] = [model]

    @contextlib.contextmanager
    def frozen(self, device: torch.device, fast: bool) -> Iterator[None]:
        """Inside the block the logits are the frozen network's."""
        with frozen(self.model, device, fast) as network:
            self._networks.append(network)
            try:
                yield
            finally:
                self._networks.pop()

    def forward(self, x: Tensor) -> Tensor:
        # The model may write to its images.
        x = x.clone()
        if x.requires_grad:
            x.register_hook(Tensor.contiguous)
        return logits_in(self._networks[-1](x))


class _State:
    """How far the attacks are: the attack's number, the batch, the examples it works on, the predictions so
    far.

    candidates: (N,) bool, what withstood the attacks before the current one; its batches are made of these.
    attacked: what the current attack found; until it has found something, an example of its batches has no
    result.
    choices: the ways to compute layers of the run that is continued, so that it ends with the flags it would
    have had.
    """

    def __init__(self, identity: dict[str, Any], clean: Tensor, y: Tensor) -> None:
        self.identity = identity
        self.attack = self.batch = 0
        self.predictions = clean.clone()
        self.candidates = clean == y
        self.attacked = Rows(len(y))
        self.attacked_twice: set[int] = set()
        self.choices: dict[str, str] = {}

    def next_attack(self, y: Tensor, name: str, batch_size: int) -> None:
        """After the attack `name`, which must have found a result for each of its examples."""
        times = self.attacked.times[self.candidates]
        check_complete(times, f"AutoAttack's {name}", lambda row: row // batch_size)
        self.attacked = Rows(len(y))
        self.attack, self.batch = self.attack + 1, 0
        self.candidates = self.predictions == y

    def to_json(self) -> dict[str, Any]:
        return {
            "format": FORMAT,
            "kind": "autoattack-state",
            "identity": self.identity,
            "attack": self.attack,
            "batch": self.batch,
            "start": "".join("1" if flag else "0" for flag in self.candidates.tolist()),
            "predictions": self.predictions.tolist(),
            "attacked twice": sorted(self.attacked_twice),
            "choices": choices().chosen,
        }

    def restore(self, path: Path, y: Tensor, batch_size: int, attacks: int, classes: int) -> None:
        """Continues from the file; the state of another evaluation is refused, with what differs, and so is
        nonsense.
        """
        stored = read_object(path, STATE_SHAPE)
        if stored.get("kind") != "autoattack-state" or stored.get("format") != FORMAT:
            raise InputError(f"{path} is not an AutoAttack state of this version; choose another file")
        different = [name for name, value in self.identity.items() if stored["identity"].get(name) != value]
        if different:
            raise InputError(
                f"the AutoAttack state {path} belongs to another {', '.join(different)}; delete it or choose"
                " another file"
            )
        candidates = torch.tensor([digit == "1" for digit in stored["start"]], dtype=torch.bool)
        predictions = torch.tensor(stored["predictions"], dtype=torch.int64)
        wrong = self._nonsense(stored, candidates, predictions, y, batch_size, attacks, classes)
        if wrong is not None:
            raise InputError(f"the AutoAttack state {path} is damaged ({wrong}); delete it to begin again")
        self.attack, self.batch = stored["attack"], stored["batch"]
        self.candidates, self.predictions = candidates, predictions
        done = candidates.nonzero().squeeze(1)[: self.batch * batch_size]
        self.attacked.fill(done, predictions[done], self.batch)
        self.attacked_twice = set(stored.get("attacked twice") or ())
        self.choices = stored.get("choices") or {}

    def _nonsense(
        self,
        stored: dict[str, Any],
        candidates: Tensor,
        predictions: Tensor,
        y: Tensor,
        batch_size: int,
        attacks: int,
        classes: int,
    ) -> str | None:
        """What no evaluation of these examples could have written; None for a state that one could have."""
        clean = self.predictions
        if not len(candidates) == len(predictions) == len(y) or set(stored["start"]) - {"0", "1"}:
            return f"its start and predictions must be of {len(y)} examples"
        batches = -(-int(candidates.sum()) // batch_size)
        if not 0 <= stored["attack"] <= attacks or not 0 <= stored["batch"] <= batches:
            return f"attack {stored['attack']} of {attacks}, batch {stored['batch']} of {batches}"
        if bool((candidates & (clean != y)).any()) or (
            stored["attack"] == 0 and not torch.equal(candidates, clean == y)
        ):
            return "its start holds examples that the model gets wrong without an attack"
        # The attacks go through the candidates in order: those behind the batch are as they were, right.
        waiting = candidates.nonzero().squeeze(1)[stored["batch"] * batch_size :]
        if bool((predictions == y)[~candidates].any()) or bool((predictions != y)[waiting].any()):
            return "its predictions do not belong to its start"
        if bool((predictions != clean)[clean != y].any()):
            return "it changed examples that are not attacked"
        if bool(((predictions < 0) | (predictions >= classes)).any()):
            return f"its predictions must be of {classes} classes"
        if not all(0 <= number < len(y) for number in stored.get("attacked twice") or ()):
            return f"the images that were attacked twice must be of {len(y)} examples"
        return None


@contextlib.contextmanager
def _undisturbed(device: torch.device) -> Iterator[None]:
    """Puts back the global random state and the tracer, both of which pyautoattack sets, and silences its
    log.
    """
    tracer, logger = sys.gettrace(), logging.getLogger("auto-attack")
    disabled, logger.disabled = logger.disabled, True
    devices = [device] if device.type == "cuda" else []
    try:
        with torch.random.fork_rng(devices):
            yield
    finally:
        logger.disabled = disabled
        sys.settrace(tracer)
