"""Input-gradient space (FoRDE, Trinh et al. 2024, https://arxiv.org/abs/2306.02775).

    J_ib = ∂/∂x_b Σ_b' f(x_b'; θ_i)_{y_b'}        s_ib = J_ib / √(‖J_ib‖² + eps)

The gradient is that of the batch sum, taken through the same forward pass as the loss: with BatchNorm in training mode
it contains the terms that couple samples, exactly as in the authors' code, and running statistics move once.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar, Literal, get_args

from torch import Tensor

from forde.arguments import Of
from forde.errors import FordeError
from forde.spaces.base import Space, View

Scalar = Literal["logit", "log_prob", "auto", "ce"] | Callable[[Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class InputGradients(Space):
    """Members are compared by the direction of their input gradients: `[B, D]`, inputs flattened.

    Args:
        output: the scalar that is differentiated: `"logit"` of the true class (default; for regression the
            output itself), `"log_prob"` of the true class, `"auto"` (`"log_prob"` where outputs are of classes,
            `"logit"` elsewhere), `"ce"` (the mean loss of the batch, as in LIT's code), or a function of
            `(output [B, C], y [B])` that returns `[B]`.
        normalise: divide each gradient by its length (True for FoRDE).
        eps: added to the squared length; keeps a zero gradient zero.
        of: which inputs, where a network has several: a name (`"pixel_values"`), a position, or several of them; all
            that are floats if left out, one behind the other. `"embeddings"` takes gradients at the output of the
            embedding layer, so that tokens can be compared; padding does not count.

    >>> InputGradients(output="log_prob").needs_input_gradient
    True
    """

    scale: ClassVar[Literal["batch", "data"]] = "batch"
    mixes: ClassVar[Literal["representation", "weights"]] = "weights"
    needs_input_gradient: ClassVar[bool] = True

    output: Scalar = "logit"
    normalise: bool = True
    eps: float = 1e-24
    of: Of = None

    def __post_init__(self) -> None:
        if not callable(self.output) and self.output not in get_args(get_args(Scalar)[0]):
            raise FordeError(
                f"InputGradients(output={self.output!r}) is unknown; "
                "expected 'logit', 'log_prob', 'auto', 'ce' or a function of (output, y)."
            )
        if self.of is None or isinstance(self.of, (str, int)):
            return
        if not isinstance(self.of, (list, tuple)) or not self.of or not all(isinstance(n, (str, int)) for n in self.of):
            raise FordeError(
                f"InputGradients(of={self.of!r}) is unknown; expected the name or position of an input, or several."
            )
        object.__setattr__(self, "of", tuple(self.of))

    @cached_property
    def needs_scalar(self) -> bool:  # type: ignore[override]
        return self.output in ("logit", "log_prob", "auto")

    @cached_property
    def takes_stacks(self) -> bool:  # type: ignore[override]
        return not callable(self.output)

    @property
    def gradients_of(self) -> Of:  # type: ignore[override]
        return self.of

    def scalar(self, view: View) -> Tensor:
        if callable(self.output):
            return self.output(view.output, view.y).sum()
        if self.output == "ce":
            return view.loss().sum()
        likelihood = view.likelihood
        of_classes = self.output == "log_prob" or (self.output == "auto" and likelihood.has_log_prob)
        return (likelihood.log_prob if of_classes else likelihood.scalar)(view.output, view.y).sum()

    def represent(self, view: View) -> Tensor:
        gradient = view.input_gradient
        assert gradient is not None
        # Half precision would lose eps and most of the direction.
        gradient = gradient.float() if gradient.itemsize < 4 else gradient
        if not self.normalise:
            return gradient
        return gradient * (gradient.square().sum(-1, keepdim=True) + self.eps).rsqrt()
