"""What of two members is compared: the contract of a space."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from torch import Tensor, nn

from forde.arguments import Of
from forde.errors import FordeError
from forde.likelihoods import Likelihood


@dataclass(frozen=True)
class View:
    """What one member's forward pass leaves for a space and the priors to read, its autograd graph still alive."""

    y: Tensor
    """`[B, ...]`."""
    output: Tensor
    """`[B, C]` or of another shape `[B, ...]`, in float32 or better."""
    features: Tensor | None
    """`[B, Q]`, an inner activation, flattened, where the method asked for one."""
    parameters: Sequence[Tensor]
    """Trainable parameters."""
    likelihood: Likelihood
    share: float = 1.0
    """Part of the batch that these samples are, where several processes hold it together."""
    input_gradient: Tensor | None = None
    """`[B, D]`, that of the space's `scalar`, flattened, with its graph; None before it is taken."""

    weights: Tensor | None = None
    """`[B]`, by which the samples' losses are multiplied, where they are weighted."""

    def loss(self) -> Tensor:
        """Mean loss of the batch `[]`, (1/B) Σ_b w_b (−log p_b), or these samples' part of it."""
        if self.weights is None:
            loss = self.likelihood.loss(self.output, self.y)
        else:
            loss = (self.weights.to(self.output.dtype) * self.likelihood.losses(self.output, self.y)).mean(-1)
        return loss if self.share == 1 else self.share * loss


@dataclass(frozen=True)
class Projection:
    """Members seen along a few orthonormal directions, and the way back."""

    z: Tensor
    """`[M, S', R]` coordinates."""
    basis: Tensor
    """`[R, S·D]` orthonormal rows, treated as constants."""

    def pull_back(self, cotangent: Tensor, like: Tensor) -> Tensor:
        """Cotangent of the coordinates `[M, 1, R]` → cotangent of the representation `[M, S, D]`."""
        return (cotangent.flatten(1) @ self.basis).view_as(like)


class Space(ABC):
    """Maps a member to its representation `[S, D]`: S places where it is compared, each a vector of D numbers.

    A kernel compares two members place by place and averages over the S places.
    """

    scale: ClassVar[Literal["batch", "data"]] = "batch"
    """Factor of log-density repulsion in mean-loss units: 1/B where the density is over functions on the
    mini-batch, 1/N where it is over weights (the likelihood of all N data, divided by N)."""
    mixes: ClassVar[Literal["representation", "weights"]] = "representation"
    """Where rules that share driving forces between members (SVGD) mix them."""
    needs_input_gradient: ClassVar[bool] = False
    """Whether `represent` reads `view.input_gradient`, that of `scalar`."""
    gradients_of: Of = None
    """Of which inputs `input_gradient` is taken where networks have several."""
    needs_scalar: bool = False
    """Whether `scalar` asks the likelihood for its own."""
    takes_stacks: bool = False
    """Whether the formulas use the last axes only, and so take tensors of stacked members `[M, ...]` too, for speed.
    Otherwise they are called for one member after another."""
    same_size_advice: ClassVar[str] = (
        "use members of one architecture, or a method such as 'function-rde' or 'forde-pca'"
    )
    """What to do where members are represented by vectors of different sizes."""
    needs_loss_gradient: bool = False
    """Whether `project` wants the gradient of the loss with respect to the representation."""
    uses_batch: ClassVar[bool] = True
    """False where the representation does not depend on the data (weights)."""
    reads_labels: ClassVar[bool] = True
    """Whether `represent` or `scalar` reads `view.y`; where it does not, other data needs no labels."""
    sample_axis: ClassVar[Literal[1, 2]] = 1
    """Axis of `[M, S, D]` along which the batch lies, sample after sample: 1 where members are compared at each sample,
    2 where the whole batch is one vector."""

    projects: ClassVar[bool] = False
    """Whether members are compared along few directions; so for every class that defines `project`."""

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        cls.projects = cls.project is not Space.project

    @abstractmethod
    def represent(self, view: View) -> Tensor:
        """Representation of one member with its graph: `[S, D]`."""

    def scalar(self, view: View) -> Tensor:
        """What is differentiated with respect to the inputs, summed over the samples: `[]`."""
        raise FordeError(
            f"{type(self).__name__} has needs_input_gradient = True, but no scalar(view) to differentiate; define one."
        )

    def source(self, view: View) -> Tensor:
        """The tensor on the way to the loss that the representation is a reshaped copy of."""
        return view.output

    def project(self, z: Tensor, loss_gradients: Tensor | None) -> Projection | None:
        """Directions to compare along, from all members together; None compares `z [M, S, D]` as it is."""
        return None

    def feature_layer(self, network: nn.Module) -> FeatureLayer | None:
        """Which activation of the network the forward pass has to keep; None for none."""
        return None


@dataclass(frozen=True)
class FeatureLayer:
    """An activation: the output of the submodule `name`, or its input."""

    name: str | None
    """None for the last `nn.Linear` that the forward pass calls."""
    side: Literal["input", "output"]
