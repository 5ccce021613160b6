"""Steps without Python: each unit's step is traced and compiled once, and on a GPU the whole step is one CUDA graph.

Members of one architecture share one compiled function. The first step of a run is made by the plain engine; the
compiled one must give the same gradients on the same batch before it takes over. Where a network cannot be traced, or
gives something else (it branches on its data or on random numbers of Python's), the plain engine stays, and one line in
the log says why.
"""

from __future__ import annotations

import logging
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.optim import Optimizer

from forde.engine.agreement import disagreement, gradients_by_name, gross_disagreement, probing
from forde.engine.captured import CapturedSteps, Replay
from forde.engine.eager import EagerEngine
from forde.engine.exchange import exchange
from forde.engine.fusing import can_fuse, fused
from forde.engine.guards import refuse_unrepeatable
from forde.engine.python_state import Watch, difference, hooks_of
from forde.engine.records import Batch, Forward, Memory, Precision, StepReport
from forde.engine.tracing import Traced, trace, trace_exchange
from forde.engine.trial import Trial, seconds_to_compile
from forde.engine.vectorized import VectorizedEngine
from forde.engine.verifying import Position, plain_parts, rounded_parts, strictly, traced_parts
from forde.ensemble import Ensemble
from forde.errors import FordeError, first_line
from forde.kernels.metric import Identity, Spectral
from forde.kernels.rbf import RBF
from forde.methods.base import Method
from forde.rules import Forces
from forde.torch_private import copy_each

log = logging.getLogger(__name__)

WARM_UP_STEPS = 2
"""Compiled steps before the capture, in which allocations and algorithm choices settle."""
MOST_CHANGES = 3
"""How often a step is traced again because an attribute, a mode or what is frozen has changed."""
READ_AT_ONCE = 8
"""With the compiler's own 4, the input of a ReLU behind BatchNorm would be written to memory and read three times
instead of computed anew; numbers per channel count as much as whole images."""

Key = tuple[object, ...]


@dataclass
class _Program:
    """A unit's step, traced and compiled."""

    traced: Traced
    first: Callable[..., Sequence[Tensor]]
    second: Callable[..., Sequence[Tensor]] | None


@dataclass
class _Kind:
    """All steps with batches of one shape, with or without repulsion."""

    programs: list[_Program]
    """One for each unit; the same object where units share it."""
    exchange: Callable[..., Sequence[Tensor]] | None = None
    exchange_names: list[str] = field(default_factory=list)
    capturable: bool = True
    """Eigenvectors and linear systems come from a library that cannot be captured, and fails for good if one tries."""
    steps: int = 0
    replays: dict[bool, Replay] = field(default_factory=dict)
    """By whether the optimiser is part of it."""


class _Compiled(CapturedSteps):
    """Mixed into an engine that says what a unit is.

    Args:
        steps: how many the run will have, where compiling has to pay within them; None where it was asked for.
    """

    def __init__(
        self,
        ensemble: Ensemble,
        method: Method,
        precision: Precision = "float32",
        memory: Memory = "speed",
        *,
        steps: int | None = None,
    ) -> None:
        super().__init__(ensemble, method, precision, memory)
        self._asked_for = steps is None
        self._trial = None if steps is None else Trial(steps)
        self.fuse = can_fuse(self.ensemble.device)
        self._kinds: dict[Key, _Kind] = {}
        self._current: _Kind | None = None
        self._new_buffers: list[tuple[list[Tensor], Sequence[Tensor]]] = []
        self._metric, self._comparison = _metric_apart(self.method, self.ensemble)
        self._code: Watch | None = None
        """What the compiled steps took from Python."""
        self._changes = 0
        self._take_over()

    def _take_over(self) -> None:
        """Set up what the plain engine has otherwise."""

    def close(self) -> None:
        self._kinds.clear()
        super().close()

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
        inside = self._takes_in(optimizer) and isinstance(x, Tensor)
        if not inside:
            return super().update(x, y, optimizer, step=step, epoch=epoch, data_size=data_size)
        factor = self.factor(y, step=step, epoch=epoch, data_size=data_size)
        return self._run_step(x, y, factor, step, optimizer)

    def gradients(self, x: Batch, y: Batch, factor: float | Tensor | None, *, step: int) -> StepReport:
        return self._run_step(x, y, factor, step, None)

    def _run_step(
        self, x: Batch, y: Batch, factor: float | Tensor | None, step: int, optimizer: Optimizer | None
    ) -> StepReport:
        if self._trial is not None:
            report = self._trial.time(lambda: self._plain_step(x, y, factor, step, optimizer), self.ensemble.device)
            if self._trial.over:
                self._decide(self._trial)
            return report
        kind = self._kind(x, y, factor)
        if kind is None:
            return self._plain_step(x, y, factor, step, optimizer)
        assert isinstance(x, Tensor) and isinstance(y, Tensor)
        if x.device.type != "cuda":
            return self._compiled(kind, x, y, factor, step)
        if kind.steps < WARM_UP_STEPS or not kind.capturable:
            kind.steps += 1
            return self._beside(lambda: self._compiled(kind, x, y, factor, step), optimizer)
        inside = optimizer is not None
        if inside not in kind.replays:
            try:
                kind.replays[inside] = self._capture(partial(self._compiled, kind, step=0), x, y, factor, optimizer)
            except RuntimeError as error:
                self._give_up(f"the step cannot be captured in a CUDA graph ({first_line(error)})")
                return self._run_step(x, y, factor, step, optimizer)
        return self._replay(kind.replays[inside], x, y, factor, step, optimizer)

    def _decide(self, trial: Trial) -> None:
        """Compile from the next step on, or never."""
        saved, cost = trial.saved(), seconds_to_compile(self._modules(0))
        self._trial = None
        if saved > cost:
            log.info("engine: compiled, which takes about %.0f s and saves about %.0f s", cost, saved)
        else:
            self._give_up(f"compiling would take about {cost:.0f} s and save about {saved:.0f} s")

    def _plain_step(
        self, x: Batch, y: Batch, factor: float | Tensor | None, step: int, optimizer: Optimizer | None
    ) -> StepReport:
        report = self._plain(x, y, factor, step)
        if optimizer is not None:
            optimizer.step()
        return report

    def _plain(self, x: Batch, y: Batch, factor: float | Tensor | None, step: int) -> StepReport:
        self._current = None
        report = super().gradients(x, y, factor, step=step)
        self._match_layouts()
        return report

    def _compiled(self, kind: _Kind, x: Tensor, y: Tensor, factor: float | Tensor | None, step: int) -> StepReport:
        self._current = kind
        try:
            with _tensor_float_products() if self.precision == "bf16" else nullcontext():
                report = super().gradients(self._laid_out(x), y.contiguous(), factor, step=step)
            self._move_buffers()
            self._match_layouts()
            return report
        finally:
            self._current = None

    def _kind(self, x: Batch, y: Batch, factor: float | Tensor | None) -> _Kind | None:
        """The compiled step for such a batch; compiled where it is the first of its kind."""
        if self._plain_only or isinstance(x, list) or isinstance(y, list):
            return None
        if self._kinds and self._code is not None and (change := self._code.change()) is not None:
            self._trace_again(change)
        key = (factor is None, x.shape, x.dtype, y.shape, y.dtype)
        if key not in self._kinds and not any(known[0] == key[0] for known in self._kinds):
            self._compile(key, x, y, factor)
        return self._kinds.get(key)  # the last, smaller batch of an epoch is left to the plain engine

    def _compile(self, key: Key, x: Tensor, y: Tensor, factor: float | Tensor | None) -> None:
        started = time.perf_counter()
        if self.fuse:
            log.info("engine: compiling the step, once per run (seconds to minutes; cached between runs)")
        self._meet(x)
        members = list(self.ensemble.members)
        self._code = Watch(members)
        position = Position(self, x.device)
        reason = self._hooks()
        kind: _Kind | None = None
        if reason is None:
            z, expected, reason = self._try_plainly(position, x, y, factor)
        if reason is None:
            self.checks = False
            try:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")  # the compiler's advice is not the user's business
                    kind = _Kind(self._programs(x, y, z), capturable=factor is None)
                    reason = self._disagreement(kind, position, x, y, z, factor, expected)
            except FordeError:
                raise
            except Exception as error:  # whatever the compiler stumbles over, training goes on without it
                reason = f"it cannot be traced or compiled ({first_line(error)})"
                log.debug("engine: %s", reason, exc_info=error)
            finally:
                self.checks = True
                position.restore()
        if kind is None or reason is not None:
            self._give_up(reason or "nothing was compiled")
            return
        self._code = Watch(members)  # tracing ran the forward pass once more
        self._kinds[key] = kind
        log.info("engine: compiled in %.0f s (%s)", time.perf_counter() - started, self._in_words(kind))

    def _trace_again(self, change: str) -> None:
        """Forget the compiled steps: they took from Python what is no longer so."""
        self.settle()
        self._kinds.clear()
        self._pool = None
        self._changes += 1
        if self._changes > MOST_CHANGES:
            self._give_up(f"what the step depends on keeps changing (now {change})")
        else:
            log.info("engine: the step is traced again, because %s", change)

    def _hooks(self) -> str | None:
        """Where a member has hooks, which a compiled step would not call."""
        found = [hooks_of(member) for member in self.ensemble.members]
        return next((f"{text} in member {i}" for i, text in enumerate(found) if text is not None), None)

    def _try_plainly(
        self, position: Position, x: Tensor, y: Tensor, factor: float | Tensor | None
    ) -> tuple[Tensor | None, list[dict[str, Tensor]], str | None]:
        """A plain step: its representations, its gradients, and why what it does besides cannot be traced, if so."""
        assert self._code is not None
        first = self._plain(x, y, factor, step=0)
        reason = position.side_effects()
        if reason is not None:
            position.restore()
            self._code.restore()
            return None, [], reason
        moved = self._code.change()  # something that is set up in the first step, perhaps
        again = Watch(list(self.ensemble.members))
        position.restore()
        second = self._plain(x, y, factor, step=0)
        expected = gradients_by_name(self.groups)
        position.restore()
        change = again.change()
        if change is not None:
            self._code.restore()
            return None, [], f"after each forward pass {change}"
        if moved is not None:
            self._code = again
        else:
            refuse_unrepeatable(first.losses, second.losses, "use engine='eager'")
        return second.z, expected, None

    def _disagreement(  # noqa: PLR0917
        self,
        kind: _Kind,
        position: Position,
        x: Tensor,
        y: Tensor,
        z: Tensor | None,
        factor: float | Tensor | None,
        expected: list[dict[str, Tensor]],
    ) -> str | None:
        """What the compiled step does differently from the plain one, in words; None if nothing."""
        random = any(program.traced.random for program in kind.programs)
        if position.drew and not random:
            return "it draws random numbers that the trace does not show"
        seen: set[int] = set()
        for unit, program in enumerate(kind.programs):
            if id(program) not in seen:
                reason = self._unit_disagreement(unit, program, position, x, y, z)
                if reason is not None:
                    return f"{reason} (does the forward pass depend on more than its input and weights?)"
            seen.add(id(program))
        report = self._compiled(kind, x, y, factor, step=0)
        if report.z is not None and x.is_cuda:
            self._compile_exchange(kind, report.z)
            position.restore()
            self._compiled(kind, x, y, factor, step=0)
        return None if random else gross_disagreement(self.groups, expected, rough=self._is_rough)

    def _unit_disagreement(  # noqa: PLR0917
        self, unit: int, program: _Program, position: Position, x: Tensor, y: Tensor, z: Tensor | None
    ) -> str | None:
        """The trace against the plain forward pass, then what the compiler made of it against the same."""
        repel = z is not None
        metric = self._metric if repel else None
        traced, rough, precision = program.traced, self._is_rough, self.precision
        with strictly(self) if rough else nullcontext():
            if precision == "bf16":  # autocast is part of what was traced
                like = None if z is None else self._of_unit(z, unit)
                traced = trace(
                    self, unit, self._laid_out(x), y.contiguous(), like, metric=metric, fused=False, recompute=False
                )

            def compare(x: Tensor, first: Any, second: Any, *, merged: bool) -> str | None:
                found = []
                for parts in (plain_parts, rounded_parts):
                    position.restore()
                    found.append(parts(self, unit, x, y, repel=repel, metric=metric))
                position.restore()
                matrices = [] if metric is None else [metric]
                given = [*self._state(unit), *matrices, self._laid_out(x), y.contiguous()]
                own = traced_parts(traced, first, second, given, list(self.groups[unit]))
                return disagreement(own, *found, merged=merged)

            reason = compare(x, traced.first, traced.second, merged=False)
            if reason is not None and x.is_floating_point():
                # Rounding may switch a ReLU, but not twice; what is wrong with a trace is so with any batch.
                moved = x + 1e-3 * x.std(correction=0) * probing(x)
                reason = compare(moved, traced.first, traced.second, merged=False) and reason
            if reason is None and self.fuse and not rough and not traced.random:
                reason = compare(x, program.first, program.second, merged=True)
        return reason

    def _compile_exchange(self, kind: _Kind, z: Tensor) -> None:
        """Phase 2 is cheap in arithmetic but has many small operations; where it cannot be traced it stays as it is."""
        if any(program.traced.has_loss_gradient for program in kind.programs):
            return
        try:
            graph, kind.exchange_names = trace_exchange(self._comparison, z, None)
        except RuntimeError as error:
            log.info("engine: the exchange stays as it is (%s)", first_line(error))
            return
        kind.exchange = self._fused(graph)
        kind.capturable = not any("linalg" in str(node.target) for node in graph.graph.nodes)

    def _in_words(self, kind: _Kind) -> str:
        units = len(self.groups)
        what = "operations fused" if self.fuse else "operations traced; no compiler was found"
        distinct = len({id(program) for program in kind.programs})
        return f"{what}; {distinct} function{'s' * (distinct > 1)} for {units} unit{'s' * (units > 1)}"

    def _give_up(self, reason: str) -> None:
        plain = "vectorized" if isinstance(self, VectorizedEngine) else "eager"
        # Where compiling was asked for, this is something else than that.
        log.log(logging.WARNING if self._asked_for else logging.INFO, "engine: %s after all, %s", plain, reason)
        self._plain_only = True
        self._kinds.clear()

    def _programs(self, x: Tensor, y: Tensor, z: Tensor | None) -> list[_Program]:
        x, y, repel = self._laid_out(x), y.contiguous(), z is not None
        programs: list[_Program] = []
        shared: dict[Key, _Program] = {}
        same = difference(list(self.ensemble.members)) is None
        twice = repel and self.method.space is not None and self.method.space.needs_input_gradient
        for unit in range(len(self.groups)):
            recompute = repel and not self._keeps_graph(unit)
            key = (recompute, *(tensor.stride() for tensor in self._state(unit)))
            if key not in shared:
                metric = self._metric if repel else None
                like = None if z is None else self._of_unit(z, unit)
                traced = trace(self, unit, x, y, like, metric=metric, fused=self.fuse, recompute=recompute)
                fused = partial(self._fused, twice=twice)
                second = None if traced.second is None else fused(traced.second)
                program = _Program(traced, fused(traced.first), second)
                programs.append(program)
                if same and not traced.constants:
                    shared[key] = program
            else:
                programs.append(shared[key])
        return programs

    @property
    def _is_rough(self) -> bool:
        """Whether convolutions are of bfloat16 or TensorFloat-32."""
        tf32 = self.ensemble.device.type == "cuda" and torch.backends.cudnn.allow_tf32
        return tf32 or self.precision == "bf16"

    def _state(self, unit: int) -> list[Tensor]:
        """What a unit's program is given before metric and batch."""
        return [*self.groups[unit].values(), *self.frozen(unit).values(), *self.buffers(unit).values()]

    def _fused(self, graph: fx.GraphModule, *, twice: bool = False) -> Callable[..., Sequence[Tensor]]:
        """`twice` where BatchNorm and ReLU are the formulas of `derivatives/by_formulas.py`."""
        return fused(graph, read_at_once=READ_AT_ONCE if twice else None) if self.fuse else graph

    def _forward_unit(self, unit: int, x: Tensor, y: Tensor, *, repel: bool) -> Forward:
        if self._current is None:
            return super()._forward_unit(unit, x, y, repel=repel)
        program = self._current.programs[unit]
        traced = program.traced
        given = self._state(unit)
        given += [*([self._metric] if repel and self._metric is not None else []), x, y]
        with torch.no_grad():
            results = list(program.first(*given))
        losses = results.pop(0)
        z = results.pop(0) if repel else None
        loss_gradients = results.pop(0) if traced.has_loss_gradient else None
        n = len(traced.buffer_names)
        self._new_buffers.append((list(self.buffers(unit).values()), results[:n]))
        if repel:
            self._waiting[unit] = [*given, *results[n:]]
        else:
            for name, gradient in zip(traced.of_objective, results[n:], strict=True):
                self.groups[unit][name].grad = gradient
        return Forward(losses, z, loss_gradients)

    def _pull_back_unit(self, unit: int, cotangent: Tensor, *, apart: bool) -> Sequence[Tensor | None]:
        if self._current is None:
            return super()._pull_back_unit(unit, cotangent, apart=apart)
        program = self._current.programs[unit]
        traced, group = program.traced, self.groups[unit]
        assert program.second is not None
        with torch.no_grad():
            gradients = list(program.second(*self._waiting.pop(unit), cotangent.contiguous()))
        for name in traced.of_objective:
            group[name].grad = gradients.pop(0)
        own = dict(zip(traced.of_repulsion, gradients, strict=True))
        return [own.get(name) for name in group]

    def _exchange(self, z: Tensor, loss_gradients: Tensor | None, factor: float | Tensor) -> Forces:
        if self._current is None:
            return super()._exchange(z, loss_gradients, factor)
        if self._current.exchange is None:
            return exchange(self._comparison, z, loss_gradients, factor)
        factor = torch.as_tensor(factor, dtype=torch.float64, device=z.device)
        with torch.no_grad():
            results = self._current.exchange(z, factor)
        return Forces(**dict(zip(self._current.exchange_names, results, strict=True)))

    @property
    def _waiting(self) -> dict[int, list[Tensor]]:
        """What phase 3 reads of phase 1, by unit."""
        return self._kept  # type: ignore[return-value]

    def _move_buffers(self) -> None:
        """After the step: in `memory="low"` phase 3 starts from the same buffers as phase 1."""
        by_type: dict[torch.dtype, tuple[list[Tensor], list[Tensor]]] = {}
        for buffers, values in self._new_buffers:
            for buffer, value in zip(buffers, values, strict=True):
                old, new = by_type.setdefault(buffer.dtype, ([], []))
                old.append(buffer)
                new.append(value)
        with torch.no_grad():
            for old, new in by_type.values():
                copy_each(old, new)
        self._new_buffers = []

    def _match_layouts(self) -> None:
        """Gradients in their parameters' memory layout, which fused optimisers take for granted."""
        for parameter in self.parameters():
            gradient = parameter.grad
            if gradient is not None and gradient.stride() != parameter.stride():
                parameter.grad = torch.empty_like(parameter).copy_(gradient)


class CompiledEngine(_Compiled, EagerEngine):
    """Members one after another, each step traced and compiled.

    >>> from torch import nn
    >>> from forde import Ensemble, method
    >>> ensemble = Ensemble(lambda: nn.Linear(4, 3), n_members=2)
    >>> engine = CompiledEngine(ensemble, method("forde-identity"))
    >>> engine.fuse = False  # trace only, for an example that takes no time
    >>> report = engine.step(torch.randn(8, 4), torch.randint(3, (8,)))
    >>> report.losses.shape
    torch.Size([2])
    """

    def _take_over(self) -> None:
        self.cheap_convolutions = True
        # How tensor cores and a CPU's convolutions read them fastest.
        self._layouts = _store_weights(self.ensemble, torch.channels_last)

    def close(self) -> None:
        for parameter, layout in self._layouts:
            parameter.data = parameter.data.contiguous(memory_format=layout)
        super().close()

    def _laid_out(self, x: Tensor) -> Tensor:
        return x.contiguous(memory_format=torch.channels_last if x.dim() == 4 else torch.contiguous_format)


class CompiledStackEngine(_Compiled, VectorizedEngine):
    """All members stacked, their step traced and compiled."""

    cheap_convolutions = False  # its functions are not written for stacked members

    def _look_at_code(self) -> None:
        if self._current is None:  # before a compiled step `_kind` has looked
            super()._look_at_code()


def _metric_apart(method: Method, ensemble: Ensemble) -> tuple[Tensor | None, Method]:
    """A spectral metric's matrix `[D, R]`, which members apply for themselves, and the method with what is left."""
    kernel = method.kernel
    if not isinstance(kernel, RBF) or not isinstance(kernel.metric, Spectral) or kernel.metric.pca is None:
        return None, method
    dtype = next((p.dtype for p in ensemble.parameters() if p.is_floating_point()), torch.float32)
    matrix = kernel.metric.matrix(ensemble.device, torch.promote_types(dtype, torch.float32))
    return matrix, replace(method, kernel=replace(kernel, metric=Identity()))


@contextmanager
def _tensor_float_products() -> Iterator[None]:
    """Inside, products of float32 matrices may be of TensorFloat-32.

    For the metric of representations that come from bfloat16 arithmetic, and so are rougher than that themselves.
    """
    try:
        before = torch.backends.cuda.matmul.allow_tf32
    except RuntimeError:  # the user set it by torch's newer names, which do not mix with this one
        yield
        return
    torch.backends.cuda.matmul.allow_tf32 = True
    try:
        yield
    finally:
        torch.backends.cuda.matmul.allow_tf32 = before


def _store_weights(ensemble: Ensemble, layout: torch.memory_format) -> list[tuple[Tensor, torch.memory_format]]:
    """Keep convolutions' weights in a memory layout; their values and shapes stay. Returns how they were kept."""
    before: list[tuple[Tensor, torch.memory_format]] = []
    layers = [layer for layer in ensemble.modules() if isinstance(layer, (nn.Conv2d, nn.ConvTranspose2d))]
    for parameter in (parameter for layer in layers for parameter in layer.parameters()):
        if parameter.dim() == 4:
            before.append((parameter, torch.contiguous_format if parameter.is_contiguous() else torch.channels_last))
            parameter.data = parameter.data.contiguous(memory_format=layout)
    return before
