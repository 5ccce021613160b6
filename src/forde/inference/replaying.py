"""Batches of one shape out of a CUDA graph: the host queues one operation instead of thousands."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache

import torch
from torch import Tensor

from forde.arguments import Arguments, Input
from forde.cuda_graph import Recorded, record
from forde.inference.repeatable import watched

log = logging.getLogger(__name__)

STREAMS = 4
FAILED: list[torch.cuda.CUDAGraph] = []
"""Kept for good: torch's allocator goes on asking them for their memory."""

Streams = Sequence[torch.cuda.Stream]
Function = Callable[[Input, Streams], Tensor]
"""A batch → outputs; its independent parts may be queued on the streams, if there are any."""


class Replaying:
    """A function of batches that is captured with the second batch of a shape and replayed for all later ones.

    One shape only, since each graph holds memory; batches of other shapes, such as the last, run as they are. So does
    everything where there is no CUDA, and whatever a graph would freeze: random draws, branches on data.

    >>> with Replaying(lambda x, streams: 2 * x, branches=1) as double:
    ...     double(torch.ones(2))
    tensor([2., 2.])
    """

    def __init__(
        self, function: Function, branches: int, *, capture: bool = True, try_algorithms: bool = False
    ) -> None:
        self._function = function
        self._branches = branches
        self._wanted = capture
        self._try_algorithms = try_algorithms
        self._seen: set[tuple[torch.Size, torch.dtype]] = set()
        self._replay: Recorded | None = None

    def __enter__(self) -> Replaying:
        return self

    def __exit__(self, *_error: object) -> None:
        if self._replay is not None:
            self._replay = None
            torch.cuda.empty_cache()  # memory of a dead graph is of no use to anybody else

    def __call__(self, x: Input) -> Tensor:
        if isinstance(x, Arguments) or not x.is_cuda:
            return self._function(x, ())
        kind = x.shape, x.dtype
        if self._replay is not None and kind == (self._replay.inputs[0].shape, self._replay.inputs[0].dtype):
            outputs: Tensor = self._replay.replay(x)
            return outputs.clone()
        if not self._wanted or kind not in self._seen:
            self._seen.add(kind)
            return self._function(x, ())
        self._wanted = False
        outputs, reason = watched(lambda: self._function(x, ()))
        if reason is None:
            self._capture(x)
        else:
            log.info("prediction runs without a CUDA graph (%s)", reason)
        return outputs

    def _capture(self, x: Tensor) -> None:
        capture_stream, *streams = _streams(x.device)
        streams = streams[: self._branches] if self._branches > 1 else []
        graph, inputs = torch.cuda.CUDAGraph(), x.clone()
        # The stream is set back even if the capture fails, which torch forgets.
        current = torch.cuda.stream(torch.cuda.current_stream(x.device))
        with torch.cuda.device(x.device), current, _trying_algorithms(self._try_algorithms):
            try:
                # Algorithms are chosen, and scratch memory that outlives the graph is taken, before the capture.
                self._function(inputs, streams)
                self._replay = record(lambda x: self._function(x, streams), [inputs], graph, stream=capture_stream)
            except RuntimeError as error:
                log.info("prediction runs without a CUDA graph (%s)", str(error).partition("\n")[0])
                FAILED.append(graph)
                _streams.cache_clear()  # some may still belong to what failed


@cache
def _streams(device: torch.device) -> list[torch.cuda.Stream]:
    """One to capture on and some for its branches; the same ones always, since cuBLAS keeps memory for each."""
    return [torch.cuda.Stream(device) for _ in range(1 + STREAMS)]


@contextmanager
def _trying_algorithms(enabled: bool) -> Iterator[None]:
    """cuDNN times its algorithms inside, which is worth it where one shape comes many times."""
    before = torch.backends.cudnn.benchmark
    torch.backends.cudnn.benchmark = before or enabled
    try:
        yield
    finally:
        torch.backends.cudnn.benchmark = before
