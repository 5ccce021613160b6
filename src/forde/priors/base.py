"""What is believed of a member before any data: the contract of a prior.

Priors act in mean-loss units, −(1/N) log p. A prior on weights adds its gradient to the parameters'; a prior on outputs
or features is a term of the loss.
"""

from __future__ import annotations

from abc import ABC
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from torch import Tensor, nn

from forde.arguments import Input
from forde.spaces.base import View

if TYPE_CHECKING:
    from typing_extensions import Self


@dataclass(frozen=True)
class TrainingData:
    """What priors, kernels and scales may learn from the data before training starts."""

    batches: Callable[[], Iterator[Input]]
    """Starts a new pass over the training inputs, `[B, ...]` each."""
    size: int
    """N, the number of training samples."""


class Prior(ABC):
    """Both hooks do nothing by default; a prior overrides the one it needs."""

    has_energy: ClassVar[bool] = False
    """Whether there is a term of the loss; so for every class that defines `energy`."""
    on_weights: bool = False
    needs_features: bool = False
    takes_stacks: bool = False
    """Whether the formulas use the last axes only, and so take tensors of stacked members `[M, ...]` too, for speed.
    Otherwise they are called for one member after another."""

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        cls.has_energy = cls.energy is not Prior.energy

    def prepare(self, network: nn.Module, data: TrainingData) -> Self:
        """The prior fitted to the training data and one (any) member."""
        return self

    @property
    def max_curvature(self) -> float:
        """Largest curvature of a prior on weights that is stiffer than the loss; 0 for others, such as a weight decay.

        SGD with momentum 0.9 and Nesterov needs lr × this < 1.36 to be stable.
        """
        return 0.0

    def energy(self, view: View) -> Tensor:
        """Term of one member's loss: `[]`."""
        return view.output.new_zeros(())

    def add_gradients(self, parameters: Mapping[str, Tensor]) -> None:
        """Add the prior's gradient to `.grad` of one member's parameters, by name.

        A parameter without gradient (unused by the network) is left alone, as torch's optimizers do.
        """
