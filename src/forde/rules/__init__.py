"""What force follows from similarity: Wasserstein gradient descent, SVGD, score estimators, plain penalty."""

from forde.rules.base import Forces, Rule
from forde.rules.penalty import Penalty
from forde.rules.score_estimators import SGE, SSGE
from forde.rules.svgd import SVGD
from forde.rules.wgd import WGD

__all__ = ["SGE", "SSGE", "SVGD", "WGD", "Forces", "Penalty", "Rule"]
