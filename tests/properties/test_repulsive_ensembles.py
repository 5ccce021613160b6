"""METHODS 2.5, 3, 4 and 8: properties of weight-, function- and feature-RDE, LIT and deep ensembles."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn

import forde
from forde.kernels import RBF, Fixed, Median, SquaredCosine
from forde.priors import Cauchy, Isotropic
from forde.rules import SGE, SSGE, SVGD, WGD, Penalty
from forde.rules.base import compare, gradient_sums
from forde.spaces import Features, InputGradients, Outputs, Weights
from forde.spaces.features import directions
from steps import loop, phase_1

M, P = 5, 7
GLOBAL = RBF(bandwidth="global")


@pytest.fixture
def z() -> Tensor:
    return torch.randn(M, 1, P, dtype=torch.float64, generator=torch.Generator().manual_seed(0))


def tanh_ensemble(members: int = 3) -> forde.Ensemble:
    return forde.Ensemble(lambda: nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3)), members, seed=1).double()


def batch(size: int = 8) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(2)
    return torch.randn(size, 4, dtype=torch.float64, generator=generator), torch.arange(size) % 3


def grads(ensemble: forde.Ensemble, method: forde.Method, **options: object) -> dict[str, Tensor]:
    engine = loop(copy.deepcopy(ensemble), method)
    engine.update(*batch(), **options)
    return {f"{i}.{n}": p.grad for i, group in enumerate(engine.runner.groups) for n, p in group.items()}


class TestRules:
    """Section 2.5."""

    def test_kde_is_the_gradient_of_the_log_density(self, z: Tensor) -> None:
        live = z.clone().requires_grad_()
        h = Median("all")((z[:, None, 0] - z[None, :, 0]).square().sum(-1, keepdim=True))
        difference = live[:, None, 0] - z[None, :, 0]
        log_density = (-difference.square().sum(-1) / h[0, 0]).exp().sum(1).log().sum()
        (expected,) = torch.autograd.grad(log_density, live)
        torch.testing.assert_close(WGD()(GLOBAL, z).cotangent, expected)

    @pytest.mark.parametrize("rule", [WGD(), SVGD(), SGE(), SSGE(), SSGE(n_eigenvalues=2), Penalty()])
    def test_identical_particles_feel_nothing(self, rule: WGD, z: Tensor) -> None:
        forces = rule(GLOBAL, z[:1].expand(M, 1, P))
        assert not forces.cotangent.any()
        assert bool(forces.energy.isfinite().all())

    @pytest.mark.parametrize("rule", [WGD(), SVGD(), SGE(), SSGE(), Penalty()])
    def test_adding_one_vector_to_all_changes_nothing(self, rule: WGD, z: Tensor) -> None:
        moved = rule(GLOBAL, z + torch.randn(1, 1, P, dtype=torch.float64))
        torch.testing.assert_close(moved.cotangent, rule(GLOBAL, z).cotangent, rtol=1e-8, atol=1e-10)

    def test_svgd_repulsions_sum_to_zero_and_kde_ones_do_not(self, z: Tensor) -> None:
        assert SVGD()(GLOBAL, z).cotangent.sum(0).abs().max() < 1e-12
        assert WGD()(GLOBAL, z).cotangent.sum(0).abs().max() > 1e-3

    def test_spectral_estimator_closed_form(self, z: Tensor) -> None:
        live, K, _ = compare(GLOBAL, z)
        G, K = gradient_sums(live, K).flatten(1), K.detach()
        ridge = K + 0.01 * torch.eye(M, dtype=torch.float64)
        inverse = torch.linalg.inv(ridge)
        torch.testing.assert_close(SSGE()(GLOBAL, z).cotangent.flatten(1), K @ inverse @ inverse @ G)
        torch.testing.assert_close(SGE()(GLOBAL, z).cotangent.flatten(1), inverse @ G)

    def test_estimators_agree_without_ridge(self, z: Tensor) -> None:
        a, b = SGE(ridge=1e-10)(GLOBAL, z).cotangent, SSGE(ridge=1e-10)(GLOBAL, z).cotangent
        torch.testing.assert_close(a, b, rtol=1e-6, atol=1e-8)

    def test_spectral_estimator_keeps_the_largest_eigenvalues(self, z: Tensor) -> None:
        everything = SSGE(n_eigenvalues=M)(GLOBAL, z).cotangent
        torch.testing.assert_close(everything, SSGE()(GLOBAL, z).cotangent)
        live, K, _ = compare(GLOBAL, z)
        G, K = gradient_sums(live, K).flatten(1), K.detach()
        values, vectors = torch.linalg.eigh(K + 0.01 * torch.eye(M, dtype=torch.float64))
        top = torch.outer(K @ vectors[:, -1], vectors[:, -1]) / values[-1] ** 2 @ G
        torch.testing.assert_close(SSGE(n_eigenvalues=1)(GLOBAL, z).cotangent.flatten(1), top)

    @pytest.mark.parametrize("space", [Weights(), Outputs()])
    def test_without_repulsion_and_prior_it_is_the_deep_ensemble(self, space: Weights) -> None:
        off = forde.Method(space=space, kernel=GLOBAL, prior=(), repulsion_scale=0.0)
        found, expected = grads(tanh_ensemble(), off), grads(tanh_ensemble(), forde.Method(prior=()))
        for name, gradient in expected.items():
            torch.testing.assert_close(found[name], gradient)

    @pytest.mark.parametrize("rule", [SVGD(), SGE(), SSGE(), Penalty()])
    def test_asymmetric_kernels_are_refused(self, rule: SVGD) -> None:
        with pytest.raises(forde.FordeError, match="needs a symmetric kernel"):
            forde.Method(space=Outputs(), kernel=RBF(bandwidth="per_column"), rule=rule)


class TestSvgdInNetworks:
    """SVGD mixes driving forces where the space says: equal to mixing by hand."""

    def test_weight_space(self) -> None:
        ensemble = tanh_ensemble()
        x, y = batch()
        N = 50
        method = forde.Method(space=Weights(), kernel=GLOBAL, rule=SVGD(), prior=Isotropic(0.1))
        found = grads(ensemble, method, data_size=N)
        drive, flat = [], []
        for member in ensemble.members:
            loss = nn.functional.cross_entropy(member(x), y)
            parts = torch.autograd.grad(loss, list(member.parameters()))
            drive.append(torch.cat([(g + 0.1 * p).flatten() for g, p in zip(parts, member.parameters(), strict=True)]))
            flat.append(torch.cat([p.detach().flatten() for p in member.parameters()]))
        forces = SVGD()(GLOBAL, torch.stack(flat).unsqueeze(1))
        expected = forces.mixing @ torch.stack(drive) + forces.cotangent[:, 0] / N
        for i in range(3):
            mine = torch.cat([g.flatten() for name, g in found.items() if name.startswith(f"{i}.")])
            torch.testing.assert_close(mine, expected[i])

    def test_function_space(self) -> None:
        ensemble = tanh_ensemble()
        x, y = batch()
        found = grads(ensemble, forde.Method(space=Outputs(), kernel=GLOBAL, rule=SVGD(), prior=()))
        outputs = [member(x) for member in ensemble.members]
        z = torch.stack([o.detach().flatten() for o in outputs]).unsqueeze(1)
        delta = []
        for output in outputs:
            leaf = output.detach().requires_grad_()
            delta += torch.autograd.grad(nn.functional.cross_entropy(leaf, y), leaf)
        forces = SVGD()(GLOBAL, z)
        for i, (member, output) in enumerate(zip(ensemble.members, outputs, strict=True)):
            force = sum(forces.mixing[i, j] * delta[j] for j in range(3))
            force = force + forces.cotangent[i].view_as(output) / len(y)
            expected = torch.autograd.grad(output, list(member.parameters()), force)
            for (name, _), gradient in zip(member.named_parameters(), expected, strict=True):
                torch.testing.assert_close(found[f"{i}.{name}"], gradient)

    def test_members_of_different_architectures_cannot_mix(self) -> None:
        ensemble = forde.Ensemble([lambda: nn.Linear(4, 3), lambda: forde.models.MLP(4, [5], 3)])
        method = forde.Method(space=InputGradients(), kernel=RBF(bandwidth="per_sample"), rule=SVGD())
        x, y = batch()
        with pytest.raises(forde.FordeError, match="different parameters"):
            loop(ensemble, method).update(x.float(), y)


class TestFeatures:
    """Section 3."""

    def test_directions_are_orthonormal_and_span_the_force(self) -> None:
        gradients = torch.randn(M, 1, 12, dtype=torch.float64)
        z = torch.randn(M, 1, 12, dtype=torch.float64)
        projection = Features(projection=3).project(z, gradients)
        eye = torch.eye(3, dtype=torch.float64)
        torch.testing.assert_close(projection.basis @ projection.basis.T, eye)
        force = projection.pull_back(WGD()(RBF(bandwidth="per_row"), projection.z).cotangent, z).flatten(1)
        torch.testing.assert_close(force @ projection.basis.T @ projection.basis, force)
        assert torch.linalg.matrix_rank(force) <= 3

    def test_largest_by_default_smallest_by_option(self) -> None:
        scales = torch.tensor([10.0, 3.0, 1.0, 0.1], dtype=torch.float64)
        gradients = torch.diag(scales)
        assert directions(gradients, 1)[0].abs().argmax() == 0
        assert directions(gradients, 1, smallest=True)[0].abs().argmax() == 3

    def test_identical_loss_gradients_are_finite(self) -> None:
        same = torch.ones(M, 9, dtype=torch.float64)
        basis = directions(same, 5)
        assert basis.shape[0] == 1 and bool(basis.isfinite().all())
        assert directions(torch.zeros(M, 9), 5).shape[1] == 9

    @pytest.mark.parametrize("scale", [1e-30, 1e-20, 1e15])
    def test_directions_do_not_depend_on_the_size_of_loss_gradients(self, scale: float) -> None:
        """Late in training they are tiny, and their squares are 0 in float32."""
        gradients = torch.randn(M, 12, generator=torch.Generator().manual_seed(0))
        expected = directions(gradients.double(), 3).float()
        found = directions(scale * gradients, 3)
        assert found.shape == expected.shape
        torch.testing.assert_close((found @ expected.T).abs(), torch.eye(3), atol=1e-4, rtol=0)

    def test_fixed_bandwidth_scaling(self) -> None:
        """F → cF with ℓ fixed and the median bandwidth: K unchanged, repulsion scaled by 1/c; not so as published."""
        z, gradients = torch.randn(2, M, 1, 12, dtype=torch.float64)
        for square, invariant in ((False, True), (True, False)):
            kernel = RBF(bandwidth=Median("row", square=square))
            found = []
            for c in (1.0, 3.0):
                projection = Features(projection=4).project(c * z, gradients)
                values = kernel(projection.z, projection.z).values
                found.append((values, c * WGD()(kernel, projection.z).cotangent))
            assert torch.allclose(found[0][0], found[1][0]) is invariant
            assert torch.allclose(found[0][1], found[1][1]) is invariant

    def test_shared_head_follows_the_mean_gradient(self) -> None:
        ensemble = tanh_ensemble()
        for member in ensemble.members[1:]:
            member[2].load_state_dict(ensemble.members[0][2].state_dict())
        shared = grads(ensemble, forde.method("feature-rde", prior=()))
        own = grads(ensemble, forde.method("feature-rde", shared_head=False, prior=()))
        for name in ("2.weight", "2.bias"):
            mean = torch.stack([own[f"{i}.{name}"] for i in range(3)]).mean(0)
            for i in range(3):
                torch.testing.assert_close(shared[f"{i}.{name}"], mean)
        torch.testing.assert_close(shared["0.0.weight"], own["0.0.weight"])

    def test_shared_heads_stay_equal(self) -> None:
        x, y = batch(24)
        ensemble = tanh_ensemble()
        forde.fit(ensemble, "feature-rde", (x, y), epochs=3, batch_size=8, verbose=False, engine="eager")
        heads = [member[2].weight for member in ensemble.members]
        assert torch.equal(heads[0], heads[1]) and torch.equal(heads[0], heads[2])
        assert not torch.equal(ensemble.members[0][0].weight, ensemble.members[1][0].weight)

    def test_no_prior_no_repulsion_is_joint_training_under_the_mean_loss(self) -> None:
        ensemble = tanh_ensemble()
        for member in ensemble.members[1:]:
            member[2].load_state_dict(ensemble.members[0][2].state_dict())
        method = forde.method("feature-rde", cauchy=0.0, repulsion_weight=0.0, prior=())
        found = grads(ensemble, method)
        x, y = batch()
        head = copy.deepcopy(ensemble.members[0][2])
        losses = [nn.functional.cross_entropy(head(m[1](m[0](x))), y) for m in ensemble.members]
        (head_gradient,) = torch.autograd.grad(sum(losses) / 3, head.weight, retain_graph=True)
        torch.testing.assert_close(found["0.2.weight"], head_gradient)
        (encoder_gradient,) = torch.autograd.grad(losses[1], ensemble.members[1][0].weight)
        torch.testing.assert_close(found["1.0.weight"], encoder_gradient)

    def test_moving_against_the_repulsion_separates_members(self) -> None:
        z, gradients = torch.randn(2, M, 1, 12, dtype=torch.float64)
        projection = Features(projection=5).project(z, gradients)
        force = WGD()(RBF(bandwidth="per_row"), projection.z).cotangent
        spread = [(p[:, None] - p[None]).square().sum(-1).mean() for p in (projection.z, projection.z - 1e-4 * force)]
        assert spread[1] > spread[0]

    @pytest.mark.parametrize("on", ["outputs", "features"])
    def test_cauchy_gradient(self, on: str) -> None:
        """(1/B) · 2aF/(1 + aF²)."""
        a, values = 0.3, torch.randn(8, 5, dtype=torch.float64, requires_grad=True)
        view = forde.spaces.View(torch.zeros(8), values, values, [], forde.likelihoods.Classification())
        (gradient,) = torch.autograd.grad(Cauchy(a, on=on).energy(view), values)
        torch.testing.assert_close(gradient, (2 * a * values / (1 + a * values**2) / 8).detach())
        assert torch.autograd.gradcheck(
            lambda v: Cauchy(a, on=on).energy(
                forde.spaces.View(torch.zeros(8), v, v, [], forde.likelihoods.Classification())
            ),
            values,
        )

    def test_named_layer(self) -> None:
        ensemble = tanh_ensemble()
        x, y = batch()
        named = phase_1(loop(ensemble, forde.Method(space=Features(layer="1"))), x, y).z
        default = phase_1(loop(ensemble, forde.Method(space=Features())), x, y).z
        torch.testing.assert_close(named, default)
        with pytest.raises(forde.FordeError, match="unknown layer"):
            loop(ensemble, forde.Method(space=Features(layer="one")))


class TestLit:
    """Section 4."""

    def value(self, *vectors: list[float]) -> float:
        g = torch.tensor(vectors, dtype=torch.float64).unsqueeze(1)
        return float(Penalty()(SquaredCosine(), g).energy.sum())

    def test_zero_for_orthogonal_one_per_parallel_or_opposite_pair(self) -> None:
        assert self.value([1, 0, 0], [0, 2, 0], [0, 0, 3]) == 0
        assert self.value([1, 2, 3], [2, 4, 6]) == pytest.approx(1)
        assert self.value([1, 2, 3], [-1, -2, -3]) == pytest.approx(1)
        assert self.value([1, 0], [2, 0], [-3, 0]) == pytest.approx(3)

    def test_invariant_to_scale_and_sign(self) -> None:
        g = torch.randn(M, 4, P, dtype=torch.float64)
        c = torch.randn(M, 4, 1, dtype=torch.float64)
        a, b = (Penalty()(SquaredCosine(), v).energy for v in (g, c * g))
        torch.testing.assert_close(a, b)

    def test_one_member_has_no_penalty(self) -> None:
        assert float(Penalty()(SquaredCosine(), torch.randn(1, 4, P)).energy.sum()) == 0

    def test_gradient_is_that_of_the_pair_sum_in_both_members(self) -> None:
        g = torch.randn(3, 4, P, dtype=torch.float64, requires_grad=True)
        unit = g / g.norm(dim=-1, keepdim=True)
        pairs = [(0, 1), (0, 2), (1, 2)]
        total = sum((unit[i] * unit[j]).sum(-1).square().mean() for i, j in pairs)
        (expected,) = torch.autograd.grad(total, g)
        forces = Penalty()(SquaredCosine(), g.detach())
        torch.testing.assert_close(forces.cotangent, expected)
        assert float(forces.energy.sum()) == pytest.approx(float(total.detach()))

    def test_reductions_differ_by_the_batch_size(self) -> None:
        g = torch.randn(3, 4, P, dtype=torch.float64)
        mean, total = (Penalty(reduction=r)(SquaredCosine(), g) for r in ("mean", "sum"))
        torch.testing.assert_close(total.energy, 4 * mean.energy)
        torch.testing.assert_close(total.cotangent, 4 * mean.cotangent)

    def test_joint_eps_as_in_the_authors_code(self) -> None:
        g = 1e-2 * torch.randn(2, 1, 3, dtype=torch.float64)
        expected = (g[0] * g[1]).sum() ** 2 / ((g[0] ** 2).sum() * (g[1] ** 2).sum() + 1e-6)
        found = SquaredCosine(eps=1e-6, joint=True)(g, g).values[0, 1, 0]
        torch.testing.assert_close(found, expected)


class TestDeepEnsemble:
    """Section 8."""

    def test_members_do_not_touch_each_other(self) -> None:
        x, y = batch(24)
        results = []
        for disturb in (False, True):
            ensemble = tanh_ensemble()
            if disturb:
                nn.init.normal_(ensemble.members[2][0].weight)
            forde.fit(ensemble, "deep-ensemble", (x, y), epochs=2, batch_size=8, verbose=False, engine="eager")
            results.append([p.detach() for p in ensemble.members[0].parameters()])
        assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))

    def test_copies_of_one_network_predict_as_that_network(self) -> None:
        ensemble = tanh_ensemble()
        for member in ensemble.members:
            member.load_state_dict(ensemble.members[0].state_dict())
        x, _ = batch()
        prediction = ensemble.predict(x)
        torch.testing.assert_close(prediction.probs, ensemble.members[0](x).softmax(-1).detach())
        assert prediction.epistemic.abs().max() < 1e-12

    def test_batchnorm_buffers_belong_to_members(self) -> None:
        ensemble = forde.Ensemble(lambda: forde.models.MLP(4, [6], 3, batch_norm=True), 3)
        x, y = batch(24)
        forde.fit(ensemble, "deep-ensemble", (x, y), epochs=1, batch_size=8, verbose=False)
        means = [member.body[1].running_mean for member in ensemble.members]
        assert not torch.equal(means[0], means[1])
        assert len({m.data_ptr() for m in means}) == 3

    def test_independent_data(self) -> None:
        x, y = batch(24)
        ensemble = tanh_ensemble()
        for member in ensemble.members:
            member.load_state_dict(ensemble.members[0].state_dict())
        options = {"epochs": 1, "batch_size": 8, "verbose": False}
        forde.fit(ensemble, "deep-ensemble", (x, y), independent_data=True, **options)
        assert not torch.equal(ensemble.members[0][0].weight, ensemble.members[1][0].weight)
        with pytest.raises(forde.FordeError, match="do not interact"):
            forde.fit(ensemble, "forde-pca", (x, y), independent_data=True, **options)


def test_weight_distances_are_exact_for_near_identical_members() -> None:
    """Differences, not the Gram expansion, which loses them in float32."""
    base = torch.randn(1, 1, 1000)
    z = base + 1e-4 * torch.randn(3, 1, 1000)
    q = RBF(bandwidth=Fixed(1.0))(z, z).values.log().neg().squeeze(-1)
    expected = (z.double() - z.double().transpose(0, 1)).square().sum(-1)
    torch.testing.assert_close(q.double(), expected, rtol=1e-2, atol=0)
