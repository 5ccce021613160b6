"""Keeping an inner activation of a forward pass, and keeping BatchNorm's running statistics still."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn

from forde.errors import FordeError
from forde.spaces import FeatureLayer
from forde.torch_private import batch_norms


@contextmanager
def capture(network: nn.Module, layer: FeatureLayer | None) -> Iterator[list[Tensor]]:
    """Collects the activation of `layer` during the forward passes inside; nothing for None."""
    kept: list[Tensor] = []
    if layer is None:
        yield kept
        return

    def keep(_module: nn.Module, inputs: tuple[Any, ...], output: Any) -> None:
        value = inputs[0] if layer.side == "input" else output
        if not isinstance(value, Tensor):
            raise FordeError(
                f"the {layer.side} of layer '{layer.name}' is a {type(value).__name__}, but a tensor was expected; "
                "name another submodule with Features(layer='...')."
            )
        kept.append(value)

    assert layer.name is not None
    handle = network.get_submodule(layer.name).register_forward_hook(keep)
    try:
        yield kept
    finally:
        handle.remove()


def last_kept(kept: list[Tensor], layer: FeatureLayer | None) -> Tensor | None:
    """The activation of the forward pass just made."""
    if layer is None:
        return None
    if not kept:
        raise FordeError(f"the forward pass did not use layer '{layer.name}'; name another with Features(layer='...').")
    return kept[-1]


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
