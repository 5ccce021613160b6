"""Networks whose second derivative is cheap: torch's slow ones are replaced while the forward pass runs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from forde.derivatives import by_formulas, by_kernels
from forde.derivatives.activations import gelu, silu
from forde.derivatives.averages import average, axes_of_average
from forde.derivatives.channels import BatchNorm
from forde.derivatives.convolution import PLAIN, TRANSPOSED, plain, transposed
from forde.derivatives.pooling import max_pool2d
from forde.derivatives.rows import group_norm, instance_norm

WITHOUT_COMPILER: dict[Callable[..., Any], Callable[..., Tensor]] = {
    F.max_pool2d: max_pool2d, F.group_norm: group_norm, F.instance_norm: instance_norm, F.gelu: gelu, F.silu: silu,
}  # fmt: skip
"""A compiler merges torch's own."""
RECTIFIERS = (F.relu, torch.relu, Tensor.relu)


class TwiceDifferentiable(TorchFunctionMode):
    """Inside, convolutions, BatchNorm, ReLU, maxima and means have a cheap second derivative, and the same values.

    Args:
        for_compiler: write BatchNorm and every derivative out as operations that a compiler can merge.

    >>> x, w = torch.randn(2, 3, 8, 8, requires_grad=True), torch.randn(4, 3, 3, 3, requires_grad=True)
    >>> with TwiceDifferentiable():
    ...     y = torch.nn.functional.conv2d(x, w, padding=1)
    >>> bool((y == torch.nn.functional.conv2d(x, w, padding=1)).all())
    True
    """

    def __init__(self, *, for_compiler: bool = False) -> None:
        super().__init__()
        self.for_compiler = for_compiler

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func in PLAIN:
            return plain(func, PLAIN[func], *args, **kwargs, for_compiler=self.for_compiler)
        if func in TRANSPOSED:
            return transposed(func, TRANSPOSED[func], *args, **kwargs, for_compiler=self.for_compiler)
        if func is F.batch_norm and (call := BatchNorm(*args, **kwargs)).training:
            return (by_formulas if self.for_compiler else by_kernels).normalise(call)[0]
        if func in RECTIFIERS:
            return (by_formulas if self.for_compiler else by_kernels).relu(*args, **kwargs)
        if not self.for_compiler and func in WITHOUT_COMPILER:
            return WITHOUT_COMPILER[func](*args, **kwargs)
        if not self.for_compiler and (axes := axes_of_average(func, args, kwargs)) is not None:
            return average(args[0], axes[0], keepdim=axes[1])
        return func(*args, **kwargs)
