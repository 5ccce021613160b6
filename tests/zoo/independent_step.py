"""A training step of an ensemble in plain PyTorch, written from the formulas alone: what every engine must agree with.

M members, batch B, training set N; `sg` stops gradients; med is the true median (mean of the two middle values).
Member i minimises

    L_i = (1/B) Σ_b CE_ib + R_i + (λ/2)‖θ_i‖²

    deep ensemble   R_i = 0
    weight-RDE      R_i = (1/N) ln Σ_j exp(−q_ij/h)     q_ij = ‖θ_i − sg θ_j‖²             h = sg med_ij(q)/ln M
    function-RDE    R_i = (1/B) ln Σ_j exp(−q_ij/h)     q_ij = ‖F_i − sg F_j‖², F = logits of the batch, same h,
                          + (1/B) Σ ln(1 + a F_i²)
    FoRDE           R_i = (1/B) ln Σ_j (1/B) Σ_b exp(−d_ijb/h_jb)
                    J_ib = ∂/∂x_b Σ_b' f(x_b'; θ_i)     f = logit or log-probability of the true class
                    s_ib = J_ib/√(‖J_ib‖² + 1e-24)      d_ijb = (s_ib − sg s_jb)ᵀ S (s_ib − sg s_jb)
                    h_jb = sg med_i(d_ijb)/ln M         S = 1 (identity) or XᵀX/(N−1) (PCA, not centred)

1e-12 is added to every h, so that equal members divide 0 by something. R = 0 for M = 1. A parameter that the loss and
the repulsion do not depend on stays where it is, as with torch's optimizers.

**On a part of the batch** members are compared on its first n = ⌈fB⌉ samples, by a pass of their own from the same
buffers, in which BatchNorm normalises by the mean and variance of the whole batch: functions of θ, but not of x. The
factor stays 1/B, and the average over samples becomes one over n. Buffers move once, with the whole batch.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.modules.batchnorm import _BatchNorm

Named = list[dict[str, Tensor]]
"""Tensors of each member by name."""


@dataclass(frozen=True)
class Recipe:
    """Which of the methods, and its numbers."""

    method: Literal["deep-ensemble", "weight-rde", "function-rde", "forde"]
    output: Literal["logit", "log_prob"] = "logit"
    pca: bool = False
    fraction: float = 1.0
    weight_decay: float = 5e-4
    cauchy: float = 1e-6


class Step(NamedTuple):
    """What a step did."""

    losses: Tensor
    """`[M]`, (1/B) Σ_b CE_ib."""
    moved: Named
    """−(θ after − θ before)/η: the gradient, and whatever else the forward pass did to the parameters."""
    buffers: Named
    """After the step."""


def independent_steps(
    members: Sequence[nn.Module],
    recipe: Recipe,
    batches: Sequence[tuple[Tensor, Tensor]],
    *,
    data_size: int,
    lr: float,
    second_moment: Tensor | None = None,
    prepare: Callable[[int], None] = lambda step: None,
) -> list[Step]:
    """Steps of gradient descent, one on each batch.

    Args:
        members: trained in place, in the mode that each of their modules is in.
        second_moment: S `[D, D]` for PCA.
        prepare: called before each step.
    """
    steps = []
    for number, (x, y) in enumerate(batches):
        prepare(number)
        same_random_numbers(number)
        before = parameters_of(members)
        losses = _gradients(members, recipe, (x, y), data_size, second_moment)
        with torch.no_grad():
            for member in members:
                for parameter in member.parameters():
                    if parameter.grad is not None:
                        parameter.sub_(lr * (parameter.grad + recipe.weight_decay * parameter))
        steps.append(Step(losses, movement(before, parameters_of(members), lr), buffers_of(members)))
    return steps


def same_random_numbers(step: int) -> None:
    """Start torch's, NumPy's and Python's random numbers where every engine starts them in this step."""
    torch.manual_seed(1000 + step)
    random.seed(2000 + step)
    np.random.seed(3000 + step)


def movement(before: Named, after: Named, lr: float) -> Named:
    """−(θ after − θ before)/η of every parameter."""
    return [{name: (old[name] - new[name]) / lr for name in old} for old, new in zip(before, after, strict=True)]


def parameters_of(members: Iterable[nn.Module]) -> Named:
    """Copies, by the names that they have without `torch.compile`."""
    return [_copies(member.named_parameters()) for member in members]


def buffers_of(members: Iterable[nn.Module]) -> Named:
    """Copies, by the names that they have without `torch.compile`."""
    return [_copies(member.named_buffers()) for member in members]


def _copies(tensors: Iterable[tuple[str, Tensor]]) -> dict[str, Tensor]:
    return {name.replace("_orig_mod.", ""): tensor.detach().clone() for name, tensor in tensors}


def _gradients(
    members: Sequence[nn.Module],
    recipe: Recipe,
    batch: tuple[Tensor, Tensor],
    data_size: int,
    second_moment: Tensor | None,
) -> Tensor:
    """Leave ∂(CE_i + R_i)/∂θ_i in `.grad`, and return the losses `[M]`."""
    x, y = batch
    interact = len(members) > 1 and recipe.method != "deep-ensemble"
    objectives, losses, representations = [], [], []
    for member in members:
        loss, prior, z = _member(member, recipe, x, y, interact=interact)
        losses.append(loss.detach())
        objectives.append(loss + prior)
        representations.append(z)
    if interact:
        frozen = [z.detach() for z in representations if z is not None]
        scale = data_size if recipe.method == "weight-rde" else len(y)
        for i, z in enumerate(representations):
            assert z is not None
            objectives[i] = objectives[i] + _log_density(z, i, frozen, recipe, second_moment) / scale
    for member, objective in zip(members, objectives, strict=True):
        trained = [p for p in member.parameters() if p.requires_grad]
        gradients = torch.autograd.grad(objective, trained, allow_unused=True, materialize_grads=False)
        for parameter in member.parameters():
            parameter.grad = None
        for parameter, gradient in zip(trained, gradients, strict=True):
            # A row of an embedding that no token names has a gradient of 0, stored or not.
            parameter.grad = gradient.to_dense() if gradient is not None and gradient.is_sparse else gradient
    return torch.stack(losses)


def _member(
    member: nn.Module, recipe: Recipe, x: Tensor, y: Tensor, *, interact: bool
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Loss, prior on the outputs and representation `[S, D]` of one member, with their graphs."""
    forde = interact and recipe.method == "forde"
    # The network gets a copy: what it does to its input in place is its own business.
    inputs = x.clone().requires_grad_(forde)
    with sdpa_kernel(SDPBackend.MATH):  # fused attention has no second derivative
        if interact and recipe.fraction < 1 and recipe.method != "weight-rde":
            n = math.ceil(recipe.fraction * len(y))
            part, labels = x[:n].clone().requires_grad_(forde), y[:n]
            start = dict(_all_buffers(member))
            with WholeBatchStatistics(member) as statistics, moving(member, start):
                output = _logits(member(inputs.clone()))
            with statistics.replayed(), moving(member, start, keep=False):
                compared = _logits(member(part.clone()))
        else:
            part, labels = inputs, y
            output = compared = _logits(member(inputs.clone()))
    loss = nn.functional.cross_entropy(output, y)
    zero = loss.new_zeros(())
    if not interact:
        prior = _cauchy(output, recipe) if recipe.method == "function-rde" else zero
        return loss, prior, None
    if recipe.method == "weight-rde":
        return loss, zero, torch.cat([p.flatten() for p in member.parameters() if p.requires_grad]).unsqueeze(0)
    if recipe.method == "function-rde":
        return loss, _cauchy(output, recipe), compared.flatten().unsqueeze(0)
    values = compared if recipe.output == "logit" else compared.log_softmax(-1)
    (J,) = torch.autograd.grad(values[torch.arange(len(labels)), labels].sum(), part, create_graph=True)
    J = J.flatten(1)
    return loss, zero, J / (J.square().sum(-1, keepdim=True) + 1e-24).sqrt()


def _logits(output: Any) -> Tensor:
    """A network may put its logits under that name."""
    found: Tensor = output if isinstance(output, Tensor) else output["logits"]
    return found


def _cauchy(output: Tensor, recipe: Recipe) -> Tensor:
    return (1 + recipe.cauchy * output.square()).log().sum() / len(output)


def _log_density(z: Tensor, i: int, frozen: Sequence[Tensor], recipe: Recipe, second_moment: Tensor | None) -> Tensor:
    """ln Σ_j (1/S) Σ_b exp(−d_ijb/h_jb) for `z [S, D]` of member i."""
    M = len(frozen)
    metric = second_moment if recipe.pca else None

    def distance(a: Tensor, b: Tensor) -> Tensor:
        difference = a - b
        return (difference * (difference if metric is None else difference @ metric)).sum(-1)

    with torch.no_grad():
        all_pairs = torch.stack([torch.stack([distance(a, b) for b in frozen]) for a in frozen])  # [M, M, S]
        if recipe.method == "forde":
            h = _median(all_pairs, over=0) / math.log(M) + 1e-12  # [M, S], one for each frozen member and sample
        else:
            h = (_median(all_pairs.flatten(), over=0) / math.log(M) + 1e-12).expand(M, 1)
    kernel = torch.stack([(-distance(z, frozen[j]) / h[j]).exp().mean() for j in range(M)])
    return kernel.sum().log()


def _median(values: Tensor, over: int) -> Tensor:
    n = values.shape[over]
    ordered = values.sort(over).values
    return (ordered.select(over, (n - 1) // 2) + ordered.select(over, n // 2)) / 2


def _all_buffers(member: nn.Module) -> Iterator[tuple[tuple[nn.Module, str], Tensor]]:
    for module in member.modules():
        for name, buffer in module._buffers.items():
            if buffer is not None:
                yield (module, name), buffer.clone()


@contextmanager
def moving(member: nn.Module, start: dict[tuple[nn.Module, str], Tensor], *, keep: bool = True) -> Iterator[None]:
    """Inside, buffers start from copies of `start`; afterwards they are what the pass made of them, or as before."""
    before = {(module, name): module._buffers[name] for module, name in start}
    for (module, name), value in start.items():
        module._buffers[name] = value.clone()
    yield
    if keep:
        return
    for (module, name), value in before.items():
        module._buffers[name] = value


class WholeBatchStatistics:
    """Notes mean and variance of the whole batch at each call of BatchNorm; `replayed` normalises by them again."""

    def __init__(self, member: nn.Module) -> None:
        self.layers = [module for module in member.modules() if isinstance(module, _BatchNorm)]
        self.noted: list[tuple[Tensor, Tensor]] = []

    @contextmanager
    def _hooked(self, hook: object) -> Iterator[None]:
        handles = [layer.register_forward_hook(hook) for layer in self.layers]  # type: ignore[arg-type]
        yield
        for handle in handles:
            handle.remove()

    def __enter__(self) -> WholeBatchStatistics:
        def note(layer: _BatchNorm, given: tuple[Tensor], output: Tensor) -> None:
            if layer.training or layer.running_mean is None:
                axes = [axis for axis in range(given[0].dim()) if axis != 1]
                self.noted.append((given[0].mean(axes), given[0].var(axes, correction=0)))

        self._open = self._hooked(note)
        self._open.__enter__()
        return self

    def __exit__(self, *raised: object) -> None:
        self._open.__exit__(None, None, None)

    def replayed(self) -> object:
        rest = iter(self.noted)

        def normalise(layer: _BatchNorm, given: tuple[Tensor], output: Tensor) -> Tensor | None:
            if not (layer.training or layer.running_mean is None):
                return None
            mean, variance = next(rest)
            shape = [1, -1] + [1] * (given[0].dim() - 2)
            y = (given[0] - mean.view(shape)) / (variance.view(shape) + layer.eps).sqrt()
            return y if layer.weight is None else y * layer.weight.view(shape) + layer.bias.view(shape)

        return self._hooked(normalise)
