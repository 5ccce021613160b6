"""Traced steps out of CUDA graphs: members on several streams, exchange, priors and the optimizer are part of one.

Batch, learning rate and the repulsion's weight may change between replays. A loss that is not finite stops the
optimizer on the device, before the weights are touched; the host finds out a little later.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.optim import SGD, Adam, AdamW, Optimizer

from forde.compile.traced import TracedStep, phases
from forde.cuda_graph import Recorded, record
from forde.rules import Forces
from forde.step.checks import refuse_non_finite
from forde.step.core import Repulsion
from forde.step.records import Batch, Forward, StepReport
from forde.step.runners import Runner

STREAMS = 5
STEPS_IN_FLIGHT = 2
"""How far the host may run ahead of the device before it looks at a step's losses."""


@dataclass(frozen=True)
class CapturedStep:
    """A whole step in one graph."""

    recorded: Recorded
    """Of the batch's tensors and the repulsion's factor."""
    gradients: list[Tensor | None]
    """Where the optimizer is not part of the graph."""
    lrs: list[Tensor]


@dataclass(frozen=True)
class CapturedPhases:
    """Phases 1 and 3 in a graph each, for an exchange with other processes between the two."""

    first: Recorded
    second: Recorded | None
    repulsion: Repulsion
    gradients: list[Tensor | None]


class CudaGraphs:
    """Records traced steps of one runner and replays them.

    Args:
        parallel: whether units may be queued on streams beside each other.
    """

    def __init__(self, runner: Runner, *, parallel: bool) -> None:
        self._runner, self._parallel = runner, parallel and len(runner.leaves) > 1
        self._side: torch.cuda.Stream | None = None
        self._streams: list[torch.cuda.Stream] = []
        self._pool: Any = None
        self._optimizer_inside: list[tuple[object, ...]] | None = None
        self._bad = torch.zeros((), device=runner.ensemble.device)
        self._in_flight: deque[tuple[torch.cuda.Event, Tensor, int]] = deque()

    def takes_in(self, optimizer: Optimizer | None) -> bool:
        """Whether the optimizer can be part of a graph; its settings beside the learning rate must stay."""
        if optimizer is None:
            return False
        if self._optimizer_inside is None:
            inside = make_capturable(optimizer, self._runner.ensemble.device)
            self._optimizer_inside = settings(optimizer) if inside else []
        return self._optimizer_inside == settings(optimizer)

    def beside(self, run: Callable[[], Any]) -> Any:
        """Run on a side stream, as a capture will, so that warm-up steps set up there what the capture needs."""
        if self._side is None:
            torch.cuda.empty_cache()  # memory that the plain step freed cannot be reused on another stream
            self._side = torch.cuda.Stream()
        main = torch.cuda.current_stream()
        self._side.wait_stream(main)
        with torch.cuda.stream(self._side):
            found = run()
        main.wait_stream(self._side)
        return found

    def forget(self) -> None:
        """Take other memory for graphs that are recorded from now on."""
        self._pool = None

    def capture(
        self, step: TracedStep, batch: Batch, factor: float | None, optimizer: Optimizer | None
    ) -> CapturedStep:
        """Record a whole step, with the optimizer where there is one."""
        device = batch.x.device
        inputs = _tensors(step.laid_out(batch))
        strength = [] if factor is None else [torch.tensor(float(factor), device=device, dtype=torch.float64)]
        lrs = [] if optimizer is None else [torch.tensor(lr, device=device) for lr in learning_rates(optimizer)]

        def run(*given: Tensor) -> StepReport:
            report = phases(step, _like(batch, given), None if factor is None else given[-1])
            if optimizer is not None:
                bad = (~report.losses.isfinite().all()).float()
                self._bad.copy_(torch.maximum(self._bad, bad))
                with captured(optimizer, lrs, self._bad):
                    optimizer.step()
            return report

        recorded = self._record(step, run, [*(tensor.clone() for tensor in inputs), *strength])
        gradients: list[Tensor | None] = []
        if optimizer is None:
            gradients = [parameter.grad for parameter in self._runner.parameters()]
        else:  # used up inside of the graph; other graphs may take their memory
            for parameter in self._runner.parameters():
                parameter.grad = None
        return CapturedStep(recorded, gradients, lrs)

    def replay(
        self,
        step: TracedStep,
        found: CapturedStep,
        batch: Batch,
        factor: float | None,
        optimizer: Optimizer | None,
        *,
        number: int,
    ) -> StepReport:
        """Run a recorded step on a batch of the same shape."""
        while len(self._in_flight) >= STEPS_IN_FLIGHT:
            self._look_at_oldest()
        if optimizer is not None:
            for place, lr in zip(found.lrs, learning_rates(optimizer), strict=True):
                place.fill_(lr)
        strength = [] if factor is None else [found.recorded.inputs[-1].fill_(factor)]
        told: StepReport = found.recorded.replay(*_tensors(batch), *strength)
        # Overwritten by the next replay, so what is kept longer is copied.
        bandwidth = None if told.bandwidth is None else told.bandwidth.clone()
        told = replace(told, losses=told.losses.clone(), repulsion=told.repulsion.clone(), bandwidth=bandwidth)
        if optimizer is None:
            for parameter, gradient in zip(self._runner.parameters(), found.gradients, strict=True):
                parameter.grad = gradient
            refuse_non_finite(told.losses, number)
            return told
        # The optimizer stands still on the device after a bad loss; the host need not wait to find out.
        losses = torch.empty(told.losses.shape, dtype=told.losses.dtype, pin_memory=True)
        losses.copy_(told.losses, non_blocking=True)
        event = torch.cuda.Event()
        event.record()
        self._in_flight.append((event, losses, number))
        return told

    def capture_phases(self, step: TracedStep, batch: Batch, *, repel: bool) -> CapturedPhases:
        """Record the two phases that are of this process alone."""
        inputs = [tensor.clone() for tensor in _tensors(step.laid_out(batch))]
        apart: list[Repulsion] = [()]

        def pull_back(*cotangent: Tensor) -> None:
            forces = Forces(cotangent[0], cotangent[0]) if cotangent else None
            apart[0] = step.pull_back(forces, apart=step.method.mixes_weights)

        if not repel:

            def both(*given: Tensor) -> Forward:
                found = step.forward(_like(batch, given), repel=False)
                pull_back()
                return found

            first, second = self._record(step, both, inputs), None
        else:
            first = self._record(step, lambda *given: step.forward(_like(batch, given), repel=True), inputs)
            second = self._record(step, pull_back, [torch.zeros_like(first.outputs.z)])
        gradients = [parameter.grad for parameter in self._runner.parameters()]
        return CapturedPhases(first, second, apart[0], gradients)

    def replay_first(self, found: CapturedPhases, batch: Batch) -> Forward:
        """Phase 1, and all of it where members do not interact."""
        told: Forward = found.first.replay(*_tensors(batch))
        if found.second is None:
            self._put_gradients(found)
        return replace(told, losses=told.losses.clone())

    def replay_second(self, found: CapturedPhases, forces: Forces) -> Repulsion:
        """Phase 3."""
        assert found.second is not None
        found.second.replay(forces.cotangent)
        self._put_gradients(found)
        return found.repulsion

    def _put_gradients(self, found: CapturedPhases) -> None:
        # What follows adds to them in place; the next replay writes them anew.
        for parameter, gradient in zip(self._runner.parameters(), found.gradients, strict=True):
            parameter.grad = gradient

    def settle(self) -> None:
        """Wait for steps that are still running, and raise what went wrong in them."""
        while self._in_flight:
            self._look_at_oldest()

    def close(self) -> None:
        """Forget steps that are still running."""
        self._in_flight.clear()

    def _record(self, step: TracedStep, function: Callable[..., Any], inputs: list[Tensor]) -> Recorded:
        if self._pool is None:
            self._pool = torch.cuda.graph_pool_handle()
            if self._parallel:
                self._streams = [torch.cuda.Stream() for _ in range(min(STREAMS, len(self._runner.leaves)))]
        torch.cuda.synchronize()
        torch.cuda.empty_cache()  # the graph has memory of its own
        step.streams = self._streams
        try:
            return record(function, inputs, torch.cuda.CUDAGraph(), pool=self._pool)
        finally:
            step.streams = ()

    def _look_at_oldest(self) -> None:
        event, losses, number = self._in_flight.popleft()
        event.synchronize()
        refuse_non_finite(losses, number)


def _tensors(batch: Batch) -> list[Tensor]:
    return [batch.one, batch.y, *(batch.part if isinstance(batch.part, tuple) else ())]


def _like(batch: Batch, tensors: tuple[Tensor, ...]) -> Batch:
    """The batch with other tensors; inverse of `_tensors`."""
    part = (tensors[2], tensors[3]) if isinstance(batch.part, tuple) else batch.part
    return replace(batch, x=tensors[0], y=tensors[1], part=part)


# An optimizer inside a graph: its learning rate lives on the device, and it stands still after a bad loss.

FUSED = (SGD, Adam, AdamW)
"""Their fused kernels take the learning rate as a tensor, and skip the update where a flag on the device is set."""


def make_capturable(optimizer: Optimizer, device: torch.device) -> bool:
    """Switch to the fused kernels; False where the optimizer has none, and is better left outside of the graph."""
    if type(optimizer) not in FUSED or any(group["differentiable"] for group in optimizer.param_groups):
        return False
    if any(not p.is_floating_point() or p.device != device for g in optimizer.param_groups for p in g["params"]):
        return False
    for group in optimizer.param_groups:
        group["fused"], group["foreach"] = True, False
        if "capturable" in group:
            group["capturable"] = True
    for state in optimizer.state.values():
        if "step" in state:
            state["step"] = torch.as_tensor(state["step"], dtype=torch.float32, device=device)
    return True


def settings(optimizer: Optimizer) -> list[tuple[object, ...]]:
    """What a graph takes from the optimizer once and for all: everything but the learning rates."""
    return [
        tuple((name, value) for name, value in group.items() if name not in ("params", "lr"))
        for group in optimizer.param_groups
    ]


def learning_rates(optimizer: Optimizer) -> list[float]:
    """One number for each group of parameters."""
    return [float(group["lr"]) for group in optimizer.param_groups]


@contextmanager
def captured(optimizer: Optimizer, lrs: list[Tensor], bad: Tensor) -> Iterator[None]:
    """Inside, `optimizer.step()` reads its learning rates from `lrs` and does nothing where `bad` is 1."""
    outside = [group["lr"] for group in optimizer.param_groups]
    for group, lr in zip(optimizer.param_groups, lrs, strict=True):
        group["lr"] = lr
    optimizer.found_inf = bad  # type: ignore[attr-defined]
    try:
        yield
    finally:
        del optimizer.found_inf  # type: ignore[attr-defined]
        for group, lr in zip(optimizer.param_groups, outside, strict=True):
            group["lr"] = lr
