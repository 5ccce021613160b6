"""Networks made faster for prediction: BatchNorm folded into the convolution before it.

With running statistics BatchNorm is a scale and a shift per channel, which a convolution's weights can carry. On a GPU
this saves reading and writing each activation once more, which is most of what BatchNorm costs.
"""

from __future__ import annotations

import copy
import logging

import torch
from torch import fx, nn
from torch.nn.utils.fusion import fuse_conv_bn_eval

log = logging.getLogger(__name__)


def folded(network: nn.Module) -> nn.Module:
    """A copy in evaluation mode that computes the same with BatchNorm folded where a convolution feeds only it.

    A network that torch.fx cannot trace (its forward pass depends on values) is returned as it is.

    >>> network = nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.ReLU())
    >>> [type(layer).__name__ for layer in folded(network).children()]
    ['Conv2d', 'ReLU']
    """
    try:
        graph = fx.symbolic_trace(copy.deepcopy(network).eval())
    except Exception as error:  # tracing runs the user's code, which may raise anything
        log.info("BatchNorm stays unfolded: %s cannot be traced (%s).", type(network).__name__, error)
        return network
    layers = dict(graph.named_modules())
    uses = [node.target for node in graph.graph.nodes if node.op == "call_module"]
    for node in list(graph.graph.nodes):
        if node.op != "call_module" or not isinstance(norm := layers[node.target], nn.BatchNorm2d):
            continue
        source = node.args[0]
        if not isinstance(source, fx.Node) or source.op != "call_module" or len(source.users) > 1:
            continue
        conv = layers[source.target]
        once = uses.count(source.target) == uses.count(node.target) == 1
        if not isinstance(conv, nn.Conv2d) or not once or norm.running_mean is None:
            continue
        graph.set_submodule(str(source.target), fuse_conv_bn_eval(conv, norm))
        node.replace_all_uses_with(source)
        graph.graph.erase_node(node)
    graph.delete_all_unused_submodules()
    graph.recompile()
    return graph.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
