"""Forward passes of perceptrons, all members at once: one operation where a loop has M, and no `torch.vmap` around it.

`torch.vmap` can stack any network, but wraps every tensor and calls every operation from Python. A perceptron needs
neither: for inputs X `[M, B, I]` its layers are Y = XWᵀ + b with W `[M, O, I]`, and operations on each number alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from torch import Tensor, nn
from torch.nn import functional as F

from forde.double_backward.activations import relu
from forde.double_backward.stacked import linear_of_all
from forde.models import MLP
from forde.torch_private import hooks_of_layer, untold

ELEMENTWISE = (
    nn.Identity, nn.Tanh, nn.GELU, nn.SiLU, nn.ELU, nn.LeakyReLU, nn.Sigmoid, nn.Softplus,
)  # fmt: skip
"""Layers that do not look at shapes, and so take stacks as they are."""
LAYERS = (nn.Linear, nn.Sequential, MLP, nn.Flatten, nn.ReLU, *ELEMENTWISE)


def can_run(networks: Sequence[nn.Module]) -> bool:
    """Whether `run` does the same as each network by itself: perceptrons of one architecture, without hooks.

    >>> def make(slope: float) -> nn.Module:
    ...     return nn.Sequential(nn.Linear(2, 2), nn.LeakyReLU(slope))
    >>> can_run([make(0.1), make(0.1)]), can_run([make(0.1), make(0.2)]), can_run([nn.Conv2d(1, 1, 1)] * 2)
    (True, False, False)
    """
    first, *others = map(_description, networks)
    return first is not None and all(other == first for other in others)


def _description(network: nn.Module) -> list[object] | None:
    """What decides what a network computes, besides values of tensors; None where `run` cannot run it."""
    if untold() is not None:
        return None
    found: list[object] = []
    for name, module in network.named_modules(remove_duplicate=False):
        if type(module) not in LAYERS or "forward" in vars(module) or any(hooks_of_layer(module)):
            return None
        if isinstance(module, nn.Flatten) and (module.start_dim, module.end_dim) != (1, -1):
            return None
        # Of these layers, what torch prints is all that they know.
        found.append((name, type(module), module.extra_repr(), getattr(module, "inplace", None)))
    tensors = dict(network.named_parameters(remove_duplicate=False))
    tied = len(tensors) != len(list(network.parameters()))
    # A mask or a parametrisation puts a plain tensor in the place of a parameter.
    linear = [name for name, module in network.named_modules() if type(module) is nn.Linear]
    own = all(f"{name}.weight".removeprefix(".") in tensors for name in linear)
    found += [(name, tensor.shape, tensor.dtype) for name, tensor in tensors.items()]
    return None if tied or not own or list(network.buffers()) else found


def run(network: nn.Module, tensors: Mapping[str, Tensor], x: Tensor, prefix: str = "") -> Tensor:
    """Outputs of all members, where `can_run`: x `[M, B, ...]` → `[M, B, C]`.

    Args:
        network: one of the members, whose layers are followed.
        tensors: all members' parameters by name, `[M, ...]`.
        prefix: of the network's names in `tensors`, where it is a part of another.

    >>> import torch
    >>> tensors = {"0.weight": torch.ones(2, 3, 4), "0.bias": torch.ones(2, 3)}
    >>> run(nn.Sequential(nn.Linear(4, 3), nn.ReLU()), tensors, torch.ones(2, 5, 4)).shape
    torch.Size([2, 5, 3])
    """
    kind = type(network)
    if kind is nn.Sequential:
        for name, layer in network.named_children():
            x = run(layer, tensors, x, f"{prefix}{name}.")
        return x
    if kind is MLP:
        x = run(network.body, tensors, x.flatten(2), f"{prefix}body.")  # type: ignore[arg-type]
        return run(network.head, tensors, x, f"{prefix}head.")  # type: ignore[arg-type]
    if kind is nn.Linear:
        weight, bias = tensors[f"{prefix}weight"], tensors.get(f"{prefix}bias")
        if x.dim() == 3:
            return linear_of_all(x, weight, bias)
        return linear_of_all(x.flatten(1, -2), weight, bias).unflatten(1, x.shape[1:-1])
    if kind is nn.Flatten:
        return x.flatten(2)
    if kind is nn.ReLU:
        return F.relu(x, inplace=True) if network.inplace else relu(x)
    y: Tensor = network(x)
    return y
