"""What a network's output means: the loss it is trained with and the prediction it stands for.

All losses are in *mean-loss units*: the mean over the batch of −log p(y|x, θ), so that a weight decay λ is a
Gaussian prior of precision N·λ and exact Wasserstein repulsion carries the factor 1/N.

A likelihood is written for one member: outputs `[B, ...]`. The runner maps it over stacked members.
"""

from forde.likelihoods.base import Likelihood
from forde.likelihoods.binary import Binary, MultiLabel
from forde.likelihoods.classification import Classification
from forde.likelihoods.custom import Custom
from forde.likelihoods.dense import DenseClassification
from forde.likelihoods.named import NAMED, as_likelihood, likelihood_from_config
from forde.likelihoods.regression import VARIANCE_FLOOR, LearnedNoiseRegression, Regression
from forde.likelihoods.weighted import Weighted

__all__ = [
    "NAMED",
    "VARIANCE_FLOOR",
    "Binary",
    "Classification",
    "Custom",
    "DenseClassification",
    "LearnedNoiseRegression",
    "Likelihood",
    "MultiLabel",
    "Regression",
    "Weighted",
    "as_likelihood",
    "likelihood_from_config",
]
