"""The model as an attack uses it: a function of its input alone, in eval mode; afterwards the model is as it
was.
"""

from __future__ import annotations

import contextlib
import dataclasses
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from cfol_fast.errors import InputError
from cfol_fast.frozen import heap, proof, tracing
from cfol_fast.frozen.autotune import choices
from cfol_fast.frozen.tracing import HOOKS, Frozen, Plan, Record, record_for
from cfol_fast.machine import bfloat16_trouble
from cfol_fast.ranks import Ranks

Network = Callable[[Tensor], Any]


_entering = threading.Lock()
# For each model that is in evaluation mode: how many blocks it is in, and the modules to put back.
_inside: weakref.WeakKeyDictionary[nn.Module, tuple[int, list[nn.Module]]] = weakref.WeakKeyDictionary()


@contextlib.contextmanager
def evaluation_mode(model: nn.Module) -> Iterator[None]:
    """Puts every module in eval mode inside the block, and back into its own mode afterwards.

    Two threads may be inside with the same model: the last to leave puts the modes back.
    """
    with _entering:
        blocks, training = _inside.get(model, (0, []))
        for module in (module for module in model.modules() if module.training):
            module.training = False
            training.append(module)
        _inside[model] = blocks + 1, training
    try:
        yield
    finally:
        with _entering:
            blocks, training = _inside.pop(model)
            if blocks > 1:
                _inside[model] = blocks - 1, training
            else:
                for module in training:
                    module.training = True


def bare(model: nn.Module) -> nn.Module:
    """The network inside the wrappers that would record, reduce or compile the attack's passes: those of
    torch's own, on which nothing adds to what the network does.
    """
    inside = _inside_of(model)
    return model if inside is None else bare(inside)


def _inside_of(wrapper: Any) -> nn.Module | None:
    attributes = vars(wrapper)
    if any(attributes.get(hooks) for hooks in HOOKS):
        return None
    if type(wrapper) in (nn.parallel.DistributedDataParallel, nn.DataParallel):
        parallel: nn.Module = wrapper.module
        return None if "forward" in attributes else parallel
    # torch.compile's wrapper, which has a `forward` of its own on each instance.
    dynamo = sys.modules.get("torch._dynamo.eval_frame")
    if dynamo is not None and type(wrapper) is dynamo.OptimizedModule:
        original: nn.Module = wrapper._orig_mod
        return original if hasattr(attributes.get("forward"), "_torchdynamo_orig_callable") else None
    return None


@contextlib.contextmanager
def frozen(
    model: nn.Module, device: torch.device, fast: bool = True, dtype: torch.dtype | None = None
) -> Iterator[Network]:
    """The model's logits as a function of x, with constant weights; gradients flow to the input. x itself is
    never written to.

    fast: BatchNorm is folded where the model can be traced, and where the fast network has proven to be the
    model; other models run as they are, on contiguous images. dtype: the precision of the passes; without it
    that of the surrounding autocast, or the model's.
    """
    model = bare(model)
    has_autocast = device.type != "meta" and torch.amp.is_autocast_available(device.type)
    if dtype is None and has_autocast and torch.is_autocast_enabled(device.type):
        dtype = torch.get_autocast_dtype(device.type)
    lower = dtype if dtype in (torch.bfloat16, torch.float16) else None
    if lower is torch.bfloat16 and (trouble := bfloat16_trouble(device)):
        raise InputError(trouble)
    precision: contextlib.AbstractContextManager[object] = contextlib.nullcontext()
    if has_autocast and (lower is not None or torch.is_autocast_enabled(device.type)):
        precision = torch.autocast(device.type, lower, enabled=lower is not None)
    with evaluation_mode(model), precision, heap.kept(device):
        if not fast:
            yield _on_a_copy(model)
            return
        record = record_for(model)
        if record.plan is None:
            yield _on_contiguous_images(model)
            return
        with contextlib.ExitStack() as inside:
            try:
                layers = inside.enter_context(record.plan.frozen(model, lower))
            except Exception as error:
                if not proof.is_ours(error):
                    raise
                settle(record, model, "", proof.raised(error))
                yield _on_contiguous_images(model)
                return
            yield _Guarded(model, record, layers)
        choices().keep()


def minds_layout(network: Network) -> bool:
    """Whether images in channels_last may be an error to the model that this network, of `frozen`, stands
    for.
    """
    return not isinstance(network, _Guarded) or network.minds_layout


def how(model: nn.Module) -> str:
    """How attacks run this model: "fast", or "plain: " and the reason."""
    model = bare(model)
    with evaluation_mode(model):
        record = record_for(model)
    return "fast" if record.plan is not None else f"plain: {record.reason}"


def agree(model: nn.Module, x: Tensor, ranks: Ranks, number: int) -> None:
    """Before the ranks attack parts of one batch: the first makes the proof that is due, on its images, and
    all take its outcome.

    number: of the step, so that it does not matter how many processes take part. The attacks are then made
    within `proof.paused`.
    """
    model, case = bare(model), proof.case_of(x)
    if not proof.possible(x):
        return
    with evaluation_mode(model):
        record = record_for(model)
        wanted = record.plan is not None and proof.due(dataclasses.replace(record, calls=number), case)
        if ranks.size > 1:
            wanted = bool(ranks.largest(torch.tensor(int(wanted))))
        if wanted:
            settle(record, model, case, ranks.from_first(lambda: why_not_fast(model, record, x)))


def decide_for_all(model: nn.Module, x: Tensor | None, ranks: Ranks) -> None:
    """Before ranks share an evaluation: the first makes a proof, on x, and all take its outcome.

    The attacks are made within `proof.paused`.
    """
    model = bare(model)
    with evaluation_mode(model):

        def prove() -> dict[str, Any] | None:
            record = record_for(model)
            if x is not None and record.plan is not None and proof.possible(x):
                settle(record, model, proof.case_of(x), why_not_fast(model, record, x))
            return tracing.proof_outcome(model)

        found = ranks.from_first(prove)
        if not ranks.is_first:
            record_for(model)
            tracing.adopt_proof(model, found)


def count_attacks(model: nn.Module, number: int) -> None:
    """After ranks shared so many attacks on the model, which no proof counted: the number of its attacks, by
    which proofs are due, does not depend on how many processes there are.
    """
    model = bare(model)
    with evaluation_mode(model):
        record_for(model).calls += number


def why_not_fast(model: nn.Module, record: Record, x: Tensor) -> str | None:
    """Makes a proof; inside `evaluation_mode`."""
    plan = record.plan
    if plan is None:
        return record.reason
    with plan.frozen(model, None) as layers:
        fast = _of_plan(model, plan, layers)
        return proof.disagreement(model, record.functions, _on_contiguous_images(model), fast, x)


def settle(record: Record, model: nn.Module, case: str, reason: str | None) -> None:
    """Notes the outcome of a proof."""
    if reason is None:
        record.proven.add(case)
    elif record.plan is not None:
        record.plan, record.reason = None, reason
        proof.warn(model, reason)


def _on_a_copy(model: nn.Module) -> Network:
    """Some models write to their images: torch refuses that for those that gradients are asked of, and ours
    are used again.
    """
    return lambda x: model(x.clone())


def _on_contiguous_images(model: nn.Module) -> Network:
    """In the layout that everybody's images have: ours is our own affair."""
    return lambda x: model(x.clone(memory_format=torch.contiguous_format))


def _of_plan(model: nn.Module, plan: Plan, layers: list[Frozen]) -> Network:
    forward = partial(plan.forward, model, layers)
    return (lambda x: forward(x.clone())) if plan.writes_to_images else forward


class _Guarded:
    """The fast network of one attack: its first pass makes the proof that is due, and is made again on the
    model if it fails.
    """

    def __init__(self, model: nn.Module, record: Record, layers: list[Frozen]) -> None:
        assert record.plan is not None
        self._model, self._record = model, record
        self._network = _of_plan(model, record.plan, layers)
        self._is_first = True

    @property
    def minds_layout(self) -> bool:
        plan = self._record.plan
        return plan is None or plan.minds_layout

    def __call__(self, x: Tensor) -> Any:
        if not self._is_first or not proof.possible(x):
            return self._network(x)
        self._is_first = False
        model, record, case = self._model, self._record, proof.case_of(x)
        record.calls += 1
        if record.plan is not None and proof.due(record, case):
            settle(record, model, case, why_not_fast(model, record, x))
        if record.plan is None:
            self._network = _on_contiguous_images(model)
            return self._network(x)
        before = proof.random_states(x.device)
        try:
            return self._network(x)
        except Exception as error:
            if not proof.is_ours(error):
                raise
            reason = proof.raised(error)
        proof.put_back_random_states(before)
        plain = _on_contiguous_images(model)
        found = plain(x)
        settle(record, model, case, reason)
        self._network = plain
        return found
