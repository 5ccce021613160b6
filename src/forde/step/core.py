"""One training step of a repulsive ensemble, in three phases: forward, exchange, pull back.

FoRDE's algorithm (Trinh et al. 2024, https://arxiv.org/abs/2306.02775, Algorithm 1) and that of every other repulsive
ensemble, for members θ_1 … θ_M and a batch (x, y):

    1  forward     for each member i, from one forward pass:
                       loss_i = mean over the batch of −log p(y | x, θ_i)
                       z_i    = what members are compared by; for FoRDE the directions of ∂f(x; θ_i)_y / ∂x
    2  exchange    V_i = c ∇_{z_i} ln Σ_j k(z_i, z_j), the others held fixed; c = 1/B times the repulsion's weight
    3  pull back   g_i = ∇_θ loss_i + (∂z_i/∂θ_i)ᵀ V_i + ∇_θ prior(θ_i)

and the optimizer goes along −g_i. Only the exchange sees more than one member. It gets z without its graph, so members
never appear in each other's graph, and across processes only z travels.

`Step.update` is these lines, and `Step.exchange` is phase 2. The functions below are phases 1 and 3 of one *unit*: one
member, or all members stacked. A runner (`step/runners.py`) knows how to run a unit's forward pass. All results have an
axis for the m members of a unit, `[m, ...]`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.optim import Optimizer

from forde.arguments import Arguments, Input
from forde.distributed.mesh import ALONE, Mesh
from forde.ensemble import Ensemble
from forde.errors import FordeError
from forde.methods.base import Method
from forde.rules import Forces
from forde.rules.base import identity_like
from forde.spaces import View
from forde.step.checks import explain_missing_derivative, no_path_to_inputs, refuse_non_finite
from forde.step.records import Batch, Batches, Forward, Graph, Inputs, Moment, StepReport, Targets
from forde.step.runners import Runner
from forde.step.sources import Sources

if TYPE_CHECKING:
    from typing_extensions import Unpack

Repulsion = Sequence[Sequence[Tensor | None]]
"""Gradients of the repulsion by unit and parameter, where they are kept apart from those of the objective."""


class Step(ABC):
    """A training step. Subclasses say how the phases are run: plainly, traced, on several processes."""

    mesh: Mesh = ALONE
    """The processes that make this step together."""

    def __init__(self, runner: Runner, method: Method, whole: Ensemble | None = None) -> None:
        self.runner, self.method = runner, method
        self.whole = runner.ensemble if whole is None else whole
        """All members; `runner.ensemble` has those that this process trains."""
        self.comparison = method
        """The method of the exchange: where members apply the kernel's metric themselves, its kernel has none left."""

    @property
    def first_member(self) -> int:
        """Index in `whole` of the first member that this process trains."""
        return self.mesh.members.part(len(self.whole.members)).start

    def update(self, x: Inputs, y: Targets, optimizer: Optimizer | None = None, **moment: Unpack[Moment]) -> StepReport:
        """One whole step: gradients are left in `.grad` of `runner.parameters()`, then the optimizer moves these.

        Args:
            x: `[B, ...]`, or several such in one `Arguments`, or a list with one of these for each member.
            y: `[B, ...]`, or one for each member.
            optimizer: None leaves it at the gradients.
            moment: `step`, `epoch`, `data_size` and `repel_on`, see `Moment`.
        """
        batch, factor = self.planned(x, y, **moment)
        found = self.forward(batch, repel=factor is not None)
        if not bool(found.losses.isfinite().all()):
            refuse_non_finite(found.losses, moment.get("step", 0))
        forces = None if factor is None else self.exchange(found, factor)
        repulsion = self.pull_back(forces, apart=self.method.mixes_weights)
        self.finish(forces, repulsion)
        if optimizer is not None:
            optimizer.step()
        return report_of(found, forces)

    def planned(self, x: Inputs, y: Targets, **moment: Unpack[Moment]) -> tuple[Batches, float | None]:
        """The batch, with what members are compared at, and the factor of the repulsion (None: no repulsion)."""
        method, size = self.method, len(y if isinstance(y, Tensor) else y[0])
        factor = None
        if len(self.whole.members) > 1:
            step, epoch = moment.get("step", 0), moment.get("epoch", 0)
            factor = method.factor(step=step, epoch=epoch, batch_size=size, data_size=moment.get("data_size"))
        if not isinstance(x, list) and isinstance(y, Tensor):
            elsewhere = moment.get("repel_on")
            if factor is not None and elsewhere is not None:
                return Batch(x, y, repel_on=elsewhere()), factor
            all_repel = factor is None or method.repulsion_fraction == 1
            return Batch(x, y, None if all_repel else method.compared(size)), factor
        if factor is not None:
            raise FordeError(
                "members that repel must see the same batch; use independent_data with 'deep-ensemble' only."
            )
        assert isinstance(x, list) and isinstance(y, list)
        return [Batch(*pair) for pair in zip(x, y, strict=True)], None

    @abstractmethod
    def forward(self, batch: Batches, *, repel: bool) -> Forward:
        """Phase 1 of all units; old gradients are cleared. Without repulsion, gradients are there already."""

    def exchange(self, found: Forward, factor: float | Tensor) -> Forces:
        """Phase 2: forces on all members' representations `[M, S, D]`, multiplied by `factor` (scale and weight).

        The only place where members meet: cheap, and free of any network.
        """
        method, z = self.comparison, found.z
        assert z is not None and method.space is not None and method.kernel is not None and method.rule is not None
        projection = method.space.project(z, found.loss_gradients) if method.space.projects else None
        forces = method.rule(method.kernel, z if projection is None else projection.z)
        cotangent = factor * (forces.cotangent if projection is None else projection.pull_back(forces.cotangent, z))
        if forces.mixing is not None and method.mixes_representations:
            # Phase 3 will bring member i's own δ_i; this turns it into Σ_j W_ij δ_j.
            assert found.loss_gradients is not None
            others = forces.mixing - identity_like(forces.mixing)
            cotangent = cotangent + torch.einsum("ij,jsd->isd", others, found.loss_gradients)
        return replace(forces, cotangent=cotangent, energy=factor * forces.energy)

    @abstractmethod
    def pull_back(self, forces: Forces | None, *, apart: bool = False) -> Repulsion:
        """Phase 3 of all units: gradients of objective and repulsion are left in `.grad`.

        Args:
            apart: return those of the repulsion instead.
        """

    @property
    @abstractmethod
    def plain(self) -> Step:
        """This step by torch's autograd alone; itself where it is that."""

    def finish(self, forces: Forces | None, repulsion: Repulsion) -> None:
        """Add to the gradients what is not of one unit alone: a shared head, priors, mixed driving forces."""
        runner, method = self.runner, self.method
        if runner.head:
            names = [name for name in runner.head if name in runner.groups[0]]
            own = {name: g for name, g in runner.member_gradients().items() if name in names}
            means = {name: g.mean(0, keepdim=True) for name, g in self.of_all_members(own, names).items()}
            runner.assign_gradients({name: means[name].expand_as(g) for name, g in own.items() if name in means})
        if any(leaf.grad is not None and leaf.grad.is_sparse for group in runner.groups for leaf in group.values()):
            runner.make_dense()
        for prior in method.priors:
            runner.add_prior(prior)
        if forces is None or forces.mixing is None or not method.mixes_weights:
            return
        # SVGD in weight space shares the driving forces first; each member's own repulsion is added afterwards.
        mixing = forces.mixing[self.first_member : self.first_member + runner.ensemble.n_members]
        everyone = self.of_all_members(runner.member_gradients(), list(runner.groups[0]))
        runner.assign_gradients({n: torch.einsum("ij,j...->i...", mixing.to(g), g) for n, g in everyone.items()})
        for group, gradients in zip(runner.groups, repulsion, strict=True):
            for parameter, gradient in zip(group.values(), gradients, strict=False):
                if gradient is not None:
                    parameter.grad = gradient if parameter.grad is None else parameter.grad + gradient

    # What other processes have to do with it; overridden where there are some.

    def of_all_members(self, gradients: dict[str, Tensor], names: Sequence[str]) -> dict[str, Tensor]:
        """Gradients of this process's members `[m, ...]` by name → those of all members `[M, ...]`."""
        return gradients

    def collect(self) -> None:
        """Bring the members in `whole` that other processes train up to date."""

    def settle(self) -> None:
        """Wait for steps that are still running, and raise what went wrong in them."""

    def close(self) -> None:
        """Give the members back as plain networks."""
        self.runner.close()


def report_of(found: Forward, forces: Forces | None) -> StepReport:
    """What the phases came to; no forces where members did not interact."""
    if forces is None:
        return StepReport(found.losses, torch.zeros_like(found.losses), None, None)
    return StepReport(found.losses, forces.energy, forces.bandwidth, found.z)


# Phase 1


def forward(
    runner: Runner,
    method: Method,
    unit: int,
    batch: Batch,
    *,
    repel: bool,
    metric: Tensor | None = None,
    tensors: dict[str, Tensor] | None = None,
    look: Callable[[View], None] | None = None,
) -> Graph:
    """Loss and representation of one unit, with their graph.

    Args:
        repel: whether members interact in this step.
        metric: matrix `[D, R]` that representations are multiplied with.
        tensors: parameters and buffers to run with, instead of the unit's own.
        look: called with what the network has returned, before anything is computed from it.
    """
    space, likelihood = method.space, runner.ensemble.likelihood
    twice = repel and space is not None and space.needs_input_gradient
    if repel and batch.repel_on is not None:
        view, _ = runner.run(unit, batch, twice=False, tensors=tensors)
        compared, inputs = runner.run_elsewhere(unit, Batch(*batch.repel_on), twice=twice, tensors=tensors)
        part = None
    elif repel and batch.part is not None:
        view, compared, inputs, part = runner.run_apart(unit, batch, twice=twice, tensors=tensors)
    else:
        view, inputs = runner.run(unit, batch, twice=twice, tensors=tensors)
        compared, part = view, None
    if look is not None:
        look(view)
    if view.weights is None and view.share == 1:  # the likelihood's own, as it is
        losses = runner.each(lambda own: likelihood.loss(own.output, own.y), view, at_once=likelihood.takes_stacks)
    else:
        losses = runner.each(View.loss, view, at_once=likelihood.takes_stacks)
    objective = losses
    for prior in method.priors:
        if prior.has_energy:
            energy = runner.each(prior.energy, view, at_once=prior.takes_stacks)
            objective = objective + (energy if batch.share == 1 else batch.share * energy)
    if not repel or space is None:
        return Graph(losses, objective, None, None)
    if twice:
        scalar = runner.each(space.scalar, compared, at_once=space.takes_stacks and likelihood.takes_stacks).sum()
        gradient = input_gradient(scalar, inputs)
        compared = replace(compared, input_gradient=gradient.flatten(runner.sample_axis + 1))
    z = runner.each(space.represent, compared, at_once=space.takes_stacks)
    z = z.float() if z.itemsize < 4 else z
    loss_gradient = None
    if space.needs_loss_gradient or method.mixes_representations:
        of = objective if compared is view else runner.each(View.loss, compared, at_once=likelihood.takes_stacks)
        of = of if method.mixes_representations or compared is not view else losses
        (loss_gradient,) = torch.autograd.grad(of.sum(), space.source(compared), retain_graph=True)
        loss_gradient = loss_gradient.detach().reshape(z.shape).to(z.dtype)
    if part is not None:
        part.forming = False
    return Graph(losses, objective, z if metric is None else under_metric(metric, z), loss_gradient)


def input_gradient(scalar: Tensor, x: Input | Sources) -> Tensor:
    """∂scalar/∂x with its own graph, to be differentiated again: in the shape of `x`, or `[B, D]` of several."""
    if not scalar.requires_grad:
        raise no_path_to_inputs()
    assert not isinstance(x, Arguments)
    try:
        by = x if isinstance(x, Tensor) else x.tensors
        gradients = torch.autograd.grad(scalar, by, create_graph=True, allow_unused=True)
    except RuntimeError as error:
        explain_missing_derivative(error)
        raise
    if not any(gradient is not None and gradient.requires_grad for gradient in gradients):
        raise no_path_to_inputs()
    return gradients[0] if isinstance(x, Tensor) else x.joined(gradients)


def under_metric(metric: Tensor, z: Tensor) -> Tensor:
    """z R, member by member as `kernels/metric.py` does it: equal members stay equal to the last bit.

    >>> under_metric(torch.eye(3)[:, :2], torch.ones(2, 4, 3)).shape
    torch.Size([2, 4, 2])
    """
    return (z[0] @ metric).unsqueeze(0) if len(z) == 1 else torch.stack([member @ metric for member in z])


# Phase 3


def pull_back(
    graph: Graph, cotangent: Tensor | None, inputs: Sequence[Tensor], *, apart: bool = False
) -> Sequence[Tensor | None]:
    """Leave the gradient of objective and repulsion in `.grad` of `inputs`.

    Args:
        cotangent: V `[m, S, D]`; None where members do not interact.
        apart: leave that of the objective there only, and return that of the repulsion.
    """
    if not inputs:
        return ()
    repulsion: Sequence[Tensor | None] = ()
    roots, seeds = [graph.objective], [torch.ones_like(graph.objective)]
    try:
        if cotangent is not None and graph.z is not None:
            if apart:
                repulsion = torch.autograd.grad([graph.z], inputs, [cotangent], allow_unused=True, retain_graph=True)
            else:
                roots, seeds = [*roots, graph.z], [*seeds, cotangent]
        torch.autograd.backward(roots, seeds, inputs=inputs)
    except RuntimeError as error:
        explain_missing_derivative(error)
        raise
    return repulsion
