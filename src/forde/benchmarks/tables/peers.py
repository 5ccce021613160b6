"""What is compared: each peer is a function that fits rows and returns a function that predicts others.

Inputs are standardised for all but the trees, and numbers that are predicted too. Everything that a fit needs to know
its own noise is inside the fit, and so in its time.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import redirect_stdout
from dataclasses import dataclass, field
from statistics import NormalDist
from typing import Any

import numpy as np
from numpy.typing import NDArray

from forde.benchmarks.tables.csv_files import package_folder
from forde.benchmarks.tables.data_sets import Task
from forde.benchmarks.tables.scores import LEVEL, Forecast
from forde.errors import unknown_name
from forde.estimators import FordeClassifier, FordeRegressor

Array = NDArray[Any]
Classify = Callable[[Array], Array]
"""Inputs `[N, D]` → probabilities `[N, C]`."""
Predict = Callable[[Array], Forecast]
Options = Mapping[str, Any]

FOLDS = 5
QUANTILE = NormalDist().inv_cdf((1 + LEVEL) / 2)
"""Of the standard normal, at (1 + LEVEL)/2."""
HIDDEN = (64,)
"""The layer of every perceptron: `FordeClassifier`'s default."""


@dataclass(frozen=True)
class Peer:
    """A peer for both tasks; a cell's file is named after its options, so that other options are another cell."""

    name: str
    classify: Callable[[Array, Array, int, Options], Classify]
    predict: Callable[[Array, Array, int, Options], Predict]
    options: Mapping[Task, Options] = field(default_factory=dict)
    most_rows: int | None = None
    """Training rows above which it would take too long."""
    package: str = "sklearn"
    by_default: bool = True


def peers() -> dict[str, Peer]:
    """All of them by name, forde's first.

    >>> list(peers())[0]
    'forde'
    """
    return {each.name: each for each in PEERS}


def peer(name: str) -> Peer:
    """One by name.

    >>> peer("forest").package
    'sklearn'
    """
    known = peers()
    if name not in known:
        raise unknown_name("peer", name, known)
    return known[name]


def installed(each: Peer) -> bool:
    """Whether the package that it is part of is there."""
    return package_folder(each.package) is not None


def one_perceptron(task: Task, x: Array, y: Array, seed: int) -> None:
    """What times are compared with: one perceptron of scikit-learn with 64 hidden units, otherwise its defaults."""
    _perceptron(task, seed, {}).fit(x, y if task == "classification" else (y - y.mean()) / y.std())


def _perceptron(task: Task, seed: int, options: Options) -> Any:
    from sklearn.neural_network import MLPClassifier, MLPRegressor

    kind = MLPClassifier if task == "classification" else MLPRegressor
    return _scaled(kind(hidden_layer_sizes=HIDDEN, random_state=seed, **options))


def _scaled(model: Any) -> Any:
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    return make_pipeline(StandardScaler(), model)


def _scaled_both(model: Any) -> Any:
    from sklearn.compose import TransformedTargetRegressor
    from sklearn.preprocessing import StandardScaler

    return TransformedTargetRegressor(_scaled(model), transformer=StandardScaler())


def _probabilities(model: Any, x: Array, y: Array) -> Classify:
    return model.fit(x, y).predict_proba


def _gaussian(mean: Array, std: Array) -> Forecast:
    return Forecast(mean[None], np.square(std)[None], mean - QUANTILE * std, mean + QUANTILE * std)


def _with_constant_noise(model: Any, residuals: Array) -> Predict:
    """N(prediction, mean squared residual) of a fitted model, whose residuals are of rows that it did not see."""
    std = float(np.sqrt(np.nanmean(np.square(residuals))))

    def predict(x: Array) -> Forecast:
        mean = model.predict(x)
        return _gaussian(mean, np.full_like(mean, std))

    return predict


def _cross_validated(model: Any, x: Array, y: Array) -> Predict:
    """The model fitted to all rows, and to each four fifths for the residuals of the others."""
    from sklearn.model_selection import KFold, cross_val_predict

    folds = KFold(FOLDS, shuffle=True, random_state=0)
    residuals = y - cross_val_predict(model, x, y, cv=folds)
    return _with_constant_noise(model.fit(x, y), residuals)


def _logistic(x: Array, y: Array, seed: int, options: Options) -> Classify:
    from sklearn.linear_model import LogisticRegression

    return _probabilities(_scaled(LogisticRegression(**options)), x, y)


def _ridge(x: Array, y: Array, seed: int, options: Options) -> Predict:
    from sklearn.linear_model import RidgeCV

    return _cross_validated(_scaled(RidgeCV(np.logspace(-2, 3, 16), **options)), x, y)


def _forest_classes(x: Array, y: Array, seed: int, options: Options) -> Classify:
    from sklearn.ensemble import RandomForestClassifier

    return _probabilities(RandomForestClassifier(random_state=seed, **options), x, y)


def _forest_numbers(x: Array, y: Array, seed: int, options: Options) -> Predict:
    """Noise from the rows that a tree's bootstrap left out."""
    from sklearn.ensemble import RandomForestRegressor

    model = RandomForestRegressor(oob_score=True, random_state=seed, **options).fit(x, y)
    return _with_constant_noise(model, y - model.oob_prediction_)


def _boosted_classes(x: Array, y: Array, seed: int, options: Options) -> Classify:
    from sklearn.ensemble import HistGradientBoostingClassifier

    return _probabilities(HistGradientBoostingClassifier(random_state=seed, **options), x, y)


def _boosted_numbers(x: Array, y: Array, seed: int, options: Options) -> Predict:
    from sklearn.ensemble import HistGradientBoostingRegressor

    return _cross_validated(HistGradientBoostingRegressor(random_state=seed, **options), x, y)


def _mlp_classes(x: Array, y: Array, seed: int, options: Options) -> Classify:
    return _probabilities(_perceptron("classification", seed, options), x, y)


def _mlp_numbers(x: Array, y: Array, seed: int, options: Options) -> Predict:
    return _cross_validated(_scaled_both(_perceptron("regression", seed, options)[-1]), x, y)


def _bagged_classes(x: Array, y: Array, seed: int, options: Options) -> Classify:
    from sklearn.ensemble import BaggingClassifier

    rest = {name: value for name, value in options.items() if name != "members"}
    model = BaggingClassifier(_perceptron("classification", seed, rest), options["members"], random_state=seed)
    return _probabilities(model, x, y)


def _bagged_numbers(x: Array, y: Array, seed: int, options: Options) -> Predict:
    """Noise from the rows that a perceptron's bootstrap left out."""
    from sklearn.ensemble import BaggingRegressor

    rest = {name: value for name, value in options.items() if name != "members"}
    one = _scaled_both(_perceptron("regression", seed, rest)[-1])
    model = BaggingRegressor(one, options["members"], random_state=seed, oob_score=True).fit(x, y)
    # A row that every bootstrap drew has no such prediction, and 0 stands there.
    unseen = ~np.all([np.isin(np.arange(len(y)), drawn) for drawn in model.estimators_samples_], axis=0)
    return _with_constant_noise(model, (y - model.oob_prediction_)[unseen])


def _gp_classes(x: Array, y: Array, seed: int, options: Options) -> Classify:
    from sklearn.gaussian_process import GaussianProcessClassifier
    from sklearn.gaussian_process.kernels import RBF, ConstantKernel

    kernel = ConstantKernel(1.0) * RBF(np.sqrt(x.shape[1]))
    return _probabilities(_scaled(GaussianProcessClassifier(kernel, random_state=seed, **options)), x, y)


def _gp_numbers(x: Array, y: Array, seed: int, options: Options) -> Predict:
    """A length for each input and the noise by marginal likelihood: out of sample by its own means."""
    from sklearn.gaussian_process import GaussianProcessRegressor
    from sklearn.gaussian_process.kernels import RBF, ConstantKernel, WhiteKernel

    kernel = ConstantKernel(1.0) * RBF(np.full(x.shape[1], np.sqrt(x.shape[1]))) + WhiteKernel(0.1)
    model = _scaled(GaussianProcessRegressor(kernel, normalize_y=True, random_state=seed, **options)).fit(x, y)
    return lambda new: _gaussian(*model.predict(new, return_std=True))


def _ngboost_classes(x: Array, y: Array, seed: int, options: Options) -> Classify:
    from ngboost import NGBClassifier
    from ngboost.distns import k_categorical

    classes = k_categorical(int(y.max()) + 1)
    with redirect_stdout(None):  # it prints that it stops early
        return _probabilities(NGBClassifier(Dist=classes, random_state=seed, verbose=False, **options), x, y)


def _ngboost_numbers(x: Array, y: Array, seed: int, options: Options) -> Predict:
    from ngboost import NGBRegressor

    with redirect_stdout(None):
        model = NGBRegressor(random_state=seed, verbose=False, **options).fit(x, y)

    def predict(new: Array) -> Forecast:
        found = model.pred_dist(new).params
        return _gaussian(found["loc"], found["scale"])

    return predict


def _forde_classes(x: Array, y: Array, seed: int, options: Options) -> Classify:
    return _probabilities(FordeClassifier(random_state=seed, **options), x, y)


def _forde_numbers(x: Array, y: Array, seed: int, options: Options) -> Predict:
    model = FordeRegressor(random_state=seed, **options).fit(x, y)

    def predict(new: Array) -> Forecast:
        mixture = model.predict_distribution(new)
        return Forecast(mixture.means, mixture.variances, *mixture.interval(LEVEL))

    return predict


def _both(options: Options) -> Mapping[Task, Options]:
    return {"classification": options, "regression": options}


MEMBERS = 10
EPOCHS: Options = {"max_iter": 500}
"""With scikit-learn's 200 its perceptron warns on most of the sets that it has not converged."""
FOREST: Options = {"n_estimators": 200}
STOPPED: Options = {"early_stopping_rounds": 20, "validation_fraction": 0.2}
"""Without rows to judge its variances NGBoost fits them to training residuals: intervals covered 6 % to 70 %."""

PEERS = (
    Peer("forde", _forde_classes, _forde_numbers),
    Peer("forde-uncalibrated", _forde_classes, _forde_numbers, _both({"calibration": None})),
    Peer("forde-deep-ensemble", _forde_classes, _forde_numbers, _both({"method": "deep-ensemble"}), by_default=False),
    Peer("linear", _logistic, _ridge),
    Peer("forest", _forest_classes, _forest_numbers, _both(FOREST)),
    Peer("boosting", _boosted_classes, _boosted_numbers),
    Peer("mlp", _mlp_classes, _mlp_numbers, _both(EPOCHS)),
    Peer("bagged-mlp", _bagged_classes, _bagged_numbers, _both({**EPOCHS, "members": MEMBERS})),
    Peer("gp", _gp_classes, _gp_numbers, most_rows=1000),
    Peer("ngboost", _ngboost_classes, _ngboost_numbers, _both(STOPPED), package="ngboost"),
)
"""Those that train one or several perceptrons have the same layer."""


def all_options(each: Peer, task: Task) -> dict[str, Any]:
    """What tells a peer's cells from those of another setting; of forde's estimators every parameter.

    >>> all_options(peer("mlp"), "regression")
    {'max_iter': 500}
    """
    given = dict(each.options.get(task, {}))
    if each.classify is not _forde_classes:
        return given
    model = (FordeClassifier if task == "classification" else FordeRegressor)(**given)
    left_out = {"random_state", "verbose", "device"}
    return {name: _plain(value) for name, value in model.get_params().items() if name not in left_out}


def _plain(value: Any) -> Any:
    return value if isinstance(value, str | int | float | None) else str(value)
