"""The whole step in one CUDA graph: gradients of all members, exchange and priors are captured once and then replayed.

In eager mode a GPU waits for Python to launch thousands of small operations; a replay launches them all at once. The
price: what Python decides during the forward pass is decided once, at capture. A network whose forward pass branches on
its own random numbers (stochastic depth drawn in Python, say) must not be graphed, which is why `"auto"` never does.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass

import torch
from torch import Tensor

from forde.engine.base import Batch, Memory, Precision, StepReport
from forde.engine.eager import EagerEngine
from forde.engine.guards import refuse_non_finite
from forde.ensemble import Ensemble
from forde.errors import FordeError
from forde.methods.base import Method

log = logging.getLogger(__name__)

WARM_UP_STEPS = 3


@dataclass(frozen=True)
class _Capture:
    """A captured step: where its inputs go and where its results appear."""

    graph: torch.cuda.CUDAGraph
    x: Tensor
    y: Tensor
    factor: Tensor | None
    report: StepReport
    gradients: list[Tensor | None]


class GraphedEngine(EagerEngine):
    """As the eager engine, with batches of a known shape replayed from a CUDA graph.

    Other batches (the last of an epoch) run eagerly, and so does everything if a network cannot be captured; one line
    in the log says why. Learning rate, repulsion weight and data change freely between replays.
    """

    cheap_convolutions = True

    def __init__(
        self, ensemble: Ensemble, method: Method, precision: Precision = "float32", memory: Memory = "speed"
    ) -> None:
        super().__init__(ensemble, method, precision, memory)
        if ensemble.device.type != "cuda":
            raise FordeError("engine='graphed' needs an NVIDIA GPU; use engine='eager' or 'auto', or device='cuda'.")
        self._captures: dict[tuple[object, ...], _Capture] = {}
        # Eigenvectors are found by a library that cannot be captured, and that fails for good if one tries.
        self._refused = method.space is not None and method.space.needs_loss_gradient
        if self._refused:
            log.info("engine: eager after all, a projection onto loss gradients cannot be captured")

    def gradients(self, x: Batch, y: Batch, factor: float | Tensor | None, *, step: int) -> StepReport:
        if isinstance(x, list) or isinstance(y, list) or self._refused:
            return super().gradients(x, y, factor, step=step)
        key = (x.shape, x.dtype, y.shape, y.dtype, factor is None)
        if key not in self._captures:
            if any(known[4] == (factor is None) for known in self._captures):
                return super().gradients(x, y, factor, step=step)  # another shape than the usual one
            report = super().gradients(x, y, factor, step=step)  # checks everything, and is this step's result
            self._try_capture(key, x, y, factor)
            return report
        captured = self._captures[key]
        captured.x.copy_(x)
        captured.y.copy_(y)
        if captured.factor is not None and factor is not None:
            captured.factor.fill_(factor)
        captured.graph.replay()
        for parameter, gradient in zip(self.parameters(), captured.gradients, strict=True):
            parameter.grad = gradient
        refuse_non_finite(captured.report.losses, step)
        found = captured.report  # overwritten by the next replay, so what is kept longer is copied
        bandwidth = None if found.bandwidth is None else found.bandwidth.clone()
        return StepReport(found.losses.clone(), found.repulsion.clone(), bandwidth, found.z)

    def _try_capture(self, key: tuple[object, ...], x: Tensor, y: Tensor, factor: float | Tensor | None) -> None:
        """Capture a step; members, their buffers and gradients are afterwards as they were before."""
        gradients = [parameter.grad for parameter in self.parameters()]
        buffers = [(buffer, buffer.clone()) for buffer in self.ensemble.buffers()]
        random_state = torch.cuda.get_rng_state(x.device)
        self.checks = False
        try:
            self._captures[key] = self._capture(x, y, factor)
        except RuntimeError as error:
            self._refused = True
            log.info("engine: eager after all, the step cannot be captured (%s)", str(error).splitlines()[0])
        finally:
            self.checks = True
            torch.cuda.set_rng_state(random_state, x.device)
            for buffer, value in buffers:
                buffer.copy_(value)
            for parameter, gradient in zip(self.parameters(), gradients, strict=True):
                parameter.grad = gradient

    def _capture(self, x: Tensor, y: Tensor, factor: float | Tensor | None) -> _Capture:
        inputs, targets = x.clone(), y.clone()
        strength = None if factor is None else torch.tensor(float(factor), device=x.device, dtype=torch.float64)
        stream = torch.cuda.Stream(x.device)
        stream.wait_stream(torch.cuda.current_stream(x.device))
        with torch.cuda.stream(stream):  # allocations and algorithm choices settle outside of the capture
            for _ in range(WARM_UP_STEPS):
                super().gradients(inputs, targets, strength, step=0)
        torch.cuda.current_stream(x.device).wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            report = super().gradients(inputs, targets, strength, step=0)
        log.info("engine: graphed (%d members in one CUDA graph)", self.ensemble.n_members)
        return _Capture(graph, inputs, targets, strength, report, [p.grad for p in self.parameters()])

    def close(self) -> None:
        """Let go of the graphs' memory."""
        self._captures.clear()
