"""What both estimators share."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.base import BaseEstimator
from sklearn.preprocessing import StandardScaler
from sklearn.utils import check_random_state
from sklearn.utils.validation import _check_sample_weight, check_is_fitted, validate_data
from torch import Tensor, nn

from forde.errors import FordeError
from forde.estimators.left_out import chosen, left_out
from forde.estimators.threads import torch_threads
from forde.estimators.training import Options, train
from forde.likelihoods import Likelihood
from forde.methods import Method
from forde.methods import method as named_method
from forde.models import MLP

Array = NDArray[Any]
NetworkFactory = Callable[[int, int], nn.Module]

BATCHES = 8
"""Steps in an epoch of a small table: a step of ten small networks costs about as much for 200 rows as for 30."""
SMALLEST_BATCH, LARGEST_BATCH = 32, 200


class TabularEnsemble(BaseEstimator):
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
        self.verbose = verbose

    def _train(
        self,
        X: Array,
        y: Array,
        weights: Array | None,
        *,
        likelihood: Likelihood,
        n_outputs: int,
        labels: Array | None = None,
    ) -> Tensor | None:
        """Train on rows `[N, D]` and targets ready for the likelihood, and set what all estimators have afterwards.

        Returns:
            The noise scale or temperature that fits rows best which members have not seen; None without calibration.
        """
        method = self._method()
        if not np.ptp(X, axis=0).any():
            raise FordeError("every column of X is constant, but at least one that varies was expected; add a feature.")
        count = self.n_estimators
        if not isinstance(count, (int, np.integer)) or isinstance(count, bool) or count < 1:
            raise FordeError(f"n_estimators is {count!r}, but a whole number of at least 1 was expected.")
        seed = int(check_random_state(self.random_state).randint(np.iinfo(np.int32).max))
        self.calibration_ = chosen(self.calibration, len(y), method)
        rows = left_out(
            self.calibration_, len(y), self.n_estimators, share=self.validation_fraction, seed=seed, labels=labels
        )
        self.input_scaler_ = StandardScaler().fit(X[rows.trained], sample_weight=_part(weights, rows.trained))
        options = Options(
            self.n_estimators,
            method,
            self.epochs,
            self._batch_size(len(rows.trained)),
            self.lr,
            seed,
            self.device,
            self.verbose,
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
            )
        self.ensemble_, self.history_, self.n_epochs_ = trained.ensemble, trained.history, trained.n_epochs
        return None if trained.calibrated is None else trained.calibrated.scale

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
        """Rows per step: an eighth of them, but at least 32 and at most 200."""
        if self.batch_size != "auto":
            return self.batch_size
        return min(max(-(-n_rows // BATCHES), SMALLEST_BATCH), LARGEST_BATCH)

    def _network(self, n_inputs: int, n_outputs: int) -> nn.Module:
        if self.network is not None:
            return self.network(n_inputs, n_outputs)
        if not isinstance(self.hidden, Iterable):
            raise FordeError(f"hidden is {self.hidden!r}, but a sequence of layer sizes was expected, as in (64, 64).")
        return MLP(n_inputs, self.hidden, n_outputs, batch_norm=self.batch_norm)

    def _outputs(self, X: Any) -> Any:
        """The core's prediction for rows as the user gave them."""
        check_is_fitted(self)
        X = validate_data(self, X, dtype=np.float64, reset=False)
        with torch_threads(self.n_jobs):
            return self.ensemble_.predict(self.input_scaler_.transform(X))


def row_weights(sample_weight: Any, X: Array) -> Array | None:
    """Weights `[N]` that are all right; None where every row counts the same."""
    if sample_weight is None:
        return None
    weights: Array = _check_sample_weight(sample_weight, X, dtype=np.float64, ensure_non_negative=True)
    if not weights.any():
        raise FordeError("every sample_weight is 0, so no row counts; give some rows a positive weight.")
    return weights


def _part(weights: Array | None, index: Array) -> Array | None:
    return None if weights is None else weights[index]
