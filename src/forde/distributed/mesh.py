"""Where this process stands in a mesh of processes, members × data, and how it talks to the others.

A mesh of 2 × 3 has two shards of members, each trained by three processes that share every batch. Process r is at
(r // 3, r % 3). A mesh of one process talks to nobody, so that code written for a mesh needs no other case.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from forde.distributed import rendezvous
from forde.distributed.messages import packed, unpacked
from forde.errors import FordeError, NonFiniteError, UnrecoverableError

Shape = tuple[int, int]
"""Shards of members × shards of the batch."""
T = TypeVar("T")
CPU = torch.device("cpu")


@dataclass(frozen=True)
class Axis:
    """The processes along one axis of the mesh, and this one among them."""

    size: int = 1
    index: int = 0
    group: dist.ProcessGroup | None = None

    def part(self, n: int) -> slice:
        """This process's contiguous block of n things.

        >>> Axis(size=2, index=1).part(6)
        slice(3, 6, None)
        """
        each = n // self.size
        return slice(self.index * each, (self.index + 1) * each)

    def all_gather(self, tensor: Tensor) -> Tensor:
        """The tensors `[...]` of all processes as `[size, ...]`; all must have one shape."""
        if self.size == 1:
            return tensor.unsqueeze(0)
        rows = torch.empty(self.size, *tensor.shape, dtype=tensor.dtype, device=tensor.device)
        dist.all_gather(list(rows.unbind()), tensor.detach().contiguous(), group=self.group)
        return rows

    def all_reduce(self, tensor: Tensor) -> None:
        """Replace a contiguous tensor by its sum over processes."""
        if self.size > 1:
            dist.all_reduce(tensor, group=self.group)

    def sum(self, tensor: Tensor) -> Tensor:
        """A new tensor, the sum of all processes' tensors, by one operation that a trace can hold.

        Nothing is differentiated through it.

        >>> Axis().sum(torch.ones(2))
        tensor([1., 1.])
        """
        if self not in _summed_over:
            _summed_over.append(self)
        total: Tensor = _sum_over_processes(tensor, _summed_over.index(self))
        return total

    def union(self, tensors: dict[str, Tensor], device: torch.device) -> dict[str, Tensor]:
        """What all processes hold together, by name, on `device`; no two may use one name.

        Whatever the types are, each process sends one run of bytes.

        >>> Axis().union({"weight": torch.ones(2)}, torch.device("cpu"))
        {'weight': tensor([1., 1.])}
        """
        if self.size == 1:
            return tensors
        assert self.group is not None
        own = [(name, tuple(tensor.shape), tensor.dtype) for name, tensor in tensors.items()]
        labels = self.all_gather_values(own, device)
        found: dict[str, Tensor] = {}
        for index, each in enumerate(labels):
            sizes = [math.prod(shape) * dtype.itemsize for _, shape, dtype in each]
            if index == self.index and each:
                content = torch.cat([_bytes(tensor).to(device) for tensor in tensors.values()])
            else:
                content = torch.empty(sum(sizes), dtype=torch.uint8, device=device)
            if len(content):
                dist.broadcast(content, dist.get_global_rank(self.group, index), group=self.group)
            for (name, shape, dtype), part in zip(each, content.split(sizes), strict=True):
                found[name] = part.clone().view(dtype).view(shape)  # a clone begins at an address that fits the type
        return found

    def all_gather_values(self, value: T, device: torch.device) -> list[T]:
        """Each process's value, in their order, sent on `device`.

        >>> Axis().all_gather_values({"lr": 0.1}, torch.device("cpu"))
        [{'lr': 0.1}]
        """
        if self.size == 1:
            return [value]
        content = _as_tensor(packed(value), device)
        lengths = self.all_gather(torch.tensor([len(content)], device=device)).flatten().tolist()
        padded = torch.zeros(max(lengths), dtype=torch.uint8, device=device)
        padded[: len(content)] = content
        rows = self.all_gather(padded)
        return [unpacked(_as_bytes(row[:length])) for row, length in zip(rows, lengths, strict=True)]

    def broadcast_value(self, value: Any, device: torch.device) -> Any:
        """The first process's value, in all of them; what others give is not sent."""
        assert self.group is not None
        first = dist.get_global_rank(self.group, 0)
        content = _as_tensor(packed(value if self.index == 0 else None), device)
        length = torch.tensor([len(content)], device=device)
        dist.broadcast(length, first, group=self.group)
        if self.index != 0:
            content = torch.empty(int(length), dtype=torch.uint8, device=device)
        dist.broadcast(content, first, group=self.group)
        return value if self.index == 0 else unpacked(_as_bytes(content))


_summed_over: list[Axis] = []
"""By the number under which the operation knows them: operations take numbers, not objects."""


@torch.library.custom_op("forde::sum_over_processes", mutates_args=())
def _sum_over_processes(x: Tensor, axis: int) -> Tensor:
    total = x.clone(memory_format=torch.contiguous_format)
    _summed_over[axis].all_reduce(total)
    return total


@_sum_over_processes.register_fake
def _(x: Tensor, axis: int) -> Tensor:
    return torch.empty_like(x, memory_format=torch.contiguous_format)


def _as_tensor(content: bytes, device: torch.device) -> Tensor:
    return torch.frombuffer(bytearray(content), dtype=torch.uint8).to(device)


def _as_bytes(tensor: Tensor) -> bytes:
    return tensor.cpu().numpy().tobytes()


def _bytes(tensor: Tensor) -> Tensor:
    return tensor.detach().contiguous().flatten().view(torch.uint8)


@dataclass(frozen=True)
class Mesh:
    """Processes arranged as members × data; by default this one alone.

    >>> Mesh().shape, Mesh().is_main_process
    ((1, 1), True)
    """

    members: Axis = Axis()
    data: Axis = Axis()
    everyone: Axis = Axis()
    device: torch.device = CPU
    """Of the members, and so of most tensors that travel."""
    words: torch.device = CPU
    """Of short messages: the host where the backend can send from it, so that nobody waits for a GPU to finish."""

    @property
    def shape(self) -> Shape:
        """Shards of members × shards of the batch."""
        return self.members.size, self.data.size

    @property
    def is_main_process(self) -> bool:
        """Whether this is the first process, which writes files and decides."""
        return self.everyone.index == 0

    def anywhere(self, happened: bool) -> bool:
        """Whether it is so in any process."""
        return bool(self.all_reduce_max([int(happened)])[0])

    def all_reduce_max(self, numbers: list[int]) -> list[int]:
        """The largest of all processes' numbers, one by one."""
        if self.everyone.size == 1:
            return numbers
        found = torch.tensor(numbers, device=self.words)
        dist.all_reduce(found, dist.ReduceOp.MAX, group=self.everyone.group)
        return [int(number) for number in found.tolist()]

    def first(self, action: Callable[[], T]) -> T:
        """Do something in the first process only; what it returns, or its FordeError, reaches all.

        >>> Mesh().first(lambda: 3)
        3
        """
        if self.everyone.size == 1:
            return action()
        if self.is_main_process:
            try:
                found = action()
            except FordeError as error:
                self.everyone.broadcast_value((type(error).__name__, str(error)), self.words)
                raise
            self.everyone.broadcast_value((None, found), self.words)
            return found
        error_name, told = self.everyone.broadcast_value(None, self.words)
        if error_name is not None:
            raise (NonFiniteError if error_name == NonFiniteError.__name__ else FordeError)(told)
        result: T = told
        return result

    def all_gather_values(self, value: T) -> list[T]:
        """Every process's value, in their order."""
        return self.everyone.all_gather_values(value, self.words)

    def together(self, work: Callable[[], str | None]) -> str | None:
        """Do something in every process; why not to go on in words, the same in all; None if nothing speaks against it.

        What is raised as FordeError in one process is raised in all.

        >>> Mesh().together(lambda: None), Mesh().together(lambda: "it branches on its data")
        (None, 'it branches on its data')
        """
        if self.everyone.size == 1:
            return work()
        reason: str | None = None
        refused: FordeError | None = None
        try:
            reason = work()
        except UnrecoverableError:
            raise
        except FordeError as error:
            refused = error
        found = self.all_gather_values((reason, None if refused is None else str(refused)))
        if refused is not None:
            raise refused
        for index, (_, told) in enumerate(found):
            if told is not None:
                raise FordeError(f"process {index} of this training stopped: {told}")
        return reason or next((f"{told} (in process {index})" for index, (told, _) in enumerate(found) if told), None)

    def united(self, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        """Named tensors of this process's members, and those of all others."""
        return self.members.union(tensors, self.device)


ALONE = Mesh()
"""This process, with nobody to talk to."""


def processes() -> int:
    """How many processes were started together, by torchrun or by whoever made torch's process group.

    >>> processes()
    1
    """
    if dist.is_available() and dist.is_initialized():
        return dist.get_world_size()
    return int(os.environ.get("WORLD_SIZE", "1")) if "RANK" in os.environ else 1


def default_shape(n_members: int, n_processes: int) -> Shape:
    """As many shards of members as divide M and the number of processes; the rest shares the batch.

    >>> default_shape(10, 4), default_shape(8, 4), default_shape(5, 4)
    ((2, 2), (4, 1), (1, 4))
    """
    shards = math.gcd(n_members, n_processes)
    return shards, n_processes // shards


def parse_shape(text: str) -> Shape:
    """`members x data` as on the command line.

    >>> parse_shape("2x4")
    (2, 4)
    """
    members, _, data = text.lower().replace("×", "x").partition("x")
    if not (members.isdecimal() and data.isdecimal()):
        raise FordeError(f"the mesh is '{text}', but shards of members x shards of the batch were expected, as in 2x4.")
    return int(members), int(data)


def checked_shape(shape: Shape | Literal["auto"], n_members: int) -> Shape:
    """The shape, if there are as many processes and the members divide among them."""
    started = processes()
    if shape == "auto":
        return default_shape(n_members, started)
    if isinstance(shape, str) or len(shape) != 2 or not all(isinstance(n, int) and n >= 1 for n in shape):
        raise FordeError(f"mesh is {shape!r}, but 'auto' or (shards of members, shards of the batch) was expected.")
    refuse_other_shapes(shape, n_members, started)
    return shape


def refuse_other_shapes(shape: Shape, n_members: int, started: int) -> None:
    """Stop where a mesh needs another number of processes, or members do not divide among its shards."""
    members, data = shape
    if members * data != started:
        raise FordeError(
            f"mesh {members}x{data} needs {members * data} processes, but the number started is {started}; "
            f"start them with torchrun --nproc-per-node={members * data}, or give another mesh."
        )
    if n_members % members:
        works = default_shape(n_members, started)
        raise FordeError(
            f"{n_members} members cannot be split over the {members} member shards of mesh {members}x{data}; "
            f"use mesh {works[0]}x{works[1]}, or a number of members that {members} divides."
        )


def own_device(device: torch.device) -> torch.device:
    """A GPU of this process's own, where torchrun says which and no other was named; else the one in use."""
    if device.type != "cuda" or device.index is not None:
        return device
    if "LOCAL_RANK" in os.environ:
        return torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    return torch.device("cuda", torch.cuda.current_device()) if torch.cuda.is_available() else device


@contextmanager
def joined(shape: Shape, device: torch.device) -> Iterator[Mesh]:
    """The mesh of all processes, while inside; torch's process group is made, and ended, where there is none.

    gloo carries tensors of the CPU, NCCL those of GPUs.

    >>> with joined((1, 1), torch.device("cpu")) as mesh:
    ...     mesh.everyone.size
    1
    """
    if shape == (1, 1):
        yield ALONE
        return
    if device.type not in ("cpu", "cuda"):
        raise FordeError(f"device is '{device}', but several processes can talk on 'cpu' and 'cuda' only; choose one.")
    made = not dist.is_initialized()
    if device.type == "cuda":
        torch.cuda.set_device(device)
    if made:
        with _explaining():
            rendezvous.start_process_group("gloo" if device.type == "cpu" else "nccl")
    try:
        with _explaining():
            mesh = _mesh(shape, device, made=made)
            yield mesh
    finally:
        if made:
            dist.destroy_process_group()
    if not made:  # those of the mesh alone; each holds threads
        for axis in (mesh.members, mesh.data, mesh.everyone):
            dist.destroy_process_group(axis.group)


def _mesh(shape: Shape, device: torch.device, *, made: bool) -> Mesh:
    """Groups along each axis, all of which wait for a silent process as long as `rendezvous.SILENCE` says."""
    members, data = shape
    rank, limit = dist.get_rank(), rendezvous.limit()
    ranks = torch.arange(members * data).view(shape)
    along = [ranks.T.tolist(), ranks.tolist()]
    groups = [dist.new_subgroups_by_enumeration(lists, timeout=limit)[0] for lists in along]
    everyone = dist.group.WORLD if made else dist.new_group(timeout=limit)
    return Mesh(
        Axis(members, rank // data, groups[0]),
        Axis(data, rank % data, groups[1]),
        Axis(members * data, rank, everyone),
        device,
        CPU if dist.get_backend(everyone) == "gloo" else device,
    )


@contextmanager
def _explaining() -> Iterator[None]:
    """Turns a lost connection into what to do about it."""
    try:
        yield
    except RuntimeError as error:
        if not (isinstance(error, dist.DistError) or "gloo" in str(error)):
            raise
        met = not isinstance(error, dist.DistStoreError)  # which comes of processes that did not appear
        if met and re.search("timed? ?out", str(error), re.IGNORECASE):
            raise FordeError(
                f"another process of this training has said nothing for {rendezvous.SILENCE / 60:g} minutes and counts "
                "as lost; see what it does, end it, then start all of them again with resume=True (--resume)."
            ) from None
        raise FordeError(
            f"another process of this training has ended or cannot be reached ({_first_sentence(error)}); look at what "
            "it said, then start all of them again with resume=True (--resume), as torchrun --max-restarts does."
        ) from None


def _first_sentence(error: RuntimeError) -> str:
    """Without the place in torch's source, and without its advice."""
    return re.sub(r"^\[[^]]*\] ", "", (str(error).splitlines() or [""])[0]).split(". ")[0].rstrip(".")
