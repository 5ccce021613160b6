"""What is believed of a member before any data: isotropic, EmpCov on the first layer, Cauchy on outputs or features."""

from forde.priors.base import Prior, TrainingData
from forde.priors.cauchy import Cauchy
from forde.priors.empcov import EmpCov
from forde.priors.isotropic import Isotropic

__all__ = ["Cauchy", "EmpCov", "Isotropic", "Prior", "TrainingData"]
