"""A step that several processes make together: each has some of the members and some of the batch.

Every process draws the same batch and takes its slice. Of phase 1 only losses and representations travel; then each
makes the exchange of all members by itself and keeps the cotangents of its own members and samples. No gradient flows
through that. Gradients of parameters are summed over the processes that share a member. Those of other members travel
only where a method mixes them: the shared head, and SVGD in the space of weights.

`ShardedStep` wraps any step of this process's members, plain or compiled.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor
from torch.optim import Optimizer

from forde.arguments import Input, each_tensor
from forde.distributed.mesh import Mesh
from forde.distributed.messages import flattened, unflattened
from forde.ensemble import Ensemble, named_tensors, of_networks
from forde.errors import FordeError
from forde.random_state import random_tensors, set_random_tensors
from forde.rules import Forces
from forde.step.checks import refuse_different_sizes
from forde.step.core import Repulsion, Step
from forde.step.records import Batch, Batches, Forward, Inputs, Moment, StepReport, Targets
from forde.step.runners import refuse_different_parameters

if TYPE_CHECKING:
    from typing_extensions import Unpack

SAME_BATCH = 1e-5
"""Means of one batch on different devices differ by rounding only, those of different batches by more."""


class ShardedStep(Step):
    """A step over this process's shard of members and of every batch, together with those of other processes.

    Args:
        inner: the step of this process's members.
        whole: all members.

    >>> from torch import nn
    >>> from forde import method
    >>> from forde.step import MemberLoop, PlainStep
    >>> ensemble, forde_identity = Ensemble(lambda: nn.Linear(4, 3), n_members=2), method("forde-identity")
    >>> step = ShardedStep(PlainStep(MemberLoop(ensemble, forde_identity), forde_identity), ensemble, Mesh())
    >>> step.update(torch.randn(8, 4), torch.randint(3, (8,))).losses.shape
    torch.Size([2])
    """

    def __init__(self, inner: Step, whole: Ensemble, mesh: Mesh) -> None:
        super().__init__(inner.runner, inner.method, whole)
        self.inner, self.mesh = inner, mesh
        self._batch: tuple[Input | list[Input], Tensor | list[Tensor]] | None = None
        self._compared = 0
        """How many samples of this process members are compared at in this step."""
        if self.method.shared_head or self.method.mixes_weights:
            refuse_different_parameters(whole)

    @property
    def plain(self) -> Step:
        return self.inner.plain

    def update(self, x: Inputs, y: Targets, optimizer: Optimizer | None = None, **moment: Unpack[Moment]) -> StepReport:
        """As in one process, from the batch of all processes; the report is of all members."""
        # Backward passes hold messages when BatchNorm is global; one thread sends them in one order everywhere.
        order = nullcontext() if self.mesh.data.size == 1 else torch.autograd.set_multithreading_enabled(False)
        with order, own_random_numbers(self.mesh, moment.get("step", 0)):
            return super().update(x, y, optimizer, **moment)

    def planned(self, x: Inputs, y: Targets, **moment: Unpack[Moment]) -> tuple[Batches, float | None]:
        assert moment.get("repel_on") is None  # `make_engine` has said so
        batch, factor = super().planned(x, y, **moment)
        self._batch = x, y
        if not isinstance(batch, Batch):
            own = batch[self.first_member : self.first_member + self.runner.ensemble.n_members]
            return [self._own(each, each.x, each.y) for each in own], factor
        assert not isinstance(batch.part, tuple)
        compared_x, compared_y = batch.x[: batch.part], batch.y[: batch.part]
        part = None
        if batch.part is not None:
            of = f"part that repels (repulsion_fraction={self.method.repulsion_fraction})"
            samples = self._samples(len(compared_y), of)
            # With one data shard they are the first samples of this process's batch too.
            part = batch.part if self.mesh.data.size == 1 else (compared_x[samples], compared_y[samples])
        self._compared = len(compared_y) // self.mesh.data.size
        return replace(self._own(batch, batch.x, batch.y), part=part), factor

    def _own(self, batch: Batch, x: Input, y: Tensor) -> Batch:
        samples = self._samples(len(y), "batch")
        return replace(batch, x=x[samples], y=y[samples], share=1 / self.mesh.data.size)

    def _samples(self, n: int, of: str) -> slice:
        refuse_uneven(n, of, self.mesh)
        return self.mesh.data.part(n)

    def forward(self, batch: Batches, *, repel: bool) -> Forward:
        """Phase 1 of this process, then all that the others found: losses `[M]` and z of all members and samples."""
        found = self.inner.forward(batch, repel=repel)
        size = 0 if found.z is None else found.z[0].numel()
        return Forward(self._losses(found.losses, size), self._all(found.z), self._all(found.loss_gradients))

    def exchange(self, found: Forward, factor: float | Tensor) -> Forces:
        return self.inner.exchange(found, factor)

    def pull_back(self, forces: Forces | None, *, apart: bool = False) -> Repulsion:
        repulsion = self.inner.pull_back(None if forces is None else self._of_this_process(forces), apart=apart)
        return self._summed(repulsion if apart else ())

    def finish(self, forces: Forces | None, repulsion: Repulsion) -> None:
        super().finish(forces, repulsion)
        if self.inner is not self.inner.plain:
            self.runner.match_layouts()

    def _of_this_process(self, forces: Forces) -> Forces:
        """Cotangents of this process's members and samples."""
        space, data = self.method.space, self.mesh.data
        assert space is not None
        own = forces.cotangent[self.first_member : self.first_member + self.runner.ensemble.n_members]
        if space.uses_batch:
            return replace(forces, cotangent=own.chunk(data.size, space.sample_axis)[data.index])
        return replace(forces, cotangent=own / data.size)  # every process that shares this member adds the same

    def _losses(self, losses: Tensor, size: int) -> Tensor:
        """Parts `[m]` of the mean loss → the mean loss of all members `[M]`.

        The batch must be the same everywhere, and so must `size`, the numbers by which a member is compared.
        """
        assert self._batch is not None
        firsts = [batch[0] if isinstance(batch, list) else batch for batch in self._batch]
        tensors = [tensor for first in firsts for tensor in each_tensor(first)]
        means = [(tensor if tensor.is_complex() else tensor.double()).abs().mean() for tensor in tensors]
        marks = torch.stack([*means, torch.as_tensor(float(size), device=losses.device)]).to(losses)
        rows = self.mesh.everyone.all_gather(torch.cat([losses, marks]))
        marks = rows[:, -len(marks) :]
        if not torch.allclose(marks, marks[:1], rtol=SAME_BATCH, atol=0):
            sizes = marks[:, -1].unflatten(0, self.mesh.shape)[:, 0].repeat_interleave(len(losses))  # [M]
            refuse_different_sizes([int(each) for each in sizes], self.method.space)
            raise FordeError(
                "the processes drew different batches; give all of them the same data in the same order (a dataset "
                "with random numbers of its own must be seeded alike)."
            )
        return rows[:, : len(losses)].unflatten(0, self.mesh.shape).sum(1).flatten()

    def _all(self, z: Tensor | None) -> Tensor | None:
        """`[m, s, d]` of each process → `[M, S, D]`."""
        if z is None:
            return None
        space = self.method.space
        assert space is not None
        if not space.uses_batch:
            return self.mesh.members.all_gather(z).flatten(0, 1)
        axis = space.sample_axis
        if z.shape[axis] % self._compared:
            raise FordeError(
                f"{type(space).__name__} has sample_axis = {axis}, but its z {list(z.shape)} does not hold "
                f"{self._compared} samples there; set sample_axis to the axis along which the batch lies."
            )
        rows = self.mesh.everyone.all_gather(z).unflatten(0, self.mesh.shape)  # [member shards, data shards, m, s, d]
        return rows.movedim(1, axis + 1).flatten(axis + 1, axis + 2).flatten(0, 1)

    def _summed(self, repulsion: Repulsion) -> Repulsion:
        """Gradients of the whole batch from those in `.grad` and `repulsion`, which are of this process's samples."""
        if self.mesh.data.size == 1:
            return repulsion
        parameters = self.runner.trained()
        apart = [gradient for unit in repulsion for gradient in unit]
        like = parameters + parameters if apart else parameters
        flats = flattened([*(parameter.grad for parameter in parameters), *apart], like)
        for flat in flats:
            self.mesh.data.all_reduce(flat)
        summed = unflattened(flats, like)
        for parameter, total in zip(parameters, summed, strict=False):
            if total is not None and parameter.grad is not None:
                parameter.grad.copy_(total)  # keeps its memory layout
            else:
                parameter.grad = total
        rest = iter(summed[len(parameters) :])
        return [[next(rest) for _ in unit] for unit in repulsion]

    def of_all_members(self, gradients: dict[str, Tensor], names: Sequence[str]) -> dict[str, Tensor]:
        if self.mesh.members.size == 1:
            return gradients
        like = [self.runner.of_members(name) for name in names]
        rows = [self.mesh.members.all_gather(flat) for flat in flattened([gradients.get(name) for name in names], like)]
        found = [unflattened([row[i] for row in rows], like) for i in range(self.mesh.members.size)]
        columns = zip(names, zip(*found, strict=True), strict=True)
        return {name: torch.cat(there) for name, column in columns if len(there := _there(column)) == len(column)}

    def collect(self) -> None:
        own = range(self.first_member, self.first_member + self.runner.ensemble.n_members)
        everything = named_tensors(self.whole)
        mine = {name: tensor for name, tensor in everything.items() if int(name.split(".")[1]) in own}
        with torch.no_grad():
            for name, tensor in self.mesh.united(mine).items():
                if name not in mine:
                    everything[name].copy_(tensor)

    def settle(self) -> None:
        self.inner.settle()

    def close(self) -> None:
        self.inner.close()


def _there(column: Sequence[Tensor | None]) -> list[Tensor]:
    return [tensor for tensor in column if tensor is not None]


def shard(ensemble: Ensemble, members: slice) -> Ensemble:
    """An ensemble of some of the members, which stay the same networks.

    >>> from torch import nn
    >>> whole = Ensemble(lambda: nn.Linear(2, 2), 4)
    >>> shard(whole, slice(2, 4)).members[0] is whole.members[2]
    True
    """
    return of_networks(ensemble, list(ensemble.members)[members])


def share_members(ensemble: Ensemble, mesh: Mesh) -> None:
    """Give all processes the first one's members, to the last bit."""
    own = named_tensors(ensemble)
    if mesh.everyone.size > 1:
        with torch.no_grad():
            for name, tensor in mesh.everyone.union(own if mesh.is_main_process else {}, mesh.device).items():
                own[name].copy_(tensor)


def refuse_uneven_batches(sizes: Iterable[int], mesh: Mesh) -> None:
    """Stop where batches of one of these sizes cannot be split evenly over the processes that share them."""
    for n in sorted(sizes, reverse=True):
        refuse_uneven(n, "batch", mesh)


def refuse_uneven(n: int, of: str, mesh: Mesh) -> None:
    """Stop where n samples cannot be split evenly over the processes that share them."""
    shards = mesh.data.size
    if n % shards:
        raise FordeError(
            f"a {of} of {n} samples cannot be split over the {shards} data shards of mesh "
            f"{mesh.shape[0]}x{shards}; choose sizes that {shards} divides (drop_last=True leaves out a smaller last "
            "batch), or another mesh."
        )


def share_random_numbers(mesh: Mesh, device: torch.device) -> None:
    """Let all processes draw the same numbers from here on: data may be drawn with any source."""
    if mesh.everyone.size > 1:
        set_random_tensors(mesh.first(lambda: random_tensors(device)), device)


@contextmanager
def own_random_numbers(mesh: Mesh, step: int) -> Iterator[None]:
    """Inside, torch's random numbers are this process's own in this step; outside they stay those of all processes.

    From one stream, members on different processes would drop the same units, and so would samples. Data that is drawn
    with torch's global stream must come out the same everywhere. A resumed run finds its numbers again by the step.
    """
    if mesh.everyone.size == 1:
        yield
        return
    key = [torch.initial_seed(), step, mesh.everyone.index]
    with torch.random.fork_rng(devices=[mesh.device] if mesh.device.type == "cuda" else []):
        torch.manual_seed(int(np.random.SeedSequence(key).generate_state(1, np.uint64)[0] >> np.uint64(1)))
        yield
