"""Which operations get a derivative of ours, by where and how a forward pass is run."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from forde.double_backward import Policy, convolution, policy


def random(*shape: int) -> Tensor:
    images = torch.randn(shape, requires_grad=True)
    return images.contiguous(memory_format=torch.channels_last)


LAYERS: dict[str, Callable[[], Tensor]] = {
    "small convolution": lambda: torch.conv2d(random(2, 3, 4, 4), random(4, 3, 1, 1)),
    "large convolution": lambda: torch.conv2d(random(2, 3, 4, 4), random(40, 3, 1, 1)),
    "transposed": lambda: torch.conv_transpose2d(random(2, 3, 4, 4), random(3, 4, 1, 1)),
    "BatchNorm": lambda: F.batch_norm(random(2, 3, 4, 4), None, None, training=True),
    "ReLU": lambda: F.relu(random(2, 3, 4, 4)),
    "GELU": lambda: F.gelu(random(2, 3, 4, 4)),
    "SiLU": lambda: F.silu(random(2, 3, 4, 4)),
    "maximum": lambda: F.max_pool2d(random(2, 3, 4, 4), 2),
}
CONVOLUTIONS = {"small convolution", "large convolution", "transposed"}
WITH_A_COMPILER = CONVOLUTIONS | {"BatchNorm", "ReLU"}
"""It merges torch's own derivatives of the others."""


WHERE: dict[str, tuple[Policy, bool, set[str]]] = {
    "plain on a CPU": (Policy("cpu"), True, set(LAYERS)),
    "plain on a CPU, once": (Policy("cpu"), False, set()),
    "plain on a GPU": (Policy("cuda"), True, {"large convolution"}),
    "plain on a GPU, once": (Policy("cuda"), False, set()),
    "traced on a CPU": (Policy("cpu", traced=True), True, set(LAYERS)),
    "traced on a GPU": (Policy("cuda", traced=True), True, set(LAYERS)),
    "compiled on a CPU": (Policy("cpu", traced=True, compiler=True), True, WITH_A_COMPILER),
    "compiled on a GPU": (Policy("cuda", traced=True, compiler=True), True, WITH_A_COMPILER),
    "compiled on a GPU, once": (Policy("cuda", traced=True, compiler=True), False, set()),
    "stacked, without torch.vmap": (Policy("cpu", stacked=True), True, set()),
}


@pytest.mark.parametrize("where", WHERE)
def test_who_gets_them(where: str, monkeypatch: pytest.MonkeyPatch) -> None:
    chosen, twice, ours = WHERE[where]
    monkeypatch.setattr(convolution, "LARGE", 2 * 3 * 16 * 40)

    def is_ours(layer: Callable[[], Tensor]) -> bool:
        with chosen.mode(twice=twice):
            node = type(layer().grad_fn)
        function = getattr(node, "_forward_cls", None)  # of what is written in Python
        return function is not None and function.__module__.startswith("forde.double_backward")

    assert {name for name, layer in LAYERS.items() if is_ours(layer)} == ours


@pytest.mark.parametrize("twice", [False, True])
@pytest.mark.parametrize("traced", [False, True])
@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_only_what_is_traced_for_a_gpu_is_put_into_shapes_for_cudnn(
    device: str, traced: bool, twice: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[Tensor] = []

    def looking(conv2d: Callable[..., Tensor]) -> Callable[..., Tensor]:
        def call(x: Tensor, w: Tensor) -> Tensor:
            seen.append(x)
            return conv2d(x, w)

        return call

    monkeypatch.setattr(policy, "in_good_shape", looking)
    monkeypatch.setattr(policy, "_operations", policy._operations.__wrapped__)  # without its cache
    x, w = random(2, 3, 4, 4), random(4, 3, 1, 1)
    with Policy(device, traced=traced).mode(twice=twice):
        y = F.conv2d(x, w)
    assert bool(seen) == (device == "cuda" and traced)
    torch.testing.assert_close(y, F.conv2d(x, w))
