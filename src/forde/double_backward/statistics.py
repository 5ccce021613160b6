"""Comparing members on a part of the batch, at the price of that part.

The loss is of the whole batch. Members are compared on its first n samples, by what the network makes of each of them:
BatchNorm normalises by the mean μ and r = (σ² + eps)^(−1/2) of the whole batch, and these do not count as functions of
a sample,

    z_b = ∂/∂x_b Σ_{b'<n} f(x_b'; μ, r, θ)        b < n

but they are functions of the weights, and ∂z/∂θ goes through them. So the n samples have the activations that the loss
sees, and need none of the others to be differentiated.

They run through the network in a pass of their own. `Whole` has μ and r of the whole batch, layer by layer, with their
graph; `Part` takes them from there. In a trace the part's layers need no arithmetic at all (`_Link`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from forde.errors import FordeError
from forde.torch_private import batch_norms, version_of

OTHER_LAYERS = (
    "a part of the batch went through other BatchNorm layers than the whole batch (layers left out at random?), so its "
    "statistics are not known there; use repulsion_fraction=1 with this network."
)


class _Layer(NamedTuple):
    """What a layer read and wrote, and how often that had been changed in place by then."""

    read: Tensor
    wrote: Tensor
    versions: tuple[int, int]


@dataclass
class Whole:
    """What the pass over the whole batch leaves for that over a part of it."""

    links: bool = False
    """Whether what layers read and wrote is kept too."""
    statistics: list[tuple[Tensor, Tensor]] = field(default_factory=list)
    """μ and r `[C]`, for each call of BatchNorm."""
    layers: list[_Layer] = field(default_factory=list)

    def layer(self, func: Callable[..., Tensor]) -> Callable[..., Tensor]:
        """A layer's function that leaves what it read and wrote."""

        def call(*args: Any, **kwargs: Any) -> Tensor:
            out = func(*args, **kwargs)
            if args:
                self.layers.append(_Layer(args[0], out, (version_of(args[0]), version_of(out))))
            return out

        return call


@dataclass
class Part:
    """What the pass over a part of the batch takes from that over the whole, call by call, and off its lists."""

    whole: Whole
    sizes: tuple[int, int]
    """How many samples the whole batch and its part have."""
    forming: bool = True
    """Whether the representation is still being formed, by derivatives along the part's own pass; from then on they go
    to the whole batch's activations."""

    def next_statistics(self, channels: int) -> tuple[Tensor, Tensor]:
        """μ and r of the layer that is called next."""
        if not self.whole.statistics or len(self.whole.statistics[0][0]) != channels:
            raise FordeError(OTHER_LAYERS)
        return self.whole.statistics.pop(0)

    def refuse_left_over(self) -> None:
        """Stop where the whole batch went through more layers than its part."""
        if self.whole.statistics:
            raise FordeError(OTHER_LAYERS)

    def layer(self, func: Callable[..., Tensor]) -> Callable[..., Tensor]:
        """A layer's function whose input and output are rows of the whole batch's, where these are known."""

        def call(*args: Any, **kwargs: Any) -> Tensor:
            whole = self.whole.layers.pop(0) if args and self.whole.layers else None
            if whole is None or whole.versions != (version_of(whole.read), version_of(whole.wrote)):
                return func(*args, **kwargs)
            read, *others = args
            out = func(self._linked(read, whole.read), *others, **kwargs)
            linked = self._linked(out, whole.wrote)
            return linked if linked is out else linked.clone()  # networks may change it in place

        return call

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
    def forward(ctx: Any, own: Tensor, whole: Tensor, part: Part) -> Tensor:
        ctx.part = part
        ctx.set_materialize_grads(False)
        return whole.view_as(whole)

    @staticmethod
    def backward(ctx: Any, *cotangents: Tensor | None) -> tuple[Tensor | None, Tensor | None, None]:
        (g,) = cotangents
        return (g, None, None) if ctx.part.forming else (None, g, None)


@contextmanager
def still_statistics(network: nn.Module) -> Iterator[None]:
    """BatchNorm normalises by the batch inside, but does not move its running statistics."""
    moving = [m for m in network.modules() if isinstance(m, batch_norms()) and m.track_running_stats]
    for module in moving:
        module.track_running_stats = False
    try:
        yield
    finally:
        for module in moving:
            module.track_running_stats = True
