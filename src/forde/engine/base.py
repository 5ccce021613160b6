"""The step in three phases, shared by every engine: forward, exchange, pull back.

1. **forward**: per member, the loss and the representation z_i from one forward pass, graph kept.
2. **exchange**: Z = stack(z_i) without graph; kernel and rule turn it into cotangents V_i. Across processes only Z
   would travel.
3. **pull back**: per member, backward([loss_i, z_i], [1, V_i]), then the priors.

Members never appear in each other's graph. An engine differs in how it runs the forward passes: one *unit* after
another, a unit being one member (eager) or all members stacked (vectorised).
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from forde.engine.capture import still_statistics
from forde.engine.convolution import TwiceDifferentiable
from forde.engine.exchange import exchange
from forde.engine.guards import (
    differentiable,
    explaining_second_derivatives,
    refuse_non_finite,
    refuse_once_differentiable,
)
from forde.engine.heads import share_heads
from forde.ensemble import Ensemble
from forde.errors import FordeError
from forde.methods.base import Method
from forde.rules import Forces
from forde.spaces import View

Batch = Tensor | list[Tensor]
"""One batch for all members, or one for each."""
Precision = Literal["float32", "bf16"]


@dataclass(frozen=True)
class Forward:
    """What phase 1 hands to the exchange; all detached."""

    losses: Tensor
    """`[M]` mean loss of the batch, without priors."""
    z: Tensor | None
    """`[M, S, D]` representations, where members interact in this step."""
    loss_gradients: Tensor | None
    """`[M, S, D]` gradient of the loss with respect to z, where the space or rule asks for it."""


@dataclass(frozen=True)
class StepReport:
    """What a step has to say."""

    losses: Tensor
    """`[M]` mean loss of the batch, without priors, before the update."""
    repulsion: Tensor
    """`[M]` R_i, scaled and weighted as it enters the objective; 0 where members did not interact."""
    bandwidth: Tensor | None
    """`[]` mean bandwidth of the kernel; None where there is none."""
    z: Tensor | None
    """`[M, S, D]` representations that were compared."""


@dataclass(frozen=True)
class _Graph:
    """One unit's live tensors between forward and pull back."""

    objective: Tensor
    """`[]` or `[M]`."""
    z: Tensor
    """`[S, D]` or `[M, S, D]`."""


class Engine(ABC):
    """Phases 1 and 3 over units; subclasses say what a unit is."""

    checks: bool = True
    """Whether losses and outputs are looked at in every step, for which the host waits for the device."""
    cheap_convolutions: bool = False
    """Whether convolutions that will be differentiated twice use `engine/convolution.py` instead of torch's own."""
    groups: list[dict[str, Tensor]]
    """For each unit its trainable parameters by name, `[...]` or `[M, ...]`: leaves that collect gradients."""

    def __init__(self, ensemble: Ensemble, method: Method, precision: Precision = "float32") -> None:
        self.ensemble = ensemble
        self.method = method
        self.precision = precision
        self.head: tuple[str, ...] = share_heads(ensemble) if method.shared_head else ()
        self._graphs: list[_Graph] = []
        self._graph_checked = False
        self._convolutions = TwiceDifferentiable()

    @abstractmethod
    def _run(self, unit: int, x: Tensor, y: Tensor) -> View:
        """One forward pass of a unit, in the context that the caller has set up."""

    @abstractmethod
    def _inputs(self, x: Tensor) -> Tensor:
        """The batch `[B, ...]` as a unit takes it: `[B, ...]` or `[M, B, ...]`."""

    @abstractmethod
    def _of_unit(self, tensor: Tensor, unit: int) -> Tensor:
        """A unit's part of `[M, ...]`."""

    @abstractmethod
    def _member_gradients(self) -> dict[str, Tensor]:
        """Gradients of parameters that all members have, `[M, ...]` each."""

    @abstractmethod
    def _assign_gradients(self, gradients: dict[str, Tensor]) -> None:
        """Inverse of `_member_gradients`."""

    def close(self) -> None:
        """Give the members back as plain networks."""

    def parameters(self) -> list[Tensor]:
        """Leaf tensors for the optimiser."""
        return [parameter for group in self.groups for parameter in group.values()]

    def step(self, x: Batch, y: Batch, *, step: int = 0, epoch: int = 0, data_size: int | None = None) -> StepReport:
        """Gradients of one step, left in `.grad`; the optimiser's step is the caller's.

        Args:
            x: `[B, ...]`.
            y: `[B]`.
            step: counts from the start of training; decides with `repulsion_every`.
            epoch: argument of `repulsion_weight`.
            data_size: N; the batch size if left out.
        """
        return self.gradients(x, y, self.factor(y, step=step, epoch=epoch, data_size=data_size), step=step)

    def factor(self, y: Batch, *, step: int, epoch: int, data_size: int | None) -> float | None:
        """Scale and weight of the repulsion in this step; None where members do not interact."""
        if self.ensemble.n_members < 2 or not self.method.repels(step=step, epoch=epoch):
            return None
        batch_size = len(y if isinstance(y, Tensor) else y[0])
        return self.method.scale(batch_size, data_size or batch_size) * self.method.weight(epoch)

    def gradients(self, x: Batch, y: Batch, factor: float | Tensor | None, *, step: int) -> StepReport:
        """The three phases; `factor` multiplies the repulsion, None leaves it out."""
        found = self.forward(x, y, repel=factor is not None)
        if self.checks:
            refuse_non_finite(found.losses, step)
        if found.z is None or factor is None:
            self.pull_back(None)
            return StepReport(found.losses, torch.zeros_like(found.losses), None, None)
        forces = exchange(self.method, found.z, found.loss_gradients, factor)
        self.pull_back(forces)
        return StepReport(found.losses, forces.energy, forces.bandwidth, found.z)

    def forward(self, x: Batch, y: Batch, *, repel: bool) -> Forward:
        """Phase 1; clears old gradients first."""
        for parameter in self.parameters():
            parameter.grad = None
        self._graphs = []
        if repel and isinstance(x, list):
            raise FordeError(
                "members that repel must see the same batch; use independent_data with 'deep-ensemble' only."
            )
        losses, zs, gradients = [], [], []
        for unit in range(len(self.groups)):
            xu, yu = (x[unit], y[unit]) if isinstance(x, list) else (x, y)
            assert isinstance(xu, Tensor) and isinstance(yu, Tensor)
            view = self._view(unit, xu, yu, repel=repel)
            loss = view.loss()
            energies = [energy for prior in self.method.priors if (energy := prior.energy(view)) is not None]
            objective = sum(energies, loss)
            losses.append(loss.detach().reshape(-1))
            if not repel:
                self._backward(unit, [objective], [torch.ones_like(objective)])
                continue
            z, gradient = self._represent(unit, view, loss, objective)
            zs.append(z.detach() if view.stacked else z.detach().unsqueeze(0))
            if gradient is not None:
                gradients.append(gradient if view.stacked else gradient.unsqueeze(0))
            self._graphs.append(_Graph(objective, z))
        return Forward(torch.cat(losses), torch.cat(zs) if zs else None, torch.cat(gradients) if gradients else None)

    def pull_back(self, forces: Forces | None) -> None:
        """Phase 3: leave the gradient of loss, repulsion and priors in `.grad` of the parameters."""
        mixing = None if forces is None or self._mixes_representations else forces.mixing
        for unit, graph in enumerate(self._graphs):
            assert forces is not None
            roots, seeds = [graph.objective], [torch.ones_like(graph.objective)]
            if mixing is None:
                roots, seeds = [*roots, graph.z], [*seeds, self._of_unit(forces.cotangent, unit)]
            self._backward(unit, roots, seeds, keep_graph=mixing is not None)
        if self.head:
            mean = {name: g.mean(0, keepdim=True).expand_as(g) for name, g in self._member_gradients().items()}
            self._assign_gradients({name: mean[name] for name in self.head if name in mean})
        for group in self.groups:
            for prior in self.method.priors:
                prior.add_gradients(group)
        if forces is not None and mixing is not None:
            # SVGD in weight space: share the driving forces, then add each member's own repulsion.
            mixed = {n: torch.einsum("ij,j...->i...", mixing.to(g), g) for n, g in self._member_gradients().items()}
            self._assign_gradients(mixed)
            for unit, graph in enumerate(self._graphs):
                self._backward(unit, [graph.z], [self._of_unit(forces.cotangent, unit)])
        self._graphs = []

    @property
    def _mixes_representations(self) -> bool:
        space, rule = self.method.space, self.method.rule
        return space is not None and rule is not None and rule.mixes and space.mixes == "representation"

    def _view(self, unit: int, x: Tensor, y: Tensor, *, repel: bool) -> View:
        differentiate = repel and self.method.space is not None and self.method.space.needs_input_gradient
        inputs = self._inputs(x)
        with ExitStack() as stack:
            if self.precision == "bf16":
                stack.enter_context(torch.autocast(x.device.type, torch.bfloat16))
            if differentiate:
                inputs = differentiable(inputs)
                self._convolutions = TwiceDifferentiable()
                stack.enter_context(sdpa_kernel(SDPBackend.MATH))  # fused attention has no second derivative
                if self.cheap_convolutions:
                    stack.enter_context(self._convolutions)
            view = self._run(unit, inputs, y)
        if self.checks:
            self.ensemble.likelihood.check_output(view.output[0] if view.stacked else view.output, y)
        return view

    def _represent(self, unit: int, view: View, loss: Tensor, objective: Tensor) -> tuple[Tensor, Tensor | None]:
        """z with its graph, and ∂loss/∂z where wanted; from a smaller forward pass with `repulsion_fraction`."""
        space = self.method.space
        assert space is not None
        if space.uses_batch and self.method.repulsion_fraction < 1:
            n = max(1, math.ceil(self.method.repulsion_fraction * len(view.y)))
            x = view.x.detach()[0, :n] if view.stacked else view.x.detach()[:n]
            with still_statistics(self._modules(unit)):
                view = self._view(unit, x, view.y[:n], repel=True)
            loss = view.loss()
        with explaining_second_derivatives(), self._convolutions.input_gradients_only():
            z = space.represent(view)
        if space.needs_input_gradient and not self._graph_checked:
            refuse_once_differentiable(z)
            self._graph_checked = True
        z = z.float() if z.itemsize < 4 else z
        if not (space.needs_loss_gradient or self._mixes_representations):
            return z, None
        of = objective if self._mixes_representations else loss
        (gradient,) = torch.autograd.grad(of.sum(), space.source(view), retain_graph=True)
        return z, gradient.detach().reshape(z.shape).to(z.dtype)

    def _modules(self, unit: int) -> torch.nn.Module:
        """The network that runs a unit's forward pass."""
        return self.ensemble.members[unit]

    def _backward(self, unit: int, roots: Sequence[Tensor], seeds: Sequence[Tensor], keep_graph: bool = False) -> None:
        space = self.method.space
        with explaining_second_derivatives() if space is not None and space.needs_input_gradient else nullcontext():
            torch.autograd.backward(roots, seeds, inputs=list(self.groups[unit].values()), retain_graph=keep_graph)
