"""What a run of `fit` trains, and what the ensemble's members are made of.

Most methods train the members themselves. SWAG and node-BNN train *one network* and make all members of it at the end:

    method = Method(one_network=Swag())      settings, reusable
    plan = method.plan(ensemble, ...)        one run: `plan.trained` is an ensemble of the one network
    ...                                      the loop trains `plan.trained` like any ensemble, on any engine
    plan.make_members(ensemble, passes)      member i ← draw i

Afterwards members are plain networks of the architecture that `make_network` gave them, so that predicting, evaluating,
saving and loading need not know how they came about.

A new method of this kind is a `OneNetwork` with its settings, and a `Plan` that overrides what it needs.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor, nn

from forde.arguments import Input
from forde.ensemble import Ensemble, named_tensors
from forde.errors import FordeError
from forde.priors import TrainingData

if TYPE_CHECKING:
    from forde.methods.base import Method

Passes = Callable[[torch.Generator], Iterator[Input]]
"""One pass over all training inputs, `[B, ...]` each, in an order that the generator draws."""


@dataclass(frozen=True)
class Group:
    """Parameters that the default optimizer, SGD, treats alike."""

    parameters: list[Tensor]
    momentum: float = 0.9
    nesterov: bool = True
    falls: bool = True
    """Whether the learning rate falls as `Method.falling` says, or stays."""


class Plan:
    """One run of `fit`; as it is, of a method that trains the members themselves.

    Args:
        trained: the networks that the loop trains.
        method: whose priors act on them.
    """

    makes_members = False
    """Whether members are made of what was trained, once it is."""

    def __init__(self, trained: Ensemble, method: Method) -> None:
        self.trained, self.method = trained, method

    def groups(self, parameters: Mapping[str, Tensor]) -> list[Group]:
        """How the default optimizer treats the parameters of one network, by name (`[1, ...]` on a vectorized engine).

        Only asked for where `makes_members`; members that are trained themselves are one group.
        """
        return [Group(list(parameters.values()))]

    def batch(self, x: Input, y: Tensor) -> tuple[Input, Tensor]:
        """What a step is given of a batch `[B, ...]`."""
        return x, y

    def before_epoch(self, epoch: int) -> None:
        """Get ready for an epoch, also for the rest of one that was interrupted."""

    def after_epoch(self, epoch: int) -> dict[str, float]:
        """Take note of the weights at an epoch's end; returns what belongs into its record."""
        return {}

    def tensors(self) -> dict[str, Tensor]:
        """What a checkpoint must hold beside networks and optimizer."""
        return {}

    def load(self, tensors: Mapping[str, Tensor]) -> None:
        """Inverse of `tensors`."""

    def make_members(self, ensemble: Ensemble, passes: Passes) -> None:
        """Give the ensemble's members their weights; called once, after the last epoch."""


class OneNetwork(ABC):
    """How all members are made of one trained network: a method's settings, and where a run starts."""

    @abstractmethod
    def plan(self, ensemble: Ensemble, method: Method, *, data: TrainingData, epochs: int, seed: int) -> Plan:
        """Start a run that ends in these members."""

    def falling(self, epochs: int, lr: float) -> tuple[int, float]:
        """As `Method.falling`."""
        return epochs, 0.01


def refuse_different_members(ensemble: Ensemble, name: str) -> None:
    """Stop where members cannot all be made of the first one.

    >>> ensemble = Ensemble([lambda: nn.Linear(2, 2), lambda: nn.Linear(2, 3)])
    >>> refuse_different_members(ensemble, "swag")
    Traceback (most recent call last):
    forde.errors.FordeError: swag makes all members of one network, but member 1 has another architecture than
    member 0; give all members one make_network.
    """
    shapes = [{n: t.shape for n, t in named_tensors(member).items()} for member in ensemble.members]
    for index, other in enumerate(shapes):
        if other != shapes[0]:
            raise FordeError(
                f"{name} makes all members of one network, but member {index} has another architecture than member 0; "
                "give all members one make_network."
            )


@torch.no_grad()
def copy_network(source: nn.Module, target: nn.Module) -> None:
    """Give a network of the same architecture another one's tensors, modes and what is frozen.

    What only the source has (the latents of node-BNN) is left out.
    """
    own = named_tensors(source)
    for name, tensor in named_tensors(target).items():
        tensor.copy_(own[name])
        if isinstance(tensor, nn.Parameter):
            tensor.requires_grad_(own[name].requires_grad)
    modes = {name: layer.training for name, layer in source.named_modules()}
    for name, layer in target.named_modules():
        layer.training = modes[name]


def draw_generator(seed: int, index: int) -> torch.Generator:
    """Random numbers of draw `index` of a run: others than those of any initialization, the same on every device.

    >>> a, b = (torch.rand(1, generator=draw_generator(0, i)) for i in (0, 1))
    >>> bool(a != b), torch.equal(a, torch.rand(1, generator=draw_generator(0, 0)))
    (True, True)
    """
    found = np.random.SeedSequence([seed, index], spawn_key=(1,)).generate_state(1, np.uint64)[0]
    return torch.Generator().manual_seed(int(found >> np.uint64(1)))
