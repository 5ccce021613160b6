"""Which convolutions of a loop on a GPU get the cheap second derivative, and that it is the right one."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

import forde
from forde.double_backward import Policy, convolution
from forde.step import MemberLoop, PlainStep

LOOP_ON_A_GPU = Policy("cuda")


def is_ours(y: Tensor) -> bool:
    return y.grad_fn is not None and "ConvolveEagerly" in y.grad_fn.name()


@pytest.mark.parametrize(
    ("function", "weight", "options", "multiplications"),
    [
        (F.conv2d, (6, 4, 3, 3), {}, 6 * 4 * 9 * 64),
        (F.conv2d, (6, 2, 3, 3), {"groups": 2, "stride": 2}, 6 * 2 * 9 * 16),
        (F.conv1d, (6, 4, 3), {"padding": 1}, 6 * 4 * 3 * 8),
        (F.conv_transpose2d, (4, 3, 2, 2), {"groups": 2}, 4 * 3 * 4 * 64),
    ],
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_those_of_many_multiplications_do(
    *,
    monkeypatch: pytest.MonkeyPatch,
    function: Callable[..., Tensor],
    weight: tuple[int, ...],
    options: dict[str, int],
    multiplications: int,
    dtype: torch.dtype,
) -> None:
    x = torch.ones(5, 4, *[8] * (len(weight) - 2), dtype=dtype)
    w = torch.ones(*weight, dtype=dtype, requires_grad=True)
    limit = "LARGE" if dtype == torch.float32 else "LARGE_IN_16_BITS"
    for at_least, ours in ((5 * multiplications, True), (5 * multiplications + 1, False)):
        monkeypatch.setattr(convolution, limit, at_least)
        with LOOP_ON_A_GPU.mode(twice=True):
            assert is_ours(function(x, w, **options)) == ours


def test_autocast_counts_as_16_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    x, w = torch.ones(1, 1, 4, 4), torch.ones(1, 1, 1, 1, requires_grad=True)
    monkeypatch.setattr(convolution, "LARGE", 1)
    with LOOP_ON_A_GPU.mode(twice=True):
        assert is_ours(F.conv2d(x, w))
        with torch.autocast("cpu", torch.bfloat16):
            assert not is_ours(F.conv2d(x, w))


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.cuda)])
def test_gradients_are_those_of_torch(monkeypatch: pytest.MonkeyPatch, device: str) -> None:
    x, y = torch.randn(4, 3, 8, 8, dtype=torch.float64, device=device), torch.tensor([0, 1, 2, 0], device=device)
    found = []
    for limit in (0.0, float("inf")):
        monkeypatch.setattr(convolution, "LARGE", limit)
        ensemble = forde.Ensemble(lambda: forde.models.resnet18(3), 2).double().to(device).train()
        method = forde.method("forde-identity")
        runner = MemberLoop(ensemble, method, policy=LOOP_ON_A_GPU)
        PlainStep(runner, method).update(x, y)
        found.append([parameter.grad for parameter in runner.parameters()])
    for ours, expected in zip(*found, strict=True):
        torch.testing.assert_close(ours, expected, rtol=1e-7, atol=1e-10)
