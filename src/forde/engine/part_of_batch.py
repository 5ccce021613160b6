"""Comparing members on a part of the batch, at the price of that part.

The loss is of the whole batch. Members are compared on its first n samples, by what the network makes of each of them:
BatchNorm normalises by the mean μ and r = (σ² + eps)^(−1/2) of the whole batch, and these do not count as functions of
a sample,

    z_b = ∂/∂x_b Σ_{b'<n} f(x_b'; μ, r, θ)        b < n

but they are functions of the weights, and ∂z/∂θ goes through them. So the n samples have the activations that the loss
sees, and need none of the others to be differentiated.

They run through the network in a pass of their own. `Recording` writes down μ and r of the whole batch, with their
graph, and `Replaying` normalises the part by them. In a trace the part's layers need no arithmetic at all (`_Link`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from forde.derivatives.by_formulas import normalise_by
from forde.derivatives.channels import BatchNorm, affine, wide
from forde.derivatives.convolution import PLAIN, TRANSPOSED
from forde.errors import FordeError
from forde.torch_private import version_of

MeanAndInverse = tuple[Tensor, Tensor]
"""μ and r, `[C]` each."""
Normalise = Callable[[BatchNorm], tuple[Tensor, Tensor, Tensor]]
"""A call of BatchNorm in training → its output, μ and r."""


def measured(call: BatchNorm) -> tuple[Tensor, Tensor, Tensor]:
    """torch's own BatchNorm of `[B, C, ...]`, and beside it μ and r, for stacked members.

    >>> _, mean, inverse = measured(BatchNorm(torch.tensor([[1.0], [3.0]]), None, None, training=True, eps=1e-9))
    >>> mean, inverse
    (tensor([2.]), tensor([1.]))
    """
    y = call.input
    out = F.batch_norm(*call)
    variance, mean = torch.var_mean(wide(y), [axis for axis in range(y.dim()) if axis != 1], correction=0)
    return out, mean, (variance + call.eps).rsqrt()


class _Values(NamedTuple):
    """What a layer read and wrote, and how often that had been changed in place by then."""

    read: Tensor
    wrote: Tensor
    versions: tuple[int, int]


LAYERS = {*PLAIN, *TRANSPOSED, F.linear}
"""All whose arithmetic counts."""


class Recording(TorchFunctionMode):
    """Inside, networks run as always, and what the pass over a part of the batch needs is written down, call by call.

    Args:
        normalise: how BatchNorm is computed.
        values: whether what layers read and wrote is kept too.

    >>> with Recording() as recorded:
    ...     y = F.batch_norm(torch.randn(8, 3), None, None, training=True)
    >>> [mean.shape for mean, _ in recorded.statistics]
    [torch.Size([3])]
    """

    def __init__(self, normalise: Normalise = measured, *, values: bool = False) -> None:
        super().__init__()
        self.normalise = normalise
        self.statistics: list[MeanAndInverse] = []
        self.values: list[_Values] | None = [] if values else None

    def within(self, statistics: list[MeanAndInverse]) -> Recording:
        """The same for a function that is mapped over members."""
        return Recording(self.normalise)

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func is F.batch_norm and (call := BatchNorm(*args, **kwargs)).training:
            out, mean, inverse = self.normalise(call)
            self.statistics.append((mean, inverse))
            return out
        out = func(*args, **kwargs)
        if self.values is not None and func in LAYERS and args:
            self.values.append(_Values(args[0], out, (version_of(args[0]), version_of(out))))
        return out


OTHER_LAYERS = (
    "a part of the batch went through other BatchNorm layers than the whole batch (layers left out at random?), so its "
    "statistics are not known there; use repulsion_fraction=1 with this network."
)


class Replaying(TorchFunctionMode):
    """Inside, BatchNorm that would normalise by its batch does so by statistics of the whole batch, call by call.

    Args:
        recorded: from the pass over the whole batch, of which this one sees the first samples.
        sizes: how many samples the whole batch and its part have.
        for_compiler: write BatchNorm out as operations that a compiler can merge.

    >>> y = torch.randn(8, 3)
    >>> with Recording() as recorded:
    ...     whole = F.batch_norm(y, None, None, training=True)
    >>> with Replaying(recorded, (8, 2)):
    ...     part = F.batch_norm(y[:2], None, None, training=True)
    >>> torch.allclose(part, whole[:2], atol=1e-6)
    True
    """

    def __init__(self, recorded: Recording, sizes: tuple[int, int], *, for_compiler: bool = False) -> None:
        super().__init__()
        self.statistics = recorded.statistics
        self.sizes = sizes
        self.for_compiler = for_compiler
        self.forming = True
        """Whether the representation is still being formed, by derivatives along the part's own pass."""
        self._rest = iter(recorded.statistics)
        self._values = None if recorded.values is None else iter(recorded.values)

    def within(self, statistics: list[MeanAndInverse]) -> Replaying:
        """The same for a function that is mapped over members, with the statistics that it sees."""
        seen = Recording()
        seen.statistics = statistics
        return Replaying(seen, self.sizes, for_compiler=self.for_compiler)

    def __exit__(self, *raised: Any) -> None:
        super().__exit__(*raised)
        if raised[0] is None and next(self._rest, None) is not None:
            raise FordeError(OTHER_LAYERS)

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func is F.batch_norm and (call := BatchNorm(*args, **kwargs)).training:
            return self._normalise(call)
        if self._values is not None and func in LAYERS and args:
            return self._layer(func, next(self._values, None), args, kwargs)
        return func(*args, **kwargs)

    def _normalise(self, call: BatchNorm) -> Tensor:
        y, weight, bias = call.input, call.weight, call.bias
        found = next(self._rest, None)
        if found is None or len(found[0]) != y.shape[1]:
            raise FordeError(OTHER_LAYERS)
        mean, inverse = found
        if self.for_compiler:
            return normalise_by(y, mean, inverse, weight, bias)
        return affine(y, mean, inverse if weight is None else inverse * weight, bias)

    def _layer(
        self, func: Callable[..., Tensor], whole: _Values | None, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Tensor:
        if whole is None or whole.versions != (version_of(whole.read), version_of(whole.wrote)):
            return func(*args, **kwargs)
        read, *others = args
        out = func(self._linked(read, whole.read), *others, **kwargs)
        linked = self._linked(out, whole.wrote)
        return linked if linked is out else linked.clone()  # networks may change it in place

    def _linked(self, own: Tensor, whole: Tensor) -> Tensor:
        batch, part = self.sizes
        if whole.shape != (batch, *own.shape[1:]) or len(own) != part or not own.requires_grad:
            return own
        linked: Tensor = _Link.apply(own, whole[:part], self)
        return linked


class _Link(torch.autograd.Function):
    """An activation of the part as the first rows of the whole batch's: the same numbers, and the same function of θ.

    While the representation is formed, derivatives go along the part's own pass. When it is pulled back they go to the
    whole batch's activation, where they join those of the loss: one backward pass serves both. What computed `own` is
    then read by nobody, and a trace leaves it out.
    """

    @staticmethod
    def forward(ctx: Any, own: Tensor, whole: Tensor, replaying: Replaying) -> Tensor:
        ctx.replaying = replaying
        ctx.set_materialize_grads(False)
        return whole.view_as(whole)

    @staticmethod
    def backward(ctx: Any, *cotangents: Tensor | None) -> tuple[Tensor | None, Tensor | None, None]:
        (g,) = cotangents
        return (g, None, None) if ctx.replaying.forming else (None, g, None)


Statistics = Recording | Replaying
"""Where a forward pass writes BatchNorm's statistics to, or has them from."""
