"""A whole step in one CUDA graph: members on several streams, exchange, priors and the optimiser are part of it.

Batch, learning rate and the repulsion's weight may change between replays. A loss that is not finite stops the
optimiser on the device, before the weights are touched; the host finds out a little later.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from forde.engine.base import Engine
from forde.engine.capturable import captured, learning_rates, make_capturable, settings
from forde.engine.guards import refuse_non_finite
from forde.engine.records import Memory, Precision, StepReport
from forde.ensemble import Ensemble
from forde.methods.base import Method

STREAMS = 5
STEPS_IN_FLIGHT = 2
"""How far the host may run ahead of the device before it looks at a step's losses."""

Run = Callable[[Tensor, Tensor, Tensor | None], StepReport]
"""Batch and the repulsion's factor → what the step has to say; gradients are left in `.grad`."""


@dataclass(frozen=True)
class Replay:
    """A captured step: where its inputs go and where its results appear."""

    graph: torch.cuda.CUDAGraph
    x: Tensor
    y: Tensor
    factor: Tensor | None
    report: StepReport
    gradients: list[Tensor | None]
    lrs: list[Tensor]


class CapturedSteps(Engine):
    """What an engine needs to capture its steps and replay them."""

    def __init__(
        self, ensemble: Ensemble, method: Method, precision: Precision = "float32", memory: Memory = "speed"
    ) -> None:
        super().__init__(ensemble, method, precision, memory)
        self._plain_only = False
        self._capturing = False
        self._side: torch.cuda.Stream | None = None
        self._streams: list[torch.cuda.Stream] = []
        self._pool: Any = None
        self._optimizer_inside: list[tuple[object, ...]] | None = None
        self._bad = torch.zeros((), device=ensemble.device)
        self._in_flight: deque[tuple[torch.cuda.Event, Tensor, int]] = deque()

    def close(self) -> None:
        self._in_flight.clear()
        super().close()

    def settle(self) -> None:
        while self._in_flight:
            self._look_at_oldest()

    def _takes_in(self, optimizer: Optimizer) -> bool:
        """Whether the optimiser can be part of the graph; its settings beside the learning rate must stay."""
        if self.ensemble.device.type != "cuda" or self._plain_only:
            return False
        if self._optimizer_inside is None:
            inside = make_capturable(optimizer, self.ensemble.device)
            self._optimizer_inside = settings(optimizer) if inside else []
        return self._optimizer_inside == settings(optimizer)

    def _each_unit(self) -> Iterator[int]:
        if not self._capturing:
            yield from super()._each_unit()
            return
        main = torch.cuda.current_stream()
        for stream in self._streams:
            stream.wait_stream(main)
        for unit in range(len(self.groups)):
            with torch.cuda.stream(self._streams[unit % len(self._streams)]):
                yield unit
        for stream in self._streams:
            main.wait_stream(stream)

    def _beside(self, run: Callable[[], StepReport], optimizer: Optimizer | None) -> StepReport:
        """Run on a stream of its own, as a capture will."""
        if self._side is None:
            torch.cuda.empty_cache()  # what the plain step left unused is of no use to another stream
            self._side = torch.cuda.Stream()
        main = torch.cuda.current_stream()
        self._side.wait_stream(main)
        with torch.cuda.stream(self._side):
            report = run()
        main.wait_stream(self._side)
        if optimizer is not None:
            optimizer.step()
        return report

    def _capture(
        self, run: Run, x: Tensor, y: Tensor, factor: float | Tensor | None, optimizer: Optimizer | None
    ) -> Replay:
        inputs, targets = self._laid_out(x).clone(), y.clone()
        strength = None if factor is None else torch.tensor(float(factor), device=x.device, dtype=torch.float64)
        lrs = [] if optimizer is None else [torch.tensor(lr, device=x.device) for lr in learning_rates(optimizer)]
        if self._pool is None:
            self._pool = torch.cuda.graph_pool_handle()
            if len(self.groups) > 1 and self.memory == "speed":
                self._streams = [torch.cuda.Stream() for _ in range(min(STREAMS, len(self.groups)))]
        for parameter in self.parameters():
            parameter.grad = None
        torch.cuda.synchronize()
        torch.cuda.empty_cache()  # the graph has memory of its own
        graph = torch.cuda.CUDAGraph()
        self.checks, self._capturing = False, bool(self._streams)
        try:
            with torch.cuda.graph(graph, pool=self._pool, capture_error_mode="thread_local"):
                report = run(inputs, targets, strength)
                if optimizer is not None:
                    bad = (~report.losses.isfinite().all()).float()
                    self._bad.copy_(torch.maximum(self._bad, bad))
                    with captured(optimizer, lrs, self._bad):
                        optimizer.step()
        finally:
            self.checks, self._capturing = True, False
            self._kept = {}
        gradients: list[Tensor | None] = []
        if optimizer is None:
            gradients = [parameter.grad for parameter in self.parameters()]
        else:  # used up inside of the graph; other graphs may take their memory
            for parameter in self.parameters():
                parameter.grad = None
        return Replay(graph, inputs, targets, strength, report, gradients, lrs)

    def _replay(  # noqa: PLR0917
        self,
        replay: Replay,
        x: Tensor,
        y: Tensor,
        factor: float | Tensor | None,
        step: int,
        optimizer: Optimizer | None,
    ) -> StepReport:
        while len(self._in_flight) >= STEPS_IN_FLIGHT:
            self._look_at_oldest()
        replay.x.copy_(x)
        replay.y.copy_(y)
        if replay.factor is not None and factor is not None:
            replay.factor.fill_(factor)
        if optimizer is not None:
            for place, lr in zip(replay.lrs, learning_rates(optimizer), strict=True):
                place.fill_(lr)
        replay.graph.replay()
        found = replay.report  # overwritten by the next replay, so what is kept longer is copied
        bandwidth = None if found.bandwidth is None else found.bandwidth.clone()
        report = StepReport(found.losses.clone(), found.repulsion.clone(), bandwidth, found.z)
        if optimizer is None:
            for parameter, gradient in zip(self.parameters(), replay.gradients, strict=True):
                parameter.grad = gradient
            refuse_non_finite(report.losses, step)
            return report
        # The optimiser stands still on the device after a bad loss; the host need not wait to find out.
        losses = torch.empty(report.losses.shape, dtype=report.losses.dtype, pin_memory=True)
        losses.copy_(report.losses, non_blocking=True)
        event = torch.cuda.Event()
        event.record()
        self._in_flight.append((event, losses, step))
        return report

    def _look_at_oldest(self) -> None:
        event, losses, step = self._in_flight.popleft()
        event.synchronize()
        refuse_non_finite(losses, step)
