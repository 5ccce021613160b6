"""The plain engine: a loop over members in eager mode. Works for any network, also for members that differ."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor, nn
from torch.func import functional_call

from forde.derivatives import LargeConvolutions
from forde.engine.base import Engine
from forde.engine.capture import capture, last_kept
from forde.engine.heads import found_layer
from forde.engine.part_of_batch import Statistics
from forde.engine.records import Memory, Precision
from forde.ensemble import Ensemble
from forde.errors import FordeError
from forde.forward import tensor_output
from forde.methods.base import Method
from forde.spaces import View


class EagerEngine(Engine):
    """Members one after another; their graphs are kept while they interact, or made again (`memory`).

    On a CPU second derivatives are the cheap ones of `forde.derivatives`. On a GPU only large convolutions have those:
    others would be slower with them, because the loop waits for Python, in which they are written.

    >>> from torch import nn
    >>> from forde import Ensemble, method
    >>> ensemble = Ensemble(lambda: nn.Linear(4, 3), n_members=2)
    >>> engine = EagerEngine(ensemble, method("forde-identity"))
    >>> report = engine.step(torch.randn(8, 4), torch.randint(3, (8,)))
    >>> report.losses.shape, ensemble.members[0].weight.grad.shape
    (torch.Size([2]), torch.Size([3, 4]))
    """

    def __init__(
        self, ensemble: Ensemble, method: Method, precision: Precision = "float32", memory: Memory = "speed"
    ) -> None:
        super().__init__(ensemble, method, precision, memory)
        self.cheap_convolutions = ensemble.device.type == "cpu"
        self.layers = [method.feature_layer(member) for member in ensemble.members]
        """By unit; named once the first batch was met."""
        self.leaves = [_leaves(member) for member in ensemble.members]
        self._look_for_frozen()

    def _second_derivatives(self) -> AbstractContextManager[object]:
        return super()._second_derivatives() if self.cheap_convolutions else LargeConvolutions()

    def _find_layers(self, x: Tensor) -> None:
        pairs = zip(self.layers, self.ensemble.members, strict=True)
        self.layers = [found_layer(layer, member, x) for layer, member in pairs]

    def _inputs(self, x: Tensor) -> Tensor:
        return x

    def _run(
        self, unit: int, x: Tensor, y: Tensor, tensors: dict[str, Tensor] | None, statistics: Statistics | None
    ) -> View:
        member, layer = self.ensemble.members[unit], self.layers[unit]
        with capture(member, layer) as kept, statistics or nullcontext():
            output = tensor_output(member(x) if tensors is None else functional_call(member, tensors, (x,)))
        features = last_kept(kept, layer)
        parameters = [p if tensors is None else tensors[n] for n, p in self.groups[unit].items()]
        return View(x, y, output, features, parameters, self.ensemble.likelihood)

    def buffers(self, unit: int) -> dict[str, Tensor]:
        return dict(self.ensemble.members[unit].named_buffers())

    def frozen(self, unit: int) -> dict[str, Tensor]:
        return {n: p for n, p in self.ensemble.members[unit].named_parameters() if not p.requires_grad}

    def _of_unit(self, tensor: Tensor, unit: int) -> Tensor:
        return tensor[unit]

    def _member_gradients(self) -> dict[str, Tensor]:
        refuse_different_parameters(self.ensemble)
        return {
            name: torch.stack(gradients)
            for name in self.groups[0]
            if len(gradients := [g.grad for group in self.groups if (g := group[name]).grad is not None])
            == len(self.groups)
        }

    def _assign_gradients(self, gradients: dict[str, Tensor]) -> None:
        for name, gradient in gradients.items():
            for i, group in enumerate(self.groups):
                group[name].grad = gradient[i].clone()


def _leaves(network: nn.Module) -> dict[str, Tensor]:
    """Parameters that can be trained, frozen ones included."""
    return {n: p for n, p in network.named_parameters() if p.is_floating_point() or p.is_complex()}


def refuse_different_parameters(ensemble: Ensemble) -> None:
    """Stop where members' gradients would be mixed, but one has other parameters than the first."""

    def shapes(member: nn.Module) -> dict[str, torch.Size]:
        return {name: parameter.shape for name, parameter in member.named_parameters() if parameter.requires_grad}

    for i, member in enumerate(ensemble.members):
        if shapes(member) != shapes(ensemble.members[0]):
            raise FordeError(
                f"members 0 and {i} have different parameters, so their gradients cannot be mixed; "
                "use rule=WGD() without a shared head, or members of one architecture."
            )
