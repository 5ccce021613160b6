"""What can go wrong in a step, said in a sentence."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from torch import Tensor

from forde.errors import FordeError

NO_SECOND_DERIVATIVE = (
    "double backward",
    "once_differentiable",
    "derivative for",
    "not implemented for autograd",
)


def refuse_non_finite(losses: Tensor, step: int) -> None:
    """Stop before the weights are touched where a loss `[M]` is not finite."""
    finite = losses.isfinite()
    if not bool(finite.all()):
        member = int((~finite).nonzero()[0])
        raise FordeError(
            f"the loss of member {member} is {float(losses[member])} at step {step}; training stopped before the "
            "weights were touched, so lower the learning rate or check the inputs."
        )


def differentiable(x: Tensor) -> Tensor:
    """The inputs as a leaf that collects gradients."""
    if not x.is_floating_point():
        raise FordeError(
            f"inputs of type {x.dtype} cannot be differentiated, but this method compares members by input gradients; "
            "pass floats (for tokens: their embeddings), or choose 'deep-ensemble' or 'function-rde'."
        )
    return x.detach().requires_grad_()


def no_second_derivative(detail: str) -> FordeError:
    """The error for a network that cannot be differentiated twice."""
    return FordeError(
        f"the network uses an operation without a second derivative ({detail.rstrip('.')}), which input-gradient "
        "methods need; use torch.nn.attention.sdpa_kernel(SDPBackend.MATH) for attention, "
        "torch.backends.cudnn.flags(enabled=False) for recurrent layers, or another method such as 'deep-ensemble'."
    )


def refuse_once_differentiable(z: Tensor) -> None:
    """Find operations marked `@once_differentiable` in the graph of z.

    torch would raise when their second derivative is run, but a backward pass that asks for the parameters only never
    reaches them: the repulsion would be silently lost.
    """
    seen, waiting = set(), [z.grad_fn]
    while waiting:
        node = waiting.pop()
        if node is None or node in seen:
            continue
        if node.name() == "torch::autograd::Error":
            raise no_second_derivative("marked once_differentiable")
        seen.add(node)
        waiting.extend(following for following, _ in node.next_functions)


@contextmanager
def explaining_second_derivatives() -> Iterator[None]:
    """Turns torch's complaint about a missing second derivative into what to do about it."""
    try:
        yield
    except RuntimeError as error:
        text = str(error)
        if not any(phrase in text.lower() for phrase in NO_SECOND_DERIVATIVE):
            raise
        raise no_second_derivative(text.splitlines()[0]) from error
