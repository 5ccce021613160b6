"""Members in evaluation mode as one function of a batch, in their own precision or in 16 bits."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext

import torch
from torch import Tensor, fx, nn

from forde import stacked_layers
from forde.arguments import Arguments, Input, called, each_tensor
from forde.cuda_graph import side_by_side
from forde.forward import explaining_forward, stacked, tensor_output
from forde.inference.folding import folded, has_hooks
from forde.inference.fused import FusedConvolution, fused
from forde.inference.replaying import Replaying, Streams
from forde.inference.untouched import Untouched

OutputsOf = Callable[[Input], Tensor]


@contextmanager
def running(
    members: Sequence[nn.Module], dtype: torch.dtype | None = None, *, many_small: bool = False
) -> Iterator[OutputsOf]:
    """Yields a batch `[B, ...]` on the members' device → outputs `[M, B, C]` there, in float32 or better.

    The members are in evaluation mode inside. With `torch.bfloat16` or `torch.float16` copies of them run under
    autocast, with BatchNorm folded and weights in 16 bits. On a GPU batches of one shape come out of a CUDA graph, and
    in bfloat16 convolution and ReLU are one operation.

    Args:
        many_small: whether many batches of at most `SMALL_BATCH` samples will come. On a CPU the layers of small
            perceptrons then run for all members at once, which equals one after another but for rounding.

    >>> with running([nn.Linear(4, 3), nn.Linear(4, 3)]) as outputs:
    ...     outputs(torch.zeros(5, 4)).shape
    torch.Size([2, 5, 3])
    """
    modes = [(member, member.training, [(m, m.training) for m in member.modules()]) for member in members]
    modes = [mode for mode in modes if any(training for _, training in mode[2])]
    try:
        for member, _, _ in modes:
            member.eval()
        device = next((p.device for member in members for p in member.parameters()), torch.device("cpu"))
        networks = list(members) if dtype is None else [_fast(member, dtype, device) for member in members]
        stacks = _stacks(networks) if many_small and device.type == "cpu" and dtype is None else None
        hides_nan = any(isinstance(layer, FusedConvolution) for network in networks for layer in network.modules())

        def outputs(x: Input, streams: Streams) -> Tensor:
            # Casts that are kept from one batch to the next would be dead memory to a CUDA graph.
            autocast = torch.autocast(device.type, dtype, cache_enabled=False) if dtype is not None else nullcontext()
            with torch.no_grad(), autocast:
                if stacks is not None:
                    return _at_once(networks, stacks, x)
                rows = stacked(_side_by_side(networks, x, streams))
            rows = rows.float() if rows.dtype in (torch.float16, torch.bfloat16) else rows
            return _with_nan_of(x, rows) if hides_nan else rows

        with Replaying(
            outputs,
            len(networks),
            capture=not any(has_hooks(network) for network in networks),
            try_algorithms=dtype is not None and not _deterministic(),
        ) as run:

            def explained(x: Input) -> Tensor:
                with explaining_forward(x):
                    return run(x if dtype is None else _laid_out(x))

            yield explained
    finally:
        for member, training, inner in modes:
            member.train(training)  # networks may do more here than set a flag
            for module, was_training in inner:
                module.training = was_training
        if dtype is not None:
            networks = []
            gc.collect()  # torch.fx's graphs refer to themselves, and would hold the copies' memory for a while


SMALL_BATCH = 128
"""Samples up to which a small perceptron's time goes into launching operations, and not into arithmetic."""


def _stacks(networks: Sequence[nn.Module]) -> dict[str, Tensor] | None:
    """Copies of all members' parameters by name, `[M, ...]`; None where members have to be run one by one."""
    if len(networks) < 2 or not stacked_layers.can_run(networks):
        return None
    columns = zip(*(network.named_parameters() for network in networks), strict=True)
    return {column[0][0]: torch.stack([parameter.detach() for _, parameter in column]) for column in columns}


def _at_once(networks: Sequence[nn.Module], stacks: dict[str, Tensor], x: Input) -> Tensor:
    """All members' outputs `[M, B, ...]`; for a few samples and many members much faster than one after another."""
    if isinstance(x, Arguments) or x.dim() < 2 or not x.is_floating_point():
        return stacked([tensor_output(called(network, x.clone())) for network in networks])
    return stacked_layers.run(networks[0], stacks, x.expand(len(networks), *x.shape).clone())


def _fast(member: nn.Module, dtype: torch.dtype, device: torch.device) -> nn.Module:
    """A copy for autocast to `dtype`, or the member itself where it cannot be copied."""
    network = folded(member)
    if not isinstance(network, fx.GraphModule):
        return network
    _convert_weights(network, dtype)
    # float16 overflows, and cuDNN's ReLU would turn the resulting NaN into 0.
    may_fuse = device.type == "cuda" and dtype == torch.bfloat16 and torch.backends.cudnn.enabled
    return fused(network) if may_fuse and not _deterministic() and _is_finite(network) else network


def _convert_weights(network: fx.GraphModule, dtype: torch.dtype) -> None:
    """What autocast would cast in each batch is cast once: weights of the copy's own convolutions and linear layers."""
    for node in network.graph.nodes:
        layer = network.get_submodule(str(node.target)) if node.op == "call_module" else None
        # Subclasses may use their weights in other ways.
        if type(layer) not in (nn.Conv2d, nn.Linear) or layer.weight.dtype != torch.float32:  # type: ignore[union-attr]
            continue
        for name, parameter in list(layer.named_parameters(recurse=False)):  # type: ignore[union-attr]
            cast = _channels_last(parameter.detach().to(dtype))
            setattr(layer, name, nn.Parameter(cast, requires_grad=False))


def _laid_out(x: Input) -> Input:
    return _channels_last(x) if isinstance(x, Tensor) else x.map(_channels_last)


def _channels_last(x: Tensor) -> Tensor:
    return x.contiguous(memory_format=torch.channels_last) if x.dim() == 4 else x.contiguous()


def _is_finite(network: nn.Module) -> bool:
    """Whether all weights are; NaN of a failed training must reach the outputs, and cuDNN's ReLU would hide it."""
    tensors = [*network.parameters(), *network.buffers()]
    flat = [tensor.detach().flatten() for tensor in tensors if tensor.is_floating_point()]
    return not flat or bool(torch.cat(flat).isfinite().all())


def _with_nan_of(x: Input, outputs: Tensor) -> Tensor:
    """Outputs `[M, B, ...]` that are NaN for samples whose inputs are not finite."""
    for tensor in each_tensor(x):
        if tensor.is_floating_point() and tensor.dim() > 1 and outputs.shape[1:2] == tensor.shape[:1]:
            nan_or_0 = (0 * tensor).sum(tuple(range(1, tensor.dim())))
            outputs = outputs + nan_or_0.reshape(-1, *[1] * (outputs.dim() - 2))
    return outputs


def _deterministic() -> bool:
    """Whether algorithms must be; those of fused operations, and those chosen by their speed, need not be."""
    return torch.backends.cudnn.deterministic or torch.are_deterministic_algorithms_enabled()


def _side_by_side(networks: Sequence[nn.Module], x: Input, streams: Streams) -> list[Tensor]:
    """Each network's output, queued on the streams in turn, or one after another where there are none."""
    if not streams:
        untouched = Untouched(x)
        return [tensor_output(called(network, untouched.copy())) for network in networks]
    # One that works in place must not write to what another stream reads.
    return [tensor_output(called(networks[index], x.clone())) for index in side_by_side(len(networks), streams)]
