"""The proof that the fast network is the model: logits and input gradients of a few images of the batch, on
one and on the other.

It is made when a model is met first, after its fingerprint changed, for images of a new size or type, and at
calls 2, 4, 8, 16, ... It compares in the model's own precision without autocast, image by image, and leaves
no trace. Where the two differ, the model runs as it is from then on, and one warning says why. A test that is
about the other guard, the fingerprint (`frozen.tracing`), switches this one off:
`monkeypatch.setattr(proof, "due", lambda record, case: False)`.
"""

from __future__ import annotations

import contextlib
import contextvars
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses import FakeTensor

from cfol_fast.errors import InputError, Stopped, TrainingFailed, one_line
from cfol_fast.frozen.autotune import deciding_nothing
from cfol_fast.frozen.names import Named
from cfol_fast.frozen.outputs import logits_in
from cfol_fast.frozen.snapshot import Snapshot
from cfol_fast.frozen.tracing import Record

# So many images of a batch take part.
IMAGES = 8
# The relative error, in the L2 norm of an image, up to which two networks are one, by the precision of the
# model. Measured in float32 by benchmarks/calibrate_proof.py: 2.4e-6 at most in 13,500 images of eight
# networks, 10,000 of them demo-cnn's. Wrong networks begin at 0.15.
LOGITS = {torch.float64: 1e-6, torch.float32: 1e-3}
# A ReLU whose input is within rounding of 0 may be open in one network and closed in the other, which moves
# the gradient of that image by
# the share of one unit: 3.5e-2 at most in 10,000 images of demo-cnn, 5.8e-2 in one of 500 of VGG-16, 1.5e-2
# in ResNet-18; medians are 1e-6.
GRADIENT = {torch.float64: 0.1, torch.float32: 0.1}
# So many of the images, as a share, may be off by more: each has its own kinks, while another network is off
# in all of them.
KINKS = 0.25
# In half precision a right gradient is off by 0.18, which separates nothing, and right logits by a few
# hundredths.
LOGITS_IN_HALF = 0.15

Network = Callable[[Tensor], Any]
_paused = contextvars.ContextVar("paused", default=False)


@contextlib.contextmanager
def paused() -> Iterator[None]:
    """No proofs and no counting inside: while a CUDA graph is captured, and where somebody else has proven
    for this call.
    """
    token = _paused.set(True)
    try:
        yield
    finally:
        _paused.reset(token)


def due(record: Record, case: str) -> bool:
    """Whether the attack that is being made, number `record.calls` of the model, has to prove the fast
    network for such images.
    """
    return case not in record.proven or record.calls & (record.calls - 1) == 0


def case_of(x: Tensor) -> str:
    """What a trace may depend on besides the model: the size of the images and their type."""
    return f"{'x'.join(map(str, x.shape[1:]))} {str(x.dtype).removeprefix('torch.')} {x.device.type}"


def possible(x: Tensor) -> bool:
    """Not for tensors without numbers, in a graph's capture or in torch.compile: a proof reads from the
    device.
    """
    if x.device.type == "meta" or isinstance(x, FakeTensor) or not len(x) or _paused.get():
        return False
    if torch.compiler.is_compiling() or torch._C._functorch.is_functorch_wrapped_tensor(x):
        return False
    return not (x.device.type == "cuda" and torch.cuda.is_current_stream_capturing())


def disagreement(model: nn.Module, functions: Named, plain: Network, fast: Network, x: Tensor) -> str | None:
    """Why the fast network is not the model, or None. Raises what the model itself raises."""
    images = _some(x.detach())
    snapshot = Snapshot(model, functions, tensors=True, device=x.device)
    draws = False

    def both(network: Network, images: Tensor) -> tuple[Tensor, Tensor] | None:
        nonlocal draws
        try:
            return logits_and_gradient(network, images)
        finally:
            draws = snapshot.put_back() == "draws random numbers" or draws

    with _exactly(x.device), deciding_nothing():
        try:
            expected = both(plain, images)
        except Exception as error:
            if is_about_memory(error) or torch.equal(images, x):
                raise
            # A model may have been written for batches of one size.
            images = x.detach()
            expected = both(plain, images)
        if expected is None:
            return None
        try:
            found = both(fast, images)
        except Exception as error:
            if not is_ours(error):
                raise
            return raised(error)
    why = None if found is None else _difference(found, expected)
    if found is None:
        why = "the fast network returned something else than the model"
    if why is not None and draws:
        return "its forward pass draws random numbers, which the fast network has in other places"
    return why


def _some(x: Tensor) -> Tensor:
    """IMAGES of the batch; a smaller batch comes again, a little darker, since one image may lie at a
    kink.
    """
    if len(x) >= IMAGES:
        return x[:: len(x) // IMAGES][:IMAGES]
    return torch.cat([x * (1 - 0.03 * again) for again in range(-(-IMAGES // len(x)))])[:IMAGES]


def raised(error: Exception) -> str:
    return f"the fast network raised {type(error).__name__}: {one_line(error)[:300]}"


def is_about_memory(error: BaseException) -> bool:
    words = str(error)
    return isinstance(error, (torch.OutOfMemoryError, MemoryError)) or (
        isinstance(error, RuntimeError) and ("out of memory" in words or "can't allocate memory" in words)
    )


def is_ours(error: Exception) -> bool:
    """Whether an error of the fast network may come of its plan or its memory layout."""
    return not (is_about_memory(error) or isinstance(error, (InputError, Stopped, TrainingFailed)))


def random_states(device: torch.device) -> list[tuple[Callable[[Any], Any], Any]]:
    """What `put_back` needs for another pass with the same random numbers."""
    states: list[tuple[Callable[[Any], Any], Any]] = [(torch.set_rng_state, torch.get_rng_state())]
    if device.type == "cuda":
        states.append(
            (lambda state: torch.cuda.set_rng_state(state, device), torch.cuda.get_rng_state(device))
        )
    return states


def put_back_random_states(states: list[tuple[Callable[[Any], Any], Any]]) -> None:
    for put, before in states:
        put(before)


def warn(model: nn.Module, reason: str) -> None:
    warnings.warn(
        f"{type(model).__name__} is attacked without the fast network: {reason}. The results are right, and"
        " the attack is slower",
        stacklevel=2,
    )


def logits_and_gradient(network: Network, images: Tensor) -> tuple[Tensor, Tensor] | None:
    """In the memory layout of the images; None for what returns no logits."""
    with torch.inference_mode(False), torch.enable_grad():
        leaf = images.clone().requires_grad_()
        logits = logits_in(network(leaf))
        if not isinstance(logits, Tensor) or logits.dim() != 2 or len(logits) != len(images):
            return None
        # Another weight for each logit: gradients must not cancel, and a saturated loss would have none.
        weights = (torch.arange(logits.shape[1], device=logits.device) * 0.7 + 0.3).cos()
        gradient = None
        if logits.requires_grad:
            end = (logits * weights.to(logits.dtype)).sum()
            (gradient,) = torch.autograd.grad(end, leaf, allow_unused=True)
    gradient = torch.zeros_like(images) if gradient is None else gradient
    return logits.detach().clone(), gradient


def _difference(found: tuple[Tensor, Tensor], expected: tuple[Tensor, Tensor]) -> str | None:
    precision = expected[0].dtype
    if found[0].shape != expected[0].shape:
        return "its logits have another shape than the model's"
    of_logits, of_gradient = (errors(a, b) for a, b in zip(found, expected, strict=True))
    limit = LOGITS.get(precision, LOGITS_IN_HALF)
    if len(of_logits) and float(of_logits.max()) > limit:
        return (
            f"its logits are off by {float(of_logits.max()):.2g} of their size, of which {limit:g} would be"
            " rounding"
        )
    if precision not in GRADIENT or not len(of_gradient):
        return None
    # The error that a share of the images may exceed.
    place = max(0, len(of_gradient) - 1 - int(KINKS * len(of_gradient)))
    off = float(of_gradient.sort().values[place])
    if off > GRADIENT[precision]:
        return (
            f"its gradient is off by {off:.2g} of its size, of which {GRADIENT[precision]:g} would be"
            " rounding"
        )
    return None


def errors(found: Tensor, expected: Tensor) -> Tensor:
    """(images,): the relative errors.

    Images for which the model's own numbers are not finite say nothing and are left out.
    """
    found, expected = found.flatten(1).double(), expected.flatten(1).double()
    size = expected.norm(dim=1)
    # An image whose numbers nearly cancel is measured by the others.
    floor = 1e-3 * size[size.isfinite()].max() if size.isfinite().any() else size.new_zeros(())
    relative = (found - expected).norm(dim=1) / torch.maximum(size, floor).clamp_min(
        torch.finfo(torch.float32).tiny
    )
    return torch.nan_to_num(relative, nan=torch.inf, posinf=torch.inf)[size.isfinite()]


@contextlib.contextmanager
def _exactly(device: torch.device) -> Iterator[None]:
    """The precision of the numbers themselves: no autocast, and no TF32 or bfloat16 inside of products."""
    of: Any = torch.backends
    settings = (
        (of.cuda.matmul, of.cudnn.conv) if device.type == "cuda" else (of.mkldnn.matmul, of.mkldnn.conv)
    )
    lowered = [(one, one.fp32_precision) for one in settings if one.fp32_precision in ("tf32", "bf16")]
    autocast: contextlib.AbstractContextManager[Any] = contextlib.nullcontext()
    if torch.amp.is_autocast_available(device.type):
        autocast = torch.autocast(device.type, enabled=False)
    try:
        for one, _ in lowered:
            one.fp32_precision = "ieee"
        with autocast:
            yield
    finally:
        for one, precision in lowered:
            one.fp32_precision = precision
