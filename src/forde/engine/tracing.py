"""One unit's step as two straight lists of tensor operations, with no Python and no autograd left in them.

The unit's forward pass, its input gradient, and the backward pass through both are run once on tensors without data and
written down. What does not depend on the cotangent V of the representation is phase 1, the rest is phase 3. Between the
two lie the tensors that phase 3 reads from phase 1.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx
from torch.func import functionalize

from forde.engine.base import Engine
from forde.engine.exchange import exchange
from forde.kernels.distance import in_one_piece
from forde.methods.base import Method
from forde.torch_private import traced


@dataclass(frozen=True)
class Traced:
    """Two functions of flat tensors, and what their results mean.

    `first(*given)`, given = (parameters, frozen parameters, buffers, metric, x, y), returns losses, z and ∂loss/∂z
    (where there are such), the buffers' new values, and what `second` wants kept. `second(*given, *kept, V)` returns
    the gradients of those parameters that have one: of the objective and, where those are wanted apart, of the
    repulsion. Without repulsion `first` does it all, and the gradients stand where the kept tensors would.
    """

    first: fx.GraphModule
    second: fx.GraphModule | None
    buffer_names: list[str]
    has_loss_gradient: bool
    of_objective: list[str]
    """Parameters that the objective's gradients (or those of both together) belong to."""
    of_repulsion: list[str]
    random: bool
    """Whether the forward pass draws random numbers."""
    alone: bool
    """Whether the unit is one member, whose cotangent V has no axis for members."""
    constants: bool
    """Whether tensors that are neither parameters nor buffers are baked in: these may differ between members."""


@dataclass
class _Results:
    """What the traced function returned besides tensors."""

    has_loss_gradient: bool = False
    alone: bool = False
    of_objective: list[str] | None = None
    of_repulsion: list[str] | None = None


def trace(
    engine: Engine,
    unit: int,
    x: Tensor,
    y: Tensor,
    z: Tensor | None,
    *,
    metric: Tensor | None,
    fused: bool,
    recompute: bool,
) -> Traced:
    """Write down the step of one unit on a batch like `x`, `y`.

    Args:
        z: a tensor like the unit's representation; None where it does not repel.
        metric: matrix `[D, R]` that representations are multiplied with before members are compared. Here each member
            does this for itself, beside the others, and only the result takes part in the exchange.
        fused: a compiler will merge pointwise operations, so phase 3 recomputes them from what phase 1 wrote to memory.
        recompute: keep nothing but random numbers; phase 3 makes the forward pass again.
    """
    parameters = engine.groups[unit]
    frozen, buffers = engine.frozen(unit), engine.buffers(unit)
    names = [*parameters, *frozen, *buffers]
    state = [*parameters.values(), *frozen.values(), *buffers.values()]
    matrices = [] if metric is None else [metric]
    results, repel = _Results(), z is not None

    def joint(state: list[Tensor], matrices: list[Tensor], x: Tensor, y: Tensor, *cotangent: Tensor) -> list[Tensor]:
        tensors = dict(zip(names, state, strict=True))
        with torch.enable_grad():
            leaves = {name: tensors[name].detach().requires_grad_() for name in parameters}
            moving = {name: tensors[name].clone() for name in buffers}
            own = {**tensors, **leaves, **moving}
            graph = engine.differentiable(unit, x, y, repel=repel, tensors=own, linked=linked)
            lead = graph.losses.dim()
            told = [graph.losses.reshape(-1)]
            z = seen_by(matrices[0] if matrices else None, graph.z)
            for tensor in (z, graph.loss_gradient):
                if tensor is not None:
                    told.append(tensor if lead else tensor.unsqueeze(0))
            results.has_loss_gradient, results.alone = graph.loss_gradient is not None, not lead
            roots, seeds = [graph.objective], [torch.ones_like(graph.objective)]
            apart: Sequence[Tensor | None] = [None] * len(leaves)
            if z is not None:
                if engine.mixes_weights:
                    apart = torch.autograd.grad(
                        [z], list(leaves.values()), cotangent, allow_unused=True, retain_graph=True
                    )
                else:
                    roots, seeds = [*roots, z], [*seeds, *cotangent]
            together = torch.autograd.grad(roots, list(leaves.values()), seeds, allow_unused=True)
        results.of_objective = [n for n, g in zip(leaves, together, strict=True) if g is not None]
        results.of_repulsion = [n for n, g in zip(leaves, apart, strict=True) if g is not None]
        gradients = [g for g in [*together, *apart] if g is not None]
        return [t.detach() for t in [*told, *moving.values(), *gradients]]

    linked = True
    with torch.no_grad():
        seen = seen_by(metric, z)
        given = (state, matrices, x, y, *([] if seen is None else [seen]))
        graph = _record(joint, given)
        if repel and engine.repels_apart and any(_is_random(node) for node in graph.graph.nodes):
            linked = False  # the part draws numbers of its own, so its activations are not those of the whole batch
            graph = _record(joint, given)
    n_told = 1 + repel + results.has_loss_gradient + len(buffers)
    first, second = _split(graph, n_told, cotangent=repel, fused=fused, recompute=recompute)
    assert results.of_objective is not None and results.of_repulsion is not None
    return Traced(
        first,
        second,
        list(buffers),
        results.has_loss_gradient,
        results.of_objective,
        results.of_repulsion,
        random=any(_is_random(node) for node in graph.graph.nodes),
        alone=results.alone,
        constants=any(node.op == "get_attr" for node in graph.graph.nodes),
    )


def trace_exchange(method: Method, z: Tensor, loss_gradients: Tensor | None) -> tuple[fx.GraphModule, list[str]]:
    """Phase 2 as a function of z, ∂loss/∂z (where there is one) and the factor; and the names of what it returns."""
    names: list[str] = []

    def forces(z: Tensor, factor: Tensor, *loss_gradients: Tensor) -> list[Tensor]:
        with torch.enable_grad(), in_one_piece():
            found = exchange(method, z, loss_gradients[0] if loss_gradients else None, factor)
        told = {n: t for n in ("cotangent", "energy", "mixing", "bandwidth") if (t := getattr(found, n)) is not None}
        names[:] = list(told)
        return [tensor.detach() for tensor in told.values()]

    factor = torch.ones((), dtype=torch.float64, device=z.device)
    with torch.no_grad():
        graph = _record(forces, (z, factor, *(() if loss_gradients is None else (loss_gradients,))))
    return graph, names


def seen_by(metric: Tensor | None, z: Tensor | None) -> Tensor | None:
    """z under the metric, member by member as `kernels/metric.py` does it: equal members stay equal to the last bit."""
    if z is None or metric is None:
        return z
    return z @ metric if z.dim() == 2 else torch.stack([member @ metric for member in z])


def _record(function: Callable[..., list[Tensor]], arguments: tuple[Any, ...]) -> fx.GraphModule:
    """The operations of a function, mutations removed."""
    # In one thread autograd's order depends on the function alone, and so does what compilers find in their caches.
    with torch.autograd.set_multithreading_enabled(False):
        once = traced(function, arguments)
    # A second pass over plain operations: autograd and functionalisation do not nest.
    graph = traced(functionalize(once, remove="mutations"), arguments)
    graph.graph.eliminate_dead_code()
    graph.recompile()
    return graph


def _split(
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
        kept = [node for node in early if _is_random(node) and not _is_tuple(node)]
        kept += [node for node in early if node.target is operator.getitem and _is_random(node.args[0])]
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
    if not isinstance(node.target, Operation) or _is_random(node):
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


def _is_random(node: fx.Node) -> bool:
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
