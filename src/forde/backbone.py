"""A pretrained network that all members share: frozen, in evaluation mode, computed once for all of them."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor, nn

from forde.arguments import Input, called
from forde.errors import FordeError
from forde.forward import explaining_forward, tensor_output

ROWS = 256
"""Samples that run through it at once."""


def frozen_backbone(backbone: nn.Module, members: nn.ModuleList) -> nn.Module:
    """The network itself, frozen where it is.

    >>> next(frozen_backbone(nn.Linear(4, 8), nn.ModuleList()).parameters()).requires_grad
    False
    """
    if not isinstance(backbone, nn.Module):
        raise FordeError(
            f"backbone is a {type(backbone).__name__}, but a network (torch.nn.Module) that all members share was "
            "expected; pass the network itself."
        )
    shared = {id(parameter) for parameter in backbone.parameters()}
    if any(id(parameter) in shared for parameter in members.parameters()):
        raise FordeError(
            "make_network() returns a network that holds the backbone, but with backbone= it builds heads, which get "
            "what the backbone returns; build the head alone, or leave backbone out."
        )
    return backbone.requires_grad_(False).eval()


@torch.no_grad()
def features_of(backbone: nn.Module, x: Input) -> Tensor:
    """What it makes of a batch: `[B, ...]`, some samples at a time.

    >>> features_of(nn.Linear(4, 8), torch.zeros(5, 4)).shape
    torch.Size([5, 8])
    """
    own = next((p.dtype for p in backbone.parameters() if p.is_floating_point()), None)

    def typed(tensor: Tensor) -> Tensor:
        return tensor.to(own) if own is not None and tensor.is_floating_point() else tensor

    parts = [typed(x)] if isinstance(x, Tensor) else [x.map(typed)]
    parts = list(parts[0].split(ROWS)) if len(x) > ROWS else parts
    with explaining_forward(x):
        outputs = [tensor_output(called(backbone, part.clone())) for part in parts]  # it may work in place
    return outputs[0] if len(outputs) == 1 else torch.cat(outputs)


def refuse_other_backbone(folder: str | Path, saved: object, given: nn.Module | None) -> None:
    """Stop where a saved ensemble has a backbone and none is given, or the other way round."""
    if saved is not None and given is None:
        raise FordeError(
            f"the members in '{folder}' share a backbone ({str(saved)[:80]}), which the file holds the weights of but "
            "not the code; give a network of its architecture as backbone=."
        )
    if saved is None and given is not None:
        raise FordeError(f"the members in '{folder}' were saved without a backbone; leave backbone out.")
