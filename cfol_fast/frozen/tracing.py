"""Turns a model into a function of its input and of folded convolutions, by recording it once.

During an attack BatchNorm is in eval mode and hence an affine map: it is folded into the convolution before
it. The structure is found once per model; the weights, which change from one training step to the next, are
folded again at every call.

A trace holds as long as `current_fingerprint` says what it said when the model was traced. A test that is
about the other guard, the proof (`frozen.proof`), switches this one off: `monkeypatch.setattr(tracing,
"current_fingerprint", lambda model, functions: ())`.
"""

from __future__ import annotations

import contextlib
import hashlib
import threading
import weakref
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from cfol_fast.errors import one_line
from cfol_fast.frozen import layout, python_state, surroundings
from cfol_fast.frozen.convolution import FrozenConvolution
from cfol_fast.frozen.folding import StaticWeights
from cfol_fast.frozen.fusing import Fold, by_place, fuse
from cfol_fast.frozen.linear import FrozenLinear
from cfol_fast.frozen.names import Named
from cfol_fast.frozen.recording import Recorder, Untraceable
from cfol_fast.frozen.snapshot import Snapshot

Frozen = FrozenConvolution | FrozenLinear
Forward = Callable[[nn.Module, Sequence[Frozen], Tensor], Tensor]
HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


@dataclass(frozen=True)
class Plan:
    """The model's forward pass as generated code over the model's own attributes, with the frozen layers as
    arguments.

    linears: the names of the linear layers among these, which come after the convolutions. writes_to_images:
    it is given a copy.
    minds_layout: the model itself has a `view`, which is an error for maps in channels_last.
    digest: of the code and the layers, the same in every process.
    """

    forward: Forward
    folds: tuple[Fold, ...]
    linears: tuple[str, ...]
    writes_to_images: bool
    minds_layout: bool
    digest: str

    _spare: dict[Hashable, list[StaticWeights]] = field(default_factory=dict, compare=False, repr=False)

    @contextlib.contextmanager
    def frozen(self, model: nn.Module, dtype: torch.dtype | None) -> Iterator[list[Frozen]]:
        """The layers with the model's current weights, those of convolutions cast to `dtype` after folding,
        for the time of the block.

        Their memory is used again by the next block. Blocks that are open at the same time, in two threads,
        have memory of their own.
        """
        convolutions: list[nn.Conv2d] = []
        for fold in self.folds:
            conv = model.get_submodule(fold.conv)
            assert isinstance(conv, nn.Conv2d)
            convolutions.append(conv)
        norms = [None if fold.norm is None else model.get_submodule(fold.norm) for fold in self.folds]
        spare = self._spare.setdefault(StaticWeights.key(convolutions, norms, dtype), [])
        try:
            static = spare.pop()
        except IndexError:
            static = StaticWeights(convolutions, norms, dtype)
        try:
            with torch.no_grad():
                made = static.fill(convolutions, norms)
            layers: list[Frozen] = [
                FrozenConvolution(
                    weight,
                    bias,
                    conv.stride,
                    tuple(int(p) for p in conv.padding),
                    conv.dilation,
                    conv.groups,
                    fold.relu,
                    fold.own_gradient,
                )
                for (weight, bias), conv, fold in zip(made, convolutions, self.folds, strict=True)
            ]
            for name in self.linears:
                linear = model.get_submodule(name)
                assert isinstance(linear, nn.Linear)
                layers.append(FrozenLinear(linear))
            yield layers
        finally:
            spare.append(static)


@dataclass
class Record:
    """What is known of a model in one state. plan: None where it runs as it is, and then `reason` says why.

    calls: attacks so far. proven: the kinds of images for which the fast network has been proven.
    """

    fingerprint: python_state.Fingerprint
    functions: Named
    plan: Plan | None
    reason: str | None
    digest: str = ""
    calls: int = 0
    proven: set[str] = field(default_factory=set)


# Newest first. A model with two heads goes to and fro between two states.
STATES = 4
_records: weakref.WeakKeyDictionary[nn.Module, list[Record]] = weakref.WeakKeyDictionary()
# Outcomes of another process, for models that have not been met here.
_adopted: weakref.WeakKeyDictionary[nn.Module, dict[str, Any]] = weakref.WeakKeyDictionary()
_tracing = threading.RLock()


def current_fingerprint(model: nn.Module, functions: Named) -> python_state.Fingerprint:
    return python_state.fingerprint(model, functions)


def plan_for(model: nn.Module) -> Plan | None:
    """The plan of a model in eval mode, or None where the model has to run as it is."""
    return record_for(model).plan


def record_for(model: nn.Module) -> Record:
    """What is known of a model in eval mode, as it is now: it is traced when it is met first, and when its
    Python state has changed.
    """
    with _tracing:
        known = _records.setdefault(model, [])
        for place, record in enumerate(known):
            try:
                same = current_fingerprint(model, record.functions) == record.fingerprint
            except python_state.TooMuch:
                same = not record.fingerprint
            if same:
                if place:
                    known.insert(0, known.pop(place))
                return record
        record = _met(model)
        known.insert(0, record)
        del known[STATES:]
        return record


def _met(model: nn.Module) -> Record:
    try:
        functions = python_state.named(model)
        fingerprint = current_fingerprint(model, functions)
    except python_state.TooMuch as error:
        return Record((), Named(), None, str(error))
    record = Record(fingerprint, functions, None, _why_not(model))
    if record.reason is None:
        snapshot = Snapshot(model, functions, tensors=False)
        found: Plan | str
        try:
            found = _trace(model)
        finally:
            changed = snapshot.put_back()
        if changed is not None:
            found = f"its forward pass {changed}"
        if isinstance(found, Plan):
            record.plan, record.digest = found, found.digest
        else:
            record.reason = found
    if model in _adopted:
        _take(record, _adopted.pop(model))
    return record


def proof_outcome(model: nn.Module) -> dict[str, Any] | None:
    """What the proofs of the model as it was attacked last have found, for a checkpoint or for other ranks;
    None before the first.
    """
    records = _records.get(model)
    if not records:
        return _adopted.get(model)
    record = records[0]
    return {
        "digest": record.digest,
        "calls": record.calls,
        "proven": sorted(record.proven),
        "reason": record.reason,
    }


def adopt_proof(model: nn.Module, found: dict[str, Any] | None) -> None:
    """Goes on with the outcome that a checkpoint holds or the first rank has, where it is one of this very
    network.
    """
    if found is None:
        return
    _adopted[model] = found
    for record in _records.get(model, ())[:1]:
        _take(record, _adopted.pop(model))


def _take(record: Record, found: dict[str, Any]) -> None:
    if not record.digest or found["digest"] != record.digest:
        return
    record.calls, record.proven = found["calls"], set(found["proven"])
    if found["reason"] is not None:
        record.plan, record.reason = None, found["reason"]


def _why_not(model: nn.Module) -> str | None:
    """What a trace would lose."""
    if any(surroundings.GLOBAL_HOOKS):
        return "there are global hooks on modules"
    for name, module in model.named_modules():
        if any(getattr(module, hooks) for hooks in HOOKS):
            return f"there are hooks on {name or 'the model'}"
    if surroundings.replaced() is not None:
        return f"torch's {surroundings.replaced()} was replaced"
    if surroundings.modes():
        return "a mode changes what torch's functions do"
    return None


def _trace(model: nn.Module) -> Plan | str:
    """The plan, or in words why there is none."""
    try:
        tracer = Recorder(model)
        graph = tracer.graph_of_pass()
        shown = str(graph)
        # A forward pass that takes random decisions in Python, remembers the pass before, or asks for modes
        # gives two different traces.
        if shown != str(tracer.graph_of_pass(otherwise=True)):
            return "two passes of its forward pass are not the same"
        if (name := tracer.changed()) is not None:
            return f"its forward pass changes its attribute {name}"
        by_place(graph)
        modules = dict(model.named_modules())
        writes_to_images, minds_layout = layout.settle(graph, modules)
    except (Untraceable, layout.DependsOnLayout) as error:
        return str(error)
    # The model's own code may raise anything when it is given a proxy.
    except Exception as error:
        return f"its forward pass cannot be traced ({type(error).__name__}: {one_line(error)[:120]})"
    folds, linears = fuse(graph, model)
    graph.lint()
    code = graph.python_code("self")
    namespace = dict(code.globals)
    # torch.fx itself makes a module's forward pass this way; here `self` is the model with its current
    # weights.
    exec(code.src, namespace)
    # Checkpoints name our functions by the room they were in first.
    source = code.src.replace("cfol_fast_frozen_", "cfol_fast_attacks_")
    digest = hashlib.sha256(f"{source}{folds}{linears}".encode()).hexdigest()
    return Plan(namespace["forward"], tuple(folds), tuple(linears), writes_to_images, minds_layout, digest)
