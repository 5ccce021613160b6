"""Classification of rows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from sklearn.base import ClassifierMixin
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import column_or_1d, validate_data

from forde.errors import FordeError
from forde.estimators.base import Array, TabularEnsemble, row_weights
from forde.estimators.calibration import with_temperature
from forde.estimators.uncertainty import Uncertainty
from forde.likelihoods import Classification
from forde.prediction import ClassificationPrediction

if TYPE_CHECKING:
    from typing_extensions import Self


class FordeClassifier(ClassifierMixin, TabularEnsemble):
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
        repulsion_every: let members of a named method repel in every so many steps; in each, a fit takes twice as long.
        batch_size: rows per step; `"auto"` is an eighth of them, but at least 32 and at most 200.
        lr: learning rate at the start.
        weight_decay: precision of the named method's prior on the weights.
        device: where training runs, the CPU by default.
        n_jobs: threads that torch uses in `fit` and predictions: 1 if left out, which is fastest for small networks and
            lets joblib and searches use the other cores; -1 for one on each core.
        random_state: fixes the members' start and the order of the rows; predictions then repeat bit for bit.
        calibration: what is decided on rows that members are not trained on: which epoch's members are kept, and a
            temperature by which logits are divided. `"out-of-fold"`: each member leaves out a fifth of the rows, and
            these are predicted by the members that left them out, so that all rows are used and nothing is trained
            twice. `"holdout"`: all members leave out `validation_fraction` of the rows. None: members are trained on
            all rows for all epochs, and predict as they are. `"auto"`: out of fold for 40 to 10,000 rows, a holdout for
            more, None for fewer, and None for methods that make their members of one network.
        validation_fraction: the share of the rows that a holdout takes.
        verbose: show a progress bar on a terminal.

    Attributes:
        classes_: the labels, sorted `[C]`.
        calibration_: what `"auto"` came to: `"out-of-fold"`, `"holdout"` or None.
        n_epochs_: how many epochs the kept members were trained.
        temperature_: by which logits are divided, 1 without calibration; `ensemble_` itself knows nothing of it.
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

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:
        """Train on rows `[N, D]` (array, nested list or data frame) and labels `[N]` of any kind.

        Args:
            sample_weight: how much each row counts `[N]`, all the same if left out.
        """
        X, y = validate_data(self, X, y, dtype=np.float64, ensure_min_samples=2)
        weights = row_weights(sample_weight, X)
        y = column_or_1d(y, warn=True)
        check_classification_targets(y)
        self.classes_, labels = np.unique(y, return_inverse=True)
        if len(self.classes_) < 2:
            raise FordeError(
                f"all {len(y)} labels are of one class, '{self.classes_[0]}', but at least 2 classes were expected; "
                "add rows of another class."
            )
        temperature = self._train(
            X, labels, weights, likelihood=Classification(), n_outputs=len(self.classes_), labels=labels
        )
        self.temperature_ = 1.0 if temperature is None else float(temperature)
        return self

    def predict_proba(self, X: Any) -> Array:
        """Mean of the members' class probabilities `[N, C]`, columns in the order of `classes_`."""
        return self._predicted(X).probs.numpy()

    def predict_log_proba(self, X: Any) -> Array:
        """Logarithm of `predict_proba` `[N, C]`, finite where probabilities round to 0."""
        return self._predicted(X).log_probs.numpy()

    def predict(self, X: Any) -> Array:
        """Most probable class of each row `[N]`."""
        labels = self._predicted(X).labels.numpy()
        return self.classes_[labels]

    def predict_uncertainty(self, X: Any) -> Uncertainty:
        """Uncertainty of each row `[N]` in nats, split into noise and disagreement."""
        prediction = self._predicted(X)
        return Uncertainty(prediction.total.numpy(), prediction.aleatoric.numpy(), prediction.epistemic.numpy())

    def _predicted(self, X: Any) -> ClassificationPrediction:
        """The prediction at the temperature that was found."""
        return with_temperature(self._outputs(X), self.temperature_)
