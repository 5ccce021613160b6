"""All members in one call: parameters stacked `[M, ...]` and the forward pass mapped over them with `torch.vmap`.

For small networks the time goes into launching operations, not into arithmetic; M members then cost little more than
one.
"""

from __future__ import annotations

from contextlib import nullcontext

import torch
from torch import Tensor, nn
from torch.func import functional_call

from forde.derivatives import Stacked
from forde.engine.base import Engine
from forde.engine.capture import capture, last_kept
from forde.engine.part_of_batch import MeanAndInverse, Recording, Statistics
from forde.engine.records import Memory, Precision
from forde.ensemble import Ensemble
from forde.errors import FordeError
from forde.methods.base import Method
from forde.spaces import View


class VectorizedEngine(Engine):
    """One unit: all members. While the engine is open, the members' tensors are views into the stacked ones.

    >>> from torch import nn
    >>> from forde import Ensemble, method
    >>> ensemble = Ensemble(lambda: nn.Linear(4, 3), n_members=2)
    >>> engine = VectorizedEngine(ensemble, method("forde-identity"))
    >>> report = engine.step(torch.randn(8, 4), torch.randint(3, (8,)))
    >>> report.losses.shape, [p.shape for p in engine.parameters()]
    (torch.Size([2]), [torch.Size([2, 3, 4]), torch.Size([2, 3])])
    """

    def __init__(
        self, ensemble: Ensemble, method: Method, precision: Precision = "float32", memory: Memory = "speed"
    ) -> None:
        super().__init__(ensemble, method, precision, memory)
        if memory != "speed":
            raise FordeError(
                f"engine='vectorized' runs all members at once, so memory='{memory}' saves nothing; "
                "use engine='eager', 'compiled' or 'auto'."
            )
        if not alike(ensemble):
            raise FordeError("engine='vectorized' needs members of one architecture; use engine='eager' or 'auto'.")
        self.network = ensemble.members[0]
        self.layer = method.feature_layer(self.network)
        trainable = [name for name, parameter in self.network.named_parameters() if parameter.requires_grad]
        tensors = [*self.network.named_parameters(), *self.network.named_buffers()]  # tied ones once
        self.stacks = {name: _stack(ensemble, name) for name, _ in tensors}
        self.groups = [{name: self.stacks[name].requires_grad_() for name in trainable}]

    def _inputs(self, x: Tensor) -> Tensor:
        return x.unsqueeze(0).expand(self.ensemble.n_members, *x.shape)

    def _recording(self, *, linked: bool) -> Recording:
        return Recording()  # links are not written for stacked members

    def _run(
        self, unit: int, x: Tensor, y: Tensor, tensors: dict[str, Tensor] | None, statistics: Statistics | None
    ) -> View:
        def call(
            tensors: dict[str, Tensor], inputs: Tensor, known: list[MeanAndInverse]
        ) -> tuple[list[Tensor], list[MeanAndInverse]]:
            own = None if statistics is None else statistics.within(known)
            with capture(self.network, self.layer) as kept, Stacked(), own or nullcontext():
                output = functional_call(self.network, tensors, (inputs,))
            features = last_kept(kept, self.layer)
            return [output] if features is None else [output, features], [] if own is None else own.statistics

        tensors = self.stacks if tensors is None else tensors
        known = [] if statistics is None else statistics.statistics
        (output, *features), known = torch.vmap(call, randomness="different")(tensors, x, known)
        if statistics is not None:
            statistics.statistics = known
        parameters = [tensors[name] for name in self.groups[0]]
        return View(
            x,
            y,
            output,
            features[0] if features else None,
            parameters,
            self.ensemble.likelihood,
            stacked=True,
        )

    def buffers(self, unit: int) -> dict[str, Tensor]:
        return {name: self.stacks[name] for name, _ in self.network.named_buffers()}

    def frozen(self, unit: int) -> dict[str, Tensor]:
        names = [name for name, _ in self.network.named_parameters() if name not in self.groups[0]]
        return {name: self.stacks[name] for name in names}

    def _of_unit(self, tensor: Tensor, unit: int) -> Tensor:
        return tensor

    def _member_gradients(self) -> dict[str, Tensor]:
        return {name: stack.grad for name, stack in self.groups[0].items() if stack.grad is not None}

    def _assign_gradients(self, gradients: dict[str, Tensor]) -> None:
        for name, gradient in gradients.items():
            self.groups[0][name].grad = gradient.clone()

    def close(self) -> None:
        """Cut the members loose from the stacks, so that each owns its memory again."""
        for member in self.ensemble.members:
            for tensor in [*member.parameters(), *member.buffers()]:
                tensor.data = tensor.data.clone()


def alike(ensemble: Ensemble) -> bool:
    """Whether all members have the same modules, parameter shapes and modes."""

    def description(network: nn.Module) -> list[object]:
        modules = [
            (name, type(module), module.training, module.extra_repr()) for name, module in network.named_modules()
        ]
        tensors = {**dict(network.named_parameters()), **dict(network.named_buffers())}
        return [modules, {n: (t.shape, t.dtype, t.device, t.requires_grad) for n, t in tensors.items()}]

    first = description(ensemble.members[0])
    return all(description(member) == first for member in ensemble.members[1:])


def _stack(ensemble: Ensemble, name: str) -> Tensor:
    """`[M, ...]`; each member's tensor becomes a view of its row, so that both see every update."""
    tensors = [_lookup(member, name) for member in ensemble.members]
    stack = torch.stack([tensor.detach() for tensor in tensors])
    for tensor, row in zip(tensors, stack, strict=True):
        tensor.data = row
    return stack


def _lookup(network: nn.Module, name: str) -> Tensor:
    path, _, leaf = name.rpartition(".")
    tensor: Tensor = getattr(network.get_submodule(path), leaf)
    return tensor
