"""All members in one call: parameters stacked `[M, ...]` and the forward pass mapped over them with `torch.vmap`.

For small networks the time goes into launching operations, not into arithmetic; M members then cost little more than
one.
"""

from __future__ import annotations

import logging
from contextlib import nullcontext

import torch
from torch import Tensor, nn
from torch.func import functional_call

from forde.derivatives import Stacked
from forde.engine.agreement import disagreement
from forde.engine.base import Engine
from forde.engine.capture import capture, last_kept, still_statistics
from forde.engine.eager import EagerEngine
from forde.engine.heads import found_layer
from forde.engine.part_of_batch import MeanAndInverse, Recording, Statistics
from forde.engine.python_state import Watch, has_tensor_hooks, unstackable
from forde.engine.records import Batch, Forward, Memory, Precision
from forde.engine.verifying import Position, plain_parts, rounded_parts
from forde.ensemble import Ensemble
from forde.errors import FordeError, first_line
from forde.forward import tensor_output
from forde.methods.base import Method
from forde.models import MLP
from forde.spaces import View

log = logging.getLogger(__name__)

KNOWN_STACKED = (
    nn.Sequential, nn.ModuleList, nn.Flatten, nn.Identity, nn.Linear, nn.BatchNorm1d, nn.LayerNorm, nn.ReLU, nn.Tanh,
    nn.GELU, nn.SiLU, nn.ELU, nn.LeakyReLU, nn.Sigmoid, nn.Softplus, MLP,
)  # fmt: skip
"""Modules that do the same under `torch.vmap`; others are compared with a loop in the first step."""


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
        members = list(ensemble.members)
        reason = unstackable(members)
        if reason is not None:
            raise FordeError(
                f"engine='vectorized' runs the first member's code for all, but {reason}; use engine='eager' or 'auto'."
            )
        self.network = members[0]
        self.layer = method.feature_layer(self.network)
        tensors = [*self.network.named_parameters(), *self.network.named_buffers()]  # tied ones once
        self.stacks = {name: _stack(ensemble, name) for name, _ in tensors}
        own = [dict(member.named_parameters()) for member in members]
        self._own = {name: [each[name] for each in own] for name in own[0]}
        self._frozen_known = False
        """Until the watch has seen a change: it looks at what is frozen too."""
        self.leaves = [{n: self.stacks[n] for n, p in own[0].items() if p.is_floating_point() or p.is_complex()}]
        self._watch = Watch(members)
        self._checked = all(type(module) in KNOWN_STACKED for module in self.network.modules())
        """Whether stacked members are known to do as each by itself."""
        self._one_by_one = False
        """Whether the members' code differs by now, so that each has to run its own."""
        self._look_for_frozen()

    def _look_for_frozen(self) -> None:
        if self._frozen_known:
            return
        self._frozen_known = True
        for name, stack in self.leaves[0].items():
            trained = {parameter.requires_grad for parameter in self._own[name]}
            if len(trained) > 1:
                raise FordeError(
                    f"some members train '{name}' and others have it frozen, which stacked members cannot; "
                    "freeze it in all members, or use engine='eager'."
                )
            stack.requires_grad_(trained.pop())
        super()._look_for_frozen()

    def forward(self, x: Batch, y: Batch, *, repel: bool) -> Forward:
        self._look_at_code()
        if not self._checked and isinstance(x, Tensor) and isinstance(y, Tensor):
            reason = self._unlike_a_loop(x, y, repel=repel)
            if reason is not None:
                raise FordeError(
                    f"engine='vectorized' runs members unlike a loop would, because {reason}; use engine='eager' or "
                    "'auto'."
                )
            self._checked = True
        return super().forward(x, y, repel=repel)

    def _unlike_a_loop(self, x: Tensor, y: Tensor, *, repel: bool) -> str | None:
        """What stacked members do differently from each by itself, in words; None if nothing."""
        self._meet(x)
        self._look_for_frozen()
        start = Position(self, x.device)
        plain = EagerEngine(self.ensemble, self.method, self.precision)
        plain._meet(x)
        plain._watch_output = self._watch_output  # what one has reported the other need not
        try:
            try:
                found = plain_parts(self, 0, x, y, repel=repel, metric=None)
            except Exception as error:
                if isinstance(error, FordeError) and error.__cause__ is None:
                    raise
                with self._explaining():
                    plain_parts(plain, 0, x, y, repel=repel, metric=None)  # raises where it is the network's fault
                return f"stacked it fails ({first_line(error.__cause__ or error)})"
            change = self._watch.change()
            reason = start.side_effects()
            if change is not None or reason is not None:
                return reason or f"{change} after its forward pass"
            if start.drew:
                log.info("engine: stacked members draw random numbers, so they were not compared with a loop")
                return None
            start.restore()
            rounded = rounded_parts(self, 0, x, y, repel=repel, metric=None)
            for member in range(self.ensemble.n_members):
                start.restore()
                own = plain_parts(plain, member, x, y, repel=repel, metric=None)
                reason = disagreement(found.of_member(member), own, rounded.of_member(member))
                if reason is not None:
                    return f"{reason} in member {member}"
            return None
        finally:
            start.restore()
            self._watch.restore()

    def _look_at_code(self) -> None:
        """Members stop sharing the first one's code when that of another has changed in another way."""
        if self._watch.change() is None:
            return
        members = list(self.ensemble.members)
        self._watch, self._frozen_known = Watch(members), False
        reason = None if self._one_by_one else unstackable(members)
        if any(has_tensor_hooks(parameter) for member in members for parameter in member.parameters()):
            raise FordeError(
                "a gradient hook was added to a parameter of stacked members, where it would not be called; "
                "add it before training, or use engine='eager'."
            )
        if reason is not None:
            self._one_by_one = True
            log.info("engine: members run one by one from here on, because %s", reason)

    def _find_layers(self, x: Tensor) -> None:
        self.layer = found_layer(self.layer, self.network, x)

    def _inputs(self, x: Tensor) -> Tensor:
        return x.unsqueeze(0).expand(self.ensemble.n_members, *x.shape)

    def _recording(self, *, linked: bool) -> Recording:
        return Recording()  # links are not written for stacked members

    def _run(
        self, unit: int, x: Tensor, y: Tensor, tensors: dict[str, Tensor] | None, statistics: Statistics | None
    ) -> View:
        def call(
            tensors: dict[str, Tensor], inputs: Tensor, known: list[MeanAndInverse], network: nn.Module = self.network
        ) -> tuple[list[Tensor], list[MeanAndInverse]]:
            stacked = nullcontext() if self._one_by_one else Stacked()
            if self.layer is None and statistics is None:  # the common case, without what it does not need
                with stacked:
                    return [tensor_output(functional_call(network, tensors, (inputs,)))], []
            own = None if statistics is None else statistics.within(known)
            with capture(network, self.layer) as kept, stacked, own or nullcontext():
                output = tensor_output(functional_call(network, tensors, (inputs,)))
            features = last_kept(kept, self.layer)
            return [output] if features is None else [output, features], [] if own is None else own.statistics

        tensors = self.stacks if tensors is None else tensors
        known = [] if statistics is None else statistics.statistics
        if self._one_by_one:
            each = [
                call({n: t[i] for n, t in tensors.items()}, x[i], [(m[i], r[i]) for m, r in known], network)
                for i, network in enumerate(self.ensemble.members)
            ]
            output, *features = (torch.stack(parts) for parts in zip(*(found for found, _ in each), strict=True))
            known = [
                (torch.stack(means), torch.stack(inverses))
                for means, inverses in (zip(*layer, strict=True) for layer in zip(*(k for _, k in each), strict=True))
            ]
        else:
            try:
                (output, *features), known = torch.vmap(call, randomness="different")(tensors, x, known)
            except Exception as error:
                self._refuse_stacking(error, x)
                raise
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

    def _refuse_stacking(self, error: Exception, x: Tensor) -> None:
        """Stop where a network fails stacked, but not alone."""
        try:
            with torch.no_grad(), still_statistics(self.network):
                self.network(x[0].detach().clone())
        except Exception:
            return
        raise FordeError(
            f"engine='vectorized' cannot stack this network ({first_line(error)}); use engine='eager' or 'auto'."
        ) from error

    def buffers(self, unit: int) -> dict[str, Tensor]:
        return {name: self.stacks[name] for name, _ in self.network.named_buffers()}

    def frozen(self, unit: int) -> dict[str, Tensor]:
        return {name: self.stacks[name] for name in self._own if name not in self.groups[0]}

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
