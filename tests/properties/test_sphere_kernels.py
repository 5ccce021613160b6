"""Kernels on the sphere: 1 on the diagonal, symmetric, falling with the angle, positive definite, safe at the edges."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from forde.kernels import RBF, InverseMultiquadric, Kernel, Laplace, VonMisesFisher
from forde.rules import WGD

KERNELS = [
    VonMisesFisher(3.0),
    Laplace(),
    Laplace(bandwidth=0.5, distance="chord"),
    Laplace(bandwidth=0.5),
    InverseMultiquadric(),
    InverseMultiquadric(bandwidth=1.0, exponent=2.0),
]
every_kernel = pytest.mark.parametrize("kernel", KERNELS, ids=repr)


def vectors(members: int = 6) -> Tensor:
    return torch.randn(members, 3, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))


@every_kernel
def test_diagonal_symmetry_and_scale(kernel: Kernel) -> None:
    z = vectors()
    values = kernel(z, z).values
    torch.testing.assert_close(values.diagonal(dim1=0, dim2=1), torch.ones(3, 6, dtype=torch.float64))
    torch.testing.assert_close(values, values.transpose(0, 1))
    torch.testing.assert_close(kernel(7 * z, 7 * z).values, values)


@every_kernel
def test_positive_definite_per_sample(kernel: Kernel) -> None:
    z = vectors(12)
    values = kernel(z, z).values.permute(2, 0, 1)
    assert torch.linalg.eigvalsh(values).min() > 0


@every_kernel
def test_falls_with_the_angle(kernel: Kernel) -> None:
    angles = torch.linspace(0, math.pi, 20, dtype=torch.float64)
    z = torch.stack([angles.cos(), angles.sin()], dim=-1).unsqueeze(1)
    assert bool((kernel(z, z).values[0, :, 0].diff() < 0).all())


@every_kernel
def test_coinciding_opposite_and_zero_vectors_are_safe(kernel: Kernel) -> None:
    z = torch.zeros(4, 1, 3, dtype=torch.float64)
    z[0, 0, 0] = z[1, 0, 0] = 1.0
    z[2, 0, 0] = -1.0
    forces = WGD()(kernel, z)
    assert bool(forces.cotangent.isfinite().all()) and bool(forces.energy.isfinite().all())
    same = WGD()(kernel, z[:1].expand(4, 1, 3))
    assert not same.cotangent.any()


@every_kernel
def test_gradient_against_finite_differences(kernel: Kernel) -> None:
    z = vectors(4)
    h = kernel(z, z).bandwidth
    fixed = kernel if isinstance(kernel, VonMisesFisher) else type(kernel)(**{**vars(kernel), "bandwidth": 0.7})
    assert h is not None
    direction = torch.randn_like(z)
    cotangent = WGD()(fixed, z).cotangent

    def energy(live: Tensor) -> Tensor:
        return fixed(live, z).values.mean(-1).sum(1).log().sum()

    step = 1e-5
    # All members move against the frozen ones at once: the energy of each depends on its own position only.
    moved = (energy(z + step * direction) - energy(z - step * direction)) / (2 * step)
    if isinstance(kernel, Laplace):  # has a kink where a member meets its own frozen copy
        off = cotangent
        torch.testing.assert_close((off * direction).sum(), moved, rtol=1e-2, atol=1e-2)
    else:
        torch.testing.assert_close((cotangent * direction).sum(), moved, rtol=1e-5, atol=1e-8)


def test_von_mises_fisher_is_the_rbf_of_unit_vectors() -> None:
    z = vectors()
    z = z / z.norm(dim=-1, keepdim=True)
    torch.testing.assert_close(VonMisesFisher(3.0)(z, z).values, RBF(bandwidth=2 / 3)(z, z).values)


@pytest.mark.parametrize(("distance", "value"), [("geodesic", math.pi / 2), ("chord", math.sqrt(2))])
def test_laplace_divides_by_the_root_of_the_bandwidth(distance: str, value: float) -> None:
    """A right angle at h = 9: h has the unit of a squared distance, so the exponent is the distance over 3."""
    u = torch.eye(2, dtype=torch.float64).unsqueeze(1)
    found = Laplace(bandwidth=9.0, distance=distance)(u, u).values[0, 1, 0]
    assert float(found) == pytest.approx(math.exp(-value / 3))


@pytest.mark.parametrize("kernel", [Laplace(), Laplace(distance="chord")], ids=repr)
def test_laplace_with_the_median_weighs_typical_neighbours_alike_at_any_scale(kernel: Laplace) -> None:
    """Under the median heuristic the kernel depends on ratios of distances only."""

    def fan(width: float) -> Tensor:
        angles = width * torch.tensor([0.0, 0.3, 0.5, 1.0], dtype=torch.float64)
        z = torch.stack([angles.cos(), angles.sin()], dim=-1).unsqueeze(1)
        return kernel(z, z).values

    torch.testing.assert_close(fan(1e-2), fan(1e-3), rtol=1e-4, atol=1e-6)
