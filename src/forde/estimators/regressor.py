"""Regression of one or more numbers on rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from numbers import Real
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
from sklearn.base import RegressorMixin
from sklearn.preprocessing import StandardScaler
from torch import Tensor

from forde.errors import FordeError
from forde.estimators.base import Array, NetworkFactory, TabularEnsemble
from forde.estimators.calibration import with_noise_scale
from forde.estimators.mixture import Mixture
from forde.estimators.options import check_options
from forde.estimators.targets import refuse_missing, refuse_text_targets, row_weights
from forde.estimators.uncertainty import Uncertainty
from forde.likelihoods import LearnedNoiseRegression, Regression
from forde.methods import Method
from forde.prediction import RegressionPrediction

if TYPE_CHECKING:
    from typing_extensions import Self


class FordeRegressor(RegressorMixin, TabularEnsemble):
    """Predict one or more numbers for the rows of a table with a repulsive ensemble, and their standard deviations.

    Args and attributes are those of `FordeClassifier`, without `class_weight`,
    `classes_` and `temperature_`, and:

    Args:
        noise: `"learned"`: each member predicts a variance for each row and target, the σ² of a Gaussian likelihood;
            or the known standard deviation of the noise, in units of a single target.

    Attributes:
        noise_scale_: by which members' noise variances are multiplied, 1 without calibration `[]` or `[K]`;
            `ensemble_` itself knows nothing of it.
        target_mean_, target_scale_: by which targets were standardised, `[]` or `[K]`.

    >>> X = np.linspace(-1, 1, 80).reshape(-1, 2)
    >>> regressor = FordeRegressor(n_estimators=3, random_state=0).fit(X, 10 + X[:, 0])
    >>> mean, std = regressor.predict(X[:5], return_std=True)
    >>> mean.shape, std.shape, bool(abs(regressor.predict(X).mean() - 10) < 0.1)
    ((5,), (5,), True)
    """

    def __init__(
        self,
        n_estimators: int = 10,
        *,
        method: str | Method = "forde-pca",
        method_options: Mapping[str, Any] | None = None,
        noise: float | Literal["learned"] = "learned",
        hidden: Sequence[int] = (64,),
        batch_norm: bool = False,
        network: NetworkFactory | None = None,
        epochs: int = 40,
        repulsion_every: int = 4,
        batch_size: int | Literal["auto"] = "auto",
        lr: float = 3e-2,
        weight_decay: float = 2e-2,
        device: str | torch.device | None = None,
        n_jobs: int | None = None,
        random_state: int | np.random.RandomState | None = None,
        calibration: Literal["auto", "out-of-fold", "holdout"] | None = "auto",
        validation_fraction: float = 0.1,
        early_stopping: bool = False,
        n_iter_no_change: int = 10,
        feature_preprocessing: Literal["auto"] | None = "auto",
        warm_start: bool = False,
        verbose: bool = False,
    ) -> None:
        super().__init__(
            n_estimators,
            method=method,
            method_options=method_options,
            hidden=hidden,
            batch_norm=batch_norm,
            network=network,
            epochs=epochs,
            repulsion_every=repulsion_every,
            batch_size=batch_size,
            lr=lr,
            weight_decay=weight_decay,
            device=device,
            n_jobs=n_jobs,
            random_state=random_state,
            calibration=calibration,
            validation_fraction=validation_fraction,
            early_stopping=early_stopping,
            n_iter_no_change=n_iter_no_change,
            feature_preprocessing=feature_preprocessing,
            warm_start=warm_start,
            verbose=verbose,
        )
        self.noise = noise

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:
        """Train on rows `[N, D]` (array, nested list or data frame) and targets `[N]` or `[N, K]`.

        Args:
            sample_weight: how much each row counts `[N]`, all the same if left out.
        """
        check_options(self)
        return self._train_on(X, y, sample_weight, goes_on=self._goes_on(self.n_estimators))

    def partial_fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:
        """One epoch on these rows, for tables that come in parts; predictions are calibrated as they were, or not.

        `epochs`, `calibration` and `early_stopping` are for `fit`. Columns and targets are standardised as those of the
        first part, and text has its values, so that it should be like the others.

        Args:
            sample_weight: how much each row counts `[N]`, all the same if left out.
        """
        check_options(self)
        return self._train_on(X, y, sample_weight, goes_on=hasattr(self, "ensemble_"), in_parts=True)

    def _train_on(self, X: Any, y: Any, sample_weight: Any, *, goes_on: bool, in_parts: bool = False) -> Self:
        refuse_missing(y)
        refuse_text_targets(y)
        X, y = self._checked_rows(X, y, reset=not goes_on, multi_output=True, y_numeric=True)
        y, weights = y.astype(np.float64), row_weights(sample_weight, len(y))
        if not goes_on:
            scaler = StandardScaler().fit(y.reshape(len(y), -1), sample_weight=weights)
            self.target_mean_ = scaler.mean_.reshape(y.shape[1:])
            self.target_scale_ = scaler.scale_.reshape(y.shape[1:])
        elif y.shape[1:] != self.target_mean_.shape:
            raise FordeError(
                f"y has shape {list(y.shape)}, but training goes on with targets of shape "
                f"{['N', *self.target_mean_.shape]}; pass as many as before."
            )
        likelihood = self._likelihood()
        found = self._train(
            X,
            (y - self.target_mean_) / self.target_scale_,
            weights,
            likelihood=likelihood,
            n_outputs=self.target_mean_.size * likelihood.outputs_per_target,
            goes_on=goes_on,
            in_parts=in_parts,
        )
        if not (in_parts and goes_on):
            scale = np.ones(self.target_mean_.size) if found is None else found.numpy()
            self.noise_scale_ = scale.reshape(self.target_mean_.shape)
        self._set_importances(X, weights)
        return self

    def predict(self, X: Any, return_std: bool = False) -> Array | tuple[Array, Array]:
        """Mean of the members' means, shaped as the targets were; and, where asked for, the standard deviation.

        std = √((1/M) Σ_m σ_m² + (1/M) Σ_m (μ_m − μ̄)²): noise and disagreement together, in units of the target.
        """
        prediction = self._in_units(X)
        mean = self._shaped(prediction.mean)
        return (mean, self._shaped(prediction.std)) if return_std else mean

    def predict_distribution(self, X: Any) -> Mixture:
        """The mixture that is predicted for each row: its density, distribution function, quantiles and draws.

        `log_density` and `cdf` score it on targets in their own units.
        """
        prediction = self._in_units(X)
        shape = (self.ensemble_.n_members, -1, *self.target_mean_.shape)
        return Mixture(
            prediction.member_means.numpy().reshape(shape), prediction.member_variances.numpy().reshape(shape)
        )

    def predict_interval(self, X: Any, confidence: float = 0.95) -> tuple[Array, Array]:
        """Lower and upper ends, shaped as predictions, between which a target lies with this probability.

        They are the quantiles (1 ∓ confidence)/2 of the mixture, F⁻¹ with F(y) = (1/M) Σ_m Φ((y − μ_m)/σ_m), and not
        mean ± a multiple of the std: where members disagree, it is no Gaussian.

        >>> X = np.linspace(-1, 1, 80).reshape(-1, 2)
        >>> regressor = FordeRegressor(n_estimators=3, random_state=0).fit(X, 10 + X[:, 0])
        >>> low, high = regressor.predict_interval(X, confidence=0.9)
        >>> low.shape, bool((low < high).all())
        ((40,), True)
        """
        return self.predict_distribution(X).interval(confidence)

    def predict_quantiles(self, X: Any, quantiles: float | Sequence[float] = (0.05, 0.5, 0.95)) -> Array:
        """Quantiles of the mixture `[N, Q]` or `[N, K, Q]`; of a single number `[N]` or `[N, K]`.

        They solve F(y) = (1/M) Σ_m Φ((y − μ_m)/σ_m) = q, by bisection.

        >>> X = np.linspace(-1, 1, 80).reshape(-1, 2)
        >>> regressor = FordeRegressor(n_estimators=3, random_state=0).fit(X, 10 + X[:, 0])
        >>> quantiles = regressor.predict_quantiles(X, [0.1, 0.9])
        >>> quantiles.shape, bool((quantiles[:, 0] < quantiles[:, 1]).all())
        ((40, 2), True)
        """
        return self.predict_distribution(X).quantiles(quantiles)

    def sample_y(self, X: Any, n_samples: int = 1, random_state: int | np.random.RandomState | None = 0) -> Array:
        """Targets drawn from the mixture `[N, S]` or `[N, K, S]`; a draw takes one member for all rows."""
        return self.predict_distribution(X).sample(n_samples, random_state)

    def predict_uncertainty(self, X: Any) -> Uncertainty:
        """Variances of each row and target, split into noise and disagreement; `total` is the square of the std."""
        prediction = self._in_units(X)
        return Uncertainty(*map(self._shaped, (prediction.total, prediction.aleatoric, prediction.epistemic)))

    def feature_importances(self, X: Any) -> Array:
        """How much the mean changes with each column, on average over rows `[N, D]`: `[D]` or `[K, D]`.

        I_d = (1/N) Σ_n |∂μ̄(x_n) / ∂x̃_d| in units of the target, with x̃_d column d in units of its standard deviation
        in training. For a column that became several (text, gaps), it is the length of the gradient by these.

        >>> X = np.random.default_rng(0).normal(size=(80, 3))
        >>> regressor = FordeRegressor(n_estimators=3, random_state=0).fit(X, 10 * X[:, 1])
        >>> int(regressor.feature_importances(X).argmax()), regressor.feature_importances_.shape
        (1, (3,))
        """
        of_targets = self._importances(X).reshape(*self.target_mean_.shape, -1)
        return of_targets * self.target_scale_[..., None]

    def _differentiated(self, prediction: Any) -> Tensor:
        mean: Tensor = prediction.mean
        return mean.reshape(len(mean), -1)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = True
        return tags

    def _likelihood(self) -> Regression | LearnedNoiseRegression:
        if self.noise == "learned":
            return LearnedNoiseRegression()
        if not isinstance(self.noise, Real) or not self.noise > 0:
            raise FordeError(f"noise is {self.noise!r}, but 'learned' or a positive standard deviation was expected.")
        if self.target_scale_.size > 1:
            raise FordeError(
                f"noise is {self.noise}, but a fixed noise fits a single target and y has {self.target_scale_.size}; "
                "use noise='learned' or one regressor per target."
            )
        return Regression(noise=float(self.noise / self.target_scale_.item()))

    def _in_units(self, X: Any) -> RegressionPrediction:
        """The prediction in units of the targets; a single target has no axis of its own, whatever shape it came in."""
        prediction = with_noise_scale(self._outputs(X), torch.from_numpy(np.squeeze(self.noise_scale_)))
        return prediction.rescaled(np.squeeze(self.target_mean_), np.squeeze(self.target_scale_))

    def _shaped(self, values: Tensor) -> Array:
        return values.numpy().reshape(-1, *self.target_mean_.shape)
