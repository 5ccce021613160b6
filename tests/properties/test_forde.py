"""METHODS 1.5: properties of FoRDE's repulsion."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import forde
from forde.engine import EngineName, inspect_step
from forde.kernels import PCA, RBF, Identity, Median, PrincipalDirections, Tuned, fit_pca
from forde.kernels.metric import squared_distances
from forde.rules import WGD
from forde.vectors import unit

M, B, D = 5, 4, 6


@pytest.fixture
def G() -> Tensor:
    return torch.randn(M, B, D, dtype=torch.float64, generator=torch.Generator().manual_seed(0))


def spectrum(scale: float = 1.0) -> PrincipalDirections:
    generator = torch.Generator().manual_seed(1)
    u = torch.linalg.qr(torch.randn(D, D, dtype=torch.float64, generator=generator)).Q
    lam = scale * torch.logspace(1, -3, D, dtype=torch.float64)
    return PrincipalDirections(u, lam, float(lam.sum()))


def repulsion(kernel: RBF, G: Tensor) -> tuple[Tensor, Tensor]:
    """R `[M]` in mean-loss units and ∂(Σ R)/∂G `[M, B, D]`."""
    live = G.clone().requires_grad_()
    s = unit(live)
    forces = WGD()(kernel, s)
    (grad,) = torch.autograd.grad(s, live, forces.cotangent / B)
    return forces.energy / B, grad


@pytest.mark.parametrize("kernel", [RBF(), RBF(PCA(pca=spectrum())), RBF(Tuned(pca=spectrum()))])
@pytest.mark.parametrize("start", ["random", "zero"])
def test_identical_members_have_known_energy_and_no_force(kernel: RBF, start: str, G: Tensor) -> None:
    same = (G[:1] if start == "random" else torch.zeros_like(G[:1])).expand(M, B, D)
    energy, grad = repulsion(kernel, same)
    torch.testing.assert_close(energy, torch.full((M,), math.log(M) / B, dtype=torch.float64))
    assert not grad.any()


@pytest.mark.parametrize("kernel", [RBF(), RBF(PCA(pca=spectrum()))])
def test_twins_get_equal_gradients(kernel: RBF, G: Tensor) -> None:
    G[3] = G[1]
    _, grad = repulsion(kernel, G)
    assert torch.equal(grad[1], grad[3])
    assert grad[1].any()


@pytest.mark.parametrize("kernel", [RBF(), RBF(PCA(pca=spectrum()))])
def test_lengths_of_gradients_do_not_matter(kernel: RBF, G: Tensor) -> None:
    energy, grad = repulsion(kernel, G)
    factors = torch.rand(M, B, 1, dtype=torch.float64) * 100 + 0.01
    scaled, _ = repulsion(kernel, G * factors)
    torch.testing.assert_close(scaled, energy, rtol=1e-10, atol=0)
    along = (grad * G).sum(-1).abs().max()
    assert along < 1e-12 * grad.norm() * G.norm()


def test_scale_of_eigenvalues_does_not_matter(G: Tensor) -> None:
    small, big = (repulsion(RBF(PCA(pca=spectrum(scale))), G) for scale in (1.0, 1e4))
    torch.testing.assert_close(big[0], small[0], rtol=1e-8, atol=0)
    torch.testing.assert_close(big[1], small[1], rtol=1e-7, atol=1e-12)


@pytest.mark.parametrize("metric", [Identity(), PCA(pca=spectrum())])
def test_cotangent_equals_the_closed_form(metric: Identity | PCA, G: Tensor) -> None:
    """∂(B·R_i)/∂s̃_ib = −Σ_j w_ijb · 2(s̃_ib − s̃_jb)/h_jb, w_i·· = softmax over (j, b) of −d/h."""
    seen = metric(unit(G))
    forces = WGD()(RBF(Identity()), seen)
    d = squared_distances(seen, seen)
    h = Median("column")(d)
    w = (-d / h).flatten(1).softmax(-1).view_as(d)
    difference = seen[:, None] - seen[None]
    expected = -(w / h).unsqueeze(-1).mul(2 * difference).sum(1)
    torch.testing.assert_close(forces.cotangent, expected, rtol=1e-10, atol=1e-14)


def test_cotangent_against_finite_differences(G: Tensor) -> None:
    kernel = RBF(PCA(pca=spectrum()))
    h = kernel(G, G).bandwidth

    def energy(live: Tensor) -> Tensor:
        q = squared_distances(kernel.metric(live), kernel.metric(G))
        return (-q / h).exp().mean(-1).sum(1).log()

    cotangent = WGD()(kernel, G).cotangent
    direction = torch.randn(M, B, D, dtype=torch.float64)
    step = 1e-5
    for i in range(M):
        moved = torch.zeros_like(G)
        moved[i] = direction[i]
        numeric = (energy(G + step * moved)[i] - energy(G - step * moved)[i]) / (2 * step)
        torch.testing.assert_close((cotangent[i] * direction[i]).sum(), numeric, rtol=1e-6, atol=1e-9)


def test_pca_distance_is_the_quadratic_form(G: Tensor) -> None:
    pca = spectrum()
    S = pca.directions @ torch.diag(pca.variances) @ pca.directions.T
    seen = PCA(pca=pca)(G)
    difference = G[:, None] - G[None]
    expected = torch.einsum("ijbd,de,ijbe->ijb", difference, S, difference)
    torch.testing.assert_close(squared_distances(seen, seen), expected, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("harmonic", [False, True])
@pytest.mark.parametrize("rank", [None, 3])
def test_tuned_ends_are_identity_and_pca(harmonic: bool, rank: int | None, G: Tensor) -> None:
    pca = spectrum()
    if rank is not None:
        pca = PrincipalDirections(pca.directions[:, :rank], pca.variances[:rank], pca.total_variance)

    def distances(metric: Identity | PCA | Tuned) -> Tensor:
        seen = metric(G)
        return squared_distances(seen, seen)

    options = {"pca": pca, "harmonic": harmonic}
    torch.testing.assert_close(distances(Tuned(alpha=0.0, **options)), distances(Identity()))
    torch.testing.assert_close(distances(Tuned(alpha=1.0, **options)), distances(PCA(pca=pca)))


def test_harmonic_closed_form(G: Tensor) -> None:
    """S(αI + (1−α)S)⁻¹."""
    pca, alpha = spectrum(), 0.3
    S = pca.directions @ torch.diag(pca.variances) @ pca.directions.T
    eye = torch.eye(D, dtype=torch.float64)
    expected = S @ torch.linalg.inv(alpha * eye + (1 - alpha) * S)
    matrix = Tuned(pca=pca, alpha=alpha, harmonic=True).matrix(G.device, G.dtype)
    torch.testing.assert_close(matrix @ matrix.T, expected, rtol=1e-9, atol=1e-12)


def test_low_rank_metric_weighs_the_rest_as_zero_variance(G: Tensor) -> None:
    full = spectrum()
    lam = full.variances.clone()
    lam[3:] = 0
    low = PrincipalDirections(full.directions[:, :3], full.variances[:3], full.total_variance)
    zeroed = PrincipalDirections(full.directions, lam, full.total_variance)
    for make in (PCA, Tuned):
        a, b = make(pca=low)(G), make(pca=zeroed)(G)
        torch.testing.assert_close(squared_distances(a, a), squared_distances(b, b), rtol=1e-9, atol=1e-12)


def test_box_kernel_is_the_text_kernel_squared(G: Tensor) -> None:
    text = RBF(bandwidth=Median("sample"))(G, G).values
    box = RBF(bandwidth=Median("sample", halve=True))(G, G).values
    torch.testing.assert_close(box, text.square(), rtol=1e-8, atol=1e-14)


def test_symmetry_of_bandwidths(G: Tensor) -> None:
    for bandwidth, symmetric in (("per_sample", True), ("global", True), (2.0, True), ("per_column", False)):
        kernel = RBF(bandwidth=bandwidth)
        values = kernel(G, G).values
        assert torch.allclose(values, values.transpose(0, 1)) is symmetric
        assert kernel.symmetric is symmetric


def test_relabelling_members_permutes_the_repulsion(G: Tensor) -> None:
    order = [3, 0, 4, 1, 2]
    energy, grad = repulsion(RBF(), G)
    permuted_energy, permuted_grad = repulsion(RBF(), G[order])
    torch.testing.assert_close(permuted_energy, energy[order])
    torch.testing.assert_close(permuted_grad, grad[order])


def test_two_members_have_the_constant_kernel_of_a_quarter(G: Tensor) -> None:
    """The true median of {0, d} is d/2, so k = exp(−d ln 2/(d/2)) = 1/4; torch.median would kill the kernel."""
    values = RBF()(G[:2], G[:2]).values
    torch.testing.assert_close(values[0, 1], torch.full((B,), 0.25, dtype=torch.float64), rtol=1e-9, atol=0)
    assert repulsion(RBF(), G[:2])[1].any()


def test_one_feature_means_no_repulsion() -> None:
    """s = ±1 on a line: nothing to rotate."""
    live = torch.randn(M, B, 1, dtype=torch.float64).requires_grad_()
    s = unit(live)
    (grad,) = torch.autograd.grad(s, live, WGD()(RBF(), s).cotangent)
    assert grad.abs().max() < 1e-12


def test_batchnorm_couples_samples() -> None:
    """linear → BatchNorm: the gradients of the batch-summed logit sum to zero over the batch."""
    torch.manual_seed(0)
    ensemble = forde.Ensemble(
        lambda: nn.Sequential(nn.Linear(D, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Linear(8, 3)), 2
    ).double()
    method = forde.Method(space=forde.spaces.InputGradients(normalise=False))
    x, y = torch.randn(B, D, dtype=torch.float64), torch.tensor([0, 1, 2, 0])
    z = inspect_step(ensemble.train(), method, x, y).z
    assert z.abs().max() > 1e-3
    torch.testing.assert_close(z.sum(1), torch.zeros(2, D, dtype=torch.float64), atol=1e-12, rtol=0)


def test_biases_of_a_relu_network_feel_no_repulsion() -> None:
    ensemble = forde.Ensemble(lambda: nn.Sequential(nn.Linear(D, 8), nn.ReLU(), nn.Linear(8, 3)), 3).double()
    method = forde.method("forde-identity", prior=())
    x, y = torch.randn(B, D, dtype=torch.float64), torch.tensor([0, 1, 2, 0])
    for by_name in inspect_step(ensemble, method, x, y).of_repulsion:
        assert by_name["0.weight"].any()
        assert "0.bias" not in by_name or not by_name["0.bias"].any()
        assert "2.bias" not in by_name


def test_float32_matches_float64(G: Tensor) -> None:
    wide, narrow = repulsion(RBF(), G)[1], repulsion(RBF(), G.float())[1]
    torch.testing.assert_close(narrow.double(), wide, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(("dtype", "size"), [(torch.bfloat16, 1.0), (torch.float16, 1e-5)])
@pytest.mark.parametrize("engine", ["eager", "vectorized"])
def test_half_precision_networks_are_compared_by_whole_directions(
    engine: EngineName, dtype: torch.dtype, size: float
) -> None:
    """The input gradient of a linear network's logit is a row of its weight: s = W_y/‖W_y‖, here in float64."""
    ensemble = forde.Ensemble(lambda: nn.Linear(D, 3), 2)
    with torch.no_grad():
        for member in ensemble.members:
            member.weight *= size
    ensemble.to(dtype)
    x, y = torch.randn(B, D).to(dtype), torch.tensor([0, 1, 2, 0])
    expected = torch.stack([F.normalize(member.weight.detach().double()[y], dim=-1) for member in ensemble.members])
    z = inspect_step(ensemble, forde.method("forde-identity"), x, y, engine=engine).z
    torch.testing.assert_close(z.double(), expected, rtol=0, atol=1e-6)


class TestPca:
    @pytest.mark.parametrize("route", ["moment", "gram", "randomised"])
    def test_low_rank_keeps_the_directions_of_largest_variance(
        self, route: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """RRᵀ is the best approximation of rank 2 to the second moment, as numpy's singular values give it."""
        if route == "randomised":
            monkeypatch.setattr("forde.kernels.pca.LARGE_INPUT", 10)
        size = 60 if route == "gram" else 20
        generator = torch.Generator().manual_seed(0)
        x = torch.randn(40, size, dtype=torch.float64, generator=generator)
        x = x * torch.logspace(1, -2, size, dtype=torch.float64)[torch.randperm(size, generator=generator)]
        _, singular, v = np.linalg.svd(x.numpy(), full_matrices=False)
        expected = (v[:2].T * (singular[:2] ** 2 / 39)) @ v[:2]
        root = PCA(rank=2).prepare(lambda: iter(x.split(16))).matrix(x.device, x.dtype)
        torch.testing.assert_close(root @ root.T, torch.from_numpy(expected), rtol=1e-4, atol=1e-4)

    def test_explained_variance(self) -> None:
        x = torch.randn(500, 3, dtype=torch.float64) * torch.tensor([10.0, 1.0, 0.1])
        pca = fit_pca(lambda: iter(x.split(64)))
        torch.testing.assert_close(pca.explained_variance_ratio.sum(), torch.tensor(1.0, dtype=torch.float64))
        assert pca.explained_variance_ratio[0] > 0.95

    @pytest.mark.parametrize("center", [False, True])
    def test_more_inputs_than_samples(self, center: bool) -> None:
        """The N×N route gives the same metric as the D×D moment."""
        x = torch.randn(7, 20, dtype=torch.float64) + 0.5
        shifted = x - x.mean(0) if center else x
        pca = fit_pca(lambda: iter(x.split(3)), center=center)
        assert pca.directions.shape[1] == (6 if center else 7)
        moment = shifted.T @ shifted / 6
        torch.testing.assert_close(pca.directions @ torch.diag(pca.variances) @ pca.directions.T, moment)
        assert pca.total_variance == pytest.approx(float(moment.trace()))

    def test_streamed_in_any_batches(self) -> None:
        x = torch.randn(50, 6, dtype=torch.float64)
        a, b = (fit_pca(lambda size=size: iter(x.split(size)), center=True) for size in (1, 50))
        torch.testing.assert_close(a.variances, b.variances)

    def test_randomised_route_finds_the_top_directions(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("forde.kernels.pca.LARGE_INPUT", 10)
        generator = torch.Generator().manual_seed(0)
        x = torch.randn(300, 60, dtype=torch.float64, generator=generator)
        x = x * torch.logspace(1, -1, 60, dtype=torch.float64)
        exact = torch.linalg.eigvalsh(x.T @ x / 299).flip(0)
        pca = fit_pca(lambda: iter(x.split(32)), rank=5)
        torch.testing.assert_close(pca.variances, exact[:5], rtol=1e-4, atol=0)
        torch.testing.assert_close(pca.directions.T @ pca.directions, torch.eye(5, dtype=torch.float64))
        assert pca.total_variance == pytest.approx(float(exact.sum()))

    def test_constant_features_have_zero_weight(self) -> None:
        x = torch.randn(40, 4, dtype=torch.float64)
        x[:, 2] = 0
        metric = PCA().prepare(lambda: iter([x]))
        z = torch.randn(3, 2, 4, dtype=torch.float64)
        moved = z.clone()
        moved[..., 2] += 10
        torch.testing.assert_close(metric(moved), metric(z), atol=1e-6, rtol=0)


@pytest.mark.parametrize(
    ("likelihood", "same"),
    [("classification", "log_prob"), (F.cross_entropy, "log_prob"), ("regression", "logit")],
)
def test_auto_differentiates_the_log_probability_of_classes_and_the_output_of_anything_else(
    likelihood: object, same: str
) -> None:
    x = torch.randn(8, 4, generator=torch.Generator().manual_seed(0))
    y, outputs = (x.sum(1), 1) if likelihood == "regression" else (torch.arange(8) % 3, 3)
    found = []
    for output in ("auto", same, "logit"):
        ensemble = forde.Ensemble(lambda: nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, outputs)), 2)
        ensemble.likelihood = forde.likelihoods.as_likelihood(likelihood)
        found.append(inspect_step(ensemble.train(), forde.method("forde-identity", output=output), x, y).z)
    assert torch.equal(found[0], found[1])
    assert torch.equal(found[0], found[2]) == (same == "logit")


def test_the_recipe_has_the_metrics_between_identity_and_pca() -> None:
    """`forde` with α is `forde-tuned` with the recipe's other choices."""
    others = {"output": "auto", "repulsion_weight": 10.0, "repulsion_fraction": 0.25}
    assert forde.method("forde", alpha=0.3).kernel == forde.method("forde-tuned", alpha=0.3, **others).kernel
    assert forde.method("forde").kernel == RBF(PCA(), forde.method("forde-pca").kernel.bandwidth)  # type: ignore[union-attr]
    with pytest.raises(forde.FordeError, match=r"alpha is 0\.3, but tokens have no principal directions"):
        forde.method("forde", alpha=0.3, of="embeddings")
