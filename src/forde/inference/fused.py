"""Convolution, the sum with a shortcut and ReLU as one operation of cuDNN's.

A ResNet18 in bfloat16 spends half of its time on an H200 with reading and writing activations between them.
"""

from __future__ import annotations

import copy
import logging
import operator
from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

import torch
from torch import Tensor, fx, nn
from torch.nn import functional as F

log = logging.getLogger(__name__)


class Operators(NamedTuple):
    """relu(conv(x)) and relu(conv(x) + alpha·z), called as torch's operators of these names are."""

    convolution_relu: Callable[..., Tensor]
    convolution_add_relu: Callable[..., Tensor]


CUDNN = Operators(torch.ops.aten.cudnn_convolution_relu, torch.ops.aten.cudnn_convolution_add_relu)


class FusedConvolution(nn.Module):
    """relu(conv(x)) or relu(conv(x) + z): `[B, C, H, W]` → `[B, C', H', W']`.

    Where cuDNN does not support it, or z has another shape and is broadcast, the operations run one by one.
    """

    def __init__(self, convolution: nn.Conv2d, operators: Operators) -> None:
        super().__init__()
        self.convolution = convolution
        self.operators = operators
        self.supported = True

    def forward(self, x: Tensor, z: Tensor | None = None) -> Tensor:
        conv = self.convolution
        x = x.to(conv.weight.dtype)
        if self.supported and x.dim() == 4 and (z is None or self._fits(z, x)):
            geometry = conv.stride, conv.padding, conv.dilation, conv.groups
            try:
                if z is None:
                    return self.operators.convolution_relu(x, conv.weight, conv.bias, *geometry)
                return self.operators.convolution_add_relu(x, conv.weight, z, 1.0, conv.bias, *geometry)
            except torch.OutOfMemoryError:
                raise
            except RuntimeError as error:
                self.supported = False
                _say_once(str(error).partition("\n")[0])
        y = conv(x)
        return F.relu(y if z is None else y + z)

    def _fits(self, z: Tensor, x: Tensor) -> bool:
        """Whether z is of the convolution's output's shape and precision."""
        conv = self.convolution
        padding = [int(p) for p in conv.padding]
        sizes = zip(x.shape[2:], conv.kernel_size, conv.stride, padding, conv.dilation, strict=True)
        spatial = [(n + 2 * p - d * (k - 1) - 1) // s + 1 for n, k, s, p, d in sizes]
        return isinstance(z, Tensor) and z.shape == (len(x), conv.out_channels, *spatial) and z.dtype == x.dtype


@cache
def _say_once(reason: str) -> None:
    log.info("convolution and ReLU stay apart where cuDNN does not fuse them (%s)", reason)


def fused(network: fx.GraphModule, operators: Operators = CUDNN) -> fx.GraphModule:
    """A network that computes the same with convolution → (+ z →) ReLU fused, where nothing else uses what is between.

    Layers are shared with the network, which stays as it is.

    >>> network = fx.symbolic_trace(nn.Sequential(nn.Conv2d(1, 2, 3), nn.ReLU(), nn.Conv2d(2, 2, 3)))
    >>> [type(layer).__name__ for layer in fused(network).children()]
    ['Conv2d', 'FusedConvolution']
    """
    result = fx.GraphModule(network, copy.deepcopy(network.graph))
    layers: dict[str, Any] = dict(result.named_modules())
    for node in list(result.graph.nodes):
        if (found := _fusible(node, layers)) is None:
            continue
        conv, place, z = found
        name = f"{conv.target}_{node.name}"  # the convolution alone may be used elsewhere
        result.add_submodule(name, FusedConvolution(layers[str(conv.target)], operators))
        with result.graph.inserting_before(place):
            new = result.graph.call_module(name, conv.args if z is None else (*conv.args, z))
        node.replace_all_uses_with(new)
        for old in dict.fromkeys((node, place, conv)):
            result.graph.erase_node(old)
    result.delete_all_unused_submodules()
    result.recompile()
    return result


def _fusible(node: fx.Node, layers: dict[str, Any]) -> tuple[fx.Node, fx.Node, fx.Node | None] | None:
    """For a ReLU: the convolution, the node in whose place the fused one goes, and what is added, if anything."""
    if not _is_relu(node, layers) or not isinstance(source := node.args[0], fx.Node) or len(source.users) > 1:
        return None
    if _is_convolution(source, layers):
        return source, source, None
    if not _is_sum(source):
        return None
    first, second = source.args[:2]
    pairs = [(first, second)]
    if source.target is not operator.iadd:  # z += conv(x) also changes z, which others may read
        pairs.append((second, first))
    for conv, z in pairs:
        if not isinstance(conv, fx.Node) or not isinstance(z, fx.Node) or conv is z:
            continue
        if _is_convolution(conv, layers) and not _written_between(conv, source, layers):
            return conv, source, z
    return None


def _is_relu(node: fx.Node, layers: dict[str, Any]) -> bool:
    if len(node.args) < 1:
        return False
    if node.op == "call_module":
        return type(layers.get(str(node.target))) is nn.ReLU
    if node.op == "call_method":
        return node.target == "relu"
    return node.op == "call_function" and (node.target is F.relu or node.target is torch.relu)


def _is_sum(node: fx.Node) -> bool:
    if node.op != "call_function" or len(node.args) != 2:
        return False
    if node.target is torch.add:
        return set(node.kwargs) <= {"alpha"} and bool(node.kwargs.get("alpha", 1) == 1)
    return node.target in (operator.add, operator.iadd)


def _is_convolution(node: fx.Node, layers: dict[str, Any]) -> bool:
    """Whether cuDNN knows this convolution, and only one node uses its result."""
    if node.op != "call_module" or len(node.users) != 1 or len(node.args) != 1 or node.kwargs:
        return False
    layer = layers.get(str(node.target))
    return type(layer) is nn.Conv2d and layer.padding_mode == "zeros" and not isinstance(layer.padding, str)


def _written_between(start: fx.Node, end: fx.Node, layers: dict[str, Any]) -> bool:
    """Whether an operation between the two works in place: what the convolution reads may have changed by then."""
    node = start.next
    while node is not end:
        if _works_in_place(node, layers):
            return True
        node = node.next
    return False


def _works_in_place(node: fx.Node, layers: dict[str, Any]) -> bool:
    if node.op == "call_module":
        layer = layers.get(str(node.target))  # none for those that are fused already
        return layer is not None and any(getattr(module, "inplace", False) for module in layer.modules())
    name = node.target if isinstance(node.target, str) else getattr(node.target, "__name__", "")
    in_place_operator = getattr(operator, f"__{name}__", None) is not None and name.startswith("i")
    in_place_name = name.endswith("_") and not name.endswith("__")
    return bool(node.kwargs.get("inplace") or "out" in node.kwargs or in_place_operator or in_place_name)
