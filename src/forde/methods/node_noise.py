"""Layers whose nodes carry multiplicative noise (node-based Bayesian networks, see `methods/node_bnn.py`).

For a layer with weights W, bias b and latents z_in, z_out (one number per input or output channel):

    y = z_out ⊙ (W (z_in ⊙ x) + b),     z = mean_k + softplus(rho_k) ⊙ ε,   ε ~ N(0, I),   k = row index mod K

With one z for all rows this is again a plain layer, of weights z_out ⊙ W ⊙ z_in and bias z_out ⊙ b: `fold` writes it,
also where W is frozen.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from forde.arguments import Input, called
from forde.errors import FordeError, first_line
from forde.forward import explaining_forward, in_evaluation
from forde.random_state import get_random_state, set_random_state
from forde.torch_private import parameters_in

Mode = Literal["out", "in", "inout"]
SIDES: Mapping[Mode, tuple[str, ...]] = {"out": ("out",), "in": ("in",), "inout": ("in", "out")}
PLAIN = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
TRANSPOSED = (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)


class NodeNoise:
    """Mixed into a layer's class: its forward pass draws fresh noise for every row of the batch."""

    def forward(self, x: Tensor, *more: Any, **others: Any) -> Tensor:
        y: Tensor = super().forward(self._noisy(x, "in"), *more, **others)  # type: ignore[misc]
        return self._noisy(y, "out")

    def _noisy(self, x: Tensor, side: str) -> Tensor:
        mean: Tensor | None = getattr(self, f"{side}_mean", None)
        if mean is None:
            return x
        times = -(-len(x) // len(mean))
        std: Tensor = F.softplus(getattr(self, f"{side}_rho"))
        epsilon = torch.randn(len(x), mean.shape[1], device=mean.device, dtype=mean.dtype)
        z = mean.repeat(times, 1)[: len(x)] + std.repeat(times, 1)[: len(x)] * epsilon
        ones = [1] * (x.dim() - 2)
        shape = (len(x), *ones, z.shape[1]) if isinstance(self, nn.Linear) else (len(x), z.shape[1], *ones)
        return x * z.to(x.dtype).view(shape)


NOISY: dict[type[nn.Module], type[nn.Module]] = {
    layer: type(f"Noisy{layer.__name__}", (NodeNoise, layer), {}) for layer in (nn.Linear, *PLAIN, *TRANSPOSED)
}
"""Exactly these layers can carry noise. Others that compute something else from their weights (standardised, spectral
or low-rank ones are often subclasses) would not be what `fold` takes them for."""


def noisy_layers(network: nn.Module, x: Input) -> tuple[list[str], dict[str, str]]:
    """Names of the layers that can carry noise, and of those that cannot, with the reason.

    They are of a class in `NOISY`, have their weights for themselves, and a forward pass calls them once, the batch in
    the first axis. The network stays as it is.

    Args:
        x: some inputs `[B, ...]`.

    >>> network = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    >>> noisy_layers(network, torch.zeros(5, 4))
    (['0', '2'], {})
    """
    candidates = {name: layer for name, layer in network.named_modules() if type(layer) in NOISY}
    rows = [_rows_seen(network, candidates, x, size) for size in (2, 3)]
    owners: dict[int, list[str]] = {}
    for name, layer in network.named_modules():
        for parameter in layer.parameters(recurse=False):
            owners.setdefault(id(parameter), []).append(name)
    found, left = [], {}
    for name, layer in candidates.items():
        sharing = {other for p in layer.parameters(recurse=False) for other in owners[id(p)]} - {name}
        calls = [seen.get(name, []) for seen in rows]
        if not isinstance(parameters_in(layer).get("weight"), nn.Parameter):
            left[name] = "its weight is computed from something else"
        elif sharing:
            left[name] = f"it shares its weight with '{min(sharing)}'"
        elif len(calls[0]) != 1:
            left[name] = f"a forward pass calls it {len(calls[0])} times"
        elif calls != [[2], [3]]:
            left[name] = "its first axis is not the batch"
        else:
            found.append(name)
    return found, left


@torch.no_grad()
def _rows_seen(network: nn.Module, layers: Mapping[str, nn.Module], x: Input, size: int) -> dict[str, list[int]]:
    """How many rows each call of a layer returns for a batch of `size`."""
    seen: dict[str, list[int]] = {}

    def note(name: str, layer: nn.Module, y: Tensor) -> None:
        weight = layer.weight
        assert isinstance(
            weight, Tensor
        )  # as many axes as a batch of this layer has, or at least as many for a linear one
        seen.setdefault(name, []).append(len(y) if y.dim() >= weight.dim() else 0)

    handles = [
        layer.register_forward_hook(lambda layer, _, y, name=name: note(name, layer, y))
        for name, layer in layers.items()
    ]
    random = get_random_state(x.device)
    inputs = x[:1].repeat_interleave(size, 0)
    try:
        with in_evaluation(network), explaining_forward(inputs):
            called(network, inputs)
    finally:
        for handle in handles:
            handle.remove()
        set_random_state(random)
    return seen


def with_noise(
    network: nn.Module, names: list[str], *, components: int, mode: Mode, std: float, generator: torch.Generator
) -> nn.Module:
    """A copy of a network whose named layers carry noise: means ~ N(1, 0.05²), standard deviations ~ |N(std, 0.02²)|.

    Names of its own tensors stay; each layer gets `{side}_mean` and `{side}_rho` `[K, nodes]` besides.

    >>> network = nn.Sequential(nn.Linear(4, 3))
    >>> noisy = with_noise(network, ["0"], components=2, mode="out", std=0.4, generator=torch.Generator())
    >>> [(name, tuple(p.shape)) for name, p in noisy.named_parameters()][2:]
    [('0.out_mean', (2, 3)), ('0.out_rho', (2, 3))]
    """
    try:
        noisy = copy.deepcopy(network)
    except Exception as error:  # the user's own classes may raise anything
        raise FordeError(
            f"node-bnn cannot copy the network ({first_line(error)}); let copy.deepcopy copy it."
        ) from error
    for name in names:
        layer = noisy.get_submodule(name)
        layer.__class__ = NOISY[type(layer)]
        for side in SIDES[mode]:
            shape = (components, _nodes(layer, side))
            mean = 1 + 0.05 * torch.randn(shape, generator=generator, dtype=torch.float64)
            deviation = (std + 0.02 * torch.randn(shape, generator=generator, dtype=torch.float64)).abs()
            for what, value in ((f"{side}_mean", mean), (f"{side}_rho", deviation.expm1().log())):
                layer.register_parameter(what, nn.Parameter(value.to(layer.weight)))  # type: ignore[arg-type]
    return noisy


def _nodes(layer: nn.Module, side: str) -> int:
    kind = "features" if isinstance(layer, nn.Linear) else "channels"
    return int(getattr(layer, f"{side}_{kind}"))


def latents(network: nn.Module) -> dict[str, tuple[str, str]]:
    """Names of mean and rho of each place that carries noise, by its own name (`conv1.out`).

    >>> noisy = with_noise(
    ...     nn.Sequential(nn.Linear(4, 3)), ["0"], components=2, mode="in", std=0.4, generator=torch.Generator()
    ... )
    >>> latents(noisy)
    {'0.in': ('0.in_mean', '0.in_rho')}
    """
    layers = [(name, layer) for name, layer in network.named_modules() if isinstance(layer, NodeNoise)]
    sides = [(name, side) for name, layer in layers for side in ("in", "out") if hasattr(layer, f"{side}_mean")]
    places = [f"{name}.{side}" if name else side for name, side in sides]
    return {place: (f"{place}_mean", f"{place}_rho") for place in places}


@torch.no_grad()
def fold(noisy: nn.Module, network: nn.Module, *, component: int, generator: torch.Generator) -> None:
    """Draw one value for each latent, and multiply a plain network's weights by it.

    Args:
        noisy: where the latents are.
        network: of the same architecture, with the same weights.
        component: whose Gaussian is drawn from.
    """
    for name, layer in noisy.named_modules():
        if not isinstance(layer, NodeNoise):
            continue
        plain = network.get_submodule(name)
        for side in ("in", "out"):
            mean: Tensor | None = getattr(layer, f"{side}_mean", None)
            if mean is None:
                continue
            std = F.softplus(getattr(layer, f"{side}_rho")[component].cpu().double())
            epsilon = torch.randn(std.shape, generator=generator, dtype=torch.float64)
            _scale(plain, side, mean[component].cpu().double() + std * epsilon)


def _scale(layer: nn.Module, side: str, z: Tensor) -> None:
    """Let a layer multiply its inputs or outputs by z `[nodes]`."""
    weight, bias = layer.weight, layer.bias
    assert isinstance(weight, Tensor) and (bias is None or isinstance(bias, Tensor))
    z = z.to(weight.device, torch.promote_types(weight.dtype, torch.float32))
    groups = int(getattr(layer, "groups", 1))
    # [groups, A, B, ...]: a transposed convolution keeps inputs in A and outputs in B, all others the other way round.
    grouped = weight.view(groups, weight.shape[0] // groups, *weight.shape[1:])
    first = (side == "in") == isinstance(layer, TRANSPOSED)
    ones = [1] * (weight.dim() - 2)
    factor = z.view(groups, -1, 1, *ones) if first else z.view(groups, 1, -1, *ones)
    weight.copy_((grouped * factor).reshape(weight.shape))
    if side == "out" and bias is not None:
        bias.copy_(bias * z)


def refuse_no_layer(found: list[str], left: Mapping[str, str]) -> None:
    """Stop where nothing could carry noise.

    >>> refuse_no_layer([], {"head": "a forward pass calls it 2 times"})
    Traceback (most recent call last):
    forde.errors.FordeError: node-bnn found no layer that can carry noise ('head': a forward pass calls it 2 times);
    use nn.Linear or nn.Conv layers whose first axis is the batch.
    """
    if not found:
        reasons = "; ".join(f"'{name}': {why}" for name, why in list(left.items())[:3])
        raise FordeError(
            f"node-bnn found no layer that can carry noise ({reasons or 'no convolution or linear layer'}); use "
            "nn.Linear or nn.Conv layers whose first axis is the batch."
        )
