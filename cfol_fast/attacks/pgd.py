"""Projected gradient ascent in the pixel cube: PGD, the attack of TRADES, and the two single-step attacks of
fast training.

One inner step is a pass of the frozen network, the loss's gradient with respect to the logits, the backward
pass to the input and one native op that moves, projects and clamps.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from cfol_fast import ops
from cfol_fast.attacks.attack import Attack, Radius, Slots, check_radius, describe_radius
from cfol_fast.attacks.losses import LOSSES
from cfol_fast.attacks.pixels import check_largest
from cfol_fast.errors import InputError
from cfol_fast.frozen import Network, described, frozen, logits_in, minds_layout, paused, precision_told
from cfol_fast.ops.pgd import NORMS


class PGD(Attack):
    """Projected gradient descent within the eps-ball, from a uniform random start.

    Args:
        model: the network; it returns logits for images in [0, 1].
        eps: radius: a number, or a (B,) tensor for batches of B. A single call can change it.
        step: size of a step, with the same types; by default 2.5 eps / steps.
        steps: number of steps.
        random_start: start at a random point of the ball.
        norm: "linf" or "l2".
        loss: "ce", "kl" (to the clean prediction, as in TRADES), "cw" (margin) or "dlr".
        restarts: number of starts. For each example the best result is kept: one that is classified wrongly,
            then the one with the larger loss.
        seed: start of the random numbers.
        start_radius: radius of the random start; by default eps.
        fast: fold BatchNorm and use the fused kernels.
        dtype: torch.bfloat16 runs the passes in lower precision.
    """

    kind = "pgd"
    # Is shown every gradient, while an evaluation looks whether there are any.
    watch: Callable[[Tensor], None] | None = None

    def __init__(
        self,
        model: nn.Module,
        eps: Radius,
        step: Radius | None = None,
        steps: int = 7,
        random_start: bool = True,
        norm: str = "linf",
        loss: str = "ce",
        restarts: int = 1,
        seed: int = 0,
        fast: bool = True,
        dtype: torch.dtype | None = None,
        start_radius: Radius | None = None,
        trusts_images: bool = False,
        any_layout: bool = False,
    ) -> None:
        super().__init__(model, seed, trusts_images, any_layout)
        if norm not in NORMS:
            raise InputError(f"norm must be one of {', '.join(NORMS)}, got {norm!r}")
        check_radius(eps, "eps", norm)
        if isinstance(steps, bool) or not isinstance(steps, int) or steps < 1:
            raise InputError(f"steps must be an integer of at least 1, got {steps!r}")
        if step is not None:
            check_radius(step, "step", norm)
        if start_radius is not None:
            check_radius(start_radius, "start_radius", norm)
        if loss not in LOSSES:
            raise InputError(f"loss must be one of {', '.join(LOSSES)}, got {loss!r}")
        if isinstance(restarts, bool) or not isinstance(restarts, int) or restarts < 1:
            raise InputError(f"restarts must be an integer of at least 1, got {restarts!r}")
        if restarts > 1 and not random_start:
            raise InputError(f"{restarts} restarts without a random start would all be the same")
        if dtype not in (None, torch.float32, torch.bfloat16, torch.float16):
            raise InputError(f"dtype must be torch.float32, torch.bfloat16 or torch.float16, got {dtype}")
        self.eps, self.step, self.steps = eps, step, steps
        self.random_start, self.start_radius = random_start, start_radius
        self.norm, self.loss, self.restarts = norm, loss, restarts
        self.fast, self.dtype = fast, dtype

    def __call__(
        self,
        x: Tensor,
        y: Tensor,
        eps: Radius | None = None,
        step: Radius | None = None,
        *,
        slots: Slots | None = None,
    ) -> Tensor:
        """x: (B, C, H, W) in [0, 1], y: (B,) int64 -> x_adv, in the ball around x and in [0, 1]."""
        values_were_read = self.check(x, y)
        eps, step = self.radii(eps, step)
        if values_were_read and self.norm == "linf":
            check_largest(eps, "eps")
        # Tensors made under inference_mode cannot carry gradients, so it is switched off here.
        with (
            torch.inference_mode(False),
            torch.no_grad(),
            precision_told(self.model, x),
            frozen(self.model, x.device, self.fast, self.dtype) as net,
        ):
            guarded, net = net, in_dtype(net, x.dtype)
            clean = self.prepare(x)
            target = self.target(net, clean, y)
            best = self._climb(net, clean, target, eps, step, slots)
            if self.restarts > 1:
                best_rank = self._rank(net, best, target, y)
                for _ in range(1, self.restarts):
                    adv = self._climb(net, clean, target, eps, step, slots)
                    rank = self._rank(net, adv, target, y)
                    better = (rank[0] > best_rank[0]) | ((rank[0] == best_rank[0]) & (rank[1] > best_rank[1]))
                    best = torch.where(better.view(-1, *[1] * (x.dim() - 1)), adv, best)
                    best_rank = torch.where(better, rank, best_rank)
        best = best.to(x.dtype)
        return best if self.any_layout and not minds_layout(guarded) else like(best, x)

    @property
    def draws(self) -> int:
        return self.restarts if self.random_start else 0

    def radii(self, eps: Radius | None = None, step: Radius | None = None) -> tuple[Radius, Radius]:
        """(eps, step) of a call: its own arguments, else the attack's, else the default step for the
        radius.
        """
        if eps is not None:
            check_radius(eps, "eps", self.norm)
        else:
            eps = self.eps
        if step is not None:
            check_radius(step, "step", self.norm)
        elif self.step is not None:
            step = self.step
        else:
            step = self.default_step(eps)
        return eps, step

    def default_step(self, eps: Radius) -> Radius:
        return eps * (2.5 / self.steps)

    def prepare(self, x: Tensor) -> Tensor:
        """The images as the kernels take them: float32, and channels_last where they have four dimensions."""
        x = x.detach().to(torch.float32)
        if x.is_inference():
            x = x.clone()
        return (
            x.contiguous(memory_format=torch.channels_last)
            if self.fast and x.dim() == 4
            else ops.pgd.dense(x)
        )

    def target(self, net: Network, x: Tensor, y: Tensor) -> Tensor:
        """What the loss is measured against: the labels, or (B, k) the clean prediction."""
        if not LOSSES[self.loss].against_clean:
            return y
        logits = logits_of(net, x)
        self.see(logits)
        return logits.float().softmax(1)

    def start(self, x: Tensor, eps: Radius, slots: Slots | None = None) -> Tensor:
        """The first iterate: a new tensor."""
        if not self.random_start:
            return x.clone()
        self._to(x.device)
        radius = eps if self.start_radius is None else self.start_radius
        return ops.pgd_start(x, radius, self.rng, self.norm, self.fault, slots)

    def ascend_(self, adv: Tensor, x: Tensor, grad: Tensor, eps: Radius, step: Radius) -> Tensor:
        return ops.pgd_step_(adv, x, grad, step, eps, self.norm, self.fault)

    def inner_step_(
        self, net: Network, adv: Tensor, x: Tensor, target: Tensor, eps: Radius, step: Radius
    ) -> Tensor:
        """One step on `adv`, in place; returns the logits of the iterate it started from."""
        logits, grad = self.gradient(net, adv, target)
        self.ascend_(adv, x, grad, eps, step)
        return logits

    def gradient(self, net: Network, adv: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
        """(logits (B, k) float32, gradient of the loss, summed over the batch, like adv)."""
        leaf = adv.detach().requires_grad_()
        with torch.enable_grad():
            logits = logits_of(net, leaf)
        self.see(logits)
        found = logits.detach().float()
        cotangent = LOSSES[self.loss].gradient(found, target).to(logits.dtype)
        with torch.enable_grad():
            end = _Given.apply(logits, cotangent)
        grad = torch.autograd.grad(end, leaf)[0]
        if self.watch is not None:
            self.watch(grad)
        return found, grad

    def rehearse(self, x: Tensor) -> None:
        """Both passes of a step with images like x; what comes out, and what the attack would draw, does not
        matter.
        """
        with (
            torch.inference_mode(False),
            torch.no_grad(),
            paused(),
            frozen(self.model, x.device, self.fast, self.dtype) as net,
        ):
            clean = self.prepare(x)
            labels = torch.zeros(len(x), dtype=torch.int64, device=x.device)
            self.gradient(net, clean, self.target(net, clean, labels))

    def _climb(
        self, net: Network, x: Tensor, target: Tensor, eps: Radius, step: Radius, slots: Slots | None
    ) -> Tensor:
        adv = self.start(x, eps, slots)
        for _ in range(self.steps):
            self.inner_step_(net, adv, x, target, eps, step)
        return adv

    def _rank(self, net: Network, adv: Tensor, target: Tensor, y: Tensor) -> Tensor:
        """(2, B): fooled or not, and the loss."""
        logits = logits_of(net, adv).float()
        return torch.stack([(logits.argmax(1) != y).float(), LOSSES[self.loss].value(logits, target)])

    def describe(self) -> dict[str, Any]:
        eps, step = self.radii()
        description: dict[str, Any] = {
            "kind": self.kind,
            "norm": self.norm,
            "eps": describe_radius(eps),
            "steps": self.steps,
            "step": describe_radius(step),
            "loss": self.loss,
            "random_start": self.random_start,
            "restarts": self.restarts,
            "seed": self.seed,
            "precision": str(self.dtype or torch.float32).removeprefix("torch."),
        }
        if self.start_radius is not None:
            description["start_radius"] = describe_radius(self.start_radius)
        return description


class _Given(torch.autograd.Function):
    """A number whose gradient with respect to the logits is given; the number itself is nothing.

    To give the gradient to `torch.autograd.grad` would make it import sympy, a fifth of the time of importing
    torch.
    """

    @staticmethod
    def forward(ctx: Any, logits: Tensor, gradient: Tensor) -> Tensor:
        ctx.save_for_backward(gradient)
        return logits.new_empty(())

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:  # type: ignore[override]
        return ctx.saved_tensors[0], None


class TRADES(PGD):
    """The attack of Zhang et al.

    (2019): climbs the KL divergence to the clean prediction, from a point near x.

    Their start is normal noise of deviation 0.001, ours is uniform noise of that deviation. At x itself the
    gradient is zero, and any small noise leaves it.
    """

    kind = "trades"
    steps_unless_told = 10
    START = 0.001 * 3**0.5

    def __init__(
        self, model: nn.Module, eps: Radius, step: Radius | None = None, steps: int = 10, **options: Any
    ) -> None:
        super().__init__(model, eps, step, steps, **{"loss": "kl", "start_radius": self.START, **options})


class FGSM(PGD):
    """One step of 1.25 eps from a random start, projected to the ball: "fast" adversarial training (Wong et
    al., 2020).
    """

    kind = "fgsm"
    single_step, steps_unless_told = True, 1

    def __init__(self, model: nn.Module, eps: Radius, step: Radius | None = None, **options: Any) -> None:
        super().__init__(model, eps, step, **_single_step(self.kind, options))

    def default_step(self, eps: Radius) -> Radius:
        return self.step_unless_told(eps, self.random_start)

    @staticmethod
    def step_unless_told(eps: Radius, random_start: bool) -> Radius:
        return eps * 1.25 if random_start else eps


class NFGSM(PGD):
    """N-FGSM (de Jorge et al., 2022): noise of `noise` eps, then a full step, without projection to the
    eps-ball.

    The result may lie up to (1 + noise) eps from x. This keeps single-step training from collapsing; the
    attack is meant for training, not for evaluation.
    """

    kind = "n-fgsm"
    single_step, steps_unless_told = True, 1

    def __init__(
        self, model: nn.Module, eps: Radius, step: Radius | None = None, noise: float = 2.0, **options: Any
    ) -> None:
        check_radius(noise, "noise")
        super().__init__(model, eps, step, **_single_step(self.kind, options))
        if self.norm != "linf":
            raise InputError(f"N-FGSM is defined for norm 'linf', got {self.norm!r}")
        self.noise = noise

    def default_step(self, eps: Radius) -> Radius:
        return self.step_unless_told(eps, self.random_start)

    @staticmethod
    def step_unless_told(eps: Radius, random_start: bool) -> Radius:
        return eps

    def start(self, x: Tensor, eps: Radius, slots: Slots | None = None) -> Tensor:
        return super().start(x, eps * self.noise, slots)

    def ascend_(self, adv: Tensor, x: Tensor, grad: Tensor, eps: Radius, step: Radius) -> Tensor:
        return super().ascend_(adv, x, grad, eps * self.noise + step, step)

    def describe(self) -> dict[str, Any]:
        return {**super().describe(), "noise": self.noise}


def _single_step(kind: str, options: dict[str, Any]) -> dict[str, Any]:
    """The options of an attack of one step; another number of steps would be ignored."""
    if options.get("steps", 1) != 1:
        raise InputError(f"steps must be 1 for {kind}, which takes a single step, got {options['steps']!r}")
    return {**options, "steps": 1}


def like(found: Tensor, x: Tensor) -> Tensor:
    """As x lies in memory: for the user's own code a view of maps in channels_last would be an error."""
    return found.contiguous() if x.is_contiguous() else found


def in_dtype(net: Network, dtype: torch.dtype) -> Network:
    """The network for images of another precision: iterates are float32, the passes run in the precision of
    the user's images.
    """
    return net if dtype == torch.float32 else lambda x: net(x.to(dtype))


def logits_of(net: Network, x: Tensor) -> Tensor:
    logits = logits_in(net(x))
    if not isinstance(logits, Tensor) or logits.dim() != 2 or logits.shape[0] != x.shape[0]:
        raise TypeError(
            f"the model must return logits of shape ({x.shape[0]}, classes), got {described(logits)}"
        )
    return logits
