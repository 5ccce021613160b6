"""Classification of rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
from sklearn.base import ClassifierMixin
from sklearn.utils.class_weight import compute_sample_weight
from torch import Tensor

from forde.errors import FordeError
from forde.estimators.base import Array, NetworkFactory, TabularEnsemble
from forde.estimators.calibration import with_temperature
from forde.estimators.options import check_options
from forde.estimators.targets import as_labels, refuse_missing, row_weights
from forde.estimators.uncertainty import Uncertainty
from forde.likelihoods import Classification
from forde.methods import Method
from forde.prediction import ClassificationPrediction

if TYPE_CHECKING:
    from typing_extensions import Self


class FordeClassifier(ClassifierMixin, TabularEnsemble):
    """Classify the rows of a table with a repulsive ensemble, and say how sure it is.

    Args:
        n_estimators: number of networks, M.
        class_weight: how much rows of each class count, as a dict of labels, or `"balanced"`: all classes together the
            same. It multiplies `sample_weight`.
        method: a name from `forde.methods()`, or a `forde.Method` (which brings its own prior).
        method_options: options of the named method, as `forde.method(name, **options)` takes them.
        hidden: widths of the hidden layers of each perceptron; `()` for a linear model.
        batch_norm: BatchNorm after each hidden layer.
        network: builds another architecture from `(n_inputs, n_outputs)`, in place of `hidden` and `batch_norm`; it has
            to run in float64 too. A function defined in a module can be pickled, a lambda cannot.
        epochs: passes over the data, with Adam at `lr` to half of them, then falling to 1 % of it. Large tables need
            fewer than the default.
        repulsion_every: let members of a named method repel in every so many steps; in each, a fit takes twice as long.
        batch_size: rows per step; `"auto"` is a fifth of them, but at least 32 and at most 200.
        lr: learning rate at the start.
        weight_decay: precision of the named method's prior on the weights.
        device: where training runs, the CPU by default.
        n_jobs: threads that torch uses in `fit` and predictions: 1 if left out, which is fastest for small networks and
            lets joblib and searches use the other cores; -1 for one on each core.
        random_state: fixes the members' start and the order of the rows; predictions then repeat bit for bit.
        calibration: what is decided on rows that networks are not trained on: which epoch's members are kept, and a
            temperature by which logits are divided. `"out-of-fold"`: members are trained on all rows, and beside them
            as many twins (at least ten), of which each leaves out a fifth; the twins that left a row out predict it,
            and stand for the members. Members and twins repel each other alike. `"holdout"`: all members leave out
            `validation_fraction` of the rows. None: members are trained on all rows for all epochs, and predict as they
            are. `"auto"`: out of fold for 40 to 10,000 rows, a holdout for more, None for fewer (with
            `early_stopping`, for fewer than 5), and None for methods that make their members of one network.
        validation_fraction: the share of the rows that a holdout takes.
        early_stopping: end training after `n_iter_no_change` epochs in which rows that networks have not seen were
            predicted no better, and keep the best epoch's members. Without it all epochs are run, and those of the
            latest epoch are kept that was worse than the best by one standard error over the rows at most.
        n_iter_no_change: epochs that `early_stopping` waits.
        feature_preprocessing: `"auto"`: gaps (NaN) in numbers are filled with the column's mean, with a column beside
            that says where they were; columns of a data frame with text or categories become columns of 0 and 1. None:
            such tables are refused.
        warm_start: let `fit` go on with the members that there are, on the same columns, instead of new ones.
        verbose: show a bar on a terminal or in a notebook, and elsewhere log a line for each epoch.

    Attributes:
        classes_: the labels, sorted `[C]`.
        calibration_: what `"auto"` came to: `"out-of-fold"`, `"holdout"` or None.
        n_epochs_: how many epochs the kept members were trained.
        temperature_: by which logits are divided, 1 without calibration; `ensemble_` itself knows nothing of it.
        ensemble_: the trained `forde.Ensemble`; it takes standardised rows,
            `input_scaler_.transform(preprocessor_.transform(X))`.
        history_: a `forde.History`, one record per epoch, of members and twins together.
        feature_importances_: how much predictions depend on each column, from gradients `[D]`, of sum 1; for up to 500
            of the training rows. `feature_importances(X)` has them for each class, for rows of one's own.
        preprocessor_: scikit-learn's transformer that makes numbers of the columns, fitted; None where nobody asked.
        input_scaler_: the fitted `StandardScaler`, of what the preprocessor makes.
        n_features_in_, feature_names_in_: D, and the columns' names where a data frame was given.

    >>> from sklearn.datasets import load_iris
    >>> X, y = load_iris(return_X_y=True)
    >>> classifier = FordeClassifier(n_estimators=3, random_state=0).fit(X, y)
    >>> classifier.predict_proba(X[:2]).shape, bool(classifier.score(X, y) > 0.9)
    ((2, 3), True)
    >>> classifier.predict_uncertainty(X).epistemic.shape
    (150,)
    """

    classes_: Array
    temperature_: float

    def __init__(
        self,
        n_estimators: int = 10,
        *,
        class_weight: Mapping[Any, float] | Literal["balanced"] | None = None,
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
        self.class_weight = class_weight

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:
        """Train on rows `[N, D]` (array, nested list or data frame) and labels `[N]` of any kind.

        Args:
            sample_weight: how much each row counts `[N]`, all the same if left out.
        """
        check_options(self)
        goes_on = self._goes_on(self.n_estimators)
        X, y = self._checked_labels(X, y, reset=not goes_on)
        classes = np.unique(y)
        if goes_on and not np.array_equal(classes, self.classes_):
            raise FordeError("warm_start goes on with the classes that there are, but y has others; use partial_fit.")
        if len(classes) < 2:
            raise FordeError(
                f"all {len(y)} labels are of one class, '{classes[0]}', but at least 2 classes were expected; "
                "add rows of another class."
            )
        self.classes_ = classes
        return self._train_on(X, y, sample_weight, goes_on=goes_on)

    def partial_fit(self, X: Any, y: Any, classes: Any = None, sample_weight: Any = None) -> Self:
        """One epoch on these rows, for tables that come in parts; predictions are calibrated as they were, or not.

        `epochs`, `calibration` and `early_stopping` are for `fit`. Columns are standardised as those of the first part,
        and their text has its values, so that it should be like the others. `class_weight="balanced"` balances each
        part.

        Args:
            classes: all labels that will come, needed in the first call.
            sample_weight: how much each row counts `[N]`, all the same if left out.
        """
        check_options(self)
        goes_on = hasattr(self, "ensemble_")
        if not goes_on and classes is None:
            raise FordeError("the first partial_fit does not say which classes will come; pass classes=np.unique(y).")
        known = self.classes_ if goes_on else np.unique(classes)
        if goes_on and classes is not None and not np.array_equal(np.unique(classes), known):
            raise FordeError(
                f"classes are {_listed(np.unique(classes))}, but training goes on with {_listed(known)}; leave classes "
                "out, or begin with a new estimator."
            )
        X, y = self._checked_labels(X, y, reset=not goes_on)
        unknown = np.setdiff1d(y, known)
        if len(unknown):
            raise FordeError(f"label '{unknown[0]}' is not among the classes of the first partial_fit or fit.")
        self.classes_ = known
        return self._train_on(X, y, sample_weight, goes_on=goes_on, in_parts=True)

    def _checked_labels(self, X: Any, y: Any, *, reset: bool) -> tuple[Array, Array]:
        refuse_missing(y)
        X, y = self._checked_rows(X, y, reset=reset)
        return X, as_labels(y)

    def _train_on(self, X: Array, y: Array, sample_weight: Any, *, goes_on: bool, in_parts: bool = False) -> Self:
        weights = row_weights(sample_weight, len(y))
        if self.class_weight is not None:
            if isinstance(self.class_weight, Mapping):
                _refuse_other_labels(self.class_weight, self.classes_)
            of_classes = compute_sample_weight(self.class_weight, y)
            weights = of_classes if weights is None else weights * of_classes
        labels = np.searchsorted(self.classes_, y)
        found = self._train(
            X,
            labels,
            weights,
            likelihood=Classification(),
            n_outputs=len(self.classes_),
            labels=labels,
            goes_on=goes_on,
            in_parts=in_parts,
        )
        if not (in_parts and goes_on):
            self.temperature_ = 1.0 if found is None else float(found)
        self._set_importances(X, weights)
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

    def feature_importances(self, X: Any) -> Array:
        """How much each class's probability changes with each column, on average over rows `[N, D]`: `[C, D]`.

        I_cd = (1/N) Σ_n |∂p̄_c(x_n) / ∂x̃_d|, with x̃_d column d in units of its standard deviation in training. For a
        column that became several (text, gaps), it is the length of the gradient by these.

        >>> X = np.random.default_rng(0).normal(size=(80, 3))
        >>> classifier = FordeClassifier(n_estimators=3, random_state=0).fit(X, X[:, 1] > 0)
        >>> classifier.feature_importances(X).shape, int(classifier.feature_importances_.argmax())
        ((2, 3), 1)
        """
        return self._importances(X)

    def _differentiated(self, prediction: Any) -> Tensor:
        return with_temperature(prediction, self.temperature_).probs

    def _predicted(self, X: Any) -> ClassificationPrediction:
        """The prediction at the temperature that was found."""
        return with_temperature(self._outputs(X), self.temperature_)


def _refuse_other_labels(class_weight: Mapping[Any, float], classes: Array) -> None:
    """Stop at a label that there is not, where another one has no weight: one is meant and another is written."""
    named, known = set(class_weight), set(classes.tolist())
    if known - named and named - known:
        raise FordeError(
            f"class_weight names '{next(iter(named - known))}', but the labels are {_listed(classes)}; name these."
        )


def _listed(classes: Array) -> str:
    return ", ".join(f"'{label}'" for label in classes)
