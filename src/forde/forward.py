"""Calling a network: its output as a tensor, its modes as they were, and what can go wrong, said in a sentence."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from forde.arguments import Arguments, Input, in_words
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
    """The output as one tensor: `logits` of a dict or object, and the only tensor of a dict or tuple that holds one.

    >>> tensor_output({"logits": torch.zeros(2, 3), "hidden": torch.zeros(2, 8)}).shape
    torch.Size([2, 3])
    >>> tensor_output((torch.zeros(1), torch.zeros(1)))
    Traceback (most recent call last):
    forde.errors.FordeError: the network returned a tuple of 2 tensors, but one tensor was expected; return the one that
    holds the outputs.
    """
    if isinstance(output, Tensor):
        return output
    if output is None:
        raise FordeError("the network returned nothing, but a tensor was expected; end forward with a return.")
    logits = output.get("logits") if isinstance(output, Mapping) else getattr(output, "logits", None)
    if isinstance(logits, Tensor):
        return logits
    what, advice = f"an object of type {type(output).__name__}", "return the tensor in it that holds the outputs"
    if isinstance(output, (Mapping, tuple, list)):
        items = output.items() if isinstance(output, Mapping) else enumerate(output)
        tensors = {name: value for name, value in items if isinstance(value, Tensor)}
        if len(tensors) == 1:
            return next(iter(tensors.values()))
        what = f"a {type(output).__name__} of {len(tensors)} tensors"
        if tensors and isinstance(output, Mapping):
            advice = f"return its '{next(iter(tensors))}' alone, or name one of them 'logits'"
        elif tensors:
            advice = "return the one that holds the outputs"
    raise FordeError(f"the network returned {what}, but one tensor was expected; {advice}.")


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
def in_evaluation(network: nn.Module) -> Iterator[None]:
    """Evaluation mode inside; afterwards each layer is in its own mode again.

    >>> network = nn.Sequential(nn.Dropout(), nn.Dropout().eval())
    >>> with in_evaluation(network):
    ...     network[0].training
    False
    >>> [layer.training for layer in network]
    [True, False]
    """
    modes = [(module, module.training) for module in network.modules()]
    try:
        network.eval()
        yield
    finally:
        for module, mode in modes:
            module.training = mode


@contextmanager
def explaining_forward(x: Input) -> Iterator[None]:
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
        raise FordeError(
            f"the network failed on a batch of {in_words(x)} ({first_line(error).rstrip('.')}); {advice}."
        ) from error


def _of_a_process(error: Exception) -> bool:
    """Whether other processes are to blame."""
    return isinstance(error, getattr(torch.distributed, "DistError", ()))


def _advice(x: Input, text: str) -> str | None:
    """What to do about an error of this text; None where it is not about the inputs."""
    if any(phrase in text for phrase in OTHERS_EXPLAIN):
        return None
    if "keyword argument" in text:
        return "leave out of the batch what its forward does not take"
    if "'indices'" in text:
        return "give an embedding its tokens as whole numbers, x.long()"
    if "index out of range" in text or "not in the valid range" in text:
        return "give an embedding more rows, or number the tokens from 0"
    if "positional argument" in text and isinstance(x, Arguments):
        return "give the batch the inputs that its forward takes, no more and no fewer"
    if "positional argument" in text:
        return "let its forward take the inputs and nothing else, or give it several in a dict or tuple"
    if "Expected more than 1 value per channel" in text:
        return "BatchNorm needs batches of at least 2, so use drop_last=True or another batch_size"
    about_types = re.search(r"\btypes?\b|dtype|not implemented for", text) is not None
    about_sizes = re.search(r"shape|size|dimension|channels|expected input|\dD\b", text, re.IGNORECASE) is not None
    if isinstance(x, Arguments):
        return "give it inputs of the types and sizes that it was built for" if about_types or about_sizes else None
    if about_types and not (x.is_floating_point() or x.is_complex()):
        scaled = ", divided by 255 where they are bytes of images" if x.dtype == torch.uint8 else ""
        return f"convert the inputs to floats{scaled}, for only floats are given the network's own type"
    if about_sizes and x.dim() == 4 and x.shape[-1] in CHANNELS and x.shape[1] not in CHANNELS:
        return "give images as [B, C, H, W], here with x.permute(0, 3, 1, 2)"
    if about_sizes:
        return "give it inputs of the size that it was built for"
    return "make its parameters of one type, or convert inside of it" if about_types else None
