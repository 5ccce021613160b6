"""Whether a computation can be repeated from a CUDA graph, found out before one is captured.

A capture that fails is no way to find out: torch does not tidy up its allocator of GPU memory after one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import torch
from torch import Tensor

from forde.random_state import get_random_state
from forde.torch_private import dispatch_mode

FROZEN = {
    torch.Tag.data_dependent_output: "reads values on the host",
    torch.Tag.dynamic_output_shape: "has an output whose shape depends on values",
}
COPIES = ("_to_copy", "copy_")


def watched(function: Callable[[], Tensor]) -> tuple[Tensor, str | None]:
    """The function's result, and why it could not be repeated from a CUDA graph, or None.

    >>> watched(lambda: torch.ones(2) * 2)
    (tensor([2., 2.]), None)
    >>> watched(lambda: torch.ones(2) * float(torch.ones(1)))[1]
    '_local_scalar_dense reads values on the host'
    """
    before, mode = get_random_state(), _watching()
    if mode is None:
        return function(), "this torch does not tell which operations run"
    with mode() as watching:
        result = function()
    if watching.reason is None and before.difference(get_random_state()):
        return result, "it draws random numbers"
    return result, watching.reason


class _Looking:
    """What a mode does with each operation."""

    reason: str | None = None

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        name = func.overloadpacket.__name__
        if self.reason is None:
            frozen = next((why for tag, why in FROZEN.items() if tag in func.tags), None)
            if frozen is None and name in COPIES and len(_devices((args, result))) > 1:
                frozen = "copies between devices"
            if any(isinstance(leaf, torch.Generator) for leaf in _leaves((args, kwargs))):
                frozen = "draws random numbers"  # from a generator whose state nobody compares
            if frozen is None and name == "lift_fresh" and _devices(result) != {"cpu"}:
                frozen = "copies a constant to the device"
            self.reason = None if frozen is None else f"{name} {frozen}"
        return result


@cache
def _watching() -> Any:
    """A class of modes that look at every operation; None where torch has none."""
    mode = dispatch_mode()
    return None if mode is None else type("_Watching", (_Looking, mode), {})


def _devices(values: Any) -> set[str]:
    return {leaf.device.type for leaf in _leaves(values) if isinstance(leaf, Tensor)}


def _leaves(values: Any) -> Iterator[Any]:
    """What an operation was given or returns, out of tuples, lists and dictionaries."""
    if isinstance(values, (tuple, list, dict)):
        for value in values.values() if isinstance(values, dict) else values:
            yield from _leaves(value)
    else:
        yield values
