"""EmpCov prior on the first layer (Izmailov et al. 2021, https://arxiv.org/abs/2106.11905).

    w ~ N(0, αC + εI) for each first-layer filter w, C the covariance of what the filter sees; other layers isotropic.

In mean-loss units with α = 1/(Nλ) and ε' = ε/α the first layer's weight decay λW becomes

    λ W (C + ε'I)⁻¹

so that filters are free to grow along directions in which the data varies, and held back along the others. For a
convolution C is the covariance of its input patches, in the order of `weight.flatten(1)`: (channel, row, column).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from forde.arguments import Arguments
from forde.errors import FordeError, unknown_name
from forde.priors.base import Prior, TrainingData
from forde.priors.isotropic import Isotropic


@dataclass(frozen=True)
class EmpCov(Prior):
    """Isotropic weight decay on all layers but the first, the data's covariance there.

    Args:
        weight_decay: λ.
        epsilon: ε' as a share of C's mean eigenvalue; too small a value makes SGD diverge (see `max_curvature`).
        layer: name of the first layer; by default the first linear or convolutional one in registration order.
        extra_isotropic: add λW on the first layer too, as the authors' code does.
        normalise: divide C by its mean eigenvalue first.

    >>> EmpCov(weight_decay=1e-3).on_weights
    True
    """

    weight_decay: float = 5e-4
    epsilon: float = 1e-3
    layer: str | None = None
    extra_isotropic: bool = False
    normalise: bool = False
    fitted_layer: str | None = field(default=None, repr=False)
    precision: Tensor | None = field(default=None, repr=False)
    """(C + ε'I)⁻¹ `[K, K]`, once fitted."""
    on_weights = True
    takes_stacks = True

    def __post_init__(self) -> None:
        if not self.weight_decay >= 0 or not self.epsilon >= 0:
            raise FordeError(
                f"weight_decay={self.weight_decay} and epsilon={self.epsilon} were given; both must be 0 or positive."
            )

    def prepare(self, network: nn.Module, data: TrainingData) -> EmpCov:
        if self.precision is not None:
            return self
        name, layer = first_layer(network, self.layer)
        covariance = layer_covariance(layer, data)
        mean_eigenvalue = covariance.trace() / len(covariance)
        if not bool(mean_eigenvalue > 0):
            raise FordeError("all training inputs are equal, so the EmpCov prior has no covariance to follow.")
        if self.normalise:
            covariance, mean_eigenvalue = covariance / mean_eigenvalue, torch.ones_like(mean_eigenvalue)
        ridge = self.epsilon * mean_eigenvalue * torch.eye(len(covariance)).to(covariance)
        return replace(self, fitted_layer=name, precision=torch.linalg.inv(covariance + ridge))

    @property
    def max_curvature(self) -> float:
        """λ/(λ_min(C) + ε'), and λ more with `extra_isotropic`; known once it is fitted."""
        if self.precision is None:
            return self.weight_decay
        of_data = float(torch.linalg.eigvalsh(self.precision)[-1]) + float(self.extra_isotropic)
        return self.weight_decay * max(1.0, of_data)

    def add_gradients(self, parameters: Mapping[str, Tensor]) -> None:
        if self.precision is None:
            raise FordeError("the EmpCov prior is not fitted; train with forde.fit, or call prior.prepare first.")
        first = f"{self.fitted_layer}.weight"
        others = {name: p for name, p in parameters.items() if name != first or self.extra_isotropic}
        Isotropic(self.weight_decay).add_gradients(others)
        weight = parameters.get(first)
        if weight is not None and weight.grad is not None:
            rows = weight.detach().reshape(-1, len(self.precision))
            pull = (rows @ self.precision.to(rows)).reshape(weight.shape)
            weight.grad.add_(pull, alpha=self.weight_decay)


def first_layer(network: nn.Module, name: str | None = None) -> tuple[str, nn.Module]:
    """The named layer, or the first linear or convolutional one.

    >>> first_layer(nn.Sequential(nn.Flatten(), nn.Linear(4, 2)))[0]
    '1'
    """
    modules = dict(network.named_modules())
    if name is not None:
        if name not in modules:
            raise unknown_name("layer", name, modules)
        return name, modules[name]
    for found, module in modules.items():
        if isinstance(module, (nn.Linear, nn.Conv1d, nn.Conv2d)):
            return found, module
    raise FordeError(
        "the EmpCov prior needs a linear or convolutional first layer, but the network has none; use prior='isotropic'."
    )


def layer_covariance(layer: nn.Module, data: TrainingData) -> Tensor:
    """Centred covariance `[K, K]` of a linear layer's inputs or a convolution's patches, in float64."""
    count = 0
    total: Tensor | None = None
    moment: Tensor | None = None
    for batch in data.batches():
        if isinstance(batch, Arguments):
            raise FordeError("the EmpCov prior expects one tensor of inputs, but a batch has several; use 'isotropic'.")
        rows = patches(layer, batch.double())
        sums, products = rows.sum(0), rows.T @ rows
        total = sums if total is None else total + sums
        moment = products if moment is None else moment + products
        count += len(rows)
    assert total is not None and moment is not None
    mean = total / count
    return moment / count - torch.outer(mean, mean)


def patches(layer: nn.Module, x: Tensor) -> Tensor:
    """What one filter of the layer is multiplied with: `[B, ...]` → `[rows, K]`."""
    if isinstance(layer, nn.Linear):
        rows = x.flatten(1) if x[0].numel() == layer.in_features else x
        if rows.shape[-1] != layer.in_features:
            raise FordeError(
                f"the EmpCov prior expects its layer to see the raw input, but the layer takes {layer.in_features} "
                f"values and the input has shape {list(x.shape[1:])}; name the first layer with EmpCov(layer='...')."
            )
        return rows.reshape(-1, layer.in_features)
    if not isinstance(layer, (nn.Conv1d, nn.Conv2d)) or layer.groups != 1 or isinstance(layer.padding, str):
        raise FordeError(
            f"the EmpCov prior supports linear layers and ungrouped 1D and 2D convolutions with numeric padding, "
            f"not {layer}."
        )
    if x.ndim - 2 != len(layer.kernel_size) or x.shape[1] != layer.in_channels:
        raise FordeError(
            f"the EmpCov prior expects its layer to see the raw input, but {layer} does not take inputs of shape "
            f"{list(x.shape[1:])}; name the first layer with EmpCov(layer='...')."
        )
    flat = len(layer.kernel_size) == 1  # a 1D signal is an image of one row

    def sizes(values: tuple[int, ...], row: int) -> tuple[int, ...]:
        return (row, *values) if flat else values

    windows = F.unfold(
        x.unsqueeze(2) if flat else x,
        kernel_size=sizes(layer.kernel_size, 1),
        dilation=sizes(layer.dilation, 1),
        padding=sizes(layer.padding, 0),
        stride=sizes(layer.stride, 1),
    )  # [B, K, windows]
    return windows.transpose(1, 2).reshape(-1, windows.shape[1])
