"""Cutting a traced step at the exchange: what does not depend on the cotangent V is phase 1, the rest is phase 3.

Between the two lie the tensors that phase 3 reads from phase 1. Which ones these are is a choice between memory and
arithmetic: cheap operations are made again, where a compiler merges them or memory is scarce.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, fx


def split(
    joint: fx.GraphModule, n_told: int, *, cotangent: bool, fused: bool, recompute: bool
) -> tuple[fx.GraphModule, fx.GraphModule | None]:
    """Phase 1 and phase 3 of a traced step, as functions of flat tensors; without a cotangent all of it is phase 1.

    Args:
        joint: the whole step, whose last input is the cotangent where there is one.
        n_told: how many of its results belong to phase 1; those behind them are gradients.
        fused: a compiler will merge cheap operations, so phase 3 makes these again from what phase 1 writes anyway.
        recompute: keep nothing of phase 1 but random numbers; phase 3 makes the forward pass again.
    """
    nodes = list(joint.graph.nodes)
    placeholders = [node for node in nodes if node.op == "placeholder"]
    (output,) = (node for node in nodes if node.op == "output")
    results = list(output.args[0])
    if not cotangent:
        return _extract(joint, placeholders, results), None
    told, gradients = results[:n_told], results[n_told:]
    *given, seed = placeholders
    late = _reached([seed], _users)
    needed = _reached(gradients, _sources)
    early = [node for node in nodes if node in needed and node not in late]
    if recompute:
        kept = [node for node in early if is_random(node) and not _is_tuple(node)]
        kept += [node for node in early if node.target is operator.getitem and is_random(node.args[0])]
    elif fused:
        memory = {node for node in early if _in_memory(node)}
        kept = [node for node in early if node in memory and node.op == "call_function" and not _is_tuple(node)]
    else:
        kept = [
            node
            for node in early
            if node.op == "call_function" and not _is_tuple(node) and any(user in late for user in node.users)
        ]
        kept += [node for node in early if node in gradients and node.op == "call_function" and node not in kept]
    # Of the candidates, those that phase 3 really reads when everything else is computed anew.
    candidates = set(kept)
    kept = [node for node in _reached(gradients, _sources, candidates) if node in candidates]
    first = _extract(joint, given, [*told, *kept])
    second = _extract(joint, [*given, *kept, seed], gradients)
    return first, second


def _reached(
    nodes: Iterable[fx.Node], onwards: Callable[[fx.Node], Iterable[fx.Node]], stops: Collection[fx.Node] = ()
) -> dict[fx.Node, None]:
    """All nodes on the ways from some, these included, in the order of the walk; it goes on behind none of `stops`."""
    found: dict[fx.Node, None] = {}
    waiting = list(nodes)
    while waiting:
        node = waiting.pop()
        if node not in found:
            found[node] = None
            if node not in stops:
                waiting.extend(onwards(node))
    return found


def _sources(node: fx.Node) -> Iterable[fx.Node]:
    return node.all_input_nodes


def _users(node: fx.Node) -> Iterable[fx.Node]:
    return [user for user in node.users if user.op != "output"]


VIEWS = {
    "view", "_unsafe_view", "reshape", "expand", "permute", "transpose", "t", "unsqueeze", "squeeze", "slice", "select",
    "alias", "detach", "_to_copy", "clone", "lift_fresh_copy", "lift_fresh",
}  # fmt: skip
"""Not marked pointwise, but as cheap. Not `as_strided`: for it the compiler writes its input to memory."""
FILLS = {"full", "zeros", "ones", "empty", "full_like", "zeros_like", "ones_like", "scalar_tensor", "arange", "eye"}

Operation: Any = type(torch.ops.aten.add.Tensor)


def _is_cheap(node: fx.Node) -> bool:
    """Whether a compiler merges the operation into its neighbours instead of writing its result to memory."""
    if node.op != "call_function":
        return node.op == "placeholder"
    if node.target is operator.getitem:
        return False
    if not isinstance(node.target, Operation) or is_random(node):
        return False
    name = _name(node.target)
    return torch.Tag.pointwise in node.target.tags or name in VIEWS or name in FILLS


def _in_memory(node: fx.Node) -> bool:
    """Whether phase 1 writes the node's value to memory anyway: an expensive result, or an expensive one's input."""
    if node.op != "call_function":
        return False
    if not _is_cheap(node) or _is_junction(node):
        return True
    return any(not _is_cheap(user) and not _is_reduction(user) for user in node.users if user.op == "call_function")


LARGE = 1 << 16


def _is_junction(node: fx.Node) -> bool:
    """Whether two large tensors are added (branches of a residual network): one to read later, instead of two."""
    sources = node.all_input_nodes
    if node.target is not torch.ops.aten.add.Tensor or len(sources) != 2:
        return False
    shapes = {tuple(value.shape) for n in (node, *sources) if isinstance(value := n.meta.get("val"), Tensor)}
    return len(shapes) == 1 and math.prod(shapes.pop()) >= LARGE


def _is_reduction(node: fx.Node) -> bool:
    """Whether the compiler merges the operation with the pointwise ones before it."""
    return _name(node.target) in {"sum", "mean", "var_mean", "amax", "amin", "var"}


def is_random(node: fx.Node) -> bool:
    return isinstance(node.target, Operation) and torch.Tag.nondeterministic_seeded in node.target.tags


def _name(target: Any) -> str | None:
    """Of one of torch's own operations, whatever it is given; None for anything else."""
    own = isinstance(target, Operation) and target.namespace == "aten"
    return target.overloadpacket.__name__ if own else None


def _is_tuple(node: fx.Node) -> bool:
    return not isinstance(node.meta.get("val"), Tensor)


def _extract(joint: fx.GraphModule, inputs: Sequence[fx.Node], results: Sequence[fx.Node]) -> fx.GraphModule:
    """The part of a graph that computes `results` from `inputs`, as a function of tensors in that order."""
    graph = fx.Graph()
    copies: dict[fx.Node, fx.Node] = {}
    for node in inputs:
        copies[node] = graph.placeholder(node.name)
        copies[node].meta = dict(node.meta)
    waiting = _reached(results, _sources, set(inputs))
    for node in joint.graph.nodes:
        if node in waiting and node not in copies:
            copies[node] = graph.node_copy(node, lambda n: copies[n])
    graph.output(tuple(copies[node] for node in results))
    module = fx.GraphModule(joint, graph)
    module.recompile()
    return module
