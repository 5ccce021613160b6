"""Second derivatives of torch's operations that cost no more than the first ones.

FoRDE differentiates through an input gradient, and torch's own second derivatives of convolution, BatchNorm, pooling
and stacked layers take many times what their arithmetic asks for. A `Policy` says which operations get those of this
folder, one file per kind of operation; the numbers stay the same.
"""

from forde.double_backward.policy import Policy
from forde.double_backward.statistics import Part, Whole, still_statistics

__all__ = ["Part", "Policy", "Whole", "still_statistics"]
