"""Squared distances: the GPU's formula, in one piece and in slices, and the CPU's loop agree."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from forde.kernels import distance
from forde.kernels.distance import in_one_piece
from forde.kernels.metric import (
    PCA,
    WIDE,
    Metric,
    Tuned,
    _AmongThemselves,
    squared_distances,
    squared_distances_under,
)
from forde.kernels.pca import PrincipalDirections

M, B, D = 4, 3, 10


@pytest.fixture
def z() -> Tensor:
    generator = torch.Generator().manual_seed(0)
    z = torch.randn(M, B, D, generator=generator, dtype=torch.float64)
    z[2] = z[1]  # two members that coincide
    return z


def with_gradient(q: Tensor, live: Tensor) -> tuple[Tensor, Tensor]:
    weights = torch.arange(1.0, 1 + q.numel(), dtype=q.dtype).view_as(q)
    (gradient,) = torch.autograd.grad((q * weights).sum(), live)
    return q.detach(), gradient


@pytest.mark.parametrize("chunk", [1, 7, 40, M * B * D, 1 << 24])
def test_slices_and_loop_agree(chunk: int, z: Tensor, monkeypatch: pytest.MonkeyPatch) -> None:
    live = z.clone().requires_grad_()
    expected = with_gradient((live.unsqueeze(1) - z.unsqueeze(0)).square().sum(-1), live)
    monkeypatch.setattr(distance, "CHUNK", chunk)
    sliced = with_gradient(distance.InSlices.apply(live, z), live)
    looped = with_gradient(squared_distances(live, z), live)
    among_themselves = with_gradient(_AmongThemselves.apply(live, None), live)
    for found in (sliced, looped, among_themselves):
        torch.testing.assert_close(found[0], expected[0])
        torch.testing.assert_close(found[1], expected[1])


def test_coinciding_members_are_at_distance_zero_and_feel_nothing(z: Tensor) -> None:
    for distances in (
        squared_distances,
        distance.InSlices.apply,
        lambda live, _: _AmongThemselves.apply(live, None),
    ):
        live = z[1:3].float().requires_grad_()
        q, gradient = with_gradient(distances(live, z[1:3].float()), live)
        assert not q.any() and not gradient.any()


def test_in_one_piece_ends(z: Tensor) -> None:
    before = distance.CHUNK
    with in_one_piece():
        assert before < distance.CHUNK
        assert len(list(distance._blocks(z, z))) == 1
    assert before == distance.CHUNK


@pytest.mark.parametrize("size", [WIDE - 1, WIDE])
def test_among_themselves_at_any_size(size: int) -> None:
    z = torch.randn(3, 4, size, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    live = z.clone().requires_grad_()
    for found, expected in zip(
        with_gradient(squared_distances(live), live), with_gradient(squared_distances(live, z), live), strict=True
    ):
        torch.testing.assert_close(found, expected)


def fitted(kind: type[PCA] | type[Tuned], directions: int) -> Metric:
    generator = torch.Generator().manual_seed(1)
    basis = torch.linalg.qr(torch.randn(64, 64, dtype=torch.float64, generator=generator))[0][:, :directions]
    variances = torch.logspace(2, -4, directions, dtype=torch.float64)
    return kind(pca=PrincipalDirections(basis, variances, float(variances.sum())))


@pytest.mark.parametrize("kind", [PCA, Tuned])
@pytest.mark.parametrize("directions", [8, 32, 33, 64])
def test_one_product_under_a_metric_equals_two(kind: type[PCA] | type[Tuned], directions: int) -> None:
    metric = fitted(kind, directions)
    z = torch.randn(4, 5, 64, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    live = z.clone().requires_grad_()
    expected = with_gradient(squared_distances(metric(live), metric(z)), live)
    for found, other in zip(with_gradient(metric.squared_distances(live), live), expected, strict=True):
        torch.testing.assert_close(found, other, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("apart", [1.0, 1e-2, 1e-4])
def test_near_identical_members_under_a_metric_in_float32(apart: float) -> None:
    """The root of the metric rounds members before they are compared, which leaves nothing of such differences."""
    metric = fitted(PCA, 64)
    generator = torch.Generator().manual_seed(0)
    z = torch.randn(1, 5, 64, generator=generator) + apart * torch.randn(4, 5, 64, generator=generator)
    live, exact = z.clone().requires_grad_(), z.double().requires_grad_()
    expected = with_gradient(metric.squared_distances(exact), exact)
    for found, other in zip(with_gradient(metric.squared_distances(live), live), expected, strict=True):
        assert (found.double() - other).norm() < 1e-6 * other.norm()


def test_twins_under_a_metric_coincide_to_the_last_bit() -> None:
    form = torch.randn(40, 40, generator=torch.Generator().manual_seed(0))
    form = form @ form.T
    z = torch.randn(4, 3, 40, generator=torch.Generator().manual_seed(1))
    z[3] = z[1]
    live = z.clone().requires_grad_()
    q, gradient = with_gradient(squared_distances_under(form, live).sum(1), live)
    assert torch.equal(q[1], q[3]) and not squared_distances_under(form, z)[1, 3].any()
    live = z[1::2].clone().requires_grad_()
    q, gradient = with_gradient(squared_distances_under(form, live), live)
    assert not q.any() and not gradient.any()
