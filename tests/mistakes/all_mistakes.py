"""All mistakes that are tried."""

from __future__ import annotations

from mistakes_elsewhere import ELSEWHERE
from mistakes_in_engines import IN_ENGINES
from mistakes_in_experiments import IN_EXPERIMENTS
from mistakes_in_features import IN_FEATURES
from mistakes_in_outputs import IN_OUTPUTS
from mistakes_in_training import IN_TRAINING
from mistakes_named import NAMED
from mistakes_of_one_network import OF_ONE_NETWORK

MISTAKES = (*NAMED, *IN_ENGINES, *IN_TRAINING, *IN_OUTPUTS, *OF_ONE_NETWORK, *IN_EXPERIMENTS, *IN_FEATURES, *ELSEWHERE)
