"""Second derivatives of torch's operations that cost no more than the first ones.

FoRDE differentiates through an input gradient, and torch's own second derivatives of convolution, BatchNorm, pooling
and stacked layers take many times what their arithmetic asks for. Inside of `TwiceDifferentiable` a network gets these.
"""

from forde.derivatives.cudnn_shapes import ShapesForCudnn
from forde.derivatives.large_convolutions import LargeConvolutions
from forde.derivatives.stacked import Stacked
from forde.derivatives.twice_differentiable import TwiceDifferentiable

__all__ = ["LargeConvolutions", "ShapesForCudnn", "Stacked", "TwiceDifferentiable"]
