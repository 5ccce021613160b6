"""forde: repulsive deep ensembles in PyTorch.

import forde
ensemble = forde.Ensemble(make_network, n_members=10, seed=0)
forde.fit(ensemble, forde.method("forde-pca"), (x, y), epochs=50)
prediction = ensemble.predict(x_new)
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from forde import adapters, data, evaluation, kernels, likelihoods, models, priors, rules, spaces
from forde._version import __version__
from forde.ensemble import Ensemble
from forde.errors import FordeError
from forde.methods import Method, method, methods, register
from forde.prediction import (
    ClassificationPrediction,
    DensePrediction,
    MultiLabelPrediction,
    Prediction,
    RegressionPrediction,
)
from forde.training import (
    Augmentation,
    Batching,
    Checkpointing,
    Execution,
    History,
    Optimization,
    Reporting,
    Validation,
    fit,
    load_run,
)

if TYPE_CHECKING:
    from forde.estimators import FordeClassifier, FordeRegressor

__all__ = [
    "Augmentation",
    "Batching",
    "Checkpointing",
    "ClassificationPrediction",
    "DensePrediction",
    "Ensemble",
    "Execution",
    "FordeClassifier",
    "FordeError",
    "FordeRegressor",
    "History",
    "Method",
    "MultiLabelPrediction",
    "Optimization",
    "Prediction",
    "RegressionPrediction",
    "Reporting",
    "Validation",
    "__version__",
    "adapters",
    "data",
    "evaluation",
    "fit",
    "kernels",
    "likelihoods",
    "load_run",
    "method",
    "methods",
    "models",
    "priors",
    "register",
    "rules",
    "spaces",
]


def __getattr__(name: str) -> Any:
    """The estimators need scikit-learn, so they are imported when first asked for."""
    if name in ("FordeClassifier", "FordeRegressor"):
        try:
            from forde import estimators
        except ModuleNotFoundError as error:
            if error.name != "sklearn":
                raise
            raise ImportError(f"forde.{name} needs scikit-learn; run: pip install 'forde[sklearn]'") from None
        return getattr(estimators, name)
    raise AttributeError(f"module 'forde' has no attribute '{name}'")
