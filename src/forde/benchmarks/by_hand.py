"""A deep ensemble's training step as one writes it without forde: what an engine has to be worth.

Nothing of forde's step is used here. Both do what forde's deep ensemble does: the mean cross-entropy of each member,
weight decay, and SGD with Nesterov momentum.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn
from torch.func import functional_call, stack_module_state
from torch.nn import functional as F

LR = 1e-3
WEIGHT_DECAY = 5e-4


HandStep = Callable[[Tensor, Tensor], Tensor]
"""A step on a batch x `[B, ...]`, y `[B]`, which returns the losses `[M]`."""


def loop(members: Sequence[nn.Module]) -> HandStep:
    """Members one after another, one optimizer over all of them.

    >>> loop([nn.Linear(4, 3), nn.Linear(4, 3)])(torch.randn(8, 4), torch.randint(3, (8,))).shape
    torch.Size([2])
    """
    optimizer = _optimizer([parameter for member in members for parameter in member.parameters()])

    def step(x: Tensor, y: Tensor) -> Tensor:
        optimizer.zero_grad()
        losses = []
        for member in members:
            loss = F.cross_entropy(member(x), y)
            loss.backward()
            losses.append(loss.detach())
        optimizer.step()
        return torch.stack(losses)

    return step


def vmap(members: Sequence[nn.Module]) -> HandStep:
    """Copies of the members' tensors, stacked, under `torch.vmap`, as in torch's tutorial on model ensembling.

    >>> vmap([nn.Linear(4, 3), nn.Linear(4, 3)])(torch.randn(8, 4), torch.randint(3, (8,))).shape
    torch.Size([2])
    """
    parameters, buffers = stack_module_state(list(members))
    skeleton = copy.deepcopy(members[0]).to("meta")
    optimizer = _optimizer(list(parameters.values()))

    def loss(parameters: dict[str, Tensor], buffers: dict[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(functional_call(skeleton, (parameters, buffers), (x,)), y)

    def step(x: Tensor, y: Tensor) -> Tensor:
        optimizer.zero_grad()
        losses: Tensor = torch.vmap(loss, in_dims=(0, 0, None, None))(parameters, buffers, x, y)
        losses.sum().backward()
        optimizer.step()
        return losses.detach()

    return step


def _optimizer(parameters: list[Tensor]) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=LR, momentum=0.9, nesterov=True, weight_decay=WEIGHT_DECAY)
