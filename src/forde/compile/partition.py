"""Cutting a traced step at the exchange: what does not depend on the cotangent V is phase 1, the rest is phase 3.

Between the two lie the tensors that phase 3 reads from phase 1. Which ones these are is a choice between memory and
arithmetic: cheap operations are made again, where a compiler merges them or memory is scarce.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, fx


def split(
    joint: fx.GraphModule, n_told: int, *, cotangent: bool, fused: bool, recompute: bool
) -> tuple[fx.GraphModule, fx.GraphModule | None]:
    nodes = list(joint.graph.nodes)
    placeholders = [node for node in nodes if node.op == "placeholder"]
    (output,) = (node for node in nodes if node.op == "output")
    results = list(output.args[0])
    if not cotangent:
        return _extract(joint, placeholders, results), None
    told, gradients = results[:n_told], results[n_told:]
    *given, seed = placeholders
    late = _following(seed)
    needed = _needed_by(gradients)
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
    kept = _frontier(gradients, set(kept))
    first = _extract(joint, given, [*told, *kept])
    second = _extract(joint, [*given, *kept, seed], gradients)
    return first, second


def _following(node: fx.Node) -> set[fx.Node]:
    """Everything computed from a node, itself included."""
    found, waiting = {node}, [node]
    while waiting:
        for user in waiting.pop().users:
            if user not in found and user.op != "output":
                found.add(user)
                waiting.append(user)
    return found


def _needed_by(nodes: Iterable[fx.Node]) -> set[fx.Node]:
    """Everything that nodes are computed from, themselves included."""
    found, waiting = set(nodes), list(nodes)
    while waiting:
        for source in waiting.pop().all_input_nodes:
            if source not in found:
                found.add(source)
                waiting.append(source)
    return found


def _frontier(results: Iterable[fx.Node], stops: set[fx.Node]) -> list[fx.Node]:
    """The nodes of `stops` at which a walk back from the results stops, in the order of the walk."""
    found: dict[fx.Node, None] = {}
    seen: set[fx.Node] = set()
    waiting = list(results)
    while waiting:
        node = waiting.pop()
        if node in seen:
            continue
        seen.add(node)
        if node in stops:
            found[node] = None
            continue
        waiting.extend(node.all_input_nodes)
    return list(found)


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
    waiting = set(_needed(results, set(inputs)))
    for node in joint.graph.nodes:
        if node in waiting and node not in copies:
            copies[node] = graph.node_copy(node, lambda n: copies[n])
    graph.output(tuple(copies[node] for node in results))
    module = fx.GraphModule(joint, graph)
    module.recompile()
    return module


def _needed(results: Iterable[fx.Node], inputs: set[fx.Node]) -> set[fx.Node]:
    """What has to be computed to get from inputs to results."""
    found: set[fx.Node] = set()
    waiting = list(results)
    while waiting:
        node = waiting.pop()
        if node in found or node in inputs:
            continue
        found.add(node)
        waiting.extend(node.all_input_nodes)
    return found
