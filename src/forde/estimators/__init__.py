"""scikit-learn estimators for tables: an ensemble of small perceptrons behind `fit` and `predict`.

Inputs (and regression targets) are standardised with the mean and standard deviation of the training data, and
predictions come back in the original units. Training runs in float32 on `device`; the fitted ensemble is kept on the
CPU in float64, so that a row predicts the same alone as in a batch and a pickle opens on a machine without a GPU.
"""

from forde.estimators.classifier import FordeClassifier
from forde.estimators.mixture import Mixture
from forde.estimators.regressor import FordeRegressor
from forde.estimators.uncertainty import Uncertainty

__all__ = ["FordeClassifier", "FordeRegressor", "Mixture", "Uncertainty"]
