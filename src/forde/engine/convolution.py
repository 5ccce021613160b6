"""A cheap second derivative for convolution.

Convolution y = x∗w, its input gradient dgrad(g, w) and its weight gradient wgrad(g, x) are each linear in both
arguments, and the adjoint of each is made of the other two:

    x∗w          ∂x: dgrad(g, w)      ∂w: wgrad(g, x)
    dgrad(g, w)  ∂g: v∗w              ∂w: wgrad(g, v)
    wgrad(g, x)  ∂g: x∗u              ∂x: dgrad(g, u)

so derivatives of every order are ordinary convolution calls. torch's own double backward computes the term for w as a
convolution whose kernel is as large as the image, which is many times slower.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from forde.engine.batchnorm import batch_norm, relu


class Geometry(NamedTuple):
    """How a convolution slides, in the order that `aten::convolution` takes it."""

    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]
    transposed: bool
    output_padding: tuple[int, ...]
    groups: int


class _Convolve(torch.autograd.Function):
    @staticmethod
    def forward(  # noqa: PLR0917
        ctx: Any, x: Tensor, w: Tensor, bias: Tensor | None, geometry: Geometry, mode: TwiceDifferentiable | None
    ) -> Tensor:
        ctx.save_for_backward(x, w)
        ctx.geometry, ctx.mode = geometry, mode
        return torch.ops.aten.convolution(x, w, bias, *geometry)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        (g,), (x, w) = gradients, ctx.saved_tensors
        wanted = ctx.needs_input_grad
        if ctx.mode is not None and ctx.mode.weights_unwanted:
            wanted = (wanted[0], False, False)
        return (
            _InputGradient.apply(g, w, x, ctx.geometry) if wanted[0] else None,
            _WeightGradient.apply(g, x, w, ctx.geometry) if wanted[1] else None,
            g.transpose(0, 1).flatten(1).sum(1) if wanted[2] else None,
            None,
            None,
        )


class _InputGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, g: Tensor, w: Tensor, x: Tensor, geometry: Geometry) -> Tensor:
        ctx.save_for_backward(g, w)  # of x only shape and memory layout are read
        ctx.geometry = geometry
        return torch.ops.aten.convolution_backward(g, x, w, None, *geometry, (True, False, False))[0]

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, Tensor | None, None, None]:
        (v,), (g, w) = gradients, ctx.saved_tensors
        return (
            _Convolve.apply(v, w, None, ctx.geometry, None) if ctx.needs_input_grad[0] else None,
            _WeightGradient.apply(g, v, w, ctx.geometry) if ctx.needs_input_grad[1] else None,
            None,
            None,
        )


class _WeightGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, g: Tensor, x: Tensor, w: Tensor, geometry: Geometry) -> Tensor:
        ctx.save_for_backward(g, x)  # of w only shape and memory layout are read
        ctx.geometry = geometry
        return torch.ops.aten.convolution_backward(g, x, w, None, *geometry, (False, True, False))[1]

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, Tensor | None, None, None]:
        (u,), (g, x) = gradients, ctx.saved_tensors
        return (
            _Convolve.apply(x, u, None, ctx.geometry, None) if ctx.needs_input_grad[0] else None,
            _InputGradient.apply(g, u, x, ctx.geometry) if ctx.needs_input_grad[1] else None,
            None,
            None,
        )


PLAIN = {torch.conv1d: 1, torch.conv2d: 2, torch.conv3d: 3}
TRANSPOSED = {torch.conv_transpose1d: 1, torch.conv_transpose2d: 2, torch.conv_transpose3d: 3}


class TwiceDifferentiable(TorchFunctionMode):
    """Inside, convolutions, BatchNorm and ReLU have a cheap second derivative; their values stay the same.

    Args:
        for_compiler: write BatchNorm out as formulas that a compiler can merge.

    >>> x, w = torch.randn(2, 3, 8, 8, requires_grad=True), torch.randn(4, 3, 3, 3, requires_grad=True)
    >>> with TwiceDifferentiable():
    ...     y = torch.nn.functional.conv2d(x, w, padding=1)
    >>> bool((y == torch.nn.functional.conv2d(x, w, padding=1)).all())
    True
    """

    def __init__(self, *, for_compiler: bool = False) -> None:
        super().__init__()
        self.for_compiler = for_compiler
        self.weights_unwanted = False

    @contextmanager
    def input_gradients_only(self) -> Iterator[None]:
        """Backward passes inside, through convolutions made under this mode, leave out the weights' gradients.

        torch's own nodes see that `autograd.grad(y, x)` wants nothing else; functions written in Python do not.
        """
        self.weights_unwanted = True
        try:
            yield
        finally:
            self.weights_unwanted = False

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func in PLAIN:
            return _plain(self, func, PLAIN[func], *args, **kwargs)
        if func in TRANSPOSED:
            return _transposed(self, func, TRANSPOSED[func], *args, **kwargs)
        if func is F.batch_norm:
            return _batch_norm(self, *args, **kwargs)
        if func in (F.relu, torch.relu) and not (kwargs.get("inplace") or any(args[1:])):
            x = args[0] if args else kwargs["input"]
            return relu(x, open_up=self.for_compiler)
        return func(*args, **kwargs)


class ShapesForCudnn(TorchFunctionMode):
    """Inside, 2D convolutions on a GPU are put into shapes that cuDNN is fast at. The numbers stay the same.

    Tensor cores read channels in groups of eight: with 16 bits, images of 3 channels are given 8, the others 0. And
    for a kernel of one pixel that moves in strides, the pixels that count are taken out first: cuDNN falls back to
    kernels that take up to seven times as long otherwise.
    """

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func is torch.conv2d:
            return _convolve_in_good_shape(*args, **(kwargs or {}))
        return func(*args, **(kwargs or {}))


CHANNELS_READ_AT_ONCE = 8


def _convolve_in_good_shape(  # noqa: PLR0917  (torch's own order of arguments)
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
) -> Tensor:
    if input.is_cuda and input.dim() == 4 and groups == 1:
        autocast = torch.is_autocast_enabled("cuda") and torch.get_autocast_dtype("cuda").itemsize == 2
        halved = autocast or input.itemsize == 2
        input, weight, stride = good_shape(input, weight, stride, padding, halved=halved)
    return torch.conv2d(input, weight, bias, stride, padding, dilation, groups)


def good_shape(
    x: Tensor, weight: Tensor, stride: Any, padding: Any, *, halved: bool
) -> tuple[Tensor, Tensor, tuple[int, ...]]:
    """Input `[B, C, H, W]`, weight `[O, C, h, w]` and stride of a convolution with the same result, for cuDNN.

    Args:
        halved: whether the arithmetic is of 16 bits.

    >>> x, weight, stride = good_shape(torch.ones(2, 16, 8, 8), torch.ones(4, 16, 1, 1), 2, 0, halved=True)
    >>> x.shape, stride
    (torch.Size([2, 16, 4, 4]), (1, 1))
    """
    down, across = _each(stride, 2)
    if weight.shape[2:] == (1, 1) and max(down, across) > 1 and padding in ("valid", 0, (0,), (0, 0)):
        x, down, across = x[:, :, ::down, ::across].contiguous(memory_format=torch.channels_last), 1, 1
    missing = -x.shape[1] % CHANNELS_READ_AT_ONCE
    if missing and halved:
        x, weight = (F.pad(tensor, (0, 0, 0, 0, 0, missing)) for tensor in (x, weight))
    return x, weight, (down, across)


def _plain(  # noqa: PLR0917  (torch's own order of arguments)
    mode: TwiceDifferentiable,
    func: Callable[..., Tensor],
    dims: int,
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
) -> Tensor:
    if padding == "valid":
        padding = 0
    if isinstance(padding, str) or input.dim() != dims + 2:
        # "same" may pad unevenly, and single samples have no batch axis: left to torch.
        return func(input, weight, bias, stride, padding, dilation, groups)
    zeros = (0,) * dims
    geometry = Geometry(_each(stride, dims), _each(padding, dims), _each(dilation, dims), False, zeros, groups)
    return _convolve(mode, input, weight, bias, geometry)


def _transposed(  # noqa: PLR0917  (torch's own order of arguments)
    mode: TwiceDifferentiable,
    func: Callable[..., Tensor],
    dims: int,
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Any = 1,
    padding: Any = 0,
    output_padding: Any = 0,
    groups: int = 1,
    dilation: Any = 1,
) -> Tensor:
    if input.dim() != dims + 2:
        return func(input, weight, bias, stride, padding, output_padding, groups, dilation)
    geometry = Geometry(
        _each(stride, dims), _each(padding, dims), _each(dilation, dims), True, _each(output_padding, dims), groups
    )
    return _convolve(mode, input, weight, bias, geometry)


def _batch_norm(  # noqa: PLR0917  (torch's own order of arguments)
    mode: TwiceDifferentiable,
    input: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Tensor:
    if not training or input.numel() <= input.shape[1]:  # one value per channel is torch's to refuse
        return F.batch_norm(input, running_mean, running_var, weight, bias, training, momentum, eps)
    return batch_norm(input, running_mean, running_var, weight, bias, momentum, eps, open_up=mode.for_compiler)


def _each(value: Any, dims: int) -> tuple[int, ...]:
    """One number for all dimensions, or one for each."""
    values = (value,) if isinstance(value, int) else tuple(value)
    return values * dims if len(values) == 1 else values


def _convolve(mode: TwiceDifferentiable, x: Tensor, w: Tensor, bias: Tensor | None, geometry: Geometry) -> Tensor:
    kind = x.device.type
    if torch.is_autocast_enabled(kind):  # autocast does not look inside our functions
        dtype = torch.get_autocast_dtype(kind)
        x, w, bias = x.to(dtype), w.to(dtype), None if bias is None else bias.to(dtype)
    y: Tensor = _Convolve.apply(x, w, bias, geometry, mode)
    return y
