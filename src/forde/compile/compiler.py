"""From a plain step to a traced one: what can be traced, the traces, and that they come to the same.

Two plain steps on the first batch show what the networks do besides arithmetic, and what the traced step must come to.
Then each unit is traced and compared with its plain step, part by part, and so is the step as a whole.
"""

from __future__ import annotations

import logging
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial

import torch
from torch import Tensor, fx

from forde.compile.captured import CapturedPhases, CapturedStep
from forde.compile.traced import Function, Program, TracedStep, phases
from forde.compile.tracing import fused, state_of, trace, trace_exchange
from forde.compile.verifying import UnitCheck
from forde.distributed.mesh import Mesh
from forde.errors import FordeError, UnrecoverableError, first_line
from forde.step.agreement import Position, gradients_by_name, gross_disagreement
from forde.step.checks import refuse_unrepeatable
from forde.step.plain import PlainStep
from forde.step.python_state import Watch, difference, hooks_of
from forde.step.records import Batch
from forde.step.runners import Runner

log = logging.getLogger(__name__)

READ_AT_ONCE = 8
"""With the compiler's own 4, the input of a ReLU behind BatchNorm would be written to memory and read three times
instead of computed anew; numbers per channel count as much as whole images."""


class Kind:
    """All steps with batches of one shape, with or without repulsion."""

    def __init__(self, step: TracedStep, *, capturable: bool) -> None:
        self.step = step
        self.capturable = capturable
        """Whether a CUDA graph can hold it: not eigenvectors and linear systems, whose library fails for good there."""
        self.warm_ups = 0
        self.whole: dict[bool, CapturedStep] = {}
        """By whether the optimizer is part of it."""
        self.phases: CapturedPhases | None = None
        self.talks = any(program.traced.talks for program in step.programs)
        """Whether phases send messages, as BatchNorm over several processes does: such are never captured."""


@dataclass
class _Plainly:
    """What the plain step comes to on the first batch, for comparison."""

    z: Tensor | None = None
    gradients: list[dict[str, Tensor]] = field(default_factory=list)


class Compiler:
    """Makes traced steps of a plain one.

    Args:
        fuse: whether torch's compiler merges operations.
        mesh: the processes that make the steps together.
    """

    def __init__(self, plain: PlainStep, *, fuse: bool, mesh: Mesh) -> None:
        self._plain, self._runner, self._method = plain, plain.runner, plain.method
        self._fuse, self._mesh = fuse, mesh
        self.watch: Watch | None = None
        """Notices when Python state that the last trace has baked in changes."""

    def compile(self, batch: Batch, factor: float | None) -> Kind | str:
        """The traced step for such batches, or why the plain one stays, in words."""
        started = time.perf_counter()
        if self._fuse:
            log.info("engine: compiling the step, once per run (seconds to minutes; cached between runs)")
        self._runner.before_step(batch.x)
        members = list(self._runner.ensemble.members)
        self.watch = Watch(members)
        position = Position(self._runner, batch.x.device)
        kinds: list[Kind] = []
        plainly = _Plainly()

        def traces() -> None:
            kinds.append(Kind(self._traced_step(batch, plainly.z), capturable=factor is None))

        def verify() -> str | None:
            return self._disagreement(kinds[0], position, batch, factor, plainly)

        # All processes go on from one of these to the next together.
        talks = self._runner.policy.processes is not None
        reason = self._mesh.together(self._hooks)
        if reason is None:
            reason = self._mesh.together(lambda: self._try_plainly(plainly, position, batch, factor))
        if reason is None:
            try:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")  # the compiler's advice is not the user's business
                    reason = self._mesh.together(lambda: _attempt(traces, talks=False))
                    reason = reason or self._mesh.together(lambda: _attempt(verify, talks=talks))
            finally:
                position.restore()
        if reason is not None:
            return reason
        (kind,) = kinds
        kind.talks = self._mesh.anywhere(kind.talks)  # others may have BatchNorm where these have none
        self.watch = Watch(members)  # tracing ran the forward pass once more
        log.info("engine: compiled in %.0f s (%s)", time.perf_counter() - started, self._in_words(kind))
        return kind

    def _agreed(self, reason: str | None) -> str | None:
        """A reason not to go on, of this process or of another that shares the batch; None if none has one."""
        processes = self._runner.policy.processes
        if processes is None:
            return reason
        found = processes.sum(torch.tensor([float(reason is not None)], device=self._runner.ensemble.device))
        return reason or ("another process that shares the batch has a reason" if float(found) else None)

    def _hooks(self) -> str | None:
        """Where a member has hooks, which a compiled step would not call."""
        found = [hooks_of(member) for member in self._runner.ensemble.members]
        return next((f"{text} in member {i}" for i, text in enumerate(found) if text is not None), None)

    def _try_plainly(self, found: _Plainly, position: Position, batch: Batch, factor: float | None) -> str | None:
        """Make two plain steps and note what they come to; why they cannot be traced, in words, or None."""
        assert self.watch is not None
        first = phases(self._plain, batch, factor)
        reason = self._agreed(position.side_effects())
        if reason is not None:
            position.restore()
            self.watch.restore()
            return reason
        moved = self.watch.change()  # perhaps something that the network sets up in its first forward pass
        again = Watch(list(self._runner.ensemble.members))
        position.restore()
        second = phases(self._plain, batch, factor)
        found.z, found.gradients = second.z, gradients_by_name(self._runner.groups)
        position.restore()
        change = again.change()
        if change is not None:
            self.watch.restore()
            return f"after each forward pass {change}"
        if moved is not None:
            self.watch = again
        else:
            refuse_unrepeatable(first.losses, second.losses, "use engine='eager'")
        return None

    def _traced_runner(self) -> Runner:
        """The same members, under the policy for traced steps."""
        policy = self._runner.policy
        own = policy if policy.stacked else replace(policy, traced=True, compiler=self._fuse)
        return self._runner.like(policy=own)

    def _traced_step(self, batch: Batch, z: Tensor | None) -> TracedStep:
        plain, repel = self._plain, z is not None
        step = TracedStep(plain, [])
        batch, runner = step.laid_out(batch), self._traced_runner()
        shared: dict[tuple[object, ...], Program] = {}
        same = difference(list(runner.ensemble.members)) is None
        twice = repel and self._method.space is not None and self._method.space.needs_input_gradient
        fused = partial(_by_compiler, fuse=self._fuse, twice=twice)
        for unit in range(len(runner.groups)):
            recompute = repel and not plain.keeps_graph(unit)
            key = (recompute, *(tensor.stride() for tensor in state_of(runner, unit)))
            if key not in shared:
                traced = trace(
                    runner, self._method, unit, batch, None if z is None else z[runner.rows[unit]],
                    metric=plain.metric if repel else None, fused=self._fuse, recompute=recompute,
                )  # fmt: skip
                second = None if traced.second is None else fused(traced.second)
                program = Program(traced, fused(traced.first), second)
                step.programs.append(program)
                if same and not traced.constants:
                    shared[key] = program
            else:
                step.programs.append(shared[key])
        return step

    def _in_words(self, kind: Kind) -> str:
        units = len(self._runner.groups)
        what = "operations fused" if self._fuse else "operations traced; no compiler was found"
        distinct = len({id(program) for program in kind.step.programs})
        return f"{what}; {distinct} function{'s' * (distinct > 1)} for {units} unit{'s' * (units > 1)}"

    # The traced step against the plain one

    def _disagreement(
        self, kind: Kind, position: Position, batch: Batch, factor: float | None, plainly: _Plainly
    ) -> str | None:
        """What the compiled step does differently from the plain one, in words; None if nothing."""
        random = any(program.traced.random for program in kind.step.programs)
        unseen = "it draws random numbers that the trace does not show"
        reason = self._agreed(unseen if position.drew and not random else None)
        if reason is not None:
            return reason
        strict = self._traced_runner().like(precision="float32")
        check = UnitCheck(self._plain, strict, position, self._agreed, fuse=self._fuse, rough=self._is_rough)
        seen: set[int] = set()
        for unit, program in enumerate(kind.step.programs):
            reason = None if id(program) in seen else self._agreed(check(unit, program, batch, plainly.z))
            seen.add(id(program))
            if reason is not None:
                return f"{reason} (does the forward pass depend on more than its input and weights?)"
        position.restore()
        found = phases(kind.step, batch, factor)
        if found.z is not None and batch.one.is_cuda and self._mesh.everyone.size == 1:
            compile_exchange(kind, self._plain, found.z, fuse=self._fuse)
            position.restore()
            phases(kind.step, batch, factor)
        return None if random else gross_disagreement(self._runner.groups, plainly.gradients, rough=self._is_rough)

    @property
    def _is_rough(self) -> bool:
        """Whether convolutions are of bfloat16 or TensorFloat-32."""
        tf32 = self._runner.ensemble.device.type == "cuda" and torch.backends.cudnn.allow_tf32
        return tf32 or self._runner.precision == "bf16"


def _attempt(work: Callable[[], str | None], *, talks: bool) -> str | None:
    """Do what may fail for any reason, such as tracing a network; why it cannot be done, in words.

    Args:
        talks: whether messages are sent meanwhile. A failure then ends this process, because those that share its batch
            wait in the middle of it.
    """
    try:
        return work()
    except FordeError:
        raise
    except Exception as error:  # whatever the compiler stumbles over, training goes on without it
        reason = f"it cannot be traced or compiled ({first_line(error)})"
        log.debug("engine: %s", reason, exc_info=error)
        if talks:
            raise UnrecoverableError(
                f"a compiled step failed in this process ({first_line(error)}), while others that share its batch wait "
                "for messages; use engine='eager'."
            ) from error
        return reason


def compile_exchange(kind: Kind, plain: PlainStep, z: Tensor, *, fuse: bool) -> None:
    """Phase 2 is cheap in arithmetic but has many small operations; where it cannot be traced it stays as it is."""
    known = kind.step.exchange_programs
    if z.shape in known or any(program.traced.has_loss_gradient for program in kind.step.programs):
        return
    try:
        graph, names = trace_exchange(plain, z)
        function = _by_compiler(graph, fuse=fuse)
        with torch.no_grad():
            function(z, torch.ones((), dtype=torch.float64, device=z.device))  # it is compiled when first called
    except Exception as error:  # as for the other phases
        log.info("engine: the exchange stays as it is (%s)", first_line(error))
        known[z.shape] = None
        return
    known[z.shape] = function, names
    kind.capturable = not any("linalg" in str(node.target) for node in graph.graph.nodes)


def _by_compiler(graph: fx.GraphModule, *, fuse: bool, twice: bool = False) -> Function:
    """`twice` where BatchNorm and ReLU are the formulas for compilers of `double_backward/`."""
    return fused(graph, read_at_once=READ_AT_ONCE if twice else None) if fuse else graph
