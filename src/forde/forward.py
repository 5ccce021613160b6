"""What can go wrong when a network is called, said in a sentence."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from forde.errors import FordeError, first_line

CALL_ERRORS = (RuntimeError, ValueError, TypeError, IndexError, AssertionError)
"""What torch raises where an input does not fit a layer."""
OTHERS_EXPLAIN = (
    "tried to allocate",
    "out of memory",
    "CUDA error",
    "CUBLAS",
    "cuDNN",
    "double backward",
    "vmap:",
    "derivative for",
)
"""Errors of the same types that are not about the input."""
CHANNELS = (1, 3, 4)


def tensor_output(output: Any) -> Tensor:
    """The output, if it is a tensor.

    >>> tensor_output((torch.zeros(1), None))
    Traceback (most recent call last):
    forde.errors.FordeError: the network returned a tuple of 2, but one tensor was expected; return the one that
    holds the outputs.
    """
    if isinstance(output, Tensor):
        return output
    what, advice = f"an object of type {type(output).__name__}", "return the tensor in it that holds the outputs"
    if output is None:
        what, advice = "nothing", "end forward with a return"
    elif isinstance(output, Mapping) or hasattr(output, "logits"):
        names = [str(name) for name, value in _items(output) if isinstance(value, Tensor)]
        best = "logits" if "logits" in names or hasattr(output, "logits") else next(iter(names), None)
        what = "a dict" if type(output) is dict else what
        if best is not None:
            advice = f"return its '{best}' alone"
    elif isinstance(output, (tuple, list)):
        what, advice = f"a {type(output).__name__} of {len(output)}", "return the one that holds the outputs"
    raise FordeError(f"the network returned {what}, but one tensor was expected; {advice}.")


def _items(output: Any) -> list[tuple[Any, Any]]:
    return list(output.items()) if isinstance(output, Mapping) else []


def stacked(outputs: Sequence[Tensor]) -> Tensor:
    """Outputs `[B, ...]` of all members as `[M, B, ...]`.

    >>> stacked([torch.zeros(4, 3), torch.zeros(4, 3)]).shape
    torch.Size([2, 4, 3])
    """
    for index, output in enumerate(outputs):
        if output.shape != outputs[0].shape:
            raise FordeError(
                f"members 0 and {index} returned shapes {list(outputs[0].shape)} and {list(output.shape)}, but outputs "
                "of one shape were expected; give all members as many outputs."
            )
    return torch.stack(list(outputs))


@contextmanager
def explaining_forward(x: Tensor) -> Iterator[None]:
    """Turns what a network raises because a batch `[B, ...]` does not fit it into a sentence with the batch's shape.

    >>> with explaining_forward(torch.zeros(8, 4)):
    ...     torch.nn.Linear(5, 3)(torch.zeros(8, 4))
    Traceback (most recent call last):
    forde.errors.FordeError: the network failed on a batch of shape [8, 4] and type float32 (mat1 and mat2 shapes cannot
    be multiplied (8x4 and 5x3)); give it inputs of the size that it was built for.
    """
    try:
        yield
    except CALL_ERRORS as error:
        advice = None if isinstance(error, FordeError) or _of_a_process(error) else _advice(x, str(error))
        if advice is None:
            raise
        kind = str(x.dtype).removeprefix("torch.")
        raise FordeError(
            f"the network failed on a batch of shape {list(x.shape)} and type {kind} "
            f"({first_line(error).rstrip('.')}); {advice}."
        ) from error


def _of_a_process(error: Exception) -> bool:
    """Whether other processes are to blame."""
    return isinstance(error, getattr(torch.distributed, "DistError", ()))


def _advice(x: Tensor, text: str) -> str | None:
    """What to do about an error of this text; None where it is not about the inputs."""
    if any(phrase in text for phrase in OTHERS_EXPLAIN):
        return None
    if "'indices'" in text:
        return "give an embedding its tokens as whole numbers, x.long()"
    if "index out of range" in text or "not in the valid range" in text:
        return "give an embedding more rows, or number the tokens from 0"
    if "positional argument" in text:
        return "let its forward take the inputs and nothing else"
    if "Expected more than 1 value per channel" in text:
        return "BatchNorm needs batches of at least 2, so use drop_last=True or another batch_size"
    about_types = re.search(r"\btypes?\b|dtype|not implemented for", text) is not None
    if about_types and not (x.is_floating_point() or x.is_complex()):
        scaled = ", divided by 255 where they are bytes of images" if x.dtype == torch.uint8 else ""
        return f"convert the inputs to floats{scaled}, for only floats are given the network's own type"
    about_sizes = re.search(r"shape|size|dimension|channels|expected input|\dD\b", text, re.IGNORECASE) is not None
    if about_sizes and x.dim() == 4 and x.shape[-1] in CHANNELS and x.shape[1] not in CHANNELS:
        return "give images as [B, C, H, W], here with x.permute(0, 3, 1, 2)"
    if about_sizes:
        return "give it inputs of the size that it was built for"
    return "make its parameters of one type, or convert inside of it" if about_types else None
