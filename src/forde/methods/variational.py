"""The variational term of node-BNN: how far the mixture of latents is from its prior, and how spread out it is.

For each layer, q = (1/K) Σ_k N(μ_k, s_k²) with s = softplus(rho), and the prior p = N(1, σ²) of every node:

    CE   = mean_k Σ [ ½ ln 2πσ² + ((μ_k − 1)² + s_k²) / 2σ² ]                            cross-entropy
    H    = mean_k Σ ½ ln 2πe s_k² − mean_i ln (1/K) Σ_j exp(−BD_ij)                      bound below of the entropy
    BD_ij = a Σ (μ_i − μ_j)²/(s_i² + s_j²) + ½ Σ ln((s_i² + s_j²)/2) − ½ Σ (ln s_i + ln s_j)
    KL   = CE − H,      term = β (KL − γH)/N = β (CE − (1 + γ) H)/N                      summed over layers

With a = ¼, BD is the Bhattacharyya distance and the bound the tighter one; the published code has 1/16. Gradients are
written out, so that a CUDA graph can hold them; with w_ij = softmax_j(−BD_ij), u_ij = w_ij + w_ji, v_ij = s_i² + s_j²:

    ∂H/∂μ_i = (1/K) Σ_j u_ij 2a (μ_i − μ_j)/v_ij
    ∂H/∂s_i = (1/K) { 1/s_i + Σ_j u_ij [ s_i/v_ij − 2a s_i (μ_i − μ_j)²/v_ij² − 1/(2 s_i) ] }
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from forde.priors import Prior

PUBLISHED, BHATTACHARYYA = 1 / 16, 1 / 4


@dataclass(frozen=True)
class Mixture:
    """Means and standard deviations `[K, nodes]` of all layers beside each other; `sizes` are the layers' nodes."""

    mean: Tensor
    std: Tensor
    sizes: tuple[int, ...]
    share: float = PUBLISHED
    """a."""

    def entropy(self) -> Tensor:
        """H of all layers together: `[]`.

        >>> alone = Mixture(torch.zeros(1, 1), torch.ones(1, 1), (1,))
        >>> round(float(alone.entropy()), 4)  # ½ ln 2πe
        1.4189
        """
        gaussian = 0.5 * math.log(2 * math.pi * math.e) * self.mean.shape[1] + self.std.log().sum(1).mean()
        overlap = self._distances().neg().logsumexp(1) - math.log(len(self.mean))  # [K, layers]
        return gaussian - overlap.mean(0).sum()

    def cross_entropy(self, prior_std: float) -> Tensor:
        """CE of all layers together: `[]`."""
        square = (self.mean - 1).square() + self.std.square()
        return (square / (2 * prior_std**2) + 0.5 * math.log(2 * math.pi * prior_std**2)).sum(1).mean()

    def gradients(self, prior_std: float, gamma: float) -> tuple[Tensor, Tensor]:
        """Of CE − (1 + γ) H with respect to means and standard deviations: `[K, nodes]` each."""
        K, s = len(self.mean), self.std
        difference, v = self._pairs()
        w = (-self._distances()).softmax(1)
        u = self._by_node(w + w.transpose(0, 1))  # [K, K, nodes]
        pull = 2 * self.share * difference / v
        of_mean = (u * pull).sum(1)
        of_std = 1 / s + (u * (s.unsqueeze(1) / v * (1 - pull * difference) - 0.5 / s.unsqueeze(1))).sum(1)
        return (
            ((self.mean - 1) / prior_std**2 - (1 + gamma) * of_mean) / K,
            (s / prior_std**2 - (1 + gamma) * of_std) / K,
        )

    def _pairs(self) -> tuple[Tensor, Tensor]:
        """μ_i − μ_j and s_i² + s_j², `[K, K, nodes]`."""
        square = self.std.square()
        return self.mean.unsqueeze(1) - self.mean, square.unsqueeze(1) + square

    def _distances(self) -> Tensor:
        """BD `[K, K, layers]`."""
        difference, v = self._pairs()
        log_std = self.std.log()
        each = self.share * difference.square() / v + 0.5 * ((v / 2).log() - log_std.unsqueeze(1) - log_std)
        return torch.stack([layer.sum(-1) for layer in each.split(self.sizes, -1)], -1)

    def _by_node(self, values: Tensor) -> Tensor:
        """Values of each layer `[K, K, layers]` for each of its nodes."""
        parts = zip(values.unbind(-1), self.sizes, strict=True)
        return torch.cat([value.unsqueeze(-1).expand(-1, -1, size) for value, size in parts], -1)


@dataclass(frozen=True)
class Variational(Prior):
    """Adds the gradient of β (CE − (1 + γ) H)/N to that of the latents.

    Args:
        places: names of mean and rho for each layer's latents.
        prior_std: σ.
        gamma: γ.
        strength: β/N as a tensor `[]`, which may change between steps of a CUDA graph.
        share: a.
    """

    places: Sequence[tuple[str, str]]
    prior_std: float
    gamma: float
    strength: Tensor
    share: float = PUBLISHED
    on_weights = True

    def mixture(self, parameters: Mapping[str, Tensor]) -> Mixture:
        """What the latents describe."""
        means, rhos = ([parameters[names[i]].detach() for names in self.places] for i in (0, 1))
        sizes = tuple(mean.shape[1] for mean in means)
        return Mixture(torch.cat(means, 1), F.softplus(torch.cat(rhos, 1)), sizes, self.share)

    def add_gradients(self, parameters: Mapping[str, Tensor]) -> None:
        mixture = self.mixture(parameters)
        of_mean, of_std = mixture.gradients(self.prior_std, self.gamma)
        rho = torch.cat([parameters[names[1]].detach() for names in self.places], 1)
        of_rho = of_std * rho.sigmoid()
        for side, gradient in enumerate((of_mean, of_rho)):
            parts = (self.strength * gradient).split(mixture.sizes, 1)
            for names, part in zip(self.places, parts, strict=True):
                parameter = parameters[names[side]]
                if parameter.grad is not None:
                    parameter.grad.add_(part)


@dataclass(frozen=True)
class Except(Prior):
    """A prior on weights that leaves some parameters alone."""

    prior: Prior
    names: frozenset[str]
    on_weights = True

    def add_gradients(self, parameters: Mapping[str, Tensor]) -> None:
        self.prior.add_gradients({name: p for name, p in parameters.items() if name not in self.names})
