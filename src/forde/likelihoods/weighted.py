"""Rows that count more or less than others, for all members or for each member differently."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from forde.errors import FordeError
from forde.likelihoods.base import Likelihood
from forde.prediction import Prediction


@dataclass(frozen=True)
class Weighted(Likelihood):
    """A likelihood whose rows are weighted; the weights come with the targets, as `pack` puts them there.

    The loss of member i is (1/B) Σ_b w_ib (−log p(y_b | x_b, θ_i)). It is divided by the batch size and not by the sum
    of the weights, so that every row counts as its weight says in whatever batch it is; weights of mean 1 leave the
    scale of the loss, and so the balance with prior and repulsion, as it was. A row of weight 0 is not seen by the
    member's loss, which is how members leave rows out. Weights are no part of what members are compared by.

    Args:
        likelihood: of the rows; one that has a loss for each sample.
        targets: numbers that a sample's targets take up, their shape; `()` for one number for each sample.

    >>> from forde.likelihoods import Classification
    >>> likelihood, y = Weighted.pack(Classification(), torch.tensor([0, 1]), torch.tensor([[1.0, 0.0], [2.0, 1.0]]))
    >>> y.shape  # a label and the weights for each of two members
    torch.Size([2, 3])
    >>> inner, labels, weights = likelihood.unpack(y, slice(1, 2))
    >>> labels, weights
    (tensor([0, 1]), tensor([[0., 1.]], dtype=torch.float64))
    """

    likelihood: Likelihood
    targets: tuple[int, ...] = ()
    labels_given: bool = False
    """Whether targets are integers, which they are again when they are unpacked."""
    name: ClassVar[str] = "weighted"
    carries_weights: ClassVar[bool] = True

    @classmethod
    def pack(cls, likelihood: Likelihood, y: Tensor, weights: Tensor) -> tuple[Weighted, Tensor]:
        """The likelihood and its targets with their weights: `[N, ...]`, `[N]` or `[N, M]` → `[N, T + 1 or M]`."""
        if len(weights) != len(y) or weights.ndim not in (1, 2):
            raise FordeError(
                f"there are weights of shape {list(weights.shape)} for {len(y)} targets, but one for each row, [N], or "
                "one for each row and member, [N, M], was expected."
            )
        if not bool(weights.isfinite().all()) or bool((weights < 0).any()):
            raise FordeError("some weights are negative, NaN or infinite; pass numbers that are 0 or more.")
        # Float64 holds every label and every float32 exactly.
        rows = torch.cat([y.reshape(len(y), -1).double(), weights.reshape(len(y), -1).double()], 1)
        return cls(likelihood, tuple(y.shape[1:]), not y.is_floating_point()), rows

    @property
    def has_log_prob(self) -> bool:  # type: ignore[override]
        return self.likelihood.has_log_prob

    @property
    def takes_stacks(self) -> bool:  # type: ignore[override]
        return self.likelihood.takes_stacks

    @property
    def adds_up(self) -> bool:
        return self.likelihood.adds_up

    def _parts(self, y: Tensor) -> tuple[Tensor, Tensor]:
        size = torch.Size(self.targets).numel()
        targets = y[:, :size].reshape(len(y), *self.targets)
        return targets.long() if self.labels_given else targets, y[:, size:]

    def unpack(self, y: Tensor, members: slice) -> tuple[Likelihood, Tensor, Tensor]:
        targets, weights = self._parts(y)
        count = members.stop - members.start
        if weights.shape[1] == 1:
            weights = weights.expand(-1, count)
        elif weights.shape[1] < members.stop:
            raise FordeError(
                f"rows have weights for {weights.shape[1]} members, but member {members.stop - 1} is trained; pass one "
                "for each member."
            )
        else:
            weights = weights[:, members]
        return self.likelihood, targets, weights.T

    def loss(self, output: Tensor, y: Tensor) -> Tensor:
        """Mean loss of rows that all count alike; each member's weights are in its view."""
        return self.likelihood.loss(output, self._parts(y)[0])

    def scalar(self, output: Tensor, y: Tensor) -> Tensor:
        return self.likelihood.scalar(output, self._parts(y)[0])

    def log_prob(self, output: Tensor, y: Tensor) -> Tensor:
        return self.likelihood.log_prob(output, self._parts(y)[0])

    def probs(self, output: Tensor) -> Tensor:
        return self.likelihood.probs(output)

    def prediction(self, outputs: Tensor) -> Prediction:
        return self.likelihood.prediction(outputs)

    def most_probable(self, outputs: Tensor) -> Tensor:
        y = self.likelihood.most_probable(outputs)
        return self.pack(self.likelihood, y, torch.ones(len(y), device=y.device))[1]

    def knowing(self, y: Tensor) -> Likelihood:
        return replace(self, likelihood=self.likelihood.knowing(self._parts(y)[0]))

    def labels(self, y: Tensor) -> Tensor | None:
        return self.likelihood.labels(self._parts(y)[0])

    def without_scalar(self, output: Tensor, y: Tensor) -> str | None:
        return self.likelihood.without_scalar(output, self._parts(y)[0])

    def check_targets(self, y: Tensor) -> None:
        self.likelihood.check_targets(self._parts(y)[0])

    def check_output(self, output: Tensor, y: Tensor) -> None:
        self.likelihood.check_output(output, self._parts(y)[0])

    def check_labels(self, output: Tensor, y: Tensor, *, scalar: bool = False) -> None:
        self.likelihood.check_labels(output, self._parts(y)[0], scalar=scalar)

    def look_at(self, output: Tensor, y: Tensor) -> None:
        self.likelihood.look_at(output, self._parts(y)[0])

    def config(self) -> dict[str, Any]:
        """That of the likelihood itself: weights belong to a training and not to the trained ensemble."""
        return self.likelihood.config()
