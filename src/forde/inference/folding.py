"""Networks made faster for prediction: BatchNorm folded into the convolution before it.

With running statistics BatchNorm is a scale and a shift per channel, which a convolution's weights can carry. On a GPU
this saves reading and writing each activation once more, which is most of what BatchNorm costs.
"""

from __future__ import annotations

import copy
import logging
import operator
from collections.abc import Callable
from typing import Any

from torch import fx, nn
from torch.nn.utils.fusion import fuse_conv_bn_weights

from forde.random_state import get_random_state
from forde.torch_private import FORWARD_HOOKS, hooks_of_layer, untold

log = logging.getLogger(__name__)


def folded(network: nn.Module) -> nn.Module:
    """A copy in evaluation mode that computes the same with BatchNorm folded where a convolution feeds only it.

    Tensors that stay the same are shared with the network. One that torch.fx cannot trace (its forward pass depends on
    values), or whose hooks a traced copy would not call, is returned as it is.

    >>> network = nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.ReLU())
    >>> [type(layer).__name__ for layer in folded(network).children()]
    ['Conv2d', 'ReLU']
    """
    if has_hooks(network):
        log.info("BatchNorm stays unfolded: %s has hooks.", type(network).__name__)
        return network
    before = get_random_state()
    try:
        graph = _traced(_sharing_copy(network).eval())
    except Exception as error:  # tracing runs the user's code, which may raise anything
        log.info("BatchNorm stays unfolded: %s cannot be traced (%s).", type(network).__name__, error)
        return network
    if before.difference(get_random_state()):  # what was drawn is a constant of the trace
        log.info("BatchNorm stays unfolded: %s draws random numbers while traced.", type(network).__name__)
        return network
    layers = dict(graph.named_modules())
    uses = [node.target for node in graph.graph.nodes if node.op == "call_module"]
    for node in list(graph.graph.nodes):
        if node.op != "call_module" or type(norm := layers[node.target]) is not nn.BatchNorm2d:
            continue
        source = node.args[0] if node.args else None
        if not isinstance(source, fx.Node) or source.op != "call_module" or len(source.users) > 1:
            continue
        conv = layers[source.target]
        once = uses.count(source.target) == uses.count(node.target) == 1
        # Subclasses may compute something else: parametrised layers, for example, are subclasses.
        if type(conv) is not nn.Conv2d or not once or norm.training or norm.running_mean is None:
            continue
        assert norm.running_var is not None
        conv.weight, conv.bias = fuse_conv_bn_weights(
            conv.weight, conv.bias, norm.running_mean, norm.running_var, norm.eps, norm.weight, norm.bias
        )
        node.replace_all_uses_with(source)
        graph.graph.erase_node(node)
    graph.delete_all_unused_submodules()
    graph.recompile()
    return graph


def has_hooks(network: nn.Module) -> bool:
    """Whether code of the user's runs before or after some layer's forward pass, or torch does not tell.

    >>> network = nn.Sequential(nn.ReLU())
    >>> handle = network[0].register_forward_hook(lambda layer, inputs, output: None)
    >>> has_hooks(network), handle.remove(), has_hooks(network)
    (True, None, False)
    """
    return untold() is not None or any(any(hooks_of_layer(m, FORWARD_HOOKS)) for m in network.modules())


class _Proxy(fx.Proxy):
    """Records `x += y` as it is; torch.fx would record `x + y`, and what shares memory with x would not change."""


def _recorded(name: str) -> Callable[[_Proxy, Any], fx.Proxy]:
    def record(self: _Proxy, other: Any) -> fx.Proxy:
        return self.tracer.create_proxy("call_function", getattr(operator, name), (self, other), {})

    return record


for _name in ("iadd", "isub", "imul", "itruediv", "ifloordiv", "imod", "ipow", "iand", "ior", "ixor"):
    setattr(_Proxy, f"__{_name}__", _recorded(_name))


class _Tracer(fx.Tracer):
    def proxy(self, node: fx.Node) -> fx.Proxy:
        return _Proxy(node, self)


def _traced(network: nn.Module) -> fx.GraphModule:
    return fx.GraphModule(network, _Tracer().trace(network))


def _sharing_copy(network: nn.Module) -> nn.Module:
    """Modules of its own, but the same tensors."""
    tensors = [*network.parameters(), *network.buffers()]
    return copy.deepcopy(network, {id(tensor): tensor for tensor in tensors})
