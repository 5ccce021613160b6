"""What can go wrong in a step, said in a sentence."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor

from forde.errors import FordeError, NonFiniteError
from forde.spaces import Space

NO_SECOND_DERIVATIVE = (
    "double backward",
    "once_differentiable",
    "derivative for",
    "not implemented for autograd",
    "donated buffers",
)
ADVICE = {
    "hardsigmoid": "use nn.Sigmoid in its place",
    "torch.compile|donated": "pass the network without torch.compile, since forde compiles whole steps itself",
    "attention": "use torch.nn.attention.sdpa_kernel(SDPBackend.MATH)",
    "rnn": "use torch.backends.cudnn.flags(enabled=False)",
    "": "use torch.nn.attention.sdpa_kernel(SDPBackend.MATH) for attention, "
    "torch.backends.cudnn.flags(enabled=False) for recurrent layers",
}
"""By what torch's complaint says, the first that fits."""


def refuse_non_finite(losses: Tensor, step: int) -> None:
    """Stop before the weights are touched where a loss `[M]` is not finite."""
    finite = losses.isfinite()
    if not bool(finite.all()):
        member = int((~finite).nonzero()[0])
        raise NonFiniteError(
            f"the loss of member {member} is {float(losses[member])} at step {step}; training stopped before the "
            "weights were touched, so lower the learning rate or check the inputs."
        )


REPEATABLE = 1e-3


def refuse_unrepeatable(first: Tensor, second: Tensor, advice: str) -> None:
    """Stop where a forward pass, made twice from the same state, gave two losses.

    >>> refuse_unrepeatable(torch.ones(2), torch.ones(2), "use memory='speed'")
    """
    if not torch.allclose(first, second.detach(), rtol=REPEATABLE, atol=REPEATABLE, equal_nan=True):
        raise FordeError(
            "the forward pass gives something else each time, for the same batch, weights and random numbers (does a "
            f"function count its calls?), so it cannot be made again; {advice}."
        )


def not_differentiable(x: Tensor) -> FordeError:
    """The error for inputs that are no floats, where input gradients are asked for."""
    return FordeError(
        f"inputs of type {x.dtype} cannot be differentiated, but this method compares members by input gradients; "
        "pass floats, compare tokens at their embeddings with forde.method('forde', of='embeddings'), or choose "
        "'deep-ensemble' or 'function-rde'."
    )


def changed_in_place() -> FordeError:
    """The error for a forward pass that writes to its input where it did not do so before."""
    return FordeError(
        "the forward pass changed its input in place, which it did not do before; write x = x - 1 instead of "
        "x -= 1, or begin it with x = x.clone()."
    )


def no_path_to_inputs() -> FordeError:
    """The error for a network whose output is no differentiable function of its input."""
    return FordeError(
        "the network's output does not depend on its input in a differentiable way, so members cannot be compared by "
        "input gradients; remove detach(), rounding or integer casts from the network, or choose another method."
    )


def no_second_derivative(detail: str) -> FordeError:
    """The error for a network that cannot be differentiated twice.

    >>> str(no_second_derivative("derivative for aten::hardsigmoid_backward is not implemented")).partition("; ")[2]
    "use nn.Sigmoid in its place, or another method such as 'deep-ensemble'."
    """
    advice = next(text for phrase, text in ADVICE.items() if re.search(phrase, detail, re.IGNORECASE))
    short = detail.partition(".")[0] if "donated" in detail else detail.rstrip(".")
    return FordeError(
        f"the network uses an operation without a second derivative ({short}), which input-gradient methods need; "
        f"{advice}, or another method such as 'deep-ensemble'."
    )


def refuse_different_sizes(sizes: Sequence[int], space: Space | None) -> None:
    """Stop where members cannot be compared because one is represented by more numbers than another.

    >>> refuse_different_sizes([8, 8], None)
    """
    for index, size in enumerate(sizes):
        if size != sizes[0]:
            advice = Space.same_size_advice if space is None else space.same_size_advice
            raise FordeError(
                f"members 0 and {index} are compared by {type(space).__name__} as {sizes[0]} and {size} numbers, "
                f"but as many of each were expected; {advice}."
            )


def refuse_once_differentiable(z: Tensor) -> None:
    """Find operations marked `@once_differentiable`, and what `torch.compile` compiled, in the graph of z.

    torch would raise when their second derivative is run, but a backward pass that asks for the parameters only never
    reaches them (in torch 2.6 also none that was compiled): the repulsion would be silently lost.
    """
    seen, waiting = set(), [z.grad_fn]
    while waiting:
        node = waiting.pop()
        if node is None or node in seen:
            continue
        if node.name() == "torch::autograd::Error":
            raise no_second_derivative("marked once_differentiable")
        if node.name() == "CompiledFunctionBackwardBackward":
            raise no_second_derivative("torch.compile with aot_autograd does not currently support double backward")
        seen.add(node)
        waiting.extend(following for following, _ in node.next_functions)


def explain_missing_derivative(error: RuntimeError) -> None:
    """Raise what to do about it, if torch's complaint is about a missing second derivative."""
    text = str(error)
    if any(phrase in text.lower() for phrase in NO_SECOND_DERIVATIVE):
        raise no_second_derivative(text.splitlines()[0]) from error


GIB = 2**30


@contextmanager
def explaining_memory(memory: str) -> Iterator[None]:
    """Turns running out of memory into what was needed, what there is, and what to set."""
    try:
        yield
    except RuntimeError as error:  # torch.OutOfMemoryError is one; a CPU's allocator raises the plain kind
        asked = re.search(r"[Tt]ried to allocate ([\d.]+) (bytes|KiB|MiB|GiB)", str(error))
        if asked is None:
            raise
        size = float(asked[1]) * {"bytes": 1, "KiB": 2**10, "MiB": 2**20, "GiB": GIB}[asked[2]]
        where, there = "memory", ""
        if isinstance(error, torch.OutOfMemoryError) and torch.cuda.is_available():
            size += torch.cuda.max_memory_allocated()
            where, there = "GPU memory", f", and the GPU has {torch.cuda.mem_get_info()[1] / GIB:.1f} GiB"
        less = "" if memory == "low" else f"memory='low' (it was '{memory}'), "
        raise FordeError(
            f"training ran out of {where}: at least {size / GIB:.1f} GiB were needed at once{there}; use {less}a "
            "smaller batch_size or fewer members."
        ) from error
