"""Every private name of torch that the library uses, and what is done without it. No other file names one.

A private name may go or change with any release of torch. Each is looked up when it is first needed, never at import,
and has a fallback. `import forde`, predictions and the plain step work without all of them; where one is missing, a
line in the log says what that costs. All were seen in torch 2.6 and 2.13.
"""

from __future__ import annotations

import importlib
import itertools
import logging
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext
from functools import cache
from operator import attrgetter
from typing import Any, NamedTuple

import torch
from torch import Tensor, fx, nn

log = logging.getLogger(__name__)

_UNSTACKED = "stacked members use torch's own linear layers and ReLU"
_UNMERGED = "traced operations are not merged"
WITHOUT = {
    # Whether the running backward pass uses a node's gradient.
    "torch._C._will_engine_execute_node": "gradients that nobody asked for are computed too",
    # What `torch.vmap` makes of a tensor: whether it is a stack, of what, along which axis, and back.
    "torch._C._functorch.is_batchedtensor": _UNSTACKED,
    "torch._C._functorch.get_unwrapped": _UNSTACKED,
    "torch._C._functorch.maybe_get_bdim": _UNSTACKED,
    "torch._C._functorch.maybe_get_level": _UNSTACKED,
    "torch._C._functorch._add_batch_dim": _UNSTACKED,
    "torch._functorch.pyfunctorch.temporarily_clear_interpreter_stack": _UNSTACKED,
    # One call for a list of tensors.
    "torch._foreach_copy_": "tensors are copied one by one",
    "torch._foreach_add_": "weight decay is added to one gradient after another",
    # The base class of all BatchNorm layers.
    "torch.nn.modules.batchnorm._BatchNorm": "only torch's own BatchNorm layers and their subclasses are known as such",
    # BatchNorm's kernel, which tells a trace that it changes the running statistics.
    "torch.ops.aten._native_batch_norm_legit": "BatchNorm may not be traced",
    # Σ_j w_ij (z_i − z_j)/d_ij in one loop.
    "torch.ops.aten._cdist_backward": "the gradient of distances is computed member by member",
    # A function as a list of operations.
    "torch.fx.experimental.proxy_tensor.make_fx": "steps are not compiled",
    # torch's compiler, for a graph that was traced already, and what it wants as inputs.
    "torch._inductor.compile": _UNMERGED,
    "torch._subclasses.FakeTensorMode": _UNMERGED,
    "torch.fx.experimental.symbolic_shapes.ShapeEnv": _UNMERGED,
    "torch._guards.TracingContext": "what was compiled is not cached between runs",
    "torch._guards.tracing": "what was compiled is not cached between runs",
    # torch 2.6 counts what it finds in its cache, and fails where nothing was set up to count.
    "torch._dynamo.utils.get_metrics_context": "what is in the compiler's cache cannot be used",
    "torch.utils._triton.has_triton": "traced operations are not merged on a GPU",
    # Sees every operation that runs.
    "torch.utils._python_dispatch.TorchDispatchMode": "predictions use no CUDA graph",
}
"""Names, and what follows where torch has them no longer."""


@cache
def _find(path: str) -> Any:
    """What torch has under a name of `WITHOUT`; None, and a line in the log, where it has nothing."""
    try:
        found: Any = torch
        parts = path.split(".")
        for end, name in enumerate(parts[1:], start=2):
            if not hasattr(found, name):
                importlib.import_module(".".join(parts[:end]))
            found = getattr(found, name)
    except (ImportError, AttributeError):
        log.info("torch %s has no %s, so %s", torch.__version__, path, WITHOUT[path])
        return None
    return found


# Derivatives


def wanted(ctx: Any, n: int) -> list[bool]:
    """For the first n arguments of an `autograd.Function`, whether the running backward pass uses their gradients.

    torch's own nodes leave out gradients that the pass does not ask for. Functions written in Python are told only
    whether an argument requires a gradient at all, and so would compute the weights' gradients where
    `autograd.grad(y, x)` wants that of the inputs. All arguments must be tensors, or None at the end. Called from
    inside `backward`, where `ctx` is the node; all that need a gradient where torch does not tell.

    >>> class Product(torch.autograd.Function):
    ...     @staticmethod
    ...     def forward(ctx, a, b):
    ...         return a * b
    ...     @staticmethod
    ...     def backward(ctx, g):
    ...         print(wanted(ctx, 2))
    ...         return g, g
    >>> a, b = torch.ones(2, requires_grad=True)[:, None], torch.ones(2, requires_grad=True)
    >>> torch.autograd.backward(Product.apply(a, b).sum(), inputs=[b])
    [False, True]
    """
    needed, ask = list(ctx.needs_input_grad[:n]), _find("torch._C._will_engine_execute_node")
    if ask is None:
        return needed
    found = list(needed)
    for i in reversed(range(n)):
        # Where nobody wants the others, the node runs for the first one alone.
        if needed[i] and (i or any(found[1:])):
            try:
                found[i] = bool(ask(ctx.next_functions[i][0]))
            except RuntimeError:  # torch does not answer for a leaf whose gradient `grad` returns: that one is wanted
                found[i] = True
    return found


class Stacks(NamedTuple):
    """What `torch.vmap` knows of the tensors that the mapped function sees."""

    is_stack: Callable[[Tensor], bool]
    whole: Callable[[Tensor], Tensor]
    axis: Callable[[Tensor], int]
    level: Callable[[Tensor], int]
    seen_inside: Callable[[Tensor, int, int], Tensor]
    """A whole stack, its axis and its level → what the mapped function sees."""
    outside: Callable[[], Any]
    """A context in which nothing is mapped."""


@cache
def stacks() -> Stacks | None:
    """The functions behind `torch.vmap`; None where one of them is missing."""
    names = ("is_batchedtensor", "get_unwrapped", "maybe_get_bdim", "maybe_get_level", "_add_batch_dim")
    found = [_find(f"torch._C._functorch.{name}") for name in names]
    found.append(_find("torch._functorch.pyfunctorch.temporarily_clear_interpreter_stack"))
    return None if None in found else Stacks(*found)


def batch_norm_in_training(y: Tensor, weight: Tensor | None, bias: Tensor | None, *settings: Any) -> Any:
    """BatchNorm's kernel on `[B, C, ...]`: output, μ and 1/σ `[C]`.

    Args:
        settings: running mean and variance, which are moved, or neither; True; momentum; ε.
    """
    kernel = _find("torch.ops.aten._native_batch_norm_legit")
    if kernel is not None:
        return kernel(y, weight, bias, *settings)
    statistics, others = settings[:-3] or (None, None), settings[-3:]
    return torch.ops.aten.native_batch_norm(y, weight, bias, *statistics, *others)


def weighted_differences(weight: Tensor, places: Tensor) -> Tensor:
    """Σ_j w_ij (z_i − z_j) for w `[S, M, M]` and z `[S, M, D]`, both contiguous.

    >>> weighted_differences(torch.ones(1, 2, 2), torch.tensor([[[1.0], [3.0]]]))
    tensor([[[-2.],
             [ 2.]]])
    """
    kernel = _find("torch.ops.aten._cdist_backward")
    if kernel is not None:  # with 1 where a distance would stand
        found: Tensor = kernel(weight, places, places, 2.0, torch.ones_like(weight))
        return found
    found = torch.zeros_like(places)
    for j in range(places.shape[1]):
        found.addcmul_(weight[:, :, j, None], places - places[:, j, None])
    return found


# Lists of tensors


def copy_each(targets: Sequence[Tensor], sources: Sequence[Tensor]) -> None:
    """target ← source, of one type and device; in one call where torch can."""
    together = _find("torch._foreach_copy_")
    if together is not None:
        together(targets, sources)
        return
    for target, source in zip(targets, sources, strict=True):
        target.copy_(source)


def add_each(targets: Sequence[Tensor], others: Sequence[Tensor], factor: float) -> None:
    """target += factor · other; in one call where torch can."""
    together = _find("torch._foreach_add_")
    if together is not None:
        together(targets, others, alpha=factor)
        return
    for target, other in zip(targets, others, strict=True):
        target.add_(other, alpha=factor)


# Tensors that were written to

_writes: Callable[[Tensor], int] = attrgetter("_version")
_numbers = itertools.count(1)


@cache
def _all_counted() -> bool:
    if hasattr(torch.empty(0), "_version"):
        return True
    log.info("torch %s has no Tensor._version, so inputs are copied for each forward pass", torch.__version__)
    return False


def counts_writes(tensor: Tensor) -> bool:
    """Whether torch counts how often a tensor is written to; not where it was made in `torch.inference_mode`."""
    return _all_counted() and not tensor.is_inference()


def version_of(tensor: Tensor) -> int:
    """Another number than before if a tensor was written to since; always another one where torch does not count.

    >>> x = torch.zeros(2)
    >>> before = version_of(x)
    >>> version_of(x) == before, x.add_(1).sum().item(), version_of(x) == before
    (True, 2.0, False)
    """
    return _writes(tensor) if _all_counted() and not tensor.is_inference() else next(_numbers)


# Layers and their hooks

FORWARD_HOOKS = ("_forward_hooks", "_forward_pre_hooks")
LAYER_HOOKS = (*FORWARD_HOOKS, "_backward_hooks", "_backward_pre_hooks")
TENSOR_HOOKS = ("_backward_hooks", "_post_accumulate_grad_hooks")
LAYER_PARTS = ("_modules", "_parameters")
RECURRENT = frozenset({"_flat_weights", "_flat_weight_refs"})
"""Where recurrent layers list their own parameters once more; without these names they count as settings."""


@cache
def untold() -> str | None:
    """What torch does not tell of layers and parameters, in words; None where it tells all.

    Members are then neither stacked nor compiled nor folded, since hooks would not be called.
    """
    layer, tensor = nn.Module(), torch.empty(0)
    missing = [f"Module.{name}" for name in (*LAYER_HOOKS, *LAYER_PARTS) if not hasattr(layer, name)]
    missing += [f"Tensor.{name}" for name in TENSOR_HOOKS if not hasattr(tensor, name)]
    if not missing:
        return None
    return f"torch {torch.__version__} does not tell which hooks there are (it has no {missing[0]})"


def hooks_of_layer(layer: nn.Module, kinds: Sequence[str] = LAYER_HOOKS) -> list[Mapping[int, Any]]:
    """What is hooked into a layer, as the dictionaries that torch keeps; those that it has (see `untold`)."""
    return [getattr(layer, kind) for kind in kinds if hasattr(layer, kind)]


@cache
def hooks_of_tensors() -> list[Callable[[Tensor], Any]]:
    """Functions that tell what runs when a tensor's gradient is there; those that torch has (see `untold`)."""
    tensor = torch.empty(0)
    return [attrgetter(kind) for kind in TENSOR_HOOKS if hasattr(tensor, kind)]


def layers_in(layer: nn.Module) -> dict[str, nn.Module | None]:
    """The layers right inside of a layer: torch's own dictionary, or a copy where it has none (see `untold`).

    Scripted layers have something else in its place, which is no dictionary in torch 2.6; theirs never change.
    """
    found = getattr(layer, LAYER_PARTS[0], None)
    return found if isinstance(found, dict) else dict(layer.named_children())


def parameters_in(layer: nn.Module) -> dict[str, nn.Parameter | None]:
    """A layer's own parameters: torch's own dictionary, or a copy where it has none."""
    found = getattr(layer, LAYER_PARTS[1], None)
    return found if isinstance(found, dict) else dict(layer.named_parameters(recurse=False))


@cache
def batch_norms() -> tuple[type[Any], ...]:
    """The classes of BatchNorm layers, for `isinstance`."""
    base = _find("torch.nn.modules.batchnorm._BatchNorm")
    return (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm) if base is None else (base,)


def batch_norms_in(network: nn.Module) -> list[str]:
    """Names of the BatchNorm layers.

    >>> batch_norms_in(nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2)))
    ['1']
    """
    return [name for name, module in network.named_modules() if isinstance(module, batch_norms())]


# Tracing and compiling


def traced(function: Callable[..., list[Tensor]], arguments: Iterable[Any]) -> fx.GraphModule:
    """The operations of a function; a RuntimeError where torch cannot write them down."""
    make_fx = _find("torch.fx.experimental.proxy_tensor.make_fx")
    if make_fx is None:
        raise RuntimeError(f"torch {torch.__version__} has no make_fx")
    graph: fx.GraphModule = make_fx(function, tracing_mode="fake", _allow_non_fake_inputs=True)(*arguments)
    return graph


COMPILER = (
    "torch._inductor.compile",
    "torch._subclasses.FakeTensorMode",
    "torch.fx.experimental.symbolic_shapes.ShapeEnv",
)


def has_compiler() -> bool:
    """Whether torch's compiler can be asked for a graph that was traced already."""
    return all(_find(path) is not None for path in COMPILER)


def has_triton() -> bool:
    """Whether the compiler can work for a GPU."""
    ask = _find("torch.utils._triton.has_triton")
    return ask is not None and bool(ask())


def compile_graph(
    graph: fx.GraphModule, given: Sequence[Tensor], options: dict[str, int] | None
) -> Callable[..., Sequence[Tensor]]:
    """A traced graph as a function of tensors of the given shapes, where `has_compiler`."""
    ask, fake_mode, shapes = map(_find, COMPILER)
    context, tracing = _find("torch._guards.TracingContext"), _find("torch._guards.tracing")

    def compile_once() -> Callable[..., Sequence[Tensor]]:
        mode = fake_mode(shape_env=shapes())
        inputs = [mode.from_tensor(tensor.detach(), static_shapes=True) for tensor in given]
        cached = context is not None and tracing is not None
        with tracing(context(mode)) if cached else nullcontext():  # without one, torch caches nothing between runs
            found: Callable[..., Sequence[Tensor]] = ask(graph, inputs, options)
        return found

    try:
        return compile_once()
    except RuntimeError as error:
        if "MetricsContext" not in str(error):
            raise
        counting = _find("torch._dynamo.utils.get_metrics_context")
        if counting is None:
            raise
        with counting():
            return compile_once()


def compiler_was_used() -> bool:
    """Whether `torch.compile` was; False without `torch._dynamo`."""
    return "torch._dynamo" in sys.modules


def dispatch_mode() -> Any:
    """The class of modes that see every operation; None where there is none."""
    return _find("torch.utils._python_dispatch.TorchDispatchMode")


# Optimizers and schedulers

SCHEDULER_POSITION = frozenset({"_step_count", "_last_lr", "_get_lr_called_within_step", "_is_initial"})
"""Where a scheduler stands, in its state; under other names it would count as settings."""


def mark_as_stepped(optimizer: torch.optim.Optimizer) -> None:
    """Keep torch from warning that a scheduler is stepped before its optimizer; without the mark, it warns."""
    optimizer._opt_called = True  # type: ignore[attr-defined]


def schedulers_in(scheduler: Any) -> Sequence[Any]:
    """Those that a scheduler combines (`SequentialLR`, `ChainedScheduler`); none where torch does not tell."""
    found: Sequence[Any] = getattr(scheduler, "_schedulers", ())
    return found
