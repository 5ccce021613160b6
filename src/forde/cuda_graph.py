"""A function of tensors recorded as a CUDA graph and replayed: the host queues one operation instead of thousands."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor


class Recorded(NamedTuple):
    """A recorded function: where its arguments go, and where its results appear."""

    graph: torch.cuda.CUDAGraph
    inputs: tuple[Tensor, ...]
    outputs: Any
    """What the function returned; the next replay overwrites its tensors."""

    def replay(self, *inputs: Tensor) -> Any:
        """Run the function on other values of the same shapes."""
        for place, value in zip(self.inputs, inputs, strict=True):
            place.copy_(value)
        self.graph.replay()
        return self.outputs


def record(
    function: Callable[..., Any],
    inputs: Sequence[Tensor],
    graph: torch.cuda.CUDAGraph,
    *,
    pool: Any = None,
    stream: torch.cuda.Stream | None = None,
) -> Recorded:
    """Run a function of `inputs` while its operations are recorded into `graph`.

    Args:
        pool: memory that several graphs share, which are never replayed at the same time.
    """
    # Other threads may go on using the GPU meanwhile.
    with torch.cuda.graph(graph, pool=pool, stream=stream, capture_error_mode="thread_local"):
        outputs = function(*inputs)
    return Recorded(graph, tuple(inputs), outputs)


def side_by_side(n: int, streams: Sequence[torch.cuda.Stream]) -> Iterator[int]:
    """0 to n − 1, each on one of the streams in turn; on the current one where there are none.

    >>> list(side_by_side(3, []))
    [0, 1, 2]
    """
    if not streams:
        yield from range(n)
        return
    current = torch.cuda.current_stream(streams[0].device)
    for stream in streams:
        stream.wait_stream(current)
    for index in range(n):
        with torch.cuda.stream(streams[index % len(streams)]):
            yield index
    for stream in streams:
        current.wait_stream(stream)
