"""The compiled step: a plain step, and what it becomes when it is traced, compiled and, on a GPU, captured.

The plain step is oracle and fallback. The first step of a run is made by it; a traced one must come to the same on the
same batch before it takes over. Where a network cannot be traced, or comes to something else (it branches on its data
or on random numbers of Python's), the plain step stays, and one line in the log says why. What a trace took from Python
is watched; when it changes, the step is traced again.
"""

from __future__ import annotations

import logging
import time
import warnings
from dataclasses import dataclass, field, replace
from functools import partial

import torch
from torch import Tensor, fx, nn
from torch.optim import Optimizer

from forde.arguments import Input
from forde.compile.agreeing import Company, agreed_change, attempt, together
from forde.compile.captured import CapturedPhases, CapturedStep, CudaGraphs
from forde.compile.traced import Function, Program, TracedStep, match_layouts
from forde.compile.tracing import can_fuse, fused, state_of, trace, trace_exchange
from forde.compile.verifying import UnitCheck
from forde.compile.worth import Trial, seconds_to_compile
from forde.ensemble import Ensemble
from forde.errors import first_line
from forde.rules import Forces
from forde.step.agreement import (
    Position,
    gradients_by_name,
    gross_disagreement,
)
from forde.step.checks import refuse_unrepeatable
from forde.step.core import Elsewhere, Repulsion, Step
from forde.step.plain import PlainStep
from forde.step.python_state import Watch, difference, hooks_of
from forde.step.records import Batch, Batches, Forward, StepReport
from forde.step.runners import MemberLoop, Runner

log = logging.getLogger(__name__)

WARM_UP_STEPS = 2
"""Compiled steps before the capture, in which allocations and algorithm choices settle."""
MOST_CHANGES = 3
"""How often a step is traced again because an attribute, a mode or what is frozen has changed."""
READ_AT_ONCE = 8
"""With the compiler's own 4, the input of a ReLU behind BatchNorm would be written to memory and read three times
instead of computed anew; numbers per channel count as much as whole images."""

Key = tuple[object, ...]


class _Kind:
    """All steps with batches of one shape, with or without repulsion."""

    def __init__(self, step: TracedStep, *, capturable: bool) -> None:
        self.step = step
        self.capturable = capturable
        """Eigenvectors and linear systems come from a library that fails for good where it is captured."""
        self.warm_ups = 0
        self.whole: dict[bool, CapturedStep] = {}
        """By whether the optimizer is part of it."""
        self.phases: CapturedPhases | None = None
        self.talks = any(program.traced.talks for program in step.programs)
        """Whether phases send messages, as BatchNorm over several processes does: such are never captured."""


@dataclass
class _Plainly:
    """What a plain step on the first batch comes to."""

    z: Tensor | None = None
    gradients: list[dict[str, Tensor]] = field(default_factory=list)


class CompiledStep(Step):
    """Runs the traced and compiled form of a plain step where there is one.

    Args:
        plain: with `metric_apart`, so that both hand out the same representations.
        steps: how many the run will have, where a look at the clock is to say whether compiling pays within them.
        asked_for: whether it is worth a warning that compiled steps are not possible; by default without `steps`.
        rows: samples in the batches that are compiled; by default as many as in the first one.
        fuse: whether torch's compiler merges operations; by default where it can.
        company: the processes that make the steps together; None where this one is alone.

    >>> from forde import method
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
        asked_for: bool | None = None,
        rows: int | None = None,
        fuse: bool | None = None,
        company: Company | None = None,
    ) -> None:
        super().__init__(plain.runner, plain.method)
        self._plain = plain
        device = self.runner.ensemble.device
        self.fuse = can_fuse(device) if fuse is None else fuse
        self.is_plain = False
        """Whether the plain step stays for good."""
        self._asked_for, self._rows = steps is None if asked_for is None else asked_for, rows
        self._trial = None if steps is None else Trial(steps)
        self._company = company
        self._kinds: dict[Key, _Kind] = {}
        self._graphs = CudaGraphs(self.runner, parallel=plain.memory == "speed") if device.type == "cuda" else None
        self._running: _Kind | None = None
        """Of the step between whose phases other processes meet; None where it is made plainly."""
        self._code: Watch | None = None
        """What the traced steps took from Python."""
        self._changes = 0
        # How tensor cores and a CPU's convolutions read them fastest.
        looped = isinstance(self.runner, MemberLoop)
        self._layouts = _store_weights(self.runner.ensemble, torch.channels_last) if looped else []

    @property
    def plain(self) -> PlainStep:
        return self._plain

    def update(
        self,
        x: Input | list[Input],
        y: Tensor | list[Tensor],
        optimizer: Optimizer | None = None,
        *,
        step: int = 0,
        epoch: int = 0,
        data_size: int | None = None,
        repel_on: Elsewhere | None = None,
    ) -> StepReport:
        numbers = {"step": step, "epoch": epoch, "data_size": data_size, "repel_on": repel_on}

        def by(which: Step) -> StepReport:
            found = which.update(x, y, **numbers)  # type: ignore[arg-type]
            match_layouts(self.runner.parameters())
            if optimizer is not None:
                optimizer.step()
            return found

        if self._trial is not None:
            found = self._trial.time(lambda: by(self._plain), self.runner.ensemble.device)
            if self._trial.over:
                self._decide(self._trial)
            return found
        if repel_on is not None:  # whose batches are not traced
            return by(self._plain)
        batch, factor = self.planned(x, y, step=step, epoch=epoch, data_size=data_size)
        kind = self._kind(batch, factor)
        if kind is None:
            return by(self._plain)
        if self._graphs is None:
            return by(kind.step)
        assert isinstance(batch, Batch)
        if kind.warm_ups < WARM_UP_STEPS or not kind.capturable:
            kind.warm_ups += 1
            found = self._graphs.beside(lambda: kind.step.update(x, y, **numbers))  # type: ignore[arg-type]
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
        found = self._graphs.replay(kind.step, captured, batch, factor, inside, number=step)
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
            reason = together(self._company, lambda: self._capture_phases(kind, batch, repel=repel))
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
            self._compile_exchange(kind, found.z)  # those of all members, which is more than this process has
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

    def _capture_phases(self, kind: _Kind, batch: Batch, *, repel: bool) -> str | None:
        assert self._graphs is not None
        try:
            kind.phases = self._graphs.capture_phases(kind.step, batch, repel=repel)
        except RuntimeError as error:
            return f"the step cannot be captured in a CUDA graph ({first_line(error)})"
        return None

    def finish(self, forces: Forces | None, repulsion: Repulsion) -> None:
        super().finish(forces, repulsion)
        match_layouts(self.runner.parameters())

    def settle(self) -> None:
        if self._graphs is not None:
            self._graphs.settle()

    def close(self) -> None:
        if self._graphs is not None:
            self._graphs.close()
        self._kinds.clear()
        for parameter, layout in self._layouts:
            parameter.data = parameter.data.contiguous(memory_format=layout)
        super().close()

    # From plain to compiled

    def _decide(self, trial: Trial) -> None:
        """Compile from the next step on, or never."""
        saved, cost = trial.saved(), seconds_to_compile(self.runner.network(0))
        self._trial = None
        if saved > cost:
            log.info("engine: compiled, which takes about %.0f s and saves about %.0f s", cost, saved)
        else:
            self._give_up(f"compiling would take about {cost:.0f} s and save about {saved:.0f} s")

    def _give_up(self, reason: str) -> None:
        # Where compiling was asked for, this is something else than that.
        level = logging.WARNING if self._asked_for else logging.INFO
        log.log(level, "engine: %s after all, %s", self.runner.in_words(), reason)
        self.is_plain = True
        self._kinds.clear()

    def _kind(self, batch: Batches, factor: float | None) -> _Kind | None:
        """The compiled step for such a batch; compiled where it is the first of its kind."""
        if self.is_plain or not isinstance(batch, Batch) or self._rows not in (None, len(batch.y)):
            return None
        size = tuple(batch.part[1].shape) if isinstance(batch.part, tuple) else batch.part
        key = (factor is None, size, batch.share, batch.one.shape, batch.one.dtype, batch.y.shape, batch.y.dtype)
        change = self._code.change() if self._kinds and self._code is not None else None
        change = agreed_change(self._company, change, key)
        if change is not None:
            self._trace_again(change)
        if key not in self._kinds and not any(known[0] == key[0] for known in self._kinds) and not self.is_plain:
            self._compile(key, batch, factor)
        return self._kinds.get(key)  # the last, smaller batch of an epoch is left to the plain step

    def _trace_again(self, change: str) -> None:
        """Forget the compiled steps: they took from Python what is no longer so."""
        self.settle()
        self._kinds.clear()
        if self._graphs is not None:
            self._graphs.forget()
        self._changes += 1
        if self._changes > MOST_CHANGES:
            self._give_up(f"what the step depends on keeps changing (now {change})")
        else:
            log.info("engine: the step is traced again, because %s", change)

    def _compile(self, key: Key, batch: Batch, factor: float | None) -> None:
        started = time.perf_counter()
        if self.fuse:
            log.info("engine: compiling the step, once per run (seconds to minutes; cached between runs)")
        self.runner.before_step(batch.x)
        members = list(self.runner.ensemble.members)
        self._code = Watch(members)
        position = Position(self.runner, batch.x.device)
        kinds: list[_Kind] = []
        plainly = _Plainly()

        def traces() -> None:
            kinds.append(_Kind(self._traced_step(batch, plainly.z), capturable=factor is None))

        def verify() -> str | None:
            return self._disagreement(kinds[0], position, batch, factor, plainly)

        # All processes go on from one of these to the next together.
        talks = self.runner.policy.processes is not None
        reason = together(self._company, self._hooks)
        if reason is None:
            reason = together(self._company, lambda: self._try_plainly(plainly, position, batch, factor))
        if reason is None:
            try:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")  # the compiler's advice is not the user's business
                    reason = together(self._company, lambda: attempt(traces, talks=False))
                    reason = reason or together(self._company, lambda: attempt(verify, talks=talks))
            finally:
                position.restore()
        if reason is not None:
            self._give_up(reason)
            return
        (kind,) = kinds
        if self._company is not None:  # members of other processes may have BatchNorm where these have none
            kind.talks = bool(self._company.highest([int(kind.talks)])[0])
        self._code = Watch(members)  # tracing ran the forward pass once more
        self._kinds[key] = kind
        log.info("engine: compiled in %.0f s (%s)", time.perf_counter() - started, self._in_words(kind))

    def _agreed(self, reason: str | None) -> str | None:
        """Why not to go on, also where only another process that shares the batch has a reason."""
        processes = self.runner.policy.processes
        if processes is None:
            return reason
        found = processes.sum(torch.tensor([float(reason is not None)], device=self.runner.ensemble.device))
        return reason or ("another process that shares the batch has a reason" if float(found) else None)

    def _hooks(self) -> str | None:
        """Where a member has hooks, which a compiled step would not call."""
        found = [hooks_of(member) for member in self.runner.ensemble.members]
        return next((f"{text} in member {i}" for i, text in enumerate(found) if text is not None), None)

    def _phases(self, step: Step, batch: Batch, factor: float | None) -> Forward:
        found = step.forward(batch, repel=factor is not None)
        forces = None if factor is None else step.exchange(found, factor)
        step.finish(forces, step.pull_back(forces, apart=self.method.mixes_weights))
        return found

    def _try_plainly(self, found: _Plainly, position: Position, batch: Batch, factor: float | None) -> str | None:
        """Two plain steps: what they come to, and why what they do besides cannot be traced, if so."""
        assert self._code is not None
        first = self._phases(self._plain, batch, factor)
        reason = self._agreed(position.side_effects())
        if reason is not None:
            position.restore()
            self._code.restore()
            return reason
        moved = self._code.change()  # something that is set up in the first step, perhaps
        again = Watch(list(self.runner.ensemble.members))
        position.restore()
        second = self._phases(self._plain, batch, factor)
        found.z, found.gradients = second.z, gradients_by_name(self.runner.groups)
        position.restore()
        change = again.change()
        if change is not None:
            self._code.restore()
            return f"after each forward pass {change}"
        if moved is not None:
            self._code = again
        else:
            refuse_unrepeatable(first.losses, second.losses, "use engine='eager'")
        return None

    def _traced_runner(self) -> Runner:
        """The same members, under the policy for traced steps."""
        policy = self.runner.policy
        return self.runner.like(policy=policy if policy.stacked else replace(policy, traced=True, compiler=self.fuse))

    def _traced_step(self, batch: Batch, z: Tensor | None) -> TracedStep:
        plain, repel = self._plain, z is not None
        step = TracedStep(plain, [])
        batch, runner = step.laid_out(batch), self._traced_runner()
        shared: dict[Key, Program] = {}
        same = difference(list(runner.ensemble.members)) is None
        twice = repel and self.method.space is not None and self.method.space.needs_input_gradient
        fused = partial(self._fused, twice=twice)
        for unit in range(len(runner.groups)):
            recompute = repel and not plain.keeps_graph(unit)
            key = (recompute, *(tensor.stride() for tensor in state_of(runner, unit)))
            if key not in shared:
                traced = trace(
                    runner, self.method, unit, batch, None if z is None else z[runner.rows[unit]],
                    metric=plain.metric if repel else None, fused=self.fuse, recompute=recompute,
                )  # fmt: skip
                second = None if traced.second is None else fused(traced.second)
                program = Program(traced, fused(traced.first), second)
                step.programs.append(program)
                if same and not traced.constants:
                    shared[key] = program
            else:
                step.programs.append(shared[key])
        return step

    def _fused(self, graph: fx.GraphModule, *, twice: bool = False) -> Function:
        """`twice` where BatchNorm and ReLU are the formulas for compilers of `double_backward/`."""
        return fused(graph, read_at_once=READ_AT_ONCE if twice else None) if self.fuse else graph

    def _in_words(self, kind: _Kind) -> str:
        units = len(self.runner.groups)
        what = "operations fused" if self.fuse else "operations traced; no compiler was found"
        distinct = len({id(program) for program in kind.step.programs})
        return f"{what}; {distinct} function{'s' * (distinct > 1)} for {units} unit{'s' * (units > 1)}"

    # The traced step against the plain one

    def _disagreement(
        self, kind: _Kind, position: Position, batch: Batch, factor: float | None, plainly: _Plainly
    ) -> str | None:
        """What the compiled step does differently from the plain one, in words; None if nothing."""
        random = any(program.traced.random for program in kind.step.programs)
        unseen = "it draws random numbers that the trace does not show"
        reason = self._agreed(unseen if position.drew and not random else None)
        if reason is not None:
            return reason
        seen: set[int] = set()
        for unit, program in enumerate(kind.step.programs):
            if id(program) not in seen:
                strict = self._traced_runner().like(precision="float32")
                check = UnitCheck(self._plain, strict, position, self._agreed, fuse=self.fuse, rough=self._is_rough)
                reason = self._agreed(check(unit, program, batch, plainly.z))
                if reason is not None:
                    return f"{reason} (does the forward pass depend on more than its input and weights?)"
            seen.add(id(program))
        position.restore()
        found = self._phases(kind.step, batch, factor)
        if found.z is not None and batch.one.is_cuda and self._company is None:
            self._compile_exchange(kind, found.z)
            position.restore()
            self._phases(kind.step, batch, factor)
        return None if random else gross_disagreement(self.runner.groups, plainly.gradients, rough=self._is_rough)

    def _compile_exchange(self, kind: _Kind, z: Tensor) -> None:
        """Phase 2 is cheap in arithmetic but has many small operations; where it cannot be traced it stays as it is."""
        known = kind.step.exchange_programs
        if z.shape in known or any(program.traced.has_loss_gradient for program in kind.step.programs):
            return
        try:
            graph, names = trace_exchange(self._plain, z)
            function = self._fused(graph)
            with torch.no_grad():
                function(z, torch.ones((), dtype=torch.float64, device=z.device))  # it is compiled when first called
        except Exception as error:  # as for the other phases
            log.info("engine: the exchange stays as it is (%s)", first_line(error))
            known[z.shape] = None
            return
        known[z.shape] = function, names
        kind.capturable = not any("linalg" in str(node.target) for node in graph.graph.nodes)

    @property
    def _is_rough(self) -> bool:
        """Whether convolutions are of bfloat16 or TensorFloat-32."""
        tf32 = self.runner.ensemble.device.type == "cuda" and torch.backends.cudnn.allow_tf32
        return tf32 or self.runner.precision == "bf16"


def _store_weights(ensemble: Ensemble, layout: torch.memory_format) -> list[tuple[Tensor, torch.memory_format]]:
    """Keep convolutions' weights in a memory layout; their values and shapes stay. Returns how they were kept."""
    before: list[tuple[Tensor, torch.memory_format]] = []
    layers = [layer for layer in ensemble.modules() if isinstance(layer, (nn.Conv2d, nn.ConvTranspose2d))]
    for parameter in (parameter for layer in layers for parameter in layer.parameters()):
        if parameter.dim() == 4:
            before.append((parameter, torch.contiguous_format if parameter.is_contiguous() else torch.channels_last))
            parameter.data = parameter.data.contiguous(memory_format=layout)
    return before
