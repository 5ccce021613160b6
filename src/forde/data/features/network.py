"""A backbone as one function of a batch: hooks on a layer, and one row of features for each image."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Literal

import torch
from torch import Tensor, nn

from forde.errors import FordeError, unknown_name
from forde.forward import tensor_output
from forde.inference import running

At = Literal["output", "input"]
Pool = Literal["none", "mean", "first"]
Run = Callable[[Tensor], Tensor]
PRECISIONS: dict[str, torch.dtype | None] = {"float32": None, "bf16": torch.bfloat16}


class _AtLayer(nn.Module):
    """A network whose output is what one of its layers gives, or is given."""

    def __init__(self, network: nn.Module, layer: str, at: At) -> None:
        super().__init__()
        self.network = network
        self._layer, self._at = layer, at
        self._seen: list[Tensor] = []
        chosen = named_layer(network, layer)
        self.handle = chosen.register_forward_hook(self._look)

    def _look(self, layer: nn.Module, inputs: tuple[Any, ...], output: Any) -> None:
        if self._at == "output":
            self._seen.append(tensor_output(output))
        elif inputs and isinstance(inputs[0], Tensor):
            self._seen.append(inputs[0])

    def forward(self, x: Tensor) -> Tensor:
        self._seen.clear()
        self.network(x)
        if not self._seen:
            raise FordeError(
                f"the layer '{self._layer}' was given no tensor in the network's forward pass; name one that is used."
            )
        seen = self._seen[-1]
        self._seen.clear()  # it would hold memory until the next batch
        return seen


def named_layer(network: nn.Module, name: str) -> nn.Module:
    """The part of a network with that name.

    >>> named_layer(nn.Sequential(nn.Linear(2, 3), nn.ReLU()), "2")
    Traceback (most recent call last):
    forde.errors.FordeError: unknown layer '2'. Known: 0, 1.
    """
    layers = dict(network.named_modules())
    if not name or name not in layers:
        raise unknown_name("layer", name, (known for known in layers if known))
    return layers[name]


@contextmanager
def extracting(
    network: nn.Module,
    *,
    layer: str = "",
    at: At = "output",
    pool: Pool = "none",
    device: torch.device,
    precision: str = "float32",
) -> Iterator[Run]:
    """Yields network inputs `[B, ...]` → features `[B, Q]` in float32; the network is in evaluation mode inside.

    With "bf16" a copy runs under autocast. cuDNN's algorithms are not chosen by their speed, so that two runs on one
    device give the same bits. The network is moved to the device.

    >>> with extracting(nn.Sequential(nn.Linear(4, 3), nn.ReLU()), layer="0", device=torch.device("cpu")) as run:
    ...     run(torch.zeros(5, 4)).shape
    torch.Size([5, 3])
    """
    if precision not in PRECISIONS:
        raise unknown_name("precision", precision, PRECISIONS)
    network.to(device)
    seen = _AtLayer(network, layer, at) if layer else None
    try:
        with _same_algorithms(), running([seen or network], PRECISIONS[precision]) as outputs:

            def run(x: Tensor) -> Tensor:
                try:
                    return pooled(outputs(x)[0], pool)
                except torch.OutOfMemoryError:
                    raise FordeError(
                        f"the memory of {device} is too small for a batch of {len(x)}; give a smaller batch size."
                    ) from None

            yield run
    finally:
        if seen is not None:
            seen.handle.remove()


def pooled(output: Tensor, pool: Pool) -> Tensor:
    """One row for each image: `[B, Q]` as it is, the "mean" over positions of `[B, Q, H, W]` or `[B, T, Q]`, or the
    "first" of T positions.

    >>> pooled(torch.zeros(2, 8, 7, 7), "mean").shape, pooled(torch.zeros(2, 197, 8), "first").shape
    (torch.Size([2, 8]), torch.Size([2, 8]))
    """
    if pool == "mean" and output.dim() in (3, 4):
        return output.mean((2, 3)) if output.dim() == 4 else output.mean(1)
    if pool == "first" and output.dim() == 3:
        return output[:, 0]
    if pool == "none" and output.dim() == 2:
        return output
    advice = {2: "pool='none'", 3: "pool='first' (a class token) or 'mean'", 4: "pool='mean'"}
    raise FordeError(
        f"the layer gives shape {list(output.shape)}, which pool='{pool}' does not make into one row per image; use "
        f"{advice.get(output.dim(), 'another layer')}."
    )


@contextmanager
def _same_algorithms() -> Iterator[None]:
    backend = torch.backends.cudnn
    before = backend.benchmark, backend.deterministic
    backend.benchmark, backend.deterministic = False, True
    try:
        yield
    finally:
        backend.benchmark, backend.deterministic = before
