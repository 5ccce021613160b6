"""One classifier for all members (feature-RDE as published), as copies that are kept equal."""

from __future__ import annotations

import torch

from forde.ensemble import Ensemble
from forde.errors import FordeError
from forde.spaces.features import last_linear


def share_heads(ensemble: Ensemble) -> tuple[str, ...]:
    """Give every member the first one's last linear layer; returns its parameters' names.

    The copies stay equal because they start equal and follow the same gradient, the mean over members.
    """
    head = last_linear(ensemble.members[0])
    source = dict(ensemble.members[0].get_submodule(head).named_parameters())
    shapes = {name: value.shape for name, value in source.items()}
    for index, member in enumerate(ensemble.members):
        target = dict(member.get_submodule(head).named_parameters()) if last_linear(member) == head else {}
        if {name: value.shape for name, value in target.items()} != shapes:
            raise FordeError(
                f"members 0 and {index} differ in their last linear layer, so they cannot share it; "
                "use shared_head=False."
            )
        with torch.no_grad():
            for name, value in target.items():
                value.copy_(source[name])
    return tuple(f"{head}.{name}" if head else name for name in source)
