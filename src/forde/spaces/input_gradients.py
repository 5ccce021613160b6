"""Input-gradient space (FoRDE, Trinh et al. 2024, https://arxiv.org/abs/2306.02775).

    J_ib = ∂/∂x_b Σ_b' f(x_b'; θ_i)_{y_b'}        s_ib = J_ib / √(‖J_ib‖² + eps)

The gradient is that of the batch sum, taken through the same forward pass as the loss: with BatchNorm in training mode
it contains the terms that couple samples, exactly as in the authors' code, and running statistics move once.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from forde.errors import FordeError
from forde.spaces.base import Space, View
from forde.vectors import unit

Scalar = Literal["logit", "log_prob", "ce"] | Callable[[Tensor, Tensor], Tensor]

NO_PATH = (
    "the network's output does not depend on its input in a differentiable way, so members cannot be compared by "
    "input gradients; remove detach(), rounding or integer casts from the network, or choose another method."
)


@dataclass(frozen=True)
class InputGradients(Space):
    """Members are compared by the direction of their input gradients: `[B, D]`, inputs flattened.

    Args:
        output: the scalar that is differentiated: `"logit"` of the true class (default; for regression the
            output itself), `"log_prob"` of the true class, `"ce"` (the mean loss of the batch, as in LIT's code), or
            a function of `(output [B, C], y [B])` that returns `[B]`.
        normalise: divide each gradient by its length (True for FoRDE).
        eps: added to the squared length; keeps a zero gradient zero.

    >>> InputGradients(output="log_prob").needs_input_gradient
    True
    """

    scale: ClassVar[Literal["batch", "data"]] = "batch"
    mixes: ClassVar[Literal["representation", "weights"]] = "weights"
    needs_input_gradient: ClassVar[bool] = True

    output: Scalar = "logit"
    normalise: bool = True
    eps: float = 1e-24

    def __post_init__(self) -> None:
        if not callable(self.output) and self.output not in ("logit", "log_prob", "ce"):
            raise FordeError(
                f"InputGradients(output={self.output!r}) is unknown; "
                "expected 'logit', 'log_prob', 'ce' or a function of (output, y)."
            )

    @property
    def needs_scalar(self) -> bool:  # type: ignore[override]
        return self.output in ("logit", "log_prob")

    def represent(self, view: View) -> Tensor:
        gradients = input_gradients(self.scalar(view), view.x).flatten(view.lead + 1)
        # Half precision would lose eps and most of the direction.
        gradients = gradients.float() if gradients.itemsize < 4 else gradients
        return unit(gradients, self.eps) if self.normalise else gradients

    def scalar(self, view: View) -> Tensor:
        """Sum over samples (and members: they do not share inputs) of the scalar that is differentiated."""
        if callable(self.output):
            return view.of_outputs(self.output).sum()
        if self.output == "ce":
            return view.loss().sum()
        likelihood = view.likelihood
        function = likelihood.log_prob if self.output == "log_prob" else likelihood.scalar
        return view.of_outputs(function, takes_stacks=likelihood.takes_stacks).sum()


def input_gradients(scalar: Tensor, x: Tensor) -> Tensor:
    """∂scalar/∂x with its own graph, so that it can be differentiated again: the shape of `x`."""
    if not scalar.requires_grad:
        raise FordeError(NO_PATH)
    (gradient,) = torch.autograd.grad(scalar, x, create_graph=True, allow_unused=True)
    if gradient is None or not gradient.requires_grad:
        raise FordeError(NO_PATH)
    return gradient
