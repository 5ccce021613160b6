"""One process's part of a step that several make together: some of the members, some of the batch.

Every process draws the same batch and takes its slice. Of phase 1 only losses and representations travel; then each
makes the exchange of all members by itself and keeps the cotangents of its own members and samples. No gradient flows
through that. Gradients of parameters are summed over the processes that share a member. Those of other members travel
only where a method mixes them: the shared head, and SVGD in the space of weights.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from functools import partial

import numpy as np
import torch
from torch import Tensor, nn

from forde.engine.choose import EngineName
from forde.engine.eager import EagerEngine, refuse_different_parameters
from forde.engine.flat import pack, unpack
from forde.engine.global_batchnorm import GlobalBatchNorm, normalise
from forde.engine.guards import refuse_different_sizes
from forde.engine.mesh import Mesh
from forde.engine.part_of_batch import Recording, Statistics
from forde.engine.records import Batch, Forward, Memory, Precision, StepReport
from forde.ensemble import Ensemble
from forde.errors import FordeError
from forde.methods.base import Method
from forde.random_state import random_tensors, set_random_tensors
from forde.spaces import View

log = logging.getLogger(__name__)

SAME_BATCH = 1e-5
"""Means of one batch on different devices differ by rounding only, those of different batches by more."""


class ShardedEngine(EagerEngine):
    """The eager engine over this process's shard of members and of every batch.

    >>> from forde import method
    >>> ensemble = Ensemble(lambda: nn.Linear(4, 3), n_members=2)
    >>> engine = ShardedEngine(ensemble, method("forde-identity"), Mesh())
    >>> engine.step(torch.randn(8, 4), torch.randint(3, (8,))).losses.shape
    torch.Size([2])
    """

    def __init__(
        self,
        ensemble: Ensemble,
        method: Method,
        mesh: Mesh,
        precision: Precision = "float32",
        memory: Memory = "speed",
    ) -> None:
        own = mesh.members.part(ensemble.n_members)
        super().__init__(shard(ensemble, own), method, precision, memory)
        self.whole, self.mesh, self.first_member = ensemble, mesh, own.start
        self._batch: tuple[Batch, Batch] | None = None
        if method.shared_head or self.mixes_weights:
            refuse_different_parameters(ensemble)

    def gradients(self, x: Batch, y: Batch, factor: float | Tensor | None, *, step: int) -> StepReport:
        """As in one process, from the batch of all processes; the report is of all members."""
        self._batch = x, y
        own_x, own_y = self._own(x), self._own(y)
        # Backward passes hold messages when BatchNorm is global; one thread sends them in one order everywhere.
        order = nullcontext() if self.mesh.data.size == 1 else torch.autograd.set_multithreading_enabled(False)
        with order, own_random_numbers(self.mesh, step):
            return super().gradients(own_x, own_y, factor, step=step)

    def _own(self, batch: Batch) -> Batch:
        """This process's part of a batch for all members, or of one for each."""
        if isinstance(batch, Tensor):
            return batch[self._samples(len(batch), "batch")]
        members = batch[self.first_member : self.first_member + self.ensemble.n_members]
        return [each[self._samples(len(each), "batch")] for each in members]

    def _samples(self, n: int, of: str) -> slice:
        refuse_uneven(n, of, self.mesh)
        return self.mesh.data.part(n)

    def _recording(self, *, linked: bool) -> Recording:
        data = self.mesh.data
        return super()._recording(linked=linked) if data.size == 1 else Recording(partial(normalise, data))

    def _run(
        self, unit: int, x: Tensor, y: Tensor, tensors: dict[str, Tensor] | None, statistics: Statistics | None
    ) -> View:
        data = self.mesh.data
        with nullcontext() if data.size == 1 else GlobalBatchNorm(data):
            view = super()._run(unit, x, y, tensors, statistics)
        return replace(view, share=1 / data.size)

    def part_that_repels(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """This process's samples of the part of the whole batch, not of its own."""
        assert self._batch is not None
        batch_x, batch_y = self._batch
        assert isinstance(batch_x, Tensor) and isinstance(batch_y, Tensor)
        x, y = super().part_that_repels(batch_x, batch_y)
        part = self._samples(len(y), f"part that repels (repulsion_fraction={self.method.repulsion_fraction})")
        return x[part], y[part]

    def forward(self, x: Batch, y: Batch, *, repel: bool) -> Forward:
        """Phase 1 of this process, then all that the others found: losses `[M]` and z of all members and samples."""
        found = super().forward(x, y, repel=repel)
        size = 0 if found.z is None else found.z[0].numel()
        return Forward(self._losses(found.losses, size), self._all(found.z), self._all(found.loss_gradients))

    def _losses(self, losses: Tensor, size: int) -> Tensor:
        """Parts `[m]` of the mean loss → the mean loss of all members `[M]`.

        The batch must be the same everywhere, and so must `size`, the numbers by which a member is compared.
        """
        assert self._batch is not None
        firsts = [batch if isinstance(batch, Tensor) else batch[0] for batch in self._batch]
        means = [(first if first.is_complex() else first.double()).abs().mean() for first in firsts]
        marks = torch.stack([*means, torch.as_tensor(float(size), device=losses.device)]).to(losses)
        rows = self.mesh.everyone.gathered(torch.cat([losses, marks]))
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
            return self.mesh.members.gathered(z).flatten(0, 1)
        axis = space.sample_axis
        if z.shape[axis] % self._samples_compared():
            raise FordeError(
                f"{type(space).__name__} has sample_axis = {axis}, but its z {list(z.shape)} does not hold "
                f"{self._samples_compared()} samples there; set sample_axis to the axis along which the batch lies."
            )
        rows = self.mesh.everyone.gathered(z).unflatten(0, self.mesh.shape)  # [member shards, data shards, m, s, d]
        return rows.movedim(1, axis + 1).flatten(axis + 1, axis + 2).flatten(0, 1)

    def _samples_compared(self) -> int:
        """How many samples of this process members are compared at."""
        assert self._batch is not None
        return self._number_that_repel(len(self._batch[1])) // self.mesh.data.size

    def _of_unit(self, tensor: Tensor, unit: int) -> Tensor:
        space, data = self.method.space, self.mesh.data
        assert space is not None
        own = tensor[self.first_member + unit]
        if not space.uses_batch:
            return own / data.size  # every process that shares this member adds the same
        return own.chunk(data.size, space.sample_axis - 1)[data.index]

    def _complete(self, repulsion: list[Sequence[Tensor | None]]) -> list[Sequence[Tensor | None]]:
        if self.mesh.data.size == 1:
            return repulsion
        parameters = self.trained()
        apart = [gradient for unit in repulsion for gradient in unit]
        like = parameters + parameters if apart else parameters
        flats = pack([*(parameter.grad for parameter in parameters), *apart], like)
        for flat in flats:
            self.mesh.data.add_up(flat)
        totals = unpack(flats, like)
        for parameter, total in zip(parameters, totals, strict=False):
            if total is not None and parameter.grad is not None:
                parameter.grad.copy_(total)  # keeps its memory layout
            else:
                parameter.grad = total
        rest = iter(totals[len(parameters) :])
        return [[next(rest) for _ in unit] for unit in repulsion]

    def _member_gradients(self) -> dict[str, Tensor]:
        return self._gathered_gradients(list(self.groups[0]))

    def _head_gradients(self) -> dict[str, Tensor]:
        return self._gathered_gradients([name for name in self.head if name in self.groups[0]])

    def _gathered_gradients(self, names: list[str]) -> dict[str, Tensor]:
        """Gradients of all members, also other processes', `[M, ...]` each."""
        own = [group[name] for group in self.groups for name in names]
        rows = [self.mesh.members.gathered(flat) for flat in pack([parameter.grad for parameter in own], own)]
        found = [unpack([row[i] for row in rows], own) for i in range(self.mesh.members.size)]
        members = [shard[start : start + len(names)] for shard in found for start in range(0, len(own), len(names))]
        columns = {name: [member[i] for member in members] for i, name in enumerate(names)}
        return {
            name: torch.stack(there)
            for name, column in columns.items()
            if len(there := [gradient for gradient in column if gradient is not None]) == len(column)
        }

    def _assign_gradients(self, gradients: dict[str, Tensor]) -> None:
        own = slice(self.first_member, self.first_member + len(self.groups))
        super()._assign_gradients({name: gradient[own] for name, gradient in gradients.items()})

    def collect(self) -> None:
        own = range(self.first_member, self.first_member + self.ensemble.n_members)
        everything = named_tensors(self.whole)
        mine = {name: tensor for name, tensor in everything.items() if int(name.split(".")[1]) in own}
        with torch.no_grad():
            for name, tensor in self.united(mine).items():
                if name not in mine:
                    everything[name].copy_(tensor)

    def united(self, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        return self.mesh.members.union(tensors, self.mesh.device)

    def anywhere(self, happened: bool) -> bool:
        return self.mesh.anywhere(happened)


def make_sharded_engine(  # noqa: PLR0917  (as make_engine)
    name: EngineName,
    ensemble: Ensemble,
    method: Method,
    mesh: Mesh,
    precision: Precision = "float32",
    memory: Memory = "speed",
) -> ShardedEngine:
    """The engine for a mesh, if it is the one asked for."""
    if name not in ("auto", "eager"):
        raise FordeError(
            f"engine='{name}' does not run on several processes yet; use engine='auto' or 'eager' with a mesh."
        )
    log.info("engine: eager, on %d × %d processes (shards of members × shards of the batch)", *mesh.shape)
    return ShardedEngine(ensemble, method, mesh, precision, memory)


def shard(ensemble: Ensemble, members: slice) -> Ensemble:
    """An ensemble of some of the members, which stay the same networks.

    >>> whole = Ensemble(lambda: nn.Linear(2, 2), 4)
    >>> shard(whole, slice(2, 4)).members[0] is whole.members[2]
    True
    """
    part = Ensemble.__new__(Ensemble)
    nn.Module.__init__(part)
    part.seed, part.likelihood = ensemble.seed, ensemble.likelihood
    part.members = nn.ModuleList(list(ensemble.members)[members])
    part.left_in_evaluation = frozenset(n for n, m in part.members.named_modules() if n and not m.training)
    return part


def named_tensors(network: nn.Module) -> dict[str, Tensor]:
    """Parameters and buffers by name, also those that a network does not save; tied ones once.

    >>> list(named_tensors(nn.BatchNorm1d(2)))
    ['weight', 'bias', 'running_mean', 'running_var', 'num_batches_tracked']
    """
    return {**dict(network.named_parameters()), **dict(network.named_buffers())}


def share_members(ensemble: Ensemble, mesh: Mesh) -> None:
    """Give all processes the first one's members, to the last bit."""
    own = named_tensors(ensemble)
    if mesh.everyone.size > 1:
        with torch.no_grad():
            for name, tensor in mesh.everyone.union(own if mesh.leads else {}, mesh.device).items():
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
