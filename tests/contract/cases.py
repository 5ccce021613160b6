"""What the contract suite runs over. Registered methods are here by themselves; add a variant with one entry."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

import forde

CLASSES = 3
SAMPLES = 24

VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "feature-rde, separate heads": ("feature-rde", {"shared_head": False}),
    "feature-rde, all features": ("feature-rde", {"projection": None}),
    "feature-rde, as in the authors' code": ("feature-rde", {"official_smallest": True, "official_square": True}),
    "forde-tuned, paper's formula": ("forde-tuned", {"harmonic": True}),
    "forde-pca, rank 3": ("forde-pca", {"rank": 3}),
    "forde-pca, on a quarter of the batch": ("forde-pca", {"repulsion_fraction": 0.25}),
    "feature-rde, on half of the batch": ("feature-rde", {"repulsion_fraction": 0.5}),
    "forde-identity, log-probability": ("forde-identity", {"output": "log_prob"}),
    "forde-identity, bandwidth per sample": ("forde-identity", {"bandwidth": "per_sample"}),
    "function-rde, probabilities": ("function-rde", {"of": "probs"}),
    "lit, as in the authors' code": (
        "lit",
        {"output": "ce", "reduction": "sum", "eps": 1e-6, "strength": 0.01},
    ),
}

METHODS: dict[str, tuple[str, dict[str, Any]]] = {
    **{name: (name, {}) for name in forde.methods()},
    **{f"{name} + empcov": (name, {"prior": "empcov"}) for name in forde.methods()},
    **VARIANTS,
}
PARTICLES = {case: given for case, given in METHODS.items() if forde.method(given[0]).one_network is None}
"""Those whose members are trained themselves; others train one network, and draw members from what they found."""


class Mlp(nn.Module):
    """Smooth, so that finite differences of second derivatives are meaningful."""

    shape = (6,)

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 7), nn.Tanh())
        self.head = nn.Linear(7, CLASSES)

    def features(self, x: Tensor) -> Tensor:
        return self.body(x)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.features(x))


class ConvBatchNorm(nn.Module):
    shape = (2, 5, 5)

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(2, 4, 3, padding=1, bias=False), nn.BatchNorm2d(4)
        self.head = nn.Linear(4, CLASSES)

    def features(self, x: Tensor) -> Tensor:
        return torch.tanh(self.norm(self.conv(x))).mean((-2, -1))

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.features(x))


NETWORKS: dict[str, type[Mlp] | type[ConvBatchNorm]] = {"mlp": Mlp, "conv+batchnorm": ConvBatchNorm}


def make_method(case: str, **more: Any) -> forde.Method:
    name, options = METHODS[case]
    return forde.method(name, **{**options, **more})


def make_data(network: str, dtype: torch.dtype = torch.float32, seed: int = 0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(SAMPLES, *NETWORKS[network].shape, generator=generator, dtype=torch.float64)
    # Unequal variances: PCA and EmpCov then differ from the identity.
    x = x * torch.linspace(0.5, 2, x[0].numel(), dtype=torch.float64).view(x.shape[1:])
    y = torch.arange(SAMPLES) % CLASSES
    return x.to(dtype), y[torch.randperm(SAMPLES, generator=generator)]


def make_ensemble(network: str, members: int = 3, seed: int = 0, dtype: torch.dtype = torch.float32) -> forde.Ensemble:
    return forde.Ensemble(NETWORKS[network], members, seed=seed).to(dtype)
