"""The compiled step: a plain step, and what it becomes when it is traced, compiled and, on a GPU, captured.

The plain step is oracle and fallback. The first step of a run is made by it; a traced one must come to the same on the
same batch before it takes over. Where a network cannot be traced, or comes to something else (it branches on its data
or on random numbers of Python's), the plain step stays, and one line in the log says why. What a trace took from Python
is watched; when it changes, the step is traced again.
"""

from __future__ import annotations

import logging
import zlib
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from forde.compile.captured import CudaGraphs
from forde.compile.compiler import Compiler, Kind, compile_exchange
from forde.compile.tracing import can_fuse
from forde.compile.worth import Trial, seconds_to_compile
from forde.distributed.mesh import ALONE, Mesh
from forde.ensemble import Ensemble
from forde.errors import FordeError, first_line
from forde.rules import Forces
from forde.step.core import Repulsion, Step
from forde.step.plain import PlainStep
from forde.step.python_state import Watch
from forde.step.records import Batch, Batches, Forward, Inputs, Moment, StepReport, Targets

if TYPE_CHECKING:
    from typing_extensions import Unpack

log = logging.getLogger(__name__)

WARM_UP_STEPS = 2
"""Compiled steps before the capture, in which allocations and algorithm choices settle."""
MOST_CHANGES = 3
"""How often a step is traced again because an attribute, a mode or what is frozen has changed."""


class Key(NamedTuple):
    """The batches that one compiled step is for."""

    repel: bool
    compared: int | tuple[int, ...] | None
    """The samples that members are compared at, where not all: how many, or their labels' shape."""
    share: float
    shape: torch.Size
    """Of the inputs."""
    dtype: torch.dtype
    shape_of_labels: torch.Size
    dtype_of_labels: torch.dtype


class CompiledStep(Step):
    """Runs the traced and compiled form of a plain step where there is one.

    Args:
        plain: made with `metric_apart`, so that both steps hand out the same representations.
        steps: of the run. If given, the first few are timed, and the rest is compiled only if that pays.
        asked_for: whether the user asked for compiled steps, so that falling back is worth a warning.
        rows: samples in the batches that are compiled; by default as many as in the first one.
        fuse: whether torch's compiler merges operations; by default where it can.
        mesh: the processes that make the steps together: all of them trace, capture or drop a step, or none.

    >>> from forde import method
    >>> from forde.step import MemberLoop
    >>> forde_identity = method("forde-identity")
    >>> ensemble = Ensemble(lambda: nn.Linear(4, 3), n_members=2)
    >>> plain = PlainStep(MemberLoop(ensemble, forde_identity), forde_identity, metric_apart=True)
    >>> step = CompiledStep(plain, fuse=False)  # trace only, for an example that takes no time
    >>> step.update(torch.randn(8, 4), torch.randint(3, (8,))).losses.shape, step.is_plain
    (torch.Size([2]), False)
    """

    def __init__(
        self,
        plain: PlainStep,
        *,
        steps: int | None = None,
        asked_for: bool = True,
        rows: int | None = None,
        fuse: bool | None = None,
        mesh: Mesh = ALONE,
    ) -> None:
        super().__init__(plain.runner, plain.method)
        self._plain = plain
        device = self.runner.ensemble.device
        self.fuse = can_fuse(device) if fuse is None else fuse
        self.is_plain = False
        """Whether the plain step stays for good."""
        self._asked_for, self._rows = asked_for, rows
        self._trial = None if steps is None else Trial(steps)
        self._mesh = mesh
        """Who agrees on what is compiled; the step itself is of this process's members alone."""
        self.kinds: dict[Key, Kind] = {}
        """What was compiled so far."""
        self._graphs = CudaGraphs(self.runner, parallel=plain.memory == "speed") if device.type == "cuda" else None
        self._running: Kind | None = None
        """Whose phases are being run one by one; None where the plain step's are."""
        self._code: Watch | None = None
        """Notices when Python state that the traces have baked in changes."""
        self._changes = 0
        # How tensor cores and a CPU's convolutions read them fastest.
        self._layouts = _store_weights(self.runner.ensemble, self.runner.image_layout)

    @property
    def plain(self) -> PlainStep:
        return self._plain

    def update(self, x: Inputs, y: Targets, optimizer: Optimizer | None = None, **moment: Unpack[Moment]) -> StepReport:
        def by(which: Step) -> StepReport:
            found = which.update(x, y, **moment)
            self.runner.match_layouts()
            if optimizer is not None:
                optimizer.step()
            return found

        if self._trial is not None:
            found = self._trial.time(lambda: by(self._plain), self.runner.ensemble.device)
            if self._trial.over:
                self._decide(self._trial)
            return found
        if moment.get("repel_on") is not None:  # whose batches are not traced
            return by(self._plain)
        batch, factor = self.planned(x, y, **moment)
        kind = self._kind(batch, factor)
        if kind is None:
            return by(self._plain)
        if self._graphs is None:
            return by(kind.step)
        assert isinstance(batch, Batch)
        if kind.warm_ups < WARM_UP_STEPS or not kind.capturable:
            kind.warm_ups += 1
            found = self._graphs.beside(lambda: kind.step.update(x, y, **moment))
            if optimizer is not None:
                optimizer.step()
            return found
        inside = optimizer if self._graphs.takes_in(optimizer) else None
        if (inside is not None) not in kind.whole:
            try:
                kind.whole[inside is not None] = self._graphs.capture(kind.step, batch, factor, inside)
            except RuntimeError as error:
                self._give_up(f"the step cannot be captured in a CUDA graph ({first_line(error)})")
                return by(self._plain)
        captured = kind.whole[inside is not None]
        found = self._graphs.replay(kind.step, captured, batch, factor, inside, number=moment.get("step", 0))
        if inside is None and optimizer is not None:
            optimizer.step()
        return found

    # The phases one by one, for steps that several processes make together.

    def forward(self, batch: Batches, *, repel: bool) -> Forward:
        kind = self._running = self._kind(batch, 1.0 if repel else None)
        if kind is None:
            return self._plain.forward(batch, repel=repel)
        assert isinstance(batch, Batch)
        if self._graphs is None:
            return kind.step.forward(batch, repel=repel)
        if not kind.talks and kind.warm_ups >= WARM_UP_STEPS and kind.phases is None:
            reason = self._mesh.together(lambda: self._capture_phases(kind, batch, repel=repel))
            if reason is not None:
                self._give_up(reason)
                self._running = None
                return self._plain.forward(batch, repel=repel)
        if kind.phases is not None:
            return self._graphs.replay_first(kind.phases, batch)
        kind.warm_ups += 1
        found: Forward = self._graphs.beside(lambda: kind.step.forward(batch, repel=repel))
        return found

    def exchange(self, found: Forward, factor: float | Tensor) -> Forces:
        kind = self._running
        if kind is None:
            return self._plain.exchange(found, factor)
        if self._graphs is not None and found.z is not None:
            # z is of the members of all processes, so its shape was not known when the phases were compiled.
            compile_exchange(kind, self._plain, found.z, fuse=self.fuse)
        return kind.step.exchange(found, factor)

    def pull_back(self, forces: Forces | None, *, apart: bool = False) -> Repulsion:
        kind = self._running
        if kind is None:
            return self._plain.pull_back(forces, apart=apart)
        if self._graphs is None:
            return kind.step.pull_back(forces, apart=apart)
        if kind.phases is not None:
            return () if forces is None else self._graphs.replay_second(kind.phases, forces)
        found: Repulsion = self._graphs.beside(lambda: kind.step.pull_back(forces, apart=apart))
        return found

    def _capture_phases(self, kind: Kind, batch: Batch, *, repel: bool) -> str | None:
        assert self._graphs is not None
        try:
            kind.phases = self._graphs.capture_phases(kind.step, batch, repel=repel)
        except RuntimeError as error:
            return f"the step cannot be captured in a CUDA graph ({first_line(error)})"
        return None

    def finish(self, forces: Forces | None, repulsion: Repulsion) -> None:
        super().finish(forces, repulsion)
        self.runner.match_layouts()

    def settle(self) -> None:
        if self._graphs is not None:
            self._graphs.settle()

    def close(self) -> None:
        if self._graphs is not None:
            self._graphs.close()
        self.kinds.clear()
        for parameter, layout in self._layouts:
            parameter.data = parameter.data.contiguous(memory_format=layout)
        super().close()

    # From plain to compiled

    def _decide(self, trial: Trial) -> None:
        """Compile from the next step on, or never."""
        saved, cost = trial.saved(), seconds_to_compile(self.runner.networks[0])
        self._trial = None
        if saved > cost:
            log.info("engine: compiled, which takes about %.0f s and saves about %.0f s", cost, saved)
        else:
            self._give_up(f"compiling would take about {cost:.0f} s and save about {saved:.0f} s")

    def _give_up(self, reason: str) -> None:
        # A warning only where compiling was asked for, because then something else runs.
        level = logging.WARNING if self._asked_for else logging.INFO
        log.log(level, "engine: %s after all, %s", self.runner.name, reason)
        self.is_plain = True
        self.kinds.clear()

    def _kind(self, batch: Batches, factor: float | None) -> Kind | None:
        """The compiled step for such a batch; compiled where it is the first of its kind."""
        if self.is_plain or not isinstance(batch, Batch) or self._rows not in (None, len(batch.y)):
            return None
        size = tuple(batch.part[1].shape) if isinstance(batch.part, tuple) else batch.part
        x, y = batch.one, batch.y
        key = Key(factor is not None, size, batch.share, x.shape, x.dtype, y.shape, y.dtype)
        change = self._code.change() if self.kinds and self._code is not None else None
        change = _agreed_change(self._mesh, change, key)
        if change is not None:
            self._trace_again(change)
        if key not in self.kinds and not any(known.repel == key.repel for known in self.kinds) and not self.is_plain:
            self._compile(key, batch, factor)
        return self.kinds.get(key)  # the last, smaller batch of an epoch is left to the plain step

    def _trace_again(self, change: str) -> None:
        """Forget the compiled steps, because what they baked in has changed."""
        self.settle()
        self.kinds.clear()
        if self._graphs is not None:
            self._graphs.forget()
        self._changes += 1
        if self._changes > MOST_CHANGES:
            self._give_up(f"what the step depends on keeps changing (now {change})")
        else:
            log.info("engine: the step is traced again, because %s", change)

    def _compile(self, key: Key, batch: Batch, factor: float | None) -> None:
        compiler = Compiler(self._plain, fuse=self.fuse, mesh=self._mesh)
        found = compiler.compile(batch, factor)
        if isinstance(found, str):
            self._give_up(found)
        else:
            self.kinds[key], self._code = found, compiler.watch


def _store_weights(ensemble: Ensemble, layout: torch.memory_format) -> list[tuple[Tensor, torch.memory_format]]:
    """Keep convolutions' weights in a memory layout; their values and shapes stay. Returns how they were kept."""
    before: list[tuple[Tensor, torch.memory_format]] = []
    if layout == torch.contiguous_format:  # stacked members: their weights are views of one tensor, and stay
        return before
    layers = [layer for layer in ensemble.modules() if isinstance(layer, (nn.Conv2d, nn.ConvTranspose2d))]
    for parameter in (parameter for layer in layers for parameter in layer.parameters()):
        if parameter.dim() == 4:
            before.append((parameter, torch.contiguous_format if parameter.is_contiguous() else torch.channels_last))
            parameter.data = parameter.data.contiguous(memory_format=layout)
    return before


def _agreed_change(mesh: Mesh, change: str | None, key: Key) -> str | None:
    """What has changed in the networks of any process, in words; None where nothing has.

    Args:
        change: in this process.
        key: the kind of batch, which must be the same everywhere.
    """
    if mesh.everyone.size == 1:
        return change
    mark = zlib.crc32(repr(key).encode())
    changed, high, low = mesh.all_reduce_max([int(change is not None), mark, -mark])
    if high != -low:
        raise FordeError("the processes drew batches of different shapes; give all of them the same data.")
    if not changed:
        return None
    found = mesh.all_gather_values(change)
    shards = mesh.shape[1]
    for first in range(0, len(found), shards):
        sharing = found[first : first + shards]
        if len(set(sharing)) > 1:
            told = next(each for each in sharing if each is not None)
            raise FordeError(
                f"{told} in one process, but not in all that share a batch, so they no longer train the same networks; "
                "change it in all processes alike."
            )
    return next(each for each in found if each is not None)
