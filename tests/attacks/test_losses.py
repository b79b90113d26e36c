"""The gradients that are written out, against autograd and against literal cases."""

from __future__ import annotations

import pytest
import torch

from cfol_fast.attacks.losses import LOSSES

LOGITS = torch.tensor([[2.0, 1.0, 0.0, -1.0], [0.0, 3.0, 1.0, 2.0]])
Y = torch.tensor([0, 2])


@pytest.mark.parametrize("name", list(LOSSES))
def test_the_written_gradient_is_autograds(name: str) -> None:
    torch.manual_seed(0)
    logits = torch.randn(32, 7, dtype=torch.float64, requires_grad=True)
    y = torch.randint(0, 7, (32,))
    target = torch.randn(32, 7, dtype=torch.float64).softmax(1) if LOSSES[name].against_clean else y
    expected = torch.autograd.grad(LOSSES[name].value(logits, target).sum(), logits)[0]
    torch.testing.assert_close(LOSSES[name].gradient(logits.detach(), target), expected)


def test_the_margin_is_positive_once_the_example_is_fooled() -> None:
    assert LOSSES["cw"].value(LOGITS, Y).tolist() == [-1.0, 2.0]


def test_dlr_divides_the_margin_by_first_minus_third_logit() -> None:
    torch.testing.assert_close(LOSSES["dlr"].value(LOGITS, Y), torch.tensor([-1 / 2, 2 / 2]))


def test_dlr_does_not_see_the_scale_of_the_logits() -> None:
    dlr = LOSSES["dlr"].value
    torch.testing.assert_close(dlr(LOGITS * 100, Y), dlr(LOGITS, Y))


def test_the_divergence_from_itself_is_zero_and_has_no_gradient() -> None:
    clean = LOGITS.softmax(1)
    torch.testing.assert_close(LOSSES["kl"].value(LOGITS, clean), torch.zeros(2), atol=1e-6, rtol=0)
    torch.testing.assert_close(LOSSES["kl"].gradient(LOGITS, clean), torch.zeros(2, 4))
