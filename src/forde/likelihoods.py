"""What a network's output means: the loss it is trained with and the prediction it stands for.

All losses are in *mean-loss units*: the mean over the batch of −log p(y|x, θ), so that a weight decay λ is a
Gaussian prior of precision N·λ and exact Wasserstein repulsion carries the factor 1/N.

A likelihood is written for one member: outputs `[B, ...]`. The runner maps it over stacked members.
"""

from __future__ import annotations

import copy
import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from forde.errors import FordeError, unknown_name
from forde.prediction import ClassificationPrediction, Prediction, RawPrediction, RegressionPrediction

VARIANCE_FLOOR = 1e-6


class Likelihood(ABC):
    """A loss, the scalar whose input gradient members are compared by, and the meaning of the output."""

    name: ClassVar[str]
    has_log_prob: bool = False
    """Whether `log_prob` is defined: outputs are of classes."""
    takes_stacks: ClassVar[bool] = False
    """Whether `loss`, `scalar` and `log_prob` also take outputs `[M, B, C]` of stacked members, for speed. Otherwise
    they are called for one member after another."""
    takes_labels: ClassVar[bool] = False
    """Whether targets are class labels 0 … C−1 and outputs their logits `[B, C]`."""

    @abstractmethod
    def loss(self, output: Tensor, y: Tensor) -> Tensor:
        """Mean loss over the batch: `[B, ...]`, `[B, ...]` → `[]`."""

    @abstractmethod
    def scalar(self, output: Tensor, y: Tensor) -> Tensor:
        """The scalar of each sample that input gradients are taken of: `[B, ...]` → `[B]`."""

    def log_prob(self, output: Tensor, y: Tensor) -> Tensor:
        """Log-probability of the true class: `[B, C]`, `[B]` → `[B]`."""
        raise FordeError("output='log_prob' needs class probabilities; use output='logit' for regression.")

    @abstractmethod
    def prediction(self, outputs: Tensor) -> Prediction:
        """`[M, B, ...]` → prediction of the ensemble."""

    def knowing(self, y: Tensor) -> Likelihood:
        """The likelihood with what the first targets `[B, ...]` of a training tell about it."""
        return self

    def restored(self, config: dict[str, Any]) -> Likelihood:
        """The likelihood with what its `config()` noted, where the code alone does not tell it."""
        return self

    def without_scalar(self, output: Tensor, y: Tensor) -> str | None:
        """Why `scalar` has no meaning for such an output and targets, in a sentence; None where it has one."""
        return None

    def check_targets(self, y: Tensor) -> None:
        """Refuse targets that no network could be trained on."""

    def check_output(self, output: Tensor, y: Tensor) -> None:
        """Refuse an output `[B, C]` whose shape does not fit the targets `[B]`."""

    def check_labels(self, output: Tensor, y: Tensor, *, scalar: bool = False) -> None:
        """Refuse targets that an output of this shape has no place for; looks at values, so a GPU has to finish.

        Args:
            scalar: whether `scalar` will be asked for; then also where it has no meaning.
        """

    def config(self) -> dict[str, Any]:
        """JSON-ready description, read back by `likelihood_from_config`."""
        return {"name": self.name}


@dataclass(frozen=True)
class Classification(Likelihood):
    """Softmax over C logits, cross-entropy loss.

    >>> logits, y = torch.tensor([[2.0, 0.0], [0.0, 2.0]]), torch.tensor([0, 1])
    >>> round(float(Classification().loss(logits, y)), 4)
    0.1269
    """

    name: ClassVar[str] = "classification"
    has_log_prob = True
    takes_stacks: ClassVar[bool] = True
    takes_labels: ClassVar[bool] = True

    def loss(self, output: Tensor, y: Tensor) -> Tensor:
        if output.ndim == 2:
            return F.cross_entropy(output, y)
        members, batch, classes = output.shape
        flat = F.cross_entropy(output.reshape(-1, classes), y.repeat(members), reduction="none")
        return flat.view(members, batch).mean(-1)

    def scalar(self, output: Tensor, y: Tensor) -> Tensor:
        """Logit of the true class, as in the paper's released code."""
        return output.gather(-1, y.expand(output.shape[:-1]).unsqueeze(-1)).squeeze(-1)

    def log_prob(self, output: Tensor, y: Tensor) -> Tensor:
        return self.scalar(output.log_softmax(-1), y)

    def prediction(self, outputs: Tensor) -> ClassificationPrediction:
        return ClassificationPrediction(outputs)

    def check_targets(self, y: Tensor) -> None:
        if y.ndim != 1 or y.dtype not in (torch.int64, torch.int32, torch.int16, torch.uint8, torch.int8):
            raise FordeError(
                f"class labels have shape {list(y.shape)} and dtype {y.dtype}, but one integer per sample was "
                "expected; pass labels 0..C-1 as a one-dimensional integer tensor."
            )
        if y.numel() and int(y.min()) < 0:
            raise FordeError(f"label {int(y.min())} is negative; expected labels 0..C-1, so re-number the classes.")

    def check_output(self, output: Tensor, y: Tensor) -> None:
        if output.ndim != 2 or output.shape[0] != len(y) or output.shape[1] < 2:
            raise FordeError(
                f"the network returned shape {list(output.shape)} for a batch of {len(y)}, but logits of shape "
                f"[{len(y)}, C] with C ≥ 2 classes were expected; end the network with a linear layer of C outputs."
            )

    def check_labels(self, output: Tensor, y: Tensor, *, scalar: bool = False) -> None:
        if len(y) and int(y.max()) >= output.shape[1]:
            raise FordeError(
                f"label {int(y.max())} is outside the {output.shape[1]} classes of the network's output; "
                f"expected labels 0..{output.shape[1] - 1}, so give the network more outputs or fix the labels."
            )


class _Regression(Likelihood):
    takes_stacks: ClassVar[bool] = True
    outputs_per_target: ClassVar[int] = 1

    def _targets_like(self, mean: Tensor, y: Tensor) -> Tensor:
        return y.reshape(mean.shape[-2:]).to(mean.dtype)

    @abstractmethod
    def mean_and_variance(self, output: Tensor) -> tuple[Tensor, Tensor]:
        """What the output says of each target: `[..., B, K·outputs_per_target]` → two of `[..., B, K]`."""

    def loss(self, output: Tensor, y: Tensor) -> Tensor:
        mean, variance = self.mean_and_variance(output)
        residual = self._targets_like(mean, y) - mean
        nll = 0.5 * (residual**2 / variance + variance.log() + math.log(2 * math.pi))
        return nll.sum(-1).mean(-1)

    def scalar(self, output: Tensor, y: Tensor) -> Tensor:
        """The predicted mean itself (summed where a sample has several targets)."""
        return self.mean_and_variance(output)[0].sum(-1)

    def prediction(self, outputs: Tensor) -> RegressionPrediction:
        mean, variance = self.mean_and_variance(outputs)
        if mean.shape[-1] == 1:
            mean, variance = mean.squeeze(-1), variance.squeeze(-1)
        return RegressionPrediction(mean, variance)

    def check_targets(self, y: Tensor) -> None:
        if y.ndim not in (1, 2) or not y.is_floating_point():
            raise FordeError(
                f"regression targets have shape {list(y.shape)} and dtype {y.dtype}, but floats of shape [N] or "
                "[N, K] were expected; convert them with y.float()."
            )
        if not bool(y.isfinite().all()):
            raise FordeError("the targets hold NaN or infinite values; remove those rows or fill in the values.")

    def check_output(self, output: Tensor, y: Tensor) -> None:
        targets = 1 if y.ndim == 1 else y.shape[1]
        expected = [len(y), targets * self.outputs_per_target]
        if list(output.shape) != expected:
            raise FordeError(
                f"the network returned shape {list(output.shape)}, but {expected} was expected for {self.name}; "
                "change the size of its last layer."
            )


@dataclass(frozen=True)
class Regression(_Regression):
    """Gaussian noise of known standard deviation: −log p = (y−f)²/(2σ²) + ln σ + ½ ln 2π per target.

    >>> round(float(Regression(noise=1.0).loss(torch.zeros(2, 1), torch.zeros(2))), 4)
    0.9189
    """

    name: ClassVar[str] = "regression"
    noise: float = 1.0

    def __post_init__(self) -> None:
        if not self.noise > 0:
            raise FordeError(f"noise is {self.noise}, but a positive standard deviation was expected.")

    def mean_and_variance(self, output: Tensor) -> tuple[Tensor, Tensor]:
        return output, torch.full_like(output, self.noise**2)

    def config(self) -> dict[str, Any]:
        return {"name": self.name, **asdict(self)}


@dataclass(frozen=True)
class LearnedNoiseRegression(_Regression):
    """Mean and variance from the network: K means, then K raw variances σ² = softplus(raw) + 1e-6.

    >>> LearnedNoiseRegression().mean_and_variance(torch.zeros(3, 2))[1].shape
    torch.Size([3, 1])
    """

    name: ClassVar[str] = "learned-noise-regression"
    outputs_per_target: ClassVar[int] = 2

    def mean_and_variance(self, output: Tensor) -> tuple[Tensor, Tensor]:
        mean, raw = output.chunk(2, dim=-1)
        return mean, F.softplus(raw) + VARIANCE_FLOOR


class Custom(Likelihood):
    """The user's own loss, for one member.

    Args:
        function: `function(output, y)` of a batch's output `[B, ...]` and targets; returns a scalar or one value per
            sample.
        scalar: `scalar(output, y)` → `[B]`, of which methods that compare input gradients take the gradient. Without
            one it is the logit of the true class, as in classification, where y `[B]` holds integers and the output
            is `[B, C]`; elsewhere such a method is refused.
        prediction: what the outputs `[M, B, ...]` mean: `"classification"`, `"raw"`, or a function that makes a
            prediction of them. Without one it is found in training: classification where y `[B]` holds integers and
            the output is `[B, C]`, else raw outputs.

    >>> absolute = Custom(lambda output, y: (output.squeeze(-1) - y).abs())
    >>> float(absolute.loss(torch.ones(4, 1), torch.zeros(4)))
    1.0
    """

    name: ClassVar[str] = "custom"

    def __init__(
        self,
        function: Callable[[Tensor, Tensor], Tensor],
        *,
        scalar: Callable[[Tensor, Tensor], Tensor] | None = None,
        prediction: Literal["classification", "raw"] | Callable[[Tensor], Prediction] | None = None,
    ) -> None:
        if isinstance(prediction, str) and prediction not in ("classification", "raw"):
            raise unknown_name("prediction", prediction, ("classification", "raw"))
        self.guessed = False
        """Whether that outputs are logits was concluded from the labels, and not said."""
        self.function, self._scalar, self._prediction = function, scalar, prediction
        self.has_log_prob = scalar is None  # of classes, as `scalar` then is too

    def loss(self, output: Tensor, y: Tensor) -> Tensor:
        value = self.function(output, y)
        if not isinstance(value, Tensor):
            raise FordeError(
                f"your loss returned a {type(value).__name__}, but a tensor was expected: one value, or one per "
                "sample; compute it from the output with torch, without item() or float()."
            )
        if output.requires_grad and not value.requires_grad:
            raise FordeError(
                "your loss does not depend on the output in a differentiable way, so nothing could be trained; remove "
                "detach(), argmax or rounding from it."
            )
        return value.mean()

    def scalar(self, output: Tensor, y: Tensor) -> Tensor:
        if self._scalar is not None:
            value = self._scalar(output, y)
            if not isinstance(value, Tensor) or value.shape != output.shape[:1]:
                shape = list(value.shape) if isinstance(value, Tensor) else type(value).__name__
                raise FordeError(
                    f"scalar= returned {shape}, but one value per sample, [{len(output)}], was expected; pick or sum "
                    "the outputs of each sample."
                )
            return value
        _refuse_other_than_classes(output, y)
        return Classification().scalar(output, y)

    def log_prob(self, output: Tensor, y: Tensor) -> Tensor:
        _refuse_other_than_classes(output, y)
        return Classification().log_prob(output, y)

    def prediction(self, outputs: Tensor) -> Prediction:
        if callable(self._prediction):
            return self._prediction(outputs)
        classes = self._prediction == "classification" and outputs.ndim == 3 and outputs.shape[-1] > 1
        return ClassificationPrediction(outputs) if classes else RawPrediction(outputs)

    def knowing(self, y: Tensor) -> Custom:
        if self._prediction is not None or not _holds_labels(y):
            return self
        known = self._with_prediction("classification")
        known.guessed = True
        return known

    def restored(self, config: dict[str, Any]) -> Custom:
        """This loss, with the meaning of outputs that was saved with the ensemble where it states none itself."""
        stored = config.get("prediction")
        return self if self._prediction is not None or stored is None else self._with_prediction(stored)

    def _with_prediction(self, prediction: Literal["classification", "raw"]) -> Custom:
        known = copy.copy(self)
        known._prediction = prediction
        return known

    def without_scalar(self, output: Tensor, y: Tensor) -> str | None:
        if self._scalar is not None:
            return None
        if not _are_classes(output, y):
            return _no_scalar(output, y)
        labels = range(output.shape[1])
        return None if all(int(label) in labels for label in y.aminmax()) else _no_scalar(output, y)

    def check_labels(self, output: Tensor, y: Tensor, *, scalar: bool = False) -> None:
        reason = self.without_scalar(output, y) if scalar else None
        if reason is not None:
            raise FordeError(reason)

    def config(self) -> dict[str, Any]:
        stated = self._prediction if isinstance(self._prediction, str) else None
        return {"name": self.name, **({} if stated is None else {"prediction": stated})}


NO_SCALAR = (
    "so forde does not know of which scalar of your own loss to take input gradients; name one value per sample with "
    "forde.likelihoods.Custom(loss, scalar=lambda output, y: ...), or choose 'deep-ensemble' or 'function-rde'."
)


def _no_scalar(output: Tensor, y: Tensor) -> str:
    return f"the output is {list(output.shape)} and the targets are {list(y.shape)} of {y.dtype}, {NO_SCALAR}"


def _refuse_other_than_classes(output: Tensor, y: Tensor) -> None:
    if not _are_classes(output, y):
        raise FordeError(_no_scalar(output, y))


def _are_classes(output: Tensor, y: Tensor) -> bool:
    """Whether there is one output per class and one label per sample."""
    return _holds_labels(y) and output.ndim == 2 and output.shape[1] > 1


def _holds_labels(y: Tensor) -> bool:
    """Whether targets are one integer per sample."""
    return y.ndim == 1 and not (y.is_floating_point() or y.is_complex() or y.dtype == torch.bool)


NAMED: dict[str, type[Likelihood]] = {cls.name: cls for cls in (Classification, Regression, LearnedNoiseRegression)}


def as_likelihood(value: str | Likelihood | Callable[[Tensor, Tensor], Tensor]) -> Likelihood:
    """A likelihood from its name, from a loss function, or as it is.

    >>> as_likelihood("regression")
    Regression(noise=1.0)
    """
    if isinstance(value, Likelihood):
        return value
    if isinstance(value, str):
        if value not in NAMED:
            raise unknown_name("likelihood", value, NAMED)
        return NAMED[value]()
    if not callable(value):
        raise FordeError(
            f"likelihood is {value!r}, but one of {', '.join(sorted(NAMED))}, a Likelihood or a loss function was "
            "expected."
        )
    return Custom(value)


def likelihood_from_config(config: dict[str, Any]) -> Likelihood:
    """Inverse of `Likelihood.config`; an own loss comes back as one that can predict but not train."""
    options = dict(config)
    name = options.pop("name", None)
    if name == Custom.name:
        prediction = options.get("prediction")
        return Custom(_lost_loss, prediction=prediction if prediction in ("classification", "raw") else None)
    if name not in NAMED:
        raise unknown_name("likelihood", name, NAMED)
    try:
        return NAMED[name](**options)
    except TypeError:
        raise FordeError(f"the likelihood settings {options} do not fit '{name}'; the file was altered.") from None


def _lost_loss(output: Tensor, y: Tensor) -> Tensor:
    raise FordeError(
        "this ensemble was trained with its own loss function, which is not stored in files; "
        "pass likelihood=your_function to Ensemble.load before training it further."
    )
