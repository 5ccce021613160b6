"""The step in three phases, shared by every engine: forward, exchange, pull back.

1. **forward**: per member, the loss and the representation z_i from one forward pass, graph kept.
2. **exchange**: Z = stack(z_i) without graph; kernel and rule turn it into cotangents V_i. Across processes only Z
   travels (`engine/sharded.py`).
3. **pull back**: per member, backward([loss_i, z_i], [1, V_i]), then the priors.

Members never appear in each other's graph. An engine differs in how it runs the forward passes: one *unit* after
another, a unit being one member (eager) or all members stacked (vectorised).
"""

from __future__ import annotations

import logging
import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.optim import Optimizer

from forde.derivatives import ShapesForCudnn, TwiceDifferentiable, by_formulas, by_kernels
from forde.engine.capture import still_statistics
from forde.engine.exchange import exchange
from forde.engine.freed_memory import keep_freed_memory
from forde.engine.guards import (
    OutputWatch,
    differentiable,
    explaining_second_derivatives,
    refuse_different_sizes,
    refuse_non_finite,
    refuse_once_differentiable,
    refuse_unrepeatable,
)
from forde.engine.heads import share_heads
from forde.engine.part_of_batch import Recording, Replaying, Statistics
from forde.engine.python_state import Watch, sources_of
from forde.engine.records import Batch, Differentiable, Forward, Memory, Precision, StepReport
from forde.engine.rewinding import Start, beginning, rewound
from forde.ensemble import Ensemble
from forde.errors import FordeError
from forde.forward import explaining_forward
from forde.methods.base import Method
from forde.rules import Forces
from forde.spaces import View
from forde.torch_private import batch_norms, counts_writes, version_of

log = logging.getLogger(__name__)


class Engine(ABC):
    """Phases 1 and 3 over units; subclasses say what a unit is."""

    checks: bool = True
    """Whether losses and outputs are looked at in every step, for which the host waits for the device."""
    cheap_convolutions: bool = False
    """Whether what will be differentiated twice uses `derivatives/twice_differentiable.py` instead of torch's own."""
    fuse: bool = False
    """Whether a compiler merges operations."""
    leaves: list[dict[str, Tensor]]
    """For each unit its parameters by name, `[...]` or `[M, ...]`, trained or frozen: what the optimiser is given."""
    groups: list[dict[str, Tensor]]
    """Those of `leaves` that are trained now, and so collect gradients."""
    whole: Ensemble
    """All members; `ensemble` has those that this process trains, which are the same unless others train the rest."""
    first_member: int = 0
    """Index in `whole` of the first member that this process trains."""

    def __init__(
        self, ensemble: Ensemble, method: Method, precision: Precision = "float32", memory: Memory = "speed"
    ) -> None:
        self.ensemble = self.whole = ensemble
        self.method = method
        self.precision = precision
        self.memory = memory
        self.head: tuple[str, ...] = ()
        """Names of the parameters that all members share, once the first batch has told which layer is the last."""
        self._met = False
        if ensemble.device.type == "cpu":
            keep_freed_memory()
        self._kept: dict[int, Differentiable | Start] = {}
        self._graph_checked = False
        self._said_dense = False
        self._checked_labels: set[torch.Size] = set()
        """Shapes of outputs that the labels of this step's batch were compared with."""
        self._trained: list[bool] | None = None
        self._changes_python: dict[int, str | None] = {}
        """By unit, what its forward pass changes besides tensors; found out where it would be made again."""
        self._first_losses: dict[int, Tensor] = {}
        """By unit, those of the first pass that is made again, until the second one has been compared with it."""
        self._writes_to_inputs: dict[int, bool] = {}
        """By unit; found out in its first forward pass."""
        self._watch_output = OutputWatch()
        self._worked: dict[int, torch.Size] = {}

    @abstractmethod
    def _run(
        self, unit: int, x: Tensor, y: Tensor, tensors: dict[str, Tensor] | None, statistics: Statistics | None
    ) -> View:
        """One forward pass of a unit, with its own parameters and buffers or with those given.

        Args:
            statistics: where BatchNorm's statistics of this batch go to, or those of the whole one come from.
        """

    @abstractmethod
    def _inputs(self, x: Tensor) -> Tensor:
        """The batch `[B, ...]` as a unit takes it: `[B, ...]` or `[M, B, ...]`."""

    def _laid_out(self, x: Tensor) -> Tensor:
        """The batch `[B, ...]` in the one memory layout that compiled units take."""
        return x.contiguous()

    @abstractmethod
    def _of_unit(self, tensor: Tensor, unit: int) -> Tensor:
        """A unit's part of `[M, ...]`."""

    @abstractmethod
    def _member_gradients(self) -> dict[str, Tensor]:
        """Gradients of parameters that all members have, `[M, ...]` each."""

    @abstractmethod
    def _assign_gradients(self, gradients: dict[str, Tensor]) -> None:
        """Inverse of `_member_gradients`."""

    @abstractmethod
    def buffers(self, unit: int) -> dict[str, Tensor]:
        """What a unit's forward pass may change beside parameters (running statistics), `[...]` or `[M, ...]`."""

    @abstractmethod
    def frozen(self, unit: int) -> dict[str, Tensor]:
        """A unit's parameters that are not trained, `[...]` or `[M, ...]`."""

    def close(self) -> None:
        """Give the members back as plain networks."""

    def parameters(self) -> list[Tensor]:
        """Leaf tensors for the optimiser; those that are frozen get no gradient, and so it leaves them alone."""
        return [parameter for unit in self.leaves for parameter in unit.values()]

    def trained(self) -> list[Tensor]:
        """Those of `parameters` that are not frozen now."""
        return [parameter for group in self.groups for parameter in group.values()]

    def _meet(self, x: Batch) -> None:
        """Learn from the first batch which layers the method means."""
        if self._met:
            return
        self._met = True
        first = x if isinstance(x, Tensor) else x[0]
        self._find_layers(first)
        if self.method.shared_head:
            self.head = share_heads(self.whole, first)

    @abstractmethod
    def _find_layers(self, x: Tensor) -> None:
        """Find the layers whose activations the method reads."""

    def _look_for_frozen(self) -> None:
        """Set `groups`: what is trained may change between steps."""
        trained = [parameter.requires_grad for unit in self.leaves for parameter in unit.values()]
        if trained != self._trained:
            self._trained = trained
            self.groups = [{n: p for n, p in unit.items() if p.requires_grad} for unit in self.leaves]

    def update(
        self,
        x: Batch,
        y: Batch,
        optimizer: Optimizer,
        *,
        step: int = 0,
        epoch: int = 0,
        data_size: int | None = None,
    ) -> StepReport:
        """One whole step: gradients, then the optimiser."""
        report = self.step(x, y, step=step, epoch=epoch, data_size=data_size)
        optimizer.step()
        return report

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
        if self.whole.n_members < 2 or not self.method.repels(step=step, epoch=epoch):
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
        forces = self._exchange(found.z, found.loss_gradients, factor)
        self.pull_back(forces)
        return StepReport(found.losses, forces.energy, forces.bandwidth, found.z)

    def forward(self, x: Batch, y: Batch, *, repel: bool) -> Forward:
        """Phase 1; clears old gradients first."""
        for parameter in self.parameters():
            parameter.grad = None
        self._meet(x)
        self._look_for_frozen()
        self._kept = {}
        self._checked_labels.clear()
        if repel and isinstance(x, list):
            raise FordeError(
                "members that repel must see the same batch; use independent_data with 'deep-ensemble' only."
            )
        found = []
        for unit in self._each_unit():
            xu, yu = (x[unit], y[unit]) if isinstance(x, list) else (x, y)
            if isinstance(x, list):
                self._checked_labels.clear()
            assert isinstance(xu, Tensor) and isinstance(yu, Tensor)
            found.append(self._forward_unit(unit, xu, yu, repel=repel))
        if repel:
            refuse_different_sizes([each.z[0].numel() for each in found if each.z is not None], self.method.space)
        gradients = [each.loss_gradients for each in found if each.loss_gradients is not None]
        return Forward(
            torch.cat([each.losses for each in found]),
            torch.cat([each.z for each in found if each.z is not None]) if repel else None,
            torch.cat(gradients) if gradients else None,
        )

    def _exchange(self, z: Tensor, loss_gradients: Tensor | None, factor: float | Tensor) -> Forces:
        """Phase 2."""
        return exchange(self.method, z, loss_gradients, factor)

    def pull_back(self, forces: Forces | None) -> None:
        """Phase 3: leave the gradient of loss, repulsion and priors in `.grad` of the parameters."""
        # SVGD in weight space shares the driving forces first; each member's own repulsion is added afterwards.
        mixing = None if forces is None or self._mixes_representations else forces.mixing
        repulsion: list[Sequence[Tensor | None]] = []
        if forces is not None:
            for unit in self._each_unit():
                cotangent = self._of_unit(forces.cotangent, unit)
                repulsion.append(self._pull_back_unit(unit, cotangent, apart=mixing is not None))
        repulsion = self._complete(repulsion)
        if self.head:
            mean = {name: g.mean(0, keepdim=True).expand_as(g) for name, g in self._head_gradients().items()}
            self._assign_gradients(mean)
        self._make_dense()
        for group in self.groups:
            for prior in self.method.priors:
                prior.add_gradients(group)
        if mixing is not None:
            mixed = {n: torch.einsum("ij,j...->i...", mixing.to(g), g) for n, g in self._member_gradients().items()}
            self._assign_gradients(mixed)
            for group, own in zip(self.groups, repulsion, strict=True):
                for parameter, gradient in zip(group.values(), own, strict=True):
                    if gradient is not None:
                        parameter.grad = gradient if parameter.grad is None else parameter.grad + gradient

    def repulsion_gradients(self, forces: Forces) -> list[dict[str, Tensor | None]]:
        """Phase 3 for the repulsion alone, by unit and name; those of the objective are left in `.grad`."""
        found = []
        for unit in self._each_unit():
            pulled = self._pull_back_unit(unit, self._of_unit(forces.cotangent, unit), apart=True)
            found.append(dict(zip(self.groups[unit], pulled, strict=False)))
        return found

    def _make_dense(self) -> None:
        """A prior on weights moves every row of an embedding, so its gradient cannot stay sparse."""
        sparse = [parameter for parameter in self.trained() if parameter.grad is not None and parameter.grad.is_sparse]
        decays = any(p.on_weights and getattr(p, "weight_decay", None) != 0 for p in self.method.priors)
        if not sparse or not (self.head or self.mixes_weights or decays):
            return
        for parameter in sparse:
            assert parameter.grad is not None
            parameter.grad = parameter.grad.to_dense()
        if not self._said_dense:
            self._said_dense = True
            log.info("sparse gradients are made dense, because the prior (weight decay) has one for every row")

    def _complete(self, repulsion: list[Sequence[Tensor | None]]) -> list[Sequence[Tensor | None]]:
        """Gradients of the whole batch from those in `.grad` and in `repulsion`, where a process sees a part of it."""
        return repulsion

    def _head_gradients(self) -> dict[str, Tensor]:
        """Gradients of the shared head, `[M, ...]` each."""
        return {name: gradient for name, gradient in self._member_gradients().items() if name in self.head}

    def _each_unit(self) -> Iterator[int]:
        """Units in order; an engine may set up the place where each of them runs."""
        yield from range(len(self.groups))

    def settle(self) -> None:
        """Wait for steps that are still running, and raise what went wrong in them."""

    def collect(self) -> None:
        """Bring the members in `whole` that other processes train up to date."""

    def united(self, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        """Named tensors of this process's members, and those of all others."""
        return tensors

    def anywhere(self, happened: bool) -> bool:
        """Whether it is so in any process."""
        return happened

    def _forward_unit(self, unit: int, x: Tensor, y: Tensor, *, repel: bool) -> Forward:
        """Phase 1 of one unit. Gradients of what does not repel are left in `.grad` at once."""
        start, watch = None, None
        if repel and not self._keeps_graph(unit):
            start = beginning(x, y, self.buffers(unit).values(), sources_of(self._modules(unit)))
            watch = Watch([self._modules(unit)]) if unit not in self._changes_python else None
        graph = self.differentiable(unit, x, y, repel=repel)
        if watch is not None:
            self._first_losses[unit] = graph.losses.detach()
            change = self._changes_python[unit] = watch.change()
            if change is not None:
                start = None
                log.info(
                    "memory: the graph of unit %d is kept, because its forward pass leaves a trace: %s", unit, change
                )
        if not repel:
            inputs = list(self.groups[unit].values())
            if inputs:
                torch.autograd.backward(graph.objective, torch.ones_like(graph.objective), inputs=inputs)
        else:
            self._kept[unit] = graph if start is None else start
        lead = graph.losses.dim()

        def with_member_axis(tensor: Tensor | None) -> Tensor | None:
            return None if tensor is None else tensor.detach() if lead else tensor.detach().unsqueeze(0)

        return Forward(
            graph.losses.detach().reshape(-1), with_member_axis(graph.z), with_member_axis(graph.loss_gradient)
        )

    def _pull_back_unit(self, unit: int, cotangent: Tensor, *, apart: bool) -> Sequence[Tensor | None]:
        """Phase 3 of one unit: gradients of objective and repulsion are left in `.grad`, or, `apart`, only those of
        the objective, and those of the repulsion are returned.
        """
        kept = self._kept.pop(unit)
        graph = self._again(unit, kept) if isinstance(kept, Start) else kept
        inputs = list(self.groups[unit].values())
        if not inputs:
            return ()
        roots, seeds = [graph.objective], [torch.ones_like(graph.objective)]
        assert graph.z is not None
        repulsion: Sequence[Tensor | None] = ()
        with self._explaining():
            if apart:
                repulsion = torch.autograd.grad([graph.z], inputs, [cotangent], allow_unused=True, retain_graph=True)
            else:
                roots, seeds = [*roots, graph.z], [*seeds, cotangent]
            torch.autograd.backward(roots, seeds, inputs=inputs)
        return repulsion

    def _keeps_graph(self, unit: int) -> bool:
        """Whether a unit's graph waits for the exchange; otherwise its forward pass is made again."""
        kept = {"speed": len(self.groups), "balanced": len(self.groups) // 2, "low": 0}[self.memory]
        return unit < kept or self._changes_python.get(unit) is not None

    def _again(self, unit: int, start: Start) -> Differentiable:
        """The forward pass as it was."""
        with rewound(start, self.buffers(unit).values()):
            graph = self.differentiable(unit, start.x, start.y, repel=True)
        first = self._first_losses.pop(unit, None)
        if first is not None:
            refuse_unrepeatable(first, graph.losses, f"use memory='speed' (it is '{self.memory}')")
        return graph

    @property
    def _mixes_representations(self) -> bool:
        space, rule = self.method.space, self.method.rule
        return space is not None and rule is not None and rule.mixes and space.mixes == "representation"

    @property
    def mixes_weights(self) -> bool:
        """Whether the driving forces are shared between members (SVGD in weight space)."""
        rule = self.method.rule
        return rule is not None and rule.mixes and not self._mixes_representations

    def differentiable(
        self,
        unit: int,
        x: Tensor,
        y: Tensor,
        *,
        repel: bool,
        tensors: dict[str, Tensor] | None = None,
        linked: bool = False,
    ) -> Differentiable:
        """One unit's forward pass, loss and representation, with its own parameters or with those given.

        Args:
            linked: for a trace of a network without random numbers: where members are compared on a part of the
                batch, activations of the part are those of the whole batch instead of computed again.
        """
        if repel and self.repels_apart:
            view, compared, replaying = self._views_apart(unit, x, y, tensors, linked=linked)
        else:
            view = compared = self._view(unit, x, y, repel=repel, tensors=tensors)
            replaying = None
        loss = view.loss()
        energies = [view.part(energy) for prior in self.method.priors if (energy := prior.energy(view)) is not None]
        objective = sum(energies, loss)
        if not repel:
            return Differentiable(loss, objective, None, None)
        z, gradient = self._represent(compared, objective)
        if replaying is not None:
            replaying.forming = False
        return Differentiable(loss, objective, z, gradient)

    def _views_apart(
        self, unit: int, x: Tensor, y: Tensor, tensors: dict[str, Tensor] | None, *, linked: bool
    ) -> tuple[View, View, Replaying]:
        """The whole batch for the loss, and the part of it that repels, normalised as the whole."""
        recording = self._recording(linked=linked)
        own = self._tensors_for_part(unit, tensors)
        view = self._view(unit, x, y, repel=False, tensors=tensors, statistics=recording)
        part_x, part_y = self.part_that_repels(x, y)
        replaying = Replaying(recording, (len(y), len(part_y)), for_compiler=self.fuse and self.cheap_convolutions)
        with still_statistics(self._modules(unit)):
            compared = self._view(unit, part_x, part_y, repel=True, tensors=own, statistics=replaying)
        return view, compared, replaying

    def _tensors_for_part(self, unit: int, tensors: dict[str, Tensor] | None) -> dict[str, Tensor] | None:
        """What the pass over the part runs with: buffers as the whole batch found them, and which stay where they are.

        BatchNorm's need no copies: `still_statistics` keeps them.
        """
        norms = [name for name, module in self._modules(unit).named_modules() if isinstance(module, batch_norms())]
        buffers = self.buffers(unit) if tensors is None else {n: tensors[n] for n in self.buffers(unit)}
        others = {n: b.clone() for n, b in buffers.items() if n.rpartition(".")[0] not in norms}
        if not others:
            return tensors
        return {**({**self.leaves[unit], **self.frozen(unit), **buffers} if tensors is None else tensors), **others}

    def _recording(self, *, linked: bool) -> Recording:
        normalise = (by_formulas if self.fuse and self.cheap_convolutions else by_kernels).normalise
        return Recording(partial(normalise, telling=True), values=linked)

    def _view(
        self,
        unit: int,
        x: Tensor,
        y: Tensor,
        *,
        repel: bool,
        tensors: dict[str, Tensor] | None = None,
        statistics: Statistics | None = None,
    ) -> View:
        differentiate = repel and self.method.space is not None and self.method.space.needs_input_gradient
        inputs = self._inputs(x)
        if differentiate:
            inputs = differentiable(inputs)
        # A network that works in place has a copy to write to; whether it does so, its first pass tells.
        copies = self._writes_to_inputs.get(unit, tensors is None) or not counts_writes(inputs)
        given = inputs.clone() if copies else inputs
        version = version_of(given)
        with ExitStack() as stack:
            if self.precision == "bf16":
                stack.enter_context(torch.autocast(x.device.type, torch.bfloat16))
            if differentiate:
                stack.enter_context(sdpa_kernel(SDPBackend.MATH))  # fused attention has no second derivative
                stack.enter_context(self._second_derivatives())
            if self.cheap_convolutions and x.is_cuda:
                stack.enter_context(ShapesForCudnn())
            if self.checks and self._worked.get(unit) != x.shape:  # later errors are not about the inputs
                stack.enter_context(explaining_forward(x))
            view = self._run(unit, given, y, tensors, statistics)
        if copies:
            view = replace(view, x=inputs)
            if tensors is None:
                self._writes_to_inputs[unit] = version_of(given) != version
        elif version_of(given) != version:
            raise FordeError(
                "the forward pass changed its input in place, which it did not do before; write x = x - 1 instead of "
                "x -= 1, or begin it with x = x.clone()."
            )
        if self.checks:
            self._worked[unit] = x.shape
            self._check_output(view, differentiate=differentiate)
        return view

    def _check_output(self, view: View, *, differentiate: bool) -> None:
        likelihood, output = self.ensemble.likelihood, view.output[0] if view.stacked else view.output
        likelihood.check_output(output, view.y)
        if output.shape[1:] not in self._checked_labels:  # once per batch, not once per member
            likelihood.check_labels(output, view.y)
            self._checked_labels.add(output.shape[1:])
        if not self._watch_output.looked:
            self._watch_output(output, view.y, likelihood)
        if differentiate and self.method.space is not None and self.method.space.needs_scalar:
            reason = likelihood.without_scalar(output, view.y)
            if reason is not None:
                raise FordeError(reason)

    def _second_derivatives(self) -> AbstractContextManager[object]:
        """What a forward pass runs in that will be differentiated twice."""
        return TwiceDifferentiable(for_compiler=self.fuse) if self.cheap_convolutions else nullcontext()

    def _represent(self, view: View, objective: Tensor) -> tuple[Tensor, Tensor | None]:
        """z with its graph, and ∂loss/∂z where wanted, of the samples that members are compared on."""
        space = self.method.space
        assert space is not None
        with explaining_second_derivatives():
            z = space.represent(view)
        if space.needs_input_gradient and not self._graph_checked:
            refuse_once_differentiable(z)
            self._graph_checked = True
        z = z.float() if z.itemsize < 4 else z
        if not (space.needs_loss_gradient or self._mixes_representations):
            return z, None
        of = objective if self._mixes_representations else view.loss()
        (gradient,) = torch.autograd.grad(of.sum(), space.source(view), retain_graph=True)
        return z, gradient.detach().reshape(z.shape).to(z.dtype)

    @property
    def repels_apart(self) -> bool:
        """Whether representations are of a part of the batch, which then has a forward pass of its own."""
        space = self.method.space
        return space is not None and space.uses_batch and self.method.repulsion_fraction < 1

    def part_that_repels(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """Of a batch `[B, ...]`."""
        n = self._number_that_repel(len(y))
        return x[:n], y[:n]

    def _number_that_repel(self, batch_size: int) -> int:
        return max(1, math.ceil(self.method.repulsion_fraction * batch_size))

    def _modules(self, unit: int) -> torch.nn.Module:
        """The network that runs a unit's forward pass."""
        return self.ensemble.members[unit]

    def _explaining(self) -> AbstractContextManager[None]:
        space = self.method.space
        return explaining_second_derivatives() if space is not None and space.needs_input_gradient else nullcontext()
