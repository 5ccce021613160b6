"""Layers that a method reads or shares: keeping an inner activation, the last linear layer, BatchNorm's statistics."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from forde.arguments import Input, called
from forde.ensemble import Ensemble
from forde.errors import FordeError
from forde.forward import explaining_forward, in_evaluation
from forde.random_state import get_random_state, set_random_state
from forde.spaces import FeatureLayer


@contextmanager
def kept_activation(network: nn.Module, layer: FeatureLayer) -> Iterator[list[Tensor]]:
    """Collects the activation of `layer`, flattened to `[B, Q]`, during the forward pass inside."""
    kept: list[Tensor] = []

    def keep(value: Any) -> Tensor | None:
        if not isinstance(value, Tensor):
            raise FordeError(
                f"the {layer.side} of layer '{layer.name}' is a {type(value).__name__}, but a tensor was expected; "
                "name another submodule with Features(layer='...')."
            )
        if value.dim() < 3:
            kept.append(value)
            return None
        kept.append(value.flatten(1))
        return kept[-1].view(value.shape)  # what was kept is on the way to the loss

    def keep_input(_module: nn.Module, inputs: tuple[Any, ...]) -> Any:
        replaced = keep(inputs[0])
        return None if replaced is None else (replaced, *inputs[1:])

    assert layer.name is not None
    module = network.get_submodule(layer.name)
    handle = (
        module.register_forward_pre_hook(keep_input)
        if layer.side == "input"
        else module.register_forward_hook(lambda _module, _inputs, output: keep(output))
    )
    try:
        yield kept
    finally:
        handle.remove()
    if not kept:
        raise FordeError(f"the forward pass did not use layer '{layer.name}'; name another with Features(layer='...').")


def found_layer(layer: FeatureLayer | None, network: nn.Module, x: Input) -> FeatureLayer | None:
    """A layer by its name, which a forward pass on the batch `x` tells where it is the last one called."""
    if layer is None or layer.name is not None:
        return layer
    return FeatureLayer(last_linear(network, x), layer.side)


def last_linear(network: nn.Module, x: Input) -> str:
    """Name of the last `nn.Linear` that the forward pass on `x` calls. The network stays as it is.

    >>> last_linear(nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2)), torch.zeros(1, 4))
    '2'
    """
    calls: list[str] = []
    handles = [
        module.register_forward_hook(lambda *_, name=name: calls.append(name))
        for name, module in network.named_modules()
        if isinstance(module, nn.Linear)
    ]
    random = get_random_state(x.device)
    try:
        with torch.no_grad(), in_evaluation(network), explaining_forward(x):
            called(network, x.detach().clone())
    finally:
        for handle in handles:
            handle.remove()
        set_random_state(random)
    if not calls:
        raise FordeError(
            "the forward pass calls no linear layer whose input could serve as features; "
            "name a submodule with Features(layer='...')."
        )
    return calls[-1]


def share_heads(ensemble: Ensemble, x: Input) -> tuple[str, ...]:
    """Give every member the first one's last linear layer; returns its parameters' names.

    The copies stay equal because they start equal and follow the same gradient, the mean over members.
    """
    head = last_linear(ensemble.members[0], x)
    source = dict(ensemble.members[0].get_submodule(head).named_parameters())
    shapes = {name: value.shape for name, value in source.items()}
    for index, member in enumerate(ensemble.members):
        target = dict(member.get_submodule(head).named_parameters()) if last_linear(member, x) == head else {}
        if {name: value.shape for name, value in target.items()} != shapes:
            raise FordeError(
                f"members 0 and {index} differ in their last linear layer, so they cannot share it; "
                "use shared_head=False."
            )
        with torch.no_grad():
            for name, value in target.items():
                value.copy_(source[name])
    return tuple(f"{head}.{name}" if head else name for name in source)
