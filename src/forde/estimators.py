"""scikit-learn estimators for tables: an ensemble of small perceptrons behind `fit` and `predict`.

Inputs (and regression targets) are standardised with the mean and standard deviation of the training data, and
predictions come back in the original units. Training runs in float32 on `device`; the fitted ensemble is kept on the
CPU in float64, so that a row predicts the same alone as in a batch and a pickle opens on a machine without a GPU.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from numbers import Real
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
from sklearn.preprocessing import StandardScaler
from sklearn.utils import check_random_state
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, column_or_1d, validate_data
from torch import Tensor, nn
from torch.optim.lr_scheduler import LambdaLR

from forde.ensemble import Ensemble
from forde.errors import FordeError
from forde.likelihoods import Classification, LearnedNoiseRegression, Likelihood, Regression
from forde.methods import Method
from forde.methods import method as named_method
from forde.models import MLP
from forde.prediction import RegressionPrediction
from forde.training import Batching, Reporting, fit
from forde.training.schedule import method_factor

if TYPE_CHECKING:
    from typing_extensions import Self

Array = NDArray[Any]
NetworkFactory = Callable[[int, int], nn.Module]

DIAGNOSED_EPOCHS = 10
"""Disagreement of the members is measured about this often: on a small table it costs as much as an epoch."""


class Uncertainty(NamedTuple):
    """How unsure the ensemble is about each row: `total = aleatoric + epistemic`.

    For `FordeClassifier` in nats `[N]`, for `FordeRegressor` as variances in squared target units `[N]` or `[N, K]`.
    """

    total: Array
    """Entropy of the averaged probabilities, or variance of the predictive distribution."""
    aleatoric: Array
    """Noise in the data, which more data would not remove: mean entropy, or mean noise variance, of the members."""
    epistemic: Array
    """Disagreement of the members: mutual information, or variance of their means."""


class _TabularEnsemble(BaseEstimator):
    """What both estimators share: their options, and training and running an ensemble on standardised rows."""

    def __init__(
        self,
        n_estimators: int = 10,
        *,
        method: str | Method = "forde-pca",
        method_options: Mapping[str, Any] | None = None,
        hidden: Sequence[int] = (64,),
        batch_norm: bool = False,
        network: NetworkFactory | None = None,
        epochs: int = 100,
        batch_size: int = 64,
        lr: float = 1e-2,
        weight_decay: float = 2e-3,
        device: str | torch.device | None = None,
        random_state: int | np.random.RandomState | None = None,
        verbose: bool = False,
    ) -> None:
        self.n_estimators = n_estimators
        self.method = method
        self.method_options = method_options
        self.hidden = hidden
        self.batch_norm = batch_norm
        self.network = network
        self.epochs = epochs
        self.batch_size = batch_size
        self.lr = lr
        self.weight_decay = weight_decay
        self.device = device
        self.random_state = random_state
        self.verbose = verbose

    def _train(self, X: Array, y: Array, likelihood: Likelihood, n_outputs: int) -> None:
        """Set `input_scaler_`, `ensemble_` and `history_` from rows `[N, D]` and targets ready for the likelihood."""
        method = self._method()
        if not np.ptp(X, axis=0).any():
            raise FordeError("every column of X is constant, but at least one that varies was expected; add a feature.")
        count = self.n_estimators
        if not isinstance(count, (int, np.integer)) or isinstance(count, bool) or count < 1:
            raise FordeError(f"n_estimators is {count!r}, but a whole number of at least 1 was expected.")
        seed = int(check_random_state(self.random_state).randint(np.iinfo(np.int32).max))
        self.input_scaler_ = StandardScaler().fit(X)
        ensemble = Ensemble(
            lambda: self._network(X.shape[1], n_outputs), self.n_estimators, seed=seed, likelihood=likelihood
        )
        history = fit(
            ensemble,
            method,
            (self.input_scaler_.transform(X), y),
            epochs=self.epochs,
            batch_size=self.batch_size,
            optimizer=self._optimizer,
            scheduler=lambda optimizer: LambdaLR(optimizer, method_factor(method, self.epochs, self.lr)),
            seed=seed,
            device=self.device,
            # Every row of a small table counts, but BatchNorm cannot normalise a batch of one.
            batches=Batching(drop_last=self.batch_size > 1 and len(y) % self.batch_size == 1),
            reporting=Reporting(progress=self.verbose, diagnostics_every=max(1, self.epochs // DIAGNOSED_EPOCHS)),
        )
        self.ensemble_ = ensemble.to(device="cpu", dtype=torch.float64)
        # The method as asked for: its fitted copy holds tensors on the training device.
        self.history_ = replace(history, method=method)

    def _method(self) -> Method:
        if isinstance(self.method, Method):
            if self.method_options:
                raise FordeError(
                    "method_options go with the name of a method, but method is a forde.Method; set them on it instead."
                )
            return self.method
        return named_method(self.method, **{"weight_decay": self.weight_decay, **(self.method_options or {})})

    def _network(self, n_inputs: int, n_outputs: int) -> nn.Module:
        if self.network is not None:
            return self.network(n_inputs, n_outputs)
        if not isinstance(self.hidden, Iterable):
            raise FordeError(f"hidden is {self.hidden!r}, but a sequence of layer sizes was expected, as in (64, 64).")
        return MLP(n_inputs, self.hidden, n_outputs, batch_norm=self.batch_norm)

    def _optimizer(self, parameters: Iterable[Tensor]) -> torch.optim.Optimizer:
        return torch.optim.Adam(parameters, lr=self.lr)

    def _outputs(self, X: Any) -> Any:
        """The core's prediction for rows as the user gave them."""
        check_is_fitted(self)
        X = validate_data(self, X, dtype=np.float64, reset=False)
        return self.ensemble_.predict(self.input_scaler_.transform(X))


class FordeClassifier(ClassifierMixin, _TabularEnsemble):
    """Classify the rows of a table with a repulsive ensemble, and say how sure it is.

    Args:
        n_estimators: number of networks, M.
        method: a name from `forde.methods()`, or a `forde.Method` (which brings its own prior).
        method_options: options of the named method, as `forde.method(name, **options)` takes them.
        hidden: widths of the hidden layers of each perceptron; `()` for a linear model.
        batch_norm: BatchNorm after each hidden layer.
        network: builds another architecture from `(n_inputs, n_outputs)`, in place of `hidden` and `batch_norm`; it has
            to run in float64 too. A function defined in a module can be pickled, a lambda cannot.
        epochs: passes over the data, with Adam at `lr` to half of them, then falling to 1 % of it. Large tables need
            fewer than the default.
        batch_size: rows per step.
        lr: learning rate at the start.
        weight_decay: precision of the named method's prior on the weights.
        device: where training runs, the CPU by default.
        random_state: fixes the members' start and the order of the rows; predictions then repeat bit for bit.
        verbose: show a progress bar on a terminal.

    Attributes:
        classes_: the labels, sorted `[C]`.
        ensemble_: the trained `forde.Ensemble`; it takes standardised rows, `input_scaler_.transform(X)`.
        history_: a `forde.History`, one record per epoch.
        input_scaler_: the fitted `StandardScaler`.
        n_features_in_, feature_names_in_: D, and the columns' names where a data frame was given.

    >>> from sklearn.datasets import load_iris
    >>> X, y = load_iris(return_X_y=True)
    >>> classifier = FordeClassifier(n_estimators=3, random_state=0).fit(X, y)
    >>> classifier.predict_proba(X[:2]).shape, bool(classifier.score(X, y) > 0.9)
    ((2, 3), True)
    >>> classifier.predict_uncertainty(X).epistemic.shape
    (150,)
    """

    def fit(self, X: Any, y: Any) -> Self:
        """Train on rows `[N, D]` (array, nested list or data frame) and labels `[N]` of any kind."""
        X, y = validate_data(self, X, y, dtype=np.float64, ensure_min_samples=2)
        y = column_or_1d(y, warn=True)
        check_classification_targets(y)
        self.classes_, labels = np.unique(y, return_inverse=True)
        if len(self.classes_) < 2:
            raise FordeError(
                f"all {len(y)} labels are of one class, '{self.classes_[0]}', but at least 2 classes were expected; "
                "add rows of another class."
            )
        self._train(X, labels, Classification(), len(self.classes_))
        return self

    def predict_proba(self, X: Any) -> Array:
        """Mean of the members' class probabilities `[N, C]`, columns in the order of `classes_`."""
        return self._outputs(X).probs.numpy()

    def predict_log_proba(self, X: Any) -> Array:
        """Logarithm of `predict_proba` `[N, C]`, finite where probabilities round to 0."""
        return self._outputs(X).log_probs.numpy()

    def predict(self, X: Any) -> Array:
        """Most probable class of each row `[N]`."""
        labels = self._outputs(X).labels.numpy()
        return self.classes_[labels]

    def predict_uncertainty(self, X: Any) -> Uncertainty:
        """Uncertainty of each row `[N]` in nats, split into noise and disagreement."""
        prediction = self._outputs(X)
        return Uncertainty(prediction.total.numpy(), prediction.aleatoric.numpy(), prediction.epistemic.numpy())


class FordeRegressor(RegressorMixin, _TabularEnsemble):
    """Predict one or more numbers for the rows of a table with a repulsive ensemble, and their standard deviations.

    Args and attributes are those of `FordeClassifier`, without `classes_`, and:

    Args:
        noise: `"learned"`: each member predicts a variance for each row and target, the σ² of a Gaussian likelihood;
            or the known standard deviation of the noise, in units of a single target.

    Attributes:
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
        epochs: int = 50,
        batch_size: int = 64,
        lr: float = 1e-2,
        weight_decay: float = 2e-2,
        device: str | torch.device | None = None,
        random_state: int | np.random.RandomState | None = None,
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
            batch_size=batch_size,
            lr=lr,
            weight_decay=weight_decay,
            device=device,
            random_state=random_state,
            verbose=verbose,
        )
        self.noise = noise

    def fit(self, X: Any, y: Any) -> Self:
        """Train on rows `[N, D]` (array, nested list or data frame) and targets `[N]` or `[N, K]`."""
        X, y = validate_data(self, X, y, dtype=np.float64, ensure_min_samples=2, multi_output=True, y_numeric=True)
        y = y.astype(np.float64)
        scaler = StandardScaler().fit(y.reshape(len(y), -1))
        self.target_mean_ = scaler.mean_.reshape(y.shape[1:])
        self.target_scale_ = scaler.scale_.reshape(y.shape[1:])
        likelihood = self._likelihood()
        n_outputs = self.target_mean_.size * likelihood.outputs_per_target
        self._train(X, (y - self.target_mean_) / self.target_scale_, likelihood, n_outputs)
        return self

    def predict(self, X: Any, return_std: bool = False) -> Array | tuple[Array, Array]:
        """Mean of the members' means, shaped as the targets were; and, where asked for, the standard deviation.

        std = √((1/M) Σ_m σ_m² + (1/M) Σ_m (μ_m − μ̄)²): noise and disagreement together, in units of the target.
        """
        prediction = self._in_units(X)
        mean = self._shaped(prediction.mean)
        return (mean, self._shaped(prediction.std)) if return_std else mean

    def predict_uncertainty(self, X: Any) -> Uncertainty:
        """Variances of each row and target, split into noise and disagreement; `total` is the square of the std."""
        prediction = self._in_units(X)
        return Uncertainty(*map(self._shaped, (prediction.total, prediction.aleatoric, prediction.epistemic)))

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
        prediction: RegressionPrediction = self._outputs(X)
        return prediction.rescaled(np.squeeze(self.target_mean_), np.squeeze(self.target_scale_))

    def _shaped(self, values: Tensor) -> Array:
        return values.numpy().reshape(-1, *self.target_mean_.shape)
