"""What both estimators share."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.base import BaseEstimator
from sklearn.compose import ColumnTransformer
from sklearn.preprocessing import StandardScaler
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_array, check_is_fitted, check_X_y, validate_data
from torch import Tensor, nn

from forde.ensemble import Ensemble
from forde.errors import FordeError
from forde.estimators.columns import (
    Preprocessor,
    as_numbers,
    checked,
    is_frame,
    make_preprocessor,
    origins,
    refuse_text,
    warn_of_new_gaps,
    warn_of_new_values,
)
from forde.estimators.importances import mean_gradients
from forde.estimators.left_out import Calibration, chosen, left_out
from forde.estimators.threads import torch_threads
from forde.estimators.training import Options, Start, train
from forde.likelihoods import Likelihood
from forde.methods import Method
from forde.methods import method as named_method
from forde.models import MLP
from forde.training import History

Array = NDArray[Any]
NetworkFactory = Callable[[int, int], nn.Module]

BATCHES = 5
"""Steps in an epoch of a small table: a step of ten small networks costs about as much for 200 rows as for 30."""
SMALLEST_BATCH, LARGEST_BATCH = 32, 200
MOST_JUDGED = 500
"""Training rows, evenly spaced, that `feature_importances_` is the mean over; it takes a fraction of an epoch."""


class TabularEnsemble(BaseEstimator):
    """What both estimators share: their options, and training and running an ensemble on standardised rows."""

    preprocessor_: Preprocessor | None
    input_scaler_: StandardScaler
    ensemble_: Ensemble
    history_: History
    n_epochs_: int
    calibration_: Calibration | None
    feature_importances_: Array
    _start: Start
    """Where training could go on."""
    _seed: int

    def __init__(
        self,
        n_estimators: int = 10,
        *,
        method: str | Method = "forde-pca",
        method_options: Mapping[str, Any] | None = None,
        hidden: Sequence[int] = (64,),
        batch_norm: bool = False,
        network: NetworkFactory | None = None,
        epochs: int = 40,
        repulsion_every: int = 4,
        batch_size: int | Literal["auto"] = "auto",
        lr: float = 3e-2,
        weight_decay: float = 2e-3,
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
        self.n_estimators = n_estimators
        self.method = method
        self.method_options = method_options
        self.hidden = hidden
        self.batch_norm = batch_norm
        self.network = network
        self.epochs = epochs
        self.repulsion_every = repulsion_every
        self.batch_size = batch_size
        self.lr = lr
        self.weight_decay = weight_decay
        self.device = device
        self.n_jobs = n_jobs
        self.random_state = random_state
        self.calibration = calibration
        self.validation_fraction = validation_fraction
        self.early_stopping = early_stopping
        self.n_iter_no_change = n_iter_no_change
        self.feature_preprocessing = feature_preprocessing
        self.warm_start = warm_start
        self.verbose = verbose

    def _checked_rows(self, X: Any, y: Any, *, reset: bool, **of_targets: Any) -> tuple[Array, Array]:
        """Rows as numbers `[N, D']` and targets, checked; with `reset` the table's columns are learned anew."""
        if reset:
            self.preprocessor_ = None
        fills = checked(self.feature_preprocessing) is not None if reset else self.preprocessor_ is not None
        if fills and is_frame(X):
            X, y = validate_data(self, X, y, skip_check_array=True, reset=reset)
            return check_X_y(self._as_numbers(X, reset=reset), y, dtype=np.float64, ensure_min_samples=2, **of_targets)
        self._refuse_text(X)
        finite = "allow-nan" if fills else True
        X, y = validate_data(
            self, X, y, dtype=np.float64, ensure_min_samples=2, ensure_all_finite=finite, reset=reset, **of_targets
        )
        return (self._as_numbers(X, reset=reset) if fills else X), y

    def _rows(self, X: Any) -> Array:
        """Rows to predict for, as numbers `[N, D']`."""
        if self.preprocessor_ is not None and is_frame(X):
            X = validate_data(self, X, skip_check_array=True, reset=False)
            return check_array(self._as_numbers(X, reset=False))
        self._refuse_text(X)
        finite = True if self.preprocessor_ is None else "allow-nan"
        X = validate_data(self, X, dtype=np.float64, ensure_all_finite=finite, reset=False)
        return X if self.preprocessor_ is None else self._as_numbers(X, reset=False)

    def _refuse_text(self, X: Any) -> None:
        """Stop where there may be text that nothing makes numbers of."""
        if isinstance(self.preprocessor_, ColumnTransformer):
            raise FordeError(
                "the training table was a data frame with columns of text, so its columns are known by their kind; "
                "pass a data frame with the same columns."
            )
        refuse_text(X)

    def _as_numbers(self, X: Any, *, reset: bool) -> Array:
        """Rows as the preprocessor makes them, which is fitted to these with `reset`."""
        if reset:
            self.preprocessor_ = make_preprocessor(X)
        assert self.preprocessor_ is not None
        by_kind = isinstance(self.preprocessor_, ColumnTransformer)
        if not reset:
            warn_of_new_gaps(self.preprocessor_, X)
        X = as_numbers(X) if is_frame(X) and not by_kind else X
        numbers: Array = self.preprocessor_.fit_transform(X) if reset else self.preprocessor_.transform(X)
        if by_kind and not reset:
            warn_of_new_values(self.preprocessor_, X)
        return numbers

    def _train(
        self,
        X: Array,
        y: Array,
        weights: Array | None,
        *,
        likelihood: Likelihood,
        n_outputs: int,
        labels: Array | None = None,
        goes_on: bool = False,
        in_parts: bool = False,
    ) -> Tensor | None:
        """Train on rows `[N, D]` and targets ready for the likelihood, and set what all estimators have afterwards.

        Args:
            goes_on: from where the last training ended.
            in_parts: for one epoch at a constant learning rate, on rows of which more will come.

        Returns:
            The noise scale or temperature that fits rows best which networks have not seen; None without calibration.
        """
        method = self._method()
        if not goes_on:
            self._begin(X)
        calibration = None if in_parts else chosen(self.calibration, len(y), method, needed=self.early_stopping)
        # Where training goes on, networks leave out what they left out before.
        seed = self._seed + (self.n_epochs_ if goes_on and in_parts else 0)
        rows = left_out(
            calibration, len(y), self.n_estimators, share=self.validation_fraction, seed=self._seed, labels=labels
        )
        if weights is not None and len(rows.judged) and not weights[rows.judged].any():
            raise FordeError(
                f"all {len(rows.judged)} rows that are left out have weight 0, so calibration='{calibration}' has "
                "nothing to go by; let it leave out more rows, or use calibration=None."
            )
        if not goes_on:
            self.input_scaler_ = _scaler().fit(X[rows.trained], sample_weight=_part(weights, rows.trained))
        options = Options(
            self.n_estimators,
            method,
            1 if in_parts else self.epochs,
            self._batch_size(len(rows.trained)),
            self.lr,
            seed,
            self.device,
            self.verbose,
            patience=self._patience(calibration, method, in_parts=in_parts),
            falls=not in_parts,
        )
        with torch_threads(self.n_jobs):
            trained = train(
                self.input_scaler_.transform(X),
                y,
                weights,
                make_network=lambda: self._network(X.shape[1], n_outputs),
                likelihood=likelihood,
                rows=rows,
                options=options,
                start=self._start if goes_on else None,
            )
        self._start = trained.start if in_parts else replace(trained.start, moments=None)
        self.ensemble_, self.history_ = trained.ensemble.eval(), trained.history
        self.n_epochs_ = trained.n_epochs + (self.n_epochs_ if goes_on else 0)
        if not in_parts:
            self.calibration_ = calibration
        elif not goes_on:
            self.calibration_ = None
        return None if trained.calibrated is None else trained.calibrated.scale

    def _importances(self, X: Any) -> Array:
        """Mean lengths of the gradients for rows as the user gave them `[N, D]` → `[Q, D]`."""
        check_is_fitted(self)
        return self._mean_gradients(self._rows(X))

    def _mean_gradients(self, X: Array, weights: Array | None = None) -> Array:
        """The same for rows as numbers `[N, D']` that count by their weights `[N]`."""
        columns = origins(self.preprocessor_, self.n_features_in_)
        with torch_threads(self.n_jobs):
            return mean_gradients(
                self.ensemble_, self.input_scaler_.transform(X), self._differentiated, columns, weights
            )

    @abstractmethod
    def _differentiated(self, prediction: Any) -> Tensor:
        """f `[N, Q]` of the core's prediction, in standardised units."""

    def _set_importances(self, X: Array, weights: Array | None) -> None:
        rows = np.arange(len(X)) if weights is None else np.flatnonzero(weights)
        rows = rows[np.linspace(0, len(rows) - 1, min(len(rows), MOST_JUDGED)).astype(int)]
        found = self._mean_gradients(X[rows], _part(weights, rows)).sum(0)
        self.feature_importances_ = found / (found.sum() or 1.0)

    def _begin(self, X: Array) -> None:
        """Refuse what no ensemble can be trained on, and draw the seed."""
        if not np.ptp(X, axis=0).any():
            raise FordeError("every column of X is constant, but at least one that varies was expected; add a feature.")
        self._seed = int(check_random_state(self.random_state).randint(np.iinfo(np.int32).max))

    def _goes_on(self, n_members: int) -> bool:
        """Whether `fit` goes on where the last one ended."""
        if not self.warm_start or not hasattr(self, "ensemble_"):
            return False
        if n_members != self.ensemble_.n_members:
            raise FordeError(
                f"warm_start goes on with the {self.ensemble_.n_members} members that there are, but n_estimators is "
                f"{n_members}; leave it as it was, or use warm_start=False."
            )
        return True

    def _patience(self, calibration: str | None, method: Method, *, in_parts: bool) -> int | None:
        if not self.early_stopping or in_parts:
            return None
        if method.one_network is not None:
            raise FordeError(
                f"early_stopping judges by rows that members have not seen, but {method.name} makes its members of one "
                "network when training is done; use early_stopping=False."
            )
        if calibration is None:
            raise FordeError(
                "early_stopping needs rows that members have not seen, and there are none without calibration; pass "
                "calibration='out-of-fold' or 'holdout', or leave early_stopping out."
            )
        return self.n_iter_no_change

    def _method(self) -> Method:
        if isinstance(self.method, Method):
            if self.method_options:
                raise FordeError(
                    "method_options go with the name of a method, but method is a forde.Method; set them on it instead."
                )
            return self.method
        named = named_method(self.method, **{"weight_decay": self.weight_decay, **(self.method_options or {})})
        return named if named.space is None else replace(named, repulsion_every=self.repulsion_every)

    def _batch_size(self, n_rows: int) -> int:
        """Rows per step: a fifth of them, but at least 32 and at most 200."""
        if self.batch_size != "auto":
            return self.batch_size
        return min(max(-(-n_rows // BATCHES), SMALLEST_BATCH), LARGEST_BATCH)

    def _network(self, n_inputs: int, n_outputs: int) -> nn.Module:
        if self.network is not None:
            return self.network(n_inputs, n_outputs)
        return MLP(n_inputs, self.hidden, n_outputs, batch_norm=self.batch_norm)

    def _outputs(self, X: Any) -> Any:
        """The core's prediction for rows as the user gave them."""
        check_is_fitted(self)
        X = self._rows(X)
        with torch_threads(self.n_jobs):
            return self.ensemble_.predict(self.input_scaler_.transform(X))

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = self.feature_preprocessing == "auto"
        return tags


def _scaler() -> StandardScaler:
    """One whose result is an array, whatever scikit-learn is told to give its users."""
    return StandardScaler().set_output(transform="default")


def _part(weights: Array | None, index: Array) -> Array | None:
    return None if weights is None else weights[index]
